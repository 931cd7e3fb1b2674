# shellcheck shell=bash
# Sourced by the scripts of this folder: messages, packages, and a Debian root file system.
set -euo pipefail
umask 022
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C

cache=${TREEKILL_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/treekill-lab}

note() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
# 125 is the lab's own failure, so that it is not taken for one of what it runs.
die() {
  note "$*"
  exit 125
}
set -E
trap 'die "failed (line $LINENO): $BASH_COMMAND"' ERR

# need COMMAND PACKAGE: installs the package if the command is missing.
need() {
  command -v "$1" >/dev/null && return
  note "installing $2"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
  "${apt[@]}" install -y --no-install-recommends "$2" >/dev/null 2>&1 ||
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "$2" >/dev/null; } >&2 ||
    die "cannot install $2"
}

# lock_cache: one builder at a time, until descriptor 8 is closed.
lock_cache() {
  mkdir -p "$cache"
  cache=$(realpath "$cache")
  exec 8>"$cache/lock"
  flock -w 900 8 || die "timed out waiting for $cache/lock"
  rm -rf "$cache"/build.*
}

# sources SUITE FILE: the system's own Debian mirrors, for any release.
sources() {
  local list main security
  local options='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
  # shellcheck disable=SC2016 # the $(...) are apt's own format fields
  list() { apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' | sort -u; }
  list=$(list)
  [ -n "$list" ] || { apt-get -qq update >&2 || die 'apt-get update failed'; list=$(list); }
  main=$(sed -n 's/^Debian|//p' <<<"$list" | head -n1)
  security=$(sed -n 's/^Debian-Security|//p' <<<"$list" | head -n1)
  [ -n "$main" ] || die "the system's apt sources hold no Debian mirror"
  echo "deb $options $main $1 main" >"$2"
  case $1 in
    # They are what differs from their release, and have no security updates of their own.
    *-backports) echo "deb $options $main ${1%-backports} main" >>"$2" ;;
    *) [ -z "$security" ] || echo "deb $options $security $1-security main" >>"$2" ;;
  esac
}

# debian SUITE DIR PACKAGES [OPTION...]: a small Debian of this release with these packages.
debian() {
  need mmdebstrap mmdebstrap
  sources "$1" "$2.list"
  timeout 600 mmdebstrap --mode=root --variant=minbase --format=directory --quiet "${@:4}" ${3:+"--include=$3"} \
    "$1" "$2" "$2.list" >"$2.log" 2>&1 || { tail -n 20 "$2.log" >&2; die "mmdebstrap $1 failed"; }
}
