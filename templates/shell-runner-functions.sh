# Functions of the scripts that pmc-plan writes for the code generator Shell (bash).
# The script sets PEGASUS_SUBMIT_DIR, then calls begin_workflow, the other functions for each job, and end_workflow.

JOBSTATE_LOG=$PEGASUS_SUBMIT_DIR/jobstate.log

# Status of the last job.
last_status=0

begin_workflow() {
    echo "INTERNAL *** SHELL_SCRIPT_STARTED ***" >>"$JOBSTATE_LOG" || exit 1
    local signal
    for signal in 1 2 15; do
        # shellcheck disable=SC2064
        trap "end_workflow $((128 + signal))" "$signal"
    done
}

# end_workflow STATUS: ends the script
end_workflow() {
    trap '' 1 2 15
    echo "INTERNAL *** SHELL_SCRIPT_FINISHED $1 ***" >>"$JOBSTATE_LOG"
    exit "$1"
}

# job_state JOB STATE: writes a line to the log
job_state() {
    printf '%s %s %s - local\n' "$(date +%s)" "$1" "$2" >>"$JOBSTATE_LOG"
}

# start LOG DIRECTORY PROGRAM ARGUMENTS STDIN [NAME=VALUE]...: runs a program. ARGUMENTS are words of a shell.
# Output goes to LOG.out and LOG.err.
start() (
    exec >"$1.out" 2>"$1.err" || exit 126
    cd "$2" || exit 126
    exec <"${5:-/dev/null}" || exit 126
    program=$3
    arguments=$4
    shift 5
    variables=("$@")
    eval "set -- $arguments" || exit 126
    if [ "$(type -t "$program")" = function ]; then
        "$program" "$@"
    else
        # Run a shell in between, since env would take a path with an equals sign for a variable.
        # shellcheck disable=SC2016
        exec /usr/bin/env "${variables[@]}" /bin/sh -c 'exec "$0" "$@"' "$program" "$@"
    fi
)

# need COUNT FUNCTION [ARGUMENT]...: ends the workflow if FUNCTION has too few arguments
need() {
    local minimum=$1 name=$2
    shift 2
    [ $# -ge "$minimum" ] && return
    echo "$name: $# arguments, but it needs $minimum: $*" >&2
    end_workflow 1
}

# execute_job JOB DIRECTORY FILES PROGRAM ARGUMENTS STDIN [NAME=VALUE]...: runs a job in DIRECTORY. Output goes to
# FILES/JOB.out and FILES/JOB.err.
execute_job() {
    need 6 execute_job "$@"
    local job=$1 directory=$2 files=$3
    shift 3
    job_state "$job" SUBMIT
    job_state "$job" EXECUTE
    start "$files/$job" "$directory" "$@"
    last_status=$?
    return "$last_status"
}

# execute_post_script JOB DIRECTORY PROGRAM ARGUMENTS STDIN [NAME=VALUE]...: runs the post script of a job. Output
# goes to DIRECTORY/JOB.post.out and DIRECTORY/JOB.post.err.
execute_post_script() {
    need 5 execute_post_script "$@"
    job_state "$1" POST_SCRIPT_STARTED
    start "$2/$1.post" "$2" "${@:3}"
}

# check_exitcode JOB PREFIX STATUS: ends the workflow unless STATUS is 0.
check_exitcode() {
    need 3 check_exitcode "$@"
    job_state "$1" "$2_TERMINATED"
    if [ "$3" -eq 0 ]; then
        job_state "$1" "$2_SUCCESS"
        return
    fi
    job_state "$1" "$2_FAILURE"
    echo "The job $1 failed with status $3." >&2
    end_workflow "$3"
}

# check_output [-f TEXT]... [-s TEXT]... JOB: a post script. The job has failed if its status is not 0, its output
# has a TEXT of -f, or lacks one of -s. Its output files get a number, so that the next attempt keeps them.
check_output() {
    local failed=$last_status option OPTIND=1 number=0 name
    while getopts f:s: option; do
        case $option in
        f)
            if grep -qF -e "$OPTARG" "${!#}.out" "${!#}.err"; then
                echo "its output has: $OPTARG"
                failed=1
            fi
            ;;
        s)
            if ! grep -qF -e "$OPTARG" "${!#}.out" "${!#}.err"; then
                echo "its output lacks: $OPTARG"
                failed=1
            fi
            ;;
        *) return 1 ;;
        esac
    done
    name=${!#}
    while printf -v suffix %03d "$number" && [ -e "$name.out.$suffix" ]; do
        number=$((number + 1))
    done
    mv "$name.out" "$name.out.$suffix" && mv "$name.err" "$name.err.$suffix" || failed=1
    return "$failed"
}
