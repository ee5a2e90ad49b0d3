//! Input files of HTCondor's DAGMan, and the submit descriptions that they name.
//!
//! ```text
//! JOB prepare prepare.sub
//! JOB count { executable = /usr/bin/wc … }
//! PARENT prepare CHILD count
//! RETRY count 3
//! ```
//!
//! [`read`] follows the files that a DAGMan file names (submit descriptions, INCLUDE, SPLICE, SUBDAG) and
//! returns one flat [`Dag`]: nodes with what they run, and edges. Jobs are those of the vanilla and the local
//! universe. What another program than HTCondor cannot do alike is refused, with file and line. The formats
//! are those of the manual of HTCondor 25 ("Automated Workflows" and "Submit Description File Commands").
//!
//! Files are loaded by a function of the caller, so that this library opens none.
//!
//! [`mod@write`] makes the text of such files.

mod budget;
mod commands;
mod error;
mod flatten;
mod job;
mod macros;
mod model;
mod queue;
pub mod quoting;
mod submit;
mod text;
pub mod write;

pub use commands::is_dagman;
pub use error::{DagmanError, ErrorKind};
pub use flatten::{Context, read};
pub use model::{AbortOn, Dag, IgnoredCommand, Job, Node, RETRY, Script, Word, Work};
