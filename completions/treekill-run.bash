_treekill__run() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="treekill__run"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        treekill__run)
            opts="-t -s -k -p -b -f -q -v -h -V --timeout --signal --kill-after --stages --signal-to --preserve-status --leftovers --leftover-grace --leftover-status --keep --drain-limit --idle-timeout --backend --memory-max --pids-max --cpu-max --die-with-parent --no-guard --no-new-privs --foreground --new-session --report --report-fd --report-schema --stats --gnu --quiet --verbose --doctor --help --version"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --timeout)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --signal)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -s)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --kill-after)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -k)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --stages)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --signal-to)
                    COMPREPLY=($(compgen -W "tree group command" -- "${cur}"))
                    return 0
                    ;;
                --leftovers)
                    COMPREPLY=($(compgen -W "kill wait leave" -- "${cur}"))
                    return 0
                    ;;
                --leftover-grace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --leftover-status)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --keep)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --drain-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --idle-timeout)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --backend)
                    COMPREPLY=($(compgen -W "auto cgroup systemd pidns subreaper" -- "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -W "auto cgroup systemd pidns subreaper" -- "${cur}"))
                    return 0
                    ;;
                --memory-max)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pids-max)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cpu-max)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --report)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --report-fd)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _treekill__run -o nosort -o bashdefault -o default treekill-run
else
    complete -F _treekill__run -o bashdefault -o default treekill-run
fi

# From the first word that is no option on, it is the command's own completion.
_treekill_run_or_command() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
            --) ((i++)); break ;;
            -t|--timeout|-s|--signal|-k|--kill-after|--stages|--signal-to|--leftovers|--leftover-grace|--leftover-status|--keep|--drain-limit|--idle-timeout|-b|--backend|--memory-max|--pids-max|--cpu-max|--report|--report-fd)
                ((i++))
                [[ ${COMP_WORDS[i]-} != = ]] || ((i++))
                ;;
            -*) ;;
            *) break ;;
        esac
    done
    if ((i > COMP_CWORD)) || [[ $i == "$COMP_CWORD" && ${COMP_WORDS[i]} == -* && ${COMP_WORDS[i - 1]} != -- ]]; then
        _treekill__run "$@"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$i"
    elif ((i == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[i]}")
    fi
}
complete -F _treekill_run_or_command -o bashdefault -o default treekill-run
