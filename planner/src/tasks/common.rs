//! What the invocations of jobs with equal settings share, and a cache for it.

use std::mem::{Discriminant, discriminant};
use std::rc::Rc;

use crate::diagnostic::Diagnostic;
use crate::exec::{SetupId, SiteId, Task};

use super::Shared;
use super::environment::Environment;
use super::kickstart::Kickstart;
use super::plan::PlannedJob;
use super::requests::{self, Checks};

/// Number of entries of the cache. They can be few, since similar jobs are adjacent.
const CACHE_SIZE: usize = 16;

/// Everything that the common parts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    setup: SetupId,
    site: SiteId,
    staging: SiteId,
    kind: Discriminant<Task>,
    needs_no_work_dir: bool,
    is_member: bool,
    has_stdin: bool,
}

/// What the invocations of jobs with equal settings share.
#[derive(Debug)]
pub(super) struct Common<'p> {
    pub(super) shared: Rc<Shared>,
    pub(super) kickstart: Kickstart<'p>,
}

impl<'p> Common<'p> {
    /// Returns the common parts for a job, `None` if there are problems.
    fn new(job: PlannedJob<'p>, problems: &mut Vec<Diagnostic>) -> Option<Self> {
        let known = problems.len();
        let mut requests = requests::amounts(job, problems);
        if let Some(other) = job.unknown_wrapper() {
            problems.push(Diagnostic::error(format!(
                "the profile pegasus::gridstart of the job {} must be Kickstart or None, not `{other}`",
                job.name
            )));
        }
        let kickstart = Kickstart::of(job);
        let kickstart = kickstart
            .map_err(|problem| problems.push(Diagnostic::error(format!("job {}: {problem}", job.name))));
        let checks =
            Checks::of(job, true).map_err(|problem| problems.push(Diagnostic::error(problem.to_string())));
        requests.category = requests::category(job);
        requests::checkpoints(job, &mut requests, problems);
        requests::expected_time(job, &mut requests);
        if let Err(problem) = requests::after_failures(job, &mut requests) {
            problems.push(Diagnostic::error(problem.to_string()));
        }
        if let Err(problem) = requests::nodes(job, &mut requests) {
            problems.push(Diagnostic::error(problem));
        }
        match requests::stdin(job) {
            Ok(stdin) => requests.stdin = stdin,
            Err(problem) => problems.push(Diagnostic::error(problem)),
        }
        let (kickstart, checks) = (kickstart.ok()?, checks.ok()?);
        let shared = Shared {
            environment: Environment::of(job),
            requests,
            checks,
        };
        let this = Common {
            shared: Rc::new(shared),
            kickstart,
        };
        (problems.len() == known).then_some(this)
    }
}

/// The last common parts.
#[derive(Debug, Default)]
pub(super) struct Cache<'p> {
    entries: Vec<(Key, Rc<Common<'p>>)>,
    /// Index of the next entry to be replaced.
    oldest: usize,
}

impl<'p> Cache<'p> {
    /// Returns the common parts for a job, `None` if there are problems.
    pub(super) fn get(
        &mut self,
        job: PlannedJob<'p>,
        problems: &mut Vec<Diagnostic>,
    ) -> Option<Rc<Common<'p>>> {
        let key = Key {
            setup: job.setup_id(),
            site: job.site,
            staging: job.staging,
            kind: discriminant(&job.task),
            needs_no_work_dir: job.needs_no_work_dir(),
            is_member: job.is_member(),
            has_stdin: job.has_stdin(),
        };
        if let Some((_, known)) = self.entries.iter().find(|(known, _)| *known == key) {
            return Some(known.clone());
        }
        let common = Rc::new(Common::new(job, problems)?);
        let entry = (key, common.clone());
        if self.entries.len() < CACHE_SIZE {
            self.entries.push(entry);
        } else {
            self.entries[self.oldest] = entry;
            self.oldest = (self.oldest + 1) % CACHE_SIZE;
        }
        Some(common)
    }
}
