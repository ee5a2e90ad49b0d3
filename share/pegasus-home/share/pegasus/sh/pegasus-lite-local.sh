#!/bin/bash
# Runs a job of the universe local or scheduler, where HTCondor transfers no files: brings them, runs the
# arguments, takes the outputs back. Variables are those that Pegasus sets:
#   _PEGASUS_INITIAL_DIR             directory of inputs with relative names, and of outputs
#   _PEGASUS_EXECUTE_IN_INITIAL_DIR  the job works there
#   _PEGASUS_TRANSFER_INPUT_FILES    inputs, separated by commas
#   _PEGASUS_TRANSFER_OUTPUT_FILES   outputs
#   _PEGASUS_TRANSFER_OUTPUT_REMAPS  new names of outputs: "NAME=PATH;NAME=PATH"
#   _PEGASUS_CONNECT_STDIN           the job reads standard input

fail() {
    echo "pegasus-lite-local: $*" >&2
    exit 1
}

from=${_PEGASUS_INITIAL_DIR:-$PWD}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/pegasus.local.XXXXXXXX") || fail "cannot make a directory"
child=

clean() {
    cd / && rm -rf "$scratch"
}
trap clean EXIT
# The job gets the signal; this script ends with it.
for signal in HUP INT TERM; do
    # shellcheck disable=SC2064 # The name of the signal is that of now.
    trap "[ -z \"\$child\" ] || kill -s $signal \"\$child\" 2>/dev/null" "$signal"
done

IFS=, read -r -d '' -a inputs < <(printf '%s\0' "${_PEGASUS_TRANSFER_INPUT_FILES-}")
for file in "${inputs[@]}"; do
    [ -n "$file" ] || continue
    case $file in
    /*) path=$file ;;
    *) path=$from/$file ;;
    esac
    cp -R -- "$path" "$scratch/" || fail "cannot copy the input $path"
done

_CONDOR_SCRATCH_DIR=$scratch
export _CONDOR_SCRATCH_DIR
PATH=${PEGASUS_BIN_DIR:+$PEGASUS_BIN_DIR:}$PATH
if [ "${_PEGASUS_EXECUTE_IN_INITIAL_DIR-}" = true ]; then
    cd "$from" || fail "cannot work in $from"
else
    cd "$scratch" || fail "cannot work in $scratch"
    [ -d "$1" ] || [ ! -e "$1" ] || case $1 in
    *.sh) chmod +x "$1" 2>/dev/null ;;
    esac
fi

if [ "${_PEGASUS_CONNECT_STDIN-}" = true ]; then
    "$@" <&0 &
else
    "$@" </dev/null &
fi
child=$!
wait "$child"
code=$?
# A signal ends the waiting, not the job.
while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
done
[ "$code" = 0 ] || exit "$code"

remaps=${_PEGASUS_TRANSFER_OUTPUT_REMAPS-}
remaps=${remaps#\"}
remaps=${remaps%\"}
IFS=, read -r -d '' -a outputs < <(printf '%s\0' "${_PEGASUS_TRANSFER_OUTPUT_FILES-}")
IFS=';' read -r -d '' -a renames < <(printf '%s\0' "$remaps")
for file in "${outputs[@]}"; do
    [ -n "$file" ] || continue
    name=${file##*/}
    for rename in "${renames[@]}"; do
        [ "${rename%%=*}" != "$name" ] || name=${rename#*=}
    done
    case $name in
    /*) target=$name ;;
    *) target=$from/$name ;;
    esac
    # Nobody sees half of a file.
    mkdir -p -- "$(dirname -- "$target")" && cp -R -- "$file" "$target.part$$" && mv -- "$target.part$$" "$target" ||
        fail "cannot deliver the output $file"
done
