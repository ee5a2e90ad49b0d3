//! The invocation record of kickstart, YAML version 3.0. A record is one item of a list, so several records
//! in one file are one list.
//!
//! Fields and order are those that Pegasus' kickstart parser, monitord and analyzer read. Three habits of
//! these readers shape the text:
//! * pegasus-exitcode looks for `raw: <digits>` in the whole file, so `raw` and `regular_exitcode` are plain
//!   numbers;
//! * readers drop lines without indentation, so only `- invocation` has none;
//! * data that contains `raw: 5` or `integrity_error: ` is escaped, so that no search finds it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, FixedOffset};

mod write;

/// Version of the record format.
pub const VERSION: &str = "3.0";

/// Names and paths: any bytes.
pub type Text = Vec<u8>;

/// A point in time with the offset of the local time zone.
pub type Stamp = DateTime<FixedOffset>;

/// An invocation record. Texts that are `None` are left out.
#[derive(Clone, Debug)]
pub struct Invocation<'a> {
    /// Start of kickstart.
    pub start: Stamp,
    /// Time from the start to the writing of the record.
    pub duration: Duration,
    /// Transformation, `namespace::name:version`.
    pub transformation: Option<Text>,
    /// Id of the task in the abstract workflow, or `null`.
    pub derivation: Option<Text>,
    /// Site.
    pub resource: Option<Text>,
    /// Label of the workflow.
    pub wf_label: Option<Text>,
    /// Time of the abstract workflow, ISO 8601.
    pub wf_stamp: Option<Text>,
    /// User, process and host.
    pub identity: IdentityLines,
    /// The jobs attempted, in order.
    pub jobs: Vec<(Stage, Job)>,
    /// Ids of batch systems.
    pub job_ids: JobIds,
    /// Working directory.
    pub cwd: Text,
    /// Resources that kickstart itself used.
    pub usage: Usage,
    /// The machine, unless it is switched off.
    pub machine: Option<Machine>,
    /// Files of the job, then the standard streams and files of kickstart.
    pub files: Vec<FileEntry<'a>>,
    /// Entries of `files` that the job wrote itself, indented by four blanks. They come before the standard
    /// streams.
    pub integrity_data: Cow<'a, [u8]>,
    /// Environment of the job (long form), sorted.
    pub environment: Option<Vec<(Text, Text)>>,
    /// Resource limits (long form).
    pub limits: Option<Vec<Limit>>,
}

/// A resource limit: name, soft and hard value; `None` is unlimited.
pub type Limit = (Cow<'static, str>, Option<u64>, Option<u64>);

/// User, process and host of an invocation.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Network interface of `host_address`.
    pub interface: Option<Text>,
    /// IPv4 address, dotted.
    pub host_address: String,
    /// Name of the host.
    pub host_name: Option<Text>,
    /// Process id of kickstart.
    pub pid: u32,
    /// Real user id and name.
    pub uid: u32,
    /// Name of `uid`, if it has one.
    pub user: Option<Text>,
    /// Real group id.
    pub gid: u32,
    /// Name of `gid`, if it has one.
    pub group: Option<Text>,
    /// File mode creation mask.
    pub umask: u32,
}

/// Lines of an [`Identity`] in a record. Processes with many records reuse them.
#[derive(Clone, Debug)]
pub struct IdentityLines(pub(crate) Arc<[u8]>);

/// One of the five jobs of an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Runs first; its failure is ignored.
    Setup,
    /// Runs before the main job.
    Pre,
    /// The program of the task.
    Main,
    /// Runs after a successful main job.
    Post,
    /// Runs last, always; its failure is ignored.
    Cleanup,
}

impl Stage {
    /// Returns the key in the record.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Pre => "prejob",
            Self::Main => "mainjob",
            Self::Post => "postjob",
            Self::Cleanup => "cleanup",
        }
    }
}

/// One job of an invocation.
#[derive(Clone, Debug)]
pub struct Job {
    /// Start; the epoch if it did not start.
    pub start: Stamp,
    /// Wall time. The record has at least 3 ms, as readers divide by it.
    pub duration: Duration,
    /// Process id, if there was a process.
    pub pid: Option<u32>,
    /// Resources used.
    pub usage: Usage,
    /// Exit status.
    pub status: Status,
    /// Program file.
    pub executable: FileEntry<'static>,
    /// Arguments after the program name.
    pub arguments: Vec<Text>,
}

/// Resources used, as counted by `getrusage(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time in user mode.
    pub user_time: Duration,
    /// Time in the kernel.
    pub system_time: Duration,
    /// Largest resident set, KiB.
    pub max_rss_kib: u64,
    /// Page faults without input.
    pub minor_faults: u64,
    /// Page faults with input.
    pub major_faults: u64,
    /// Swaps.
    pub swaps: u64,
    /// Blocks read.
    pub blocks_in: u64,
    /// Blocks written.
    pub blocks_out: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Signals received.
    pub signals: u64,
    /// Context switches because the process waited.
    pub voluntary_switches: u64,
    /// Context switches forced by the system.
    pub involuntary_switches: u64,
}

/// Exit status of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It exited.
    Exited {
        /// Exit code, 0 to 255.
        code: u8,
    },
    /// A signal killed it.
    Signalled {
        /// Number of the signal.
        signal: i32,
        /// Its description, for instance `Killed`.
        name: String,
        /// True if memory was dumped.
        core: bool,
    },
    /// It did not start, or could not be waited for.
    Failed {
        /// Replaces the wait status: -127 not runnable, -1 no process, -42 not waitable.
        raw: i32,
        /// Error number of the system.
        errno: i32,
        /// Its text.
        text: String,
    },
}

impl Status {
    /// Returns the wait status in the encoding of `wait(2)`.
    #[must_use]
    pub fn raw(&self) -> i32 {
        match self {
            Self::Exited { code } => i32::from(*code) << 8,
            Self::Signalled { signal, core, .. } => signal | if *core { 0x80 } else { 0 },
            Self::Failed { raw, .. } => *raw,
        }
    }
}

/// Ids of batch systems.
#[derive(Clone, Debug, Default)]
pub struct JobIds {
    /// Id of HTCondor.
    pub condor: Option<Text>,
    /// Job contact of Globus.
    pub gram: Option<Text>,
    /// Kind of the local resource manager, and its id.
    pub local: Option<(&'static str, Text)>,
}

/// Constant facts about the machine.
#[derive(Clone, Debug, Default)]
pub struct MachineFacts {
    /// Size of a page, bytes.
    pub page_size: u64,
    /// Operating system, lower case.
    pub system: Text,
    /// Name of the node, lower case.
    pub node_name: Text,
    /// Release of the kernel.
    pub release: Text,
    /// Architecture, lower case.
    pub architecture: Text,
    /// Processors online.
    pub cpu_count: u32,
    /// Clock of the first processor, MHz.
    pub cpu_mhz: u32,
    /// Vendor of the first processor.
    pub cpu_vendor: Text,
    /// Model of the first processor.
    pub cpu_model: Text,
}

/// Lines of [`MachineFacts`] in a record.
#[derive(Clone, Debug)]
pub struct MachineLines {
    /// Lines before the memory.
    pub(crate) first: Arc<[u8]>,
    /// Lines between memory and load.
    pub(crate) processors: Arc<[u8]>,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Constant facts.
    pub facts: MachineLines,
    /// Main memory: total, free, shared, buffers (KiB).
    pub ram_kib: [u64; 4],
    /// Swap: total, free (KiB).
    pub swap_kib: [u64; 2],
    /// Load averages over 1, 5 and 15 minutes, each in parts of 65,536.
    pub load: [u64; 3],
    /// Counts of processes, threads and their memory: key and value, in the order of the record.
    pub census: Vec<(&'static str, u64)>,
}

/// An entry of `files`, or a program file.
#[derive(Clone, Debug)]
pub struct FileEntry<'a> {
    /// Key of the entry; unused for a program file.
    pub key: Text,
    /// Logical file name.
    pub lfn: Option<Text>,
    /// A remark for readers.
    pub note: Option<&'static str>,
    /// The file itself.
    pub source: Source,
    /// Status of the file, or the error number.
    pub stat: Result<StatLines, i32>,
    /// Checksum of an output file, if it exists.
    pub output: Option<ChecksummedFile>,
    /// Captured text of a stream.
    pub payload: Option<Payload<'a>>,
}

/// Identification of a file.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file.
    Name(Text),
    /// A temporary file that captures a stream.
    Temporary {
        /// Its name.
        name: Text,
        /// Its descriptor.
        descriptor: i32,
    },
    /// An open descriptor of kickstart.
    Descriptor(i32),
}

/// Data of `stat(2)`.
#[derive(Clone, Debug)]
pub struct Stat {
    /// Type and permissions.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Inode number.
    pub inode: u64,
    /// Hard links.
    pub links: u64,
    /// Preferred block size, bytes.
    pub block_size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last change of the contents.
    pub modified: Stamp,
    /// Last access.
    pub accessed: Stamp,
    /// Last change of the inode.
    pub changed: Stamp,
    /// Owner.
    pub uid: u32,
    /// Name of the owner, if it has one.
    pub user: Option<Text>,
    /// Group.
    pub gid: u32,
    /// Name of the group, if it has one.
    pub group: Option<Text>,
}

/// Lines of a [`Stat`] in a record. Many files do not change between records, and formatting these lines
/// takes as long as all the rest, so they can be reused.
#[derive(Clone, Debug)]
pub struct StatLines {
    /// Type and permissions.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Indented lines.
    pub(crate) lines: Arc<[u8]>,
}

/// The checksum of an output file.
#[derive(Clone, Debug)]
pub enum ChecksummedFile {
    /// Computed.
    Checksum {
        /// SHA-256, 64 hexadecimal digits.
        sha256: String,
        /// Duration of the computation.
        took: Duration,
    },
    /// The file could not be read.
    Unreadable,
    /// A directory or special file, which has no checksum.
    NotRegular,
}

/// Captured text.
#[derive(Clone, Debug)]
pub struct Payload<'a> {
    /// True if the beginning is missing.
    pub truncated: bool,
    /// The text, or its end.
    pub text: Cow<'a, str>,
}
