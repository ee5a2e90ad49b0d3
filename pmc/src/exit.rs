//! Exit codes. They are part of the interface: scripts rely on them.

/// All tasks succeeded, in this run or before.
pub const SUCCESS: u8 = 0;
/// The workflow ran, but some tasks failed or did not run.
pub const TASKS_FAILED: u8 = 1;
/// The command line is wrong. Nothing was done.
pub const USAGE: u8 = 2;
/// Planning failed because the workflow or a catalog is wrong. Nothing ran.
pub const NOT_PLANNED: u8 = 3;
/// The run could not start or continue: a program is missing, a file cannot be written, or another run
/// holds the lock.
pub const NOT_RUN: u8 = 4;
/// `pmc status --quiet`: the run has not started or has not ended.
pub const NOT_ENDED: u8 = 5;
/// What is asked for is not possible with this run: `EX_UNAVAILABLE` of sysexits.h.
pub const NOT_SUPPORTED: u8 = 69;
/// Base of exit codes for signals: 130 after Ctrl-C, 143 after SIGTERM.
pub const SIGNAL_BASE: u8 = 128;

/// The table for `--help`.
pub const HELP: &str = "\
Exit codes:
  0    all tasks succeeded
  1    some tasks failed or did not run
  2    the command line is wrong
  3    the workflow could not be planned
  4    the run could not start or continue
  130  stopped by Ctrl-C (143: by SIGTERM); `pmc resume` continues";
