//! Where the files of tasks lie that save their state: beside the DAG file, or on the nodes of a run with
//! agents.

use std::fmt::Debug;
use std::path::Path;

use pmc_checkpoint::nodes::{Given, SavedFile};
use pmc_checkpoint::{FileRecord, Store, StoreError, TaskStore};

use crate::protocol::SubmitId;

/// The nodes of a run. An agent knows them.
pub trait Nodes: Debug + Send + Sync {
    /// Asks the master from where an attempt goes on. Waits for its answer.
    ///
    /// # Errors
    /// The attempt can save nothing; the text is for the user.
    fn want(&self, submit: SubmitId, dag: &Path, task: &[u8]) -> Result<Given, String>;

    /// Returns the part of a store that this node has.
    ///
    /// # Errors
    /// It cannot be made.
    fn store(&self, run: &str) -> Result<Store, StoreError>;

    /// Says that this node has a file.
    fn has(&self, task: &TaskStore, file: SavedFile);

    /// Says that it has the file no more.
    fn has_not(&self, file: SavedFile);

    /// Gets a file from another node, or from the store beside the DAG file. Each source is a node with its
    /// addresses. Returns whether it is there now.
    fn fetch(&self, dag: &Path, task: &TaskStore, file: &SavedFile, sources: &[Vec<String>]) -> bool;

    /// Says that a series is not to be given any more.
    fn withhold(&self, task: (&str, &str), series: u64, reason: &str);

    /// Waits until a series of a task is safe, but not for long.
    fn wait_safe(&self, task: (&str, &str), series: u64);

    /// Has a line written into the statistics.
    fn record(&self, dag: &Path, record: FileRecord);

    /// Passes on what a task says.
    fn message(&self, dag: &Path, task: &[u8], text: String);
}
