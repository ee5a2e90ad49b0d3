//! The invocation record of kickstart, YAML version 3.0: one element of a list for one invocation, so that
//! the records of several invocations in one file are one list.
//!
//! The fields and their order are those of the record that Pegasus' kickstart parser, monitord and analyzer
//! read. Three of their habits shape the text: `raw` and `regular_exitcode` are plain numbers because
//! pegasus-exitcode looks for `raw: <digits>` in the whole file; no line starts in the first column except
//! `- invocation`, because the reader drops such lines; and data that happens to contain `raw: 5` or
//! `integrity_error: ` is escaped so that the search does not find it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, FixedOffset};

mod write;

/// Version of the record format.
pub const VERSION: &str = "3.0";

/// Names and paths as the system gives them: any bytes.
pub type Text = Vec<u8>;

/// A point in time with the offset of the local time zone.
pub type Stamp = DateTime<FixedOffset>;

/// One record. Texts that are `None` are left out.
#[derive(Clone, Debug)]
pub struct Invocation<'a> {
    /// When kickstart began.
    pub start: Stamp,
    /// From the beginning to the writing of the record.
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
    /// Who ran it and where.
    pub identity: IdentityLines,
    /// The jobs attempted, in order.
    pub jobs: Vec<(Stage, Job)>,
    /// Ids given by batch systems.
    pub job_ids: JobIds,
    /// Working directory.
    pub cwd: Text,
    /// Kickstart's own usage.
    pub usage: Usage,
    /// The machine, unless not wanted.
    pub machine: Option<Machine>,
    /// Files before and after, then the standard streams and kickstart's own files.
    pub files: Vec<FileEntry<'a>>,
    /// Finished entries of `files` that the job appended itself, indented by four blanks; written before the
    /// standard streams.
    pub integrity_data: Cow<'a, [u8]>,
    /// Environment of the job (long form), sorted.
    pub environment: Option<Vec<(Text, Text)>>,
    /// Resource limits (long form).
    pub limits: Option<Vec<Limit>>,
}

/// A resource limit: name, soft and hard value; `None` is unlimited.
pub type Limit = (Cow<'static, str>, Option<u64>, Option<u64>);

/// Who ran the invocation, and on which host.
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

/// An [`Identity`] as the record has it. Processes that write many records use it again.
#[derive(Clone, Debug)]
pub struct IdentityLines(pub(crate) Arc<[u8]>);

/// Which of the five jobs of an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Before everything; its failure is ignored.
    Setup,
    /// Before the main job.
    Pre,
    /// The application.
    Main,
    /// After a successful main job.
    Post,
    /// At the end, always; its failure is ignored.
    Cleanup,
}

impl Stage {
    /// The key of the record.
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
    /// When it was started; the epoch if it never was.
    pub start: Stamp,
    /// Wall time; written as at least 3 ms, as readers divide by it.
    pub duration: Duration,
    /// Its process id, if there was a process.
    pub pid: Option<u32>,
    /// What it used.
    pub usage: Usage,
    /// How it ended.
    pub status: Status,
    /// The program file.
    pub executable: FileEntry<'static>,
    /// Arguments after the program name.
    pub arguments: Vec<Text>,
}

/// Resources used, as `getrusage(2)` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time in user mode.
    pub user_time: Duration,
    /// Time in the kernel.
    pub system_time: Duration,
    /// Largest resident set, KiB.
    pub max_rss_kib: u64,
    /// Page faults without and with input.
    pub minor_faults: u64,
    /// Page faults that needed input.
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
    /// Context switches the process asked for by waiting.
    pub voluntary_switches: u64,
    /// Context switches forced on the process.
    pub involuntary_switches: u64,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Ended by itself.
    Exited {
        /// Exit code, 0 to 255.
        code: u8,
    },
    /// Killed by a signal.
    Signalled {
        /// Number of the signal.
        signal: i32,
        /// Its description, for instance `Killed`.
        name: String,
        /// True if memory was dumped.
        core: bool,
    },
    /// Never ran, or could not be waited for.
    Failed {
        /// Stands for the wait status: -127 not runnable, -1 no process, -42 not waitable.
        raw: i32,
        /// Error number of the system.
        errno: i32,
        /// Its text.
        text: String,
    },
}

impl Status {
    /// The wait status as `wait(2)` encodes it.
    #[must_use]
    pub fn raw(&self) -> i32 {
        match self {
            Self::Exited { code } => i32::from(*code) << 8,
            Self::Signalled { signal, core, .. } => signal | if *core { 0x80 } else { 0 },
            Self::Failed { raw, .. } => *raw,
        }
    }
}

/// Ids given by batch systems.
#[derive(Clone, Debug, Default)]
pub struct JobIds {
    /// HTCondor's id.
    pub condor: Option<Text>,
    /// Globus' job contact.
    pub gram: Option<Text>,
    /// Kind of the local resource manager and its id.
    pub local: Option<(&'static str, Text)>,
}

/// What stays as it is about the machine.
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

/// [`MachineFacts`] as the record has them.
#[derive(Clone, Debug)]
pub struct MachineLines {
    /// Above what changes.
    pub(crate) first: Arc<[u8]>,
    /// Between memory and load.
    pub(crate) processors: Arc<[u8]>,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What stays as it is.
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
    /// What was looked at.
    pub source: Source,
    /// What the system said, or its error number.
    pub stat: Result<StatLines, i32>,
    /// For files that the job was to write and that exist.
    pub output: Option<ChecksummedFile>,
    /// Captured text of a stream.
    pub payload: Option<Payload<'a>>,
}

/// What an entry is about.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file.
    Name(Text),
    /// A temporary file that captures a stream.
    Temporary {
        /// Its name.
        name: Text,
        /// The descriptor it is open as.
        descriptor: i32,
    },
    /// An open descriptor shared with kickstart.
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

/// What the system said about a file, as the record has it. Many files stay as they are from one record to the
/// next, and describing them takes as long as all the rest: such a description can be used again.
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
        /// Time it took.
        took: Duration,
    },
    /// The file could not be read.
    Unreadable,
    /// A directory or special file: has no checksum.
    NotRegular,
}

/// Captured text.
#[derive(Clone, Debug)]
pub struct Payload<'a> {
    /// True if the beginning was cut off.
    pub truncated: bool,
    /// The text or what is left of it.
    pub text: Cow<'a, str>,
}
