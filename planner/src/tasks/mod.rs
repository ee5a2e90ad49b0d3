//! Commands of jobs, before any file is written.
//!
//! Each job of a plan becomes an [`Invocation`]: words that are not quoted, and what the job requests. Code
//! generators write it down in their formats. `kickstart` wraps a program, `cluster` runs several
//! invocations, and `lite` runs one in a directory of its own or in a container.

pub(crate) mod arguments;
pub(crate) mod checksums;
mod cluster;
mod common;
mod environment;
mod expressions;
mod facts;
pub(crate) mod file_lists;
mod kickstart;
pub(crate) mod layout;
pub(crate) mod lite;
pub(crate) mod nested;
pub(crate) mod nesting;
mod plan;
pub(crate) mod requests;
pub(crate) mod secrets;
mod shell;
pub(crate) mod style;
mod words;
mod work_lists;

use std::rc::Rc;

use crate::diagnostic::Diagnostic;
use crate::exec::{JobId, Task};

use common::{Cache, Common};
use environment::Environment;
use requests::{Checks, Requests};

pub(crate) use crate::saved_request::PROPERTIES;
pub(crate) use plan::{MAX_SMALL_PLAN, Plan, PlannedJob};
pub(crate) use words::Words;
pub(crate) use work_lists::WorkLists;

/// How a job is called.
#[derive(Clone, Debug, Default)]
pub(crate) struct Invocation {
    /// What jobs with equal settings share.
    pub(crate) shared: Rc<Shared>,
    /// The job of a cluster has the variables of the cluster, and needs no others.
    pub(crate) inherits_environment: bool,
    /// The first program: kickstart, a launcher, or the program itself.
    pub(crate) program: String,
    /// The first program is the kickstart that `pegasus-lite` has inside.
    pub(crate) is_kickstart: bool,
    /// Arguments of the first program.
    pub(crate) arguments: Words,
    /// File for standard input that the code generator redirects.
    pub(crate) stdin: Option<String>,
    /// Content of the argument file of kickstart, if there is one.
    pub(crate) argument_file: Option<String>,
    /// Values of the plan for the variables of [`Requests::expressions`].
    pub(crate) expression_values: Vec<(&'static str, String)>,
}

/// The part of an invocation that jobs with equal settings share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) environment: Environment,
    pub(crate) requests: Requests,
    pub(crate) checks: Checks,
}

impl Invocation {
    /// Removes everything and keeps the memory.
    fn clear(&mut self) {
        self.program.clear();
        self.arguments.clear();
        (self.inherits_environment, self.is_kickstart) = (false, false);
        (self.argument_file, self.stdin) = (None, None);
        self.expression_values.clear();
    }

    /// Returns program and arguments.
    pub(crate) fn command(&self) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
        let program = std::borrow::Cow::Borrowed(&*self.program);
        std::iter::once(program).chain(self.arguments.iter())
    }
}

/// Makes the invocations of the jobs of a plan.
pub(crate) struct Invocations<'p> {
    plan: &'p Plan<'p>,
    lists: &'p WorkLists,
    cache: Cache<'p>,
    /// Arguments of the program.
    arguments: Words,
}

impl<'p> Invocations<'p> {
    /// Work lists that are not written yet have a file of their own.
    pub(crate) fn new(plan: &'p Plan<'p>, lists: &'p WorkLists) -> Self {
        Invocations {
            plan,
            lists,
            cache: Cache::default(),
            arguments: Words::default(),
        }
    }

    /// Returns the plan.
    pub(crate) fn plan(&self) -> &'p Plan<'p> {
        self.plan
    }

    /// Replaces an invocation by that of a job.
    ///
    /// # Errors
    /// Invalid profiles; each message names the job.
    pub(crate) fn fill(&mut self, id: JobId, invocation: &mut Invocation) -> Result<(), Vec<Diagnostic>> {
        self.fill_inside(id, invocation)?;
        let job = self.plan.at(id);
        if job.has_description() {
            lite::wrap(job, self.lists, invocation);
        }
        Ok(())
    }

    /// As [`Self::fill`]. If `pegasus-lite` runs the job, the invocation is what runs inside.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub(crate) fn fill_inside(
        &mut self,
        id: JobId,
        invocation: &mut Invocation,
    ) -> Result<(), Vec<Diagnostic>> {
        let job = self.plan.at(id);
        invocation.clear();
        if let Some(cluster) = job.cluster() {
            cluster::fill(job, cluster, invocation)?;
            invocation.expression_values = expressions::values(job, &invocation.shared.requests.expressions);
            return Ok(());
        }
        let mut problems = Vec::new();
        let common = self.cache.get(job, &mut problems);
        self.arguments.clear();
        arguments::push(job, self.lists, &mut self.arguments, &mut problems);
        problems.extend(lite::out_of_reach(job).map(Diagnostic::error));
        let Some(common) = common.filter(|_| problems.is_empty()) else {
            return Err(problems);
        };
        invocation.shared = common.shared.clone();
        if !common.shared.requests.expressions.is_empty() {
            invocation.expression_values = expressions::values(job, &common.shared.requests.expressions);
        }
        self.command(job, &common, invocation);
        Ok(())
    }

    /// Fills in the command.
    fn command(&self, job: PlannedJob<'p>, common: &Common<'p>, invocation: &mut Invocation) {
        let (lists, arguments) = (self.lists, &self.arguments);
        if nested::is_ready(job) {
            invocation.inherits_environment = true;
            invocation.program.push_str(&job.setup.executable);
            return;
        }
        invocation.inherits_environment = job.inherits_environment();
        let is_plain = matches!(job.task, Task::NoOp);
        if job.is_wrapped() {
            kickstart::wrap(job, &common.kickstart, lists, arguments, invocation);
        } else if is_plain || shell::is_superfluous(job) {
            invocation.program.push_str(&job.setup.executable);
            if !is_plain {
                invocation.stdin = lists.stdin(job);
                invocation.arguments.append(arguments);
            }
        } else {
            shell::wrap(job, lists, arguments, invocation);
        }
    }
}
