//! Follows the log of a nested sub-workflow, on behalf of the follower of the outermost workflow.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::context::{Session, report_truncated};
use super::follow::{Follower, start};
use super::nested::{self, Link};
use super::{End, Notices};
use crate::error::LoadError;
use crate::log_reader::LogReader;
use crate::store::Position;

impl<'o> Follower<'o> {
    /// Opens the log of a sub-workflow of the workflow `parent` to continue it, or begins with it.
    pub fn nested(
        outer: &Session<'o>,
        log: &Path,
        parent: &str,
        notice: Notices<'_>,
    ) -> Result<Self, LoadError> {
        let session = Session::nested(outer, log, parent)?;
        nested::check(&session)?;
        let reader = LogReader::open(&session.run.log).map_err(|source| session.read_error(source))?;
        let (session, loader, position) = start(session, None, notice)?;
        let mut follower = Self::new(session, loader, reader);
        follower.resume(position, notice)?;
        Ok(follower)
    }

    /// Notes which attempts this sub-workflow is.
    pub fn link(&mut self, links: &[Link]) -> Result<(), LoadError> {
        if links.is_empty() {
            return Ok(());
        }
        for link in links {
            self.loader.store().link(&link.parent, &link.job, link.seq)?;
        }
        let position = self.position()?;
        self.loader.commit(position)
    }

    /// Loads new lines and commits them. With `is_last`, nothing more will be written. Returns the number of
    /// lines.
    pub fn read_nested(
        &mut self,
        is_last: bool,
        stop: &AtomicBool,
        notice: Notices<'_>,
    ) -> Result<u64, LoadError> {
        self.session.poll_notifications(notice);
        let lines = self.read(stop, notice)?;
        if is_last && self.is_running() {
            self.load_last_line(notice)?;
        }
        Ok(lines)
    }

    /// Returns the sub-workflows that have begun since the last call.
    pub fn take_links(&mut self, notice: Notices<'_>) -> Vec<Link> {
        nested::links(&self.session, &mut self.loader, notice)
    }

    /// Returns whether a run has begun and not ended.
    pub fn is_running(&self) -> bool {
        self.loader.is_running()
    }

    /// Returns the position in the log.
    pub fn position(&self) -> Result<Position, LoadError> {
        self.reader
            .position()
            .map_err(|source| self.session.read_error(source))
    }

    /// Writes the last rows and closes the database. Returns the number of attempts that ended.
    pub fn end_nested(mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<u64, LoadError> {
        self.commit_end(End::Complete, notice)?;
        report_truncated(&self.loader, notice);
        self.session.finish_notifications(stop, notice);
        let jobs = self.loader.jobs_ended();
        self.loader.into_store().close()?;
        Ok(jobs)
    }
}
