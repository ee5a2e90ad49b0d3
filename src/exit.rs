//! Exit codes of the program. The manual page names them.

/// `success`: all tasks are done.
pub const SUCCESS: u8 = 0;

/// `failure`: a task failed, the run was given up, or it could not begin.
pub const FAILURE: u8 = 1;

/// `drained`: a signal asked to start nothing new, all running tasks have ended, and tasks are left
/// that another run can do. The number is that of `EX_TEMPFAIL` in `sysexits.h`: try again.
pub const DRAINED: u8 = 75;
