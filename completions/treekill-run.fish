complete -c treekill-run -s t -l timeout -d 'Stop the tree after this long (30, 1.5m, 250ms, 1m30s); 0 is never' -r
complete -c treekill-run -s s -l signal -d 'First signal of a stop: a name with or without SIG, a number, RTMIN+N' -r
complete -c treekill-run -s k -l kill-after -d 'From the first signal to SIGKILL; 0 is never [default: 10s]' -r
complete -c treekill-run -l stages -d 'Signals in turn, such as INT:5s,QUIT:2s,KILL; without KILL at the end it never kills' -r
complete -c treekill-run -l signal-to -d 'Who gets the first signal; SIGKILL is always for all' -r -f -a "tree\t'Every process of the tree'
group\t'The members of the tree in the command\'s process group'
command\t'The command alone'"
complete -c treekill-run -l leftovers -d 'What to do with processes that outlive the command' -r -f -a "kill\t'End them'
wait\t'Wait for them, within the timeout'
leave\t'Leave them running'"
complete -c treekill-run -l leftover-grace -d 'How long processes that outlive the command may take to finish by themselves' -r
complete -c treekill-run -l leftover-status -d 'Status when the command succeeded but left processes; 0 leaves its own [default: 193]' -r
complete -c treekill-run -l keep -d 'Processes that are no leftovers, by name or a word of their command line; may be repeated' -r
complete -c treekill-run -l drain-limit -d 'Longest wait for emptiness after SIGKILL; 0 waits for ever' -r
complete -c treekill-run -l idle-timeout -d 'Stop the tree when nothing in it has done anything for this long; 0 is never' -r
complete -c treekill-run -s b -l backend -d 'What holds the tree, in order of preference; the first that works is taken' -r -f -a "auto\t'The first of cgroup, systemd and subreaper that works'
cgroup\t'A cgroup v2 leaf of our own'
systemd\t'A transient systemd scope around the keeper, and a leaf in it'
pidns\t'A PID namespace of the command\'s own; never taken by auto'
subreaper\t'Ancestry alone'"
complete -c treekill-run -l memory-max -d 'Most memory for the whole tree: 512M, 2G, or a share of the machine\'s, 50%' -r
complete -c treekill-run -l pids-max -d 'Most processes and threads in the whole tree at once' -r
complete -c treekill-run -l cpu-max -d 'Most CPU time for the whole tree, in percent of one CPU' -r
complete -c treekill-run -l report -d 'Write a JSON report of the run to this file' -r -F
complete -c treekill-run -l report-fd -d 'Write a JSON report of the run to this open descriptor' -r
complete -c treekill-run -s p -l preserve-status -d 'After a timeout, end with the command\'s status instead of 124'
complete -c treekill-run -l die-with-parent -d 'Stop the tree when the process that called treekill-run dies'
complete -c treekill-run -l no-guard -d 'If treekill-run is killed with SIGKILL, let the command go on without a limit'
complete -c treekill-run -l no-new-privs -d 'Forbid everything in the tree to gain privileges, as setuid programs do'
complete -c treekill-run -s f -l foreground -d 'Leave the command in the caller\'s session and process group'
complete -c treekill-run -l new-session -d 'Give the command a session of its own, out of reach of the caller\'s terminal'
complete -c treekill-run -l report-schema -d 'Print the JSON Schema of the report and do nothing else'
complete -c treekill-run -l stats -d 'Say in one line at the end what the tree has used; -q does not silence that'
complete -c treekill-run -l gnu -d 'Read GNU timeout\'s command line; must come first, implied when called timeout'
complete -c treekill-run -s q -l quiet -d 'Say nothing but treekill-run\'s own errors'
complete -c treekill-run -s v -l verbose -d 'Say each step, and show the tree as it was when a stop began'
complete -c treekill-run -l doctor -d 'Say which backends and limits work here, what would make the others work; run nothing'
complete -c treekill-run -s h -l help -d 'Print help; the manual says more'
complete -c treekill-run -s V -l version -d 'Print the version'

# From the first word that is no option on, it is the command's own completion.
complete -c treekill-run -x -a "(__fish_complete_subcommand -- -t --timeout -s --signal -k --kill-after --stages --signal-to --leftovers --leftover-grace --leftover-status --keep --drain-limit --idle-timeout -b --backend --memory-max --pids-max --cpu-max --report --report-fd)"
