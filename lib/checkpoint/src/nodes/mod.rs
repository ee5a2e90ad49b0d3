//! Checkpoints on nodes: what nodes and the master of a run say to each other about them.
//!
//! A node keeps the files that its tasks save, and copies of files of other nodes, in a directory of its own,
//! which is laid out as the store beside a DAG file. The master knows who has which file ([`Book`]); it
//! stores nothing of that, for nodes tell it all again to the next master, from their disks. What is
//! *flushed* goes into the store beside the DAG file, where it survives the loss of all nodes, and where
//! the master notes which series are withheld.
//!
//! The bytes go from node to node, by keys ([`SavedFile::key`]).

mod book;

use serde::{Deserialize, Serialize};

use crate::{FileRecord, Notice, seconds};

pub use crate::saved_file::SavedFile;
pub use book::{Book, NodeId, Orders, StoreJob};

/// What a node says to the master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeSays {
    /// It begins anew: nothing that it has said before holds.
    Begin {
        /// Where it gives files to other nodes.
        addresses: Vec<String>,
        /// Ids of the stores of which it has files, of this run or of others.
        runs: Vec<String>,
    },
    /// A process of an attempt has connected. Answer: [`MasterSays::Given`].
    Want {
        /// Number of this request.
        number: u64,
        /// The DAG file of the task, as the master names it.
        #[serde(with = "serde_bytes")]
        dag: Vec<u8>,
        /// Name of the task.
        #[serde(with = "serde_bytes")]
        task: Vec<u8>,
        /// Submit number of the attempt.
        submit: u64,
    },
    /// It has a file: a task has closed it there, or it was copied.
    Has(SavedFile),
    /// It has a file no more, or could not get it.
    HasNot(SavedFile),
    /// A series is not to be given to the task any more.
    Withhold {
        /// The id of the store.
        run: String,
        /// Directory of the task.
        task: String,
        /// Number of the series.
        series: u64,
        /// Why, as a sentence for users.
        reason: String,
    },
    /// A task has closed a file: a line of the statistics.
    Closed {
        /// The DAG file of the task.
        #[serde(with = "serde_bytes")]
        dag: Vec<u8>,
        /// The line.
        record: FileRecord,
    },
    /// What a task says of its progress.
    Message {
        /// The DAG file of the task.
        #[serde(with = "serde_bytes")]
        dag: Vec<u8>,
        /// Name of the task.
        #[serde(with = "serde_bytes")]
        task: Vec<u8>,
        /// The text.
        text: String,
    },
    /// It has brought a file into the store, or could not. Answer to [`MasterSays::Flush`].
    Flushed {
        /// Number of the transfer, as the order has it.
        transfer: u64,
        /// The file.
        file: SavedFile,
        /// Why it is not there, if that is so.
        failed: Option<String>,
    },
    /// It is to end, and waits for [`MasterSays::MayGo`].
    Leaves,
}

/// What the master says to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MasterSays {
    /// The node is to begin, if it has not: some node has files. Answer: [`NodeSays::Begin`].
    Begin,
    /// The node is to say which files of this store it has.
    Tell {
        /// The id of the store.
        run: String,
    },
    /// The answer to [`NodeSays::Want`].
    Given {
        /// Number of the request.
        number: u64,
        /// From where the attempt goes on, or why it cannot save anything.
        given: Result<Given, String>,
    },
    /// The node is to get a copy of a file.
    Copy {
        /// The file.
        file: SavedFile,
        /// Where it is: each node with its addresses.
        sources: Vec<Vec<String>>,
    },
    /// The node is to remove the series of a task below a number.
    Drop {
        /// The id of the store.
        run: String,
        /// Directory of the task.
        task: String,
        /// The first series that stays; [`u64::MAX`] for none.
        below: u64,
    },
    /// The node is to remove a file: it is of an attempt that does not count.
    Discard(SavedFile),
    /// All files of a series have a second place.
    Safe {
        /// The id of the store.
        run: String,
        /// Directory of the task.
        task: String,
        /// Number of the series.
        series: u64,
    },
    /// What the run says to its tasks.
    Notice(NoticeTimes),
    /// The node is to bring a file into the store beside a DAG file, as part of a series that does not count
    /// yet. Answer: [`NodeSays::Flushed`].
    Flush {
        /// The DAG file, as the master names it.
        #[serde(with = "serde_bytes")]
        dag: Vec<u8>,
        /// Number of the transfer.
        transfer: u64,
        /// The file.
        file: SavedFile,
        /// Where it is: each node with its addresses. Empty if this node has it.
        sources: Vec<Vec<String>>,
    },
    /// A node that is to end need not wait any longer: others have what it has, or the run ends.
    MayGo,
}

/// A [`Notice`] with all of its fields, as messages need them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NoticeTimes {
    #[serde(deserialize_with = "seconds::optional")]
    drained: Option<f64>,
    #[serde(deserialize_with = "seconds::optional")]
    ends: Option<f64>,
}

impl From<Notice> for NoticeTimes {
    fn from(Notice { drained, ends }: Notice) -> Self {
        Self { drained, ends }
    }
}

impl From<NoticeTimes> for Notice {
    fn from(NoticeTimes { drained, ends }: NoticeTimes) -> Self {
        Self { drained, ends }
    }
}

/// From where an attempt goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Given {
    /// The id of the store.
    pub run: String,
    /// The highest number of a series so far. Those of the attempt follow it.
    pub last: u64,
    /// The series that it is given, if there is one, and its files.
    pub series: Option<(u64, Vec<GivenFile>)>,
}

/// A file of a series that an attempt is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenFile {
    /// The file.
    pub file: SavedFile,
    /// The node of the attempt has it.
    pub is_here: bool,
    /// Other nodes that have it, each with its addresses.
    pub sources: Vec<Vec<String>>,
}
