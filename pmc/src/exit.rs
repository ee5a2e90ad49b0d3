//! Exit codes. They are part of the interface: scripts may rely on them.

/// All tasks succeeded, in this run or before.
pub const SUCCESS: u8 = 0;
/// The workflow ran, and some tasks failed or were not run.
pub const TASKS_FAILED: u8 = 1;
/// The command line is wrong. Nothing was done.
pub const USAGE: u8 = 2;
/// The workflow or a catalog is wrong, so that it could not be planned. Nothing was run.
pub const NOT_PLANNED: u8 = 3;
/// The run could not begin or go on: a program is missing, a file cannot be written, another run holds
/// the lock.
pub const NOT_RUN: u8 = 4;
/// `pmc status --quiet`: the run goes on, or has not begun.
pub const NOT_ENDED: u8 = 5;
/// Added to the number of the signal that ended the run: 130 after Ctrl-C, 143 after SIGTERM.
pub const SIGNAL_BASE: u8 = 128;

/// The table for `--help`.
pub const HELP: &str = "\
Exit codes:
  0    all tasks succeeded
  1    some tasks failed or were not run
  2    the command line is wrong
  3    the workflow could not be planned
  4    the run could not begin or go on
  130  stopped by Ctrl-C (143: by SIGTERM); `pmc resume` goes on";
