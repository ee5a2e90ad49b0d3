# Stands in for the functions that job scripts get from Pegasus: what these tests need of them, by the same names.

pegasus_lite_init() {
    pegasus_lite_start_dir=$PWD
}

pegasus_lite_setup_work_dir() {
    if [ -z "$pegasus_lite_work_dir" ]; then
        pegasus_lite_work_dir=$(mktemp -d "${PEGASUS_WN_TMP:-/tmp}/pegasus.XXXXXXXX")
        pegasus_lite_made=1
    fi
    cd "$pegasus_lite_work_dir" || exit 1
}

pegasus_lite_worker_package() {
    local packages=("$pegasus_lite_start_dir"/pegasus-worker-*.tar.gz)
    if [ -f "${packages[0]}" ]; then
        mkdir -p "$pegasus_lite_start_dir/package"
        tar -xf "${packages[0]}" -C "$pegasus_lite_start_dir/package"
        PATH=$pegasus_lite_start_dir/package/bin:$PATH
    else
        PATH=$PEGASUS_HOME/bin:$PATH
    fi
}

pegasus_lite_section_start() {
    echo "begin $1" >&2
}

pegasus_lite_section_end() {
    echo "end $1" >&2
}

pegasus_lite_final_exit() {
    if [ -n "$pegasus_lite_made" ]; then
        cd / && rm -rf "$pegasus_lite_work_dir"
    fi
    echo "PegasusLite: exitcode ${job_ec:-0}" >&2
    exit "${job_ec:-0}"
}

pegasus_lite_unexpected_exit() {
    job_ec=1
    pegasus_lite_final_exit
}

pegasus_lite_signal_int() {
    pegasus_lite_unexpected_exit
}

pegasus_lite_signal_term() {
    pegasus_lite_unexpected_exit
}
