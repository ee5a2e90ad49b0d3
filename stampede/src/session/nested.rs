//! Nested sub-workflows of a session: each has a log of its own, and rows in the same database.
//!
//! A sub-workflow is loaded through a session of its own, which begins when the log around it says that the
//! sub-workflow does. Each session commits before another one writes. So a killed loader continues with
//! each log at its own place.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Notices;
use super::context::Session;
use super::follow::Follower;
use crate::error::{LoadError, Notice};
use crate::loader::Loader;
use crate::submit_description::SubmitDescription;

/// Sub-workflows whose logs and connections stay open, at most. Others are opened when their logs have
/// grown.
const MAX_OPEN: usize = 8;

/// An attempt that is a sub-workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Log of the sub-workflow.
    pub log: PathBuf,
    /// UUID of the workflow around it.
    pub parent: String,
    /// Job of this workflow.
    pub job: String,
    /// Sequence number of the attempt.
    pub seq: i64,
}

/// Returns the sub-workflows that have begun since the last call.
pub(super) fn links(session: &Session<'_>, loader: &mut Loader, notice: Notices<'_>) -> Vec<Link> {
    let starts = loader.take_nested();
    if session.is_flat() {
        return Vec::new();
    }
    let run = &session.run;
    let mut links = Vec::new();
    for start in starts {
        let path = run.dir.join(&start.submit_file);
        let description = match SubmitDescription::open(&path) {
            Ok(description) => description,
            Err(source) => {
                notice(Notice::Output { path, source });
                continue;
            }
        };
        let Some(description) = description else {
            continue;
        };
        match description.log_of(start.number, run.workflow.submit_dir.as_deref(), &run.dir) {
            Some(log) => links.push(Link {
                log,
                parent: run.workflow.wf_uuid.clone(),
                job: start.job,
                seq: start.seq,
            }),
            None => notice(Notice::Nested {
                path: description.log,
                reason: format!("there is no directory with the plan of job {}", start.job),
            }),
        }
    }
    links
}

/// Logs to load, each with the attempts that it is.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    logs: VecDeque<(PathBuf, Vec<Link>)>,
}

impl Waiting {
    /// Adds attempts.
    pub fn add(&mut self, links: Vec<Link>) {
        for link in links {
            match self.logs.iter_mut().find(|(log, _)| *log == link.log) {
                Some((_, links)) => links.push(link),
                None => self.logs.push_back((link.log.clone(), vec![link])),
            }
        }
    }

    /// Takes the next log, with at least one attempt.
    pub fn next(&mut self) -> Option<(PathBuf, Vec<Link>)> {
        self.logs.pop_front()
    }
}

/// The sub-workflows of a run that is followed.
#[derive(Default)]
pub(super) struct Nested<'o> {
    children: Vec<Child<'o>>,
    by_log: BTreeMap<PathBuf, usize>,
    /// Attempts that ended, of those sub-workflows that are closed.
    jobs: u64,
}

struct Child<'o> {
    log: PathBuf,
    parent: String,
    /// Attempts that the database does not link yet.
    links: Vec<Link>,
    follower: Option<Box<Follower<'o>>>,
    /// Bytes of the log that are loaded.
    read: u64,
    is_active: bool,
}

impl<'o> Nested<'o> {
    fn add(&mut self, links: Vec<Link>) {
        for link in links {
            let next = self.children.len();
            let at = *self.by_log.entry(link.log.clone()).or_insert(next);
            if at == next {
                self.children.push(Child {
                    log: link.log.clone(),
                    parent: link.parent.clone(),
                    links: Vec::new(),
                    follower: None,
                    read: 0,
                    is_active: true,
                });
            }
            let child = &mut self.children[at];
            child.is_active = true;
            child.links.push(link);
        }
    }

    /// Closes all, to open them again later.
    pub fn close(&mut self) {
        for child in &mut self.children {
            child.follower = None;
        }
    }

    /// Returns the number of attempts that ended.
    pub fn jobs(&self) -> u64 {
        self.jobs
    }

    /// Adds sub-workflows, and loads what the logs of all have. `outer` is the outermost workflow, whose rows
    /// are committed. With `is_last`, nothing more will be written. Returns the number of lines.
    pub fn visit(
        &mut self,
        outer: &Session<'o>,
        links: Vec<Link>,
        is_last: bool,
        stop: &AtomicBool,
        notice: Notices<'_>,
    ) -> Result<u64, LoadError> {
        self.add(links);
        let mut lines = 0;
        let mut at = 0;
        while at < self.children.len() && !stop.load(Ordering::Relaxed) {
            let open = self
                .children
                .iter()
                .filter(|child| child.follower.is_some())
                .count();
            let child = &mut self.children[at];
            at += 1;
            let is_due = child.is_active || is_last && child.has_grown();
            if !is_due {
                continue;
            }
            match child.visit(outer, is_last, stop, notice) {
                Ok(visited) => {
                    lines += visited.lines;
                    if child.is_over(is_last, visited.lines) {
                        self.jobs += child.end(stop, notice)?;
                    } else if open >= MAX_OPEN && child.may_close() {
                        child.follower = None;
                    }
                    self.add(visited.links);
                }
                Err(error @ LoadError::Store(_)) => return Err(error),
                Err(error) => {
                    notice(Notice::Nested {
                        path: child.log.clone(),
                        reason: error.to_string(),
                    });
                    (child.is_active, child.follower) = (false, None);
                }
            }
        }
        Ok(lines)
    }
}

/// What a visit has found.
#[derive(Default)]
struct Visited {
    lines: u64,
    links: Vec<Link>,
}

impl<'o> Child<'o> {
    /// Commands of notifications would be lost.
    fn may_close(&self) -> bool {
        self.follower
            .as_ref()
            .is_none_or(|follower| !follower.session.notifies())
    }

    fn has_grown(&self) -> bool {
        has_grown(&self.log, self.read)
    }

    fn visit(
        &mut self,
        outer: &Session<'o>,
        is_last: bool,
        stop: &AtomicBool,
        notice: Notices<'_>,
    ) -> Result<Visited, LoadError> {
        let follower = match &mut self.follower {
            Some(follower) => follower,
            None => {
                if self.links.is_empty() && !has_grown(&self.log, self.read) {
                    return Ok(Visited::default());
                }
                let follower = Follower::nested(outer, &self.log, &self.parent, notice)?;
                self.follower.insert(Box::new(follower))
            }
        };
        follower.link(&self.links)?;
        self.links.clear();
        let lines = follower.read_nested(is_last, stop, notice)?;
        self.read = follower.position()?.log_bytes;
        Ok(Visited {
            lines,
            links: follower.take_links(notice),
        })
    }

    /// Returns whether nothing more is expected after a visit that has found this number of lines.
    fn is_over(&self, is_last: bool, lines: u64) -> bool {
        let is_running = self
            .follower
            .as_ref()
            .is_some_and(|follower| follower.is_running());
        is_last || (!is_running && lines == 0)
    }

    /// Closes it. Returns the number of attempts that ended.
    fn end(&mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<u64, LoadError> {
        self.is_active = false;
        match self.follower.take() {
            Some(follower) => follower.end_nested(stop, notice),
            None => Ok(0),
        }
    }
}

/// Returns whether a log has more than this number of bytes.
fn has_grown(log: &Path, read: u64) -> bool {
    fs::metadata(log).is_ok_and(|log| log.len() > read)
}

/// Checks that the files of a sub-workflow can be read, so that nothing of it is loaded otherwise.
pub(super) fn check(session: &Session<'_>) -> Result<(), LoadError> {
    let events: &Path = &session.run.static_events;
    pmc_files::open(events)
        .map(drop)
        .map_err(|source| LoadError::Read {
            path: events.to_owned(),
            source,
        })
}
