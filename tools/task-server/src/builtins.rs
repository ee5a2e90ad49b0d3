//! Jobs that are `pegasus-transfer` or `pegasus-rc-client`, run by a thread: starting a process takes several
//! times as long as copying a small file or registering it.
//!
//! The thread has what the process would have: arguments, environment, streams and a working directory. It
//! stays for later jobs. A thread that does not end a cancelled job is abandoned; then the process must exit.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use monitord_compat::invocation_record::{Status, Usage};
use pegasus_kickstart::builtins::{BuiltinJob, Builtins};
use pegasus_kickstart::interrupts::Interrupts;
use pegasus_kickstart::lookup::Found;
use pegasus_kickstart::names::FileId;
use pegasus_kickstart::usage::{self, UsageScope};

use crate::helper::{End, Helper};
use crate::task::{Task, Tool, worker};

/// Maximum growth of the process by built-in jobs, in KiB: the peak memory of later jobs counts from that. A
/// small registration takes 3 MiB, most of it for the code of SQLite.
const MAX_GROWTH: u64 = 4 << 10;

/// Runs jobs of the built-in tools, one at a time.
#[derive(Debug)]
pub struct ToolBuiltins {
    /// Files of the programs in the order of [`Tool::ALL`], if they exist.
    files: [Option<FileId>; 2],
    /// Peak memory of the process before any job, in KiB.
    peak: u64,
    must_exit: Cell<bool>,
    /// The thread, while it is idle.
    helper: RefCell<Option<Helper>>,
}

impl ToolBuiltins {
    /// Stands in for the programs in the directory of the file `own`.
    #[must_use]
    pub fn beside(own: &Path) -> Self {
        Self {
            files: Tool::ALL.map(|tool| file_id(&own.with_file_name(tool.name()))),
            peak: usage::own(UsageScope::Process).max_rss_kib,
            must_exit: Cell::new(false),
            helper: RefCell::new(None),
        }
    }

    /// Returns whether the process must exit after this job: it has grown, or a thread was abandoned.
    #[must_use]
    pub fn must_exit(&self) -> bool {
        self.must_exit.get()
    }

    /// Lets the process exit after this job if it has grown too much.
    pub fn check_growth(&self) {
        if usage::own(UsageScope::Process).max_rss_kib > self.peak + MAX_GROWTH {
            self.must_exit.set(true);
        }
    }

    fn find(&self, program: &Found) -> Option<Tool> {
        let name = program.file.file_name()?;
        let (tool, file) = Tool::ALL
            .into_iter()
            .zip(self.files)
            .find(|(tool, _)| name == OsStr::new(tool.name()))?;
        (file == Some(FileId::from(&program.status))).then_some(tool)
    }
}

impl Builtins for ToolBuiltins {
    fn contains(&self, program: &Found) -> bool {
        self.find(program).is_some()
    }

    /// Runs a job. The first SIGINT, SIGTERM or SIGHUP lets a transfer clean up; any other signal ends the
    /// job.
    fn run(&self, job: &BuiltinJob<'_>, interrupts: &mut dyn Interrupts) -> Option<(Status, Usage)> {
        let before = usage::own(UsageScope::Process);
        let task = Task::new(self.find(job.program)?, job).ok()?;
        let idle = self.helper.take().filter(|helper| helper.can_run(&task));
        let helper = idle.map_or_else(|| Helper::start(worker), Ok).ok()?;
        let status = match helper.run(task, interrupts) {
            End::Outcome(code, helper) => {
                self.helper.replace(helper);
                code.map(|code| Status::Exited { code })
            }
            End::Abandoned(status) => {
                self.must_exit.set(true);
                Some(status)
            }
        };
        self.check_growth();
        Some((status?, usage::own(UsageScope::Since(before))))
    }
}

fn file_id(file: &Path) -> Option<FileId> {
    let status = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
    Some(FileId::from(&status))
}
