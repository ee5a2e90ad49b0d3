//! `pegasus-exitcode`: judges the end of a job by its output. DAGMan calls it after each job, on the submit
//! host.
//!
//! The output of the job gets the number of its attempt (`JOB.out.000`), checksums of files go to `JOB.meta`,
//! and one line about the job to a log. After a failure, it applies the expressions of the submit
//! description, so that the next attempt requests something else.

mod output;
mod program;
mod report;
mod request;
mod verdict;

pub use program::{command, main};
