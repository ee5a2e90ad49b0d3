//! Help and version texts.

use std::ffi::OsStr;

/// The help. Scripts compare it with that of the original program, so nothing is added here;
/// what is new stands in [`LOCAL`].
pub(super) fn help(program: &OsStr) -> String {
    format!(
        "\
Usage: {} [options] DAGFILE

Options:
   -h|--help            Print this message
   -V|--version         Print version information
   -v|--verbose         Increase logging level
   -q|--quiet           Decrease logging level
   -o|--stdout PATH     Path to stdout file for tasks
   -e|--stderr PATH     Path to stderr file for tasks
   -s|--skip-rescue     Ignore existing rescue file (still creates one)
   -m|--max-failures N  Stop submitting tasks after N tasks have failed
   -t|--tries N         Try tasks N times before marking them failed
   -n|--nolock          Do not try to lock DAGFILE
   -r|--rescue PATH     Path to rescue log [default: DAGFILE.rescue]
   --host-script PATH   Path to script that will be launched on each host
   --host-memory N      Amount of memory per host in MB
   --host-cpus N        Number of CPUs per host
   --strict-limits      Enforce strict task resource limits
   --max-wall-time T    Maximum wall time of the job in minutes
   --per-task-stdio     Write each task's stdout/stderr to a different file
   --jobstate-log       Generate jobstate.log
   --monitord-hack      Generate a .dagman.out file to trick monitord
   --no-resource-log    Do not generate a log of resource usage
   --no-sleep-on-recv   Do not sleep on message receive
   --maxfds             Maximum cached file descriptors
   --keep-affinity      Keep inherited CPU and memory affinity
   --set-affinity       Set CPU affinity for multicore tasks
",
        program.display()
    )
}

/// What the help adds for somebody who starts the program without an MPI launcher and has not
/// found the option yet.
pub(super) const LOCAL: &str = "
Without an MPI launcher the tasks run on this machine, one per CPU:
   --workers N          Run N tasks at a time

Not in the list above:
   --host-gpus N        Number of GPUs per host
   --no-forward-journal Forwarded data need not be there exactly once after a crash
   --sync-interval MS   Bring rescue file and forwarded data to the disk this often;
                        0 for never [default: 1000]
   --runtime-limit T    Seconds that a task may take, unless its option -T says otherwise
   --stampede           Write the STAMPEDE database while the run goes on
   --drain-grace T      Seconds that running tasks may go on after SIGTERM [default: 8]
";

/// The version block: first lines of every run and answer to `-V`.
#[must_use]
pub fn version() -> String {
    let mpi = crate::transport::mpi_library().unwrap_or_else(|| "none".to_owned());
    format!(
        "Version: {}\nTarget: {}-{}\nMPI: {mpi}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS
    )
}
