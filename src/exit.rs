//! Exit codes of the program, as in the manual page.

/// `success`: all tasks are done.
pub const SUCCESS: u8 = 0;

/// `failure`: a task failed, or the run was aborted or could not begin.
pub const FAILURE: u8 = 1;

/// `drained`: a signal asked to drain, all started tasks have ended, and tasks are left for another run.
/// `EX_TEMPFAIL` of `sysexits.h`.
pub const DRAINED: u8 = 75;

/// `stranded`: nodes were lost, and nothing that is left fits on those that are there, or no agent has come.
pub const STRANDED: u8 = 76;
