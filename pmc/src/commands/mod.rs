//! The commands, one module each.

pub mod add;
pub mod analyzer;
pub mod attach;
pub mod cancel;
pub mod checkpoint;
pub mod control;
mod execute;
pub mod init;
pub mod launch;
pub mod log;
pub mod mcp;
pub mod message;
mod on_end;
pub mod pegasus;
pub mod pmix;
pub mod report;
pub mod resume;
pub mod run;
pub mod serve;
pub mod simulate;
pub mod stack;
pub mod statistics;
pub mod status;
pub mod supervise;
pub mod unpack;
pub mod wait;
