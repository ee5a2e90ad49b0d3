//! The cache of a node: what several of its jobs need comes over the network once.
//!
//! It is a store of files ([`pmc_node_files::store`]) beside the directories of jobs. A job that finds a file
//! missing fetches and verifies it, perhaps from another node of the run ([`peers`]). Others wait for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monitord_compat::lite_log::Step;
use nix::unistd::getuid;
use pegasus_kickstart::interrupts::{Interrupt, Interrupts};
use pegasus_kickstart::wait::poll_interrupts;
use pmc_job_files::Verified;
use pmc_node_files::store::{Access, Filling, Held, Limit, Store, Unremoved};
use pmc_wire::peers::ToAgent;

use crate::data::{DataError, Direction, Mover};
use crate::messages::Log;
use crate::peers::{self, Asked};

/// Time between two looks at a lock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The cache beside the directories of jobs.
#[derive(Debug)]
pub(crate) struct Cache {
    store: Store,
    log: Log,
}

/// What a job wants from the cache.
#[derive(Debug)]
pub(crate) struct CacheRequest<'a> {
    /// What distinguishes the file from all others of the node: letters and digits.
    pub(crate) key: &'a str,
    /// How it is fetched.
    pub(crate) fetch: &'a [pmc_job_files::Entry],
    /// Its checksum.
    pub(crate) verify: &'a [Verified],
    /// Its path in the directory into which it is fetched.
    pub(crate) name: &'a str,
    /// The steps in which it is fetched and verified, if they have headings of their own.
    pub(crate) steps: Option<[Step; 2]>,
    /// How much space all entries may have.
    pub(crate) limit: Limit,
    /// Jobs use the file itself instead of copies: none shall change it by mistake.
    pub(crate) is_read_only: bool,
}

impl CacheRequest<'_> {
    /// Fetches and verifies the file, in the directory of the mover.
    ///
    /// # Errors
    /// It cannot be fetched, differs from its checksum, or a signal arrived.
    pub(crate) fn fetch_here(
        &self,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<(), DataError> {
        if let Some([step, _]) = self.steps {
            mover.log.heading(step);
        }
        mover.transfer(self.fetch, Direction::In, interrupts)?;
        if let Some([_, step]) = self.steps.filter(|_| !self.verify.is_empty()) {
            mover.log.heading(step);
        }
        mover.verify(self.verify.iter())
    }

    /// Fetches and verifies the file, in the directory of the mover, perhaps from another node. A file
    /// without a checksum never comes from there, where a task could have changed it.
    fn fetch_from_anywhere(
        &self,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
        into: &Path,
    ) -> Result<Option<Asked>, DataError> {
        if let Some(parent) = into.parent() {
            fs::create_dir_all(parent)?;
        }
        if self.verify.is_empty() {
            self.fetch_here(mover, interrupts)?;
            return Ok(None);
        }
        let (mut asked, bytes) = Asked::want(self.key, into, mover, interrupts)?;
        if let Some(bytes) = bytes {
            if mover.agrees(into, bytes, self.verify)? {
                mover
                    .log
                    .say(format_args!("{} ({bytes} bytes) is from another node", self.name));
                mover.data.from_peers = mover.data.from_peers.saturating_add(bytes);
                return Ok(Some(asked));
            }
            mover
                .log
                .say(format_args!("the copy of {} on another node is wrong", self.name));
            fs::remove_file(into)?;
            asked.wrong(interrupts)?;
        }
        self.fetch_here(mover, interrupts)?;
        Ok(Some(asked))
    }
}

impl Cache {
    /// Opens the cache beside the directories of jobs. `None` if its directory cannot be made, or is not that
    /// of this user alone: the log says so, and the job does without the cache.
    pub(crate) fn open(base: &Path, log: &Log) -> Option<Self> {
        match Store::open(directory(base)) {
            Ok((store, unremoved)) => {
                report(&unremoved, log);
                let log = log.clone();
                Some(Self { store, log })
            }
            Err(error) => {
                log.say(format_args!("The cache of the node cannot be used: {error}"));
                None
            }
        }
    }

    /// Removes all entries of the cache beside the directories of jobs that nobody uses.
    pub(crate) fn make_room(base: &Path, log: &Log) {
        report(&Store::make_room(directory(base)), log);
    }

    /// The files of the cache.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns an entry, and fetches it unless it is there. Returns `None` if it is too large, or has changed
    /// while others use it: each job fetches the file by itself.
    ///
    /// # Errors
    /// It cannot be fetched, differs from its checksum, or a signal arrived.
    pub(crate) fn entry(
        &self,
        request: &CacheRequest<'_>,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Option<Held>, DataError> {
        loop {
            match self.store.access(request.key)? {
                Access::Held(held) => {
                    peers::tell(self.store.node_file(request.key, request.name, held.bytes), mover);
                    mover.data.cached = mover.data.cached.saturating_add(held.bytes);
                    return Ok(Some(held));
                }
                Access::Fill(filling) => {
                    if let Some(held) = self.fill(request, filling, mover, interrupts)? {
                        return Ok(Some(held));
                    }
                    // Others have removed it already.
                    continue;
                }
                Access::TooLarge => return Ok(None),
                Access::Changed => {
                    self.log.say(format_args!(
                        "{} was changed in the cache of the node, where others use it",
                        request.name
                    ));
                    return Ok(None);
                }
                Access::Busy => {}
            }
            let clock = Instant::now();
            let paused = pause(interrupts);
            mover.data.waited += clock.elapsed().as_secs_f64();
            paused?;
        }
    }

    /// Fetches the file of an entry. Returns `None` if it is gone again.
    fn fill(
        &self,
        request: &CacheRequest<'_>,
        filling: Filling<'_>,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Option<Held>, DataError> {
        let new = filling.directory()?;
        let into = new.join(request.name);
        let asked = mover.within(&new, |mover| {
            request.fetch_from_anywhere(mover, interrupts, &into)
        })?;
        let Some(held) = filling.finish(&into, request.limit, request.is_read_only)? else {
            return Ok(None);
        };
        let file = || self.store.node_file(request.key, request.name, held.bytes);
        match (held.is_large, asked) {
            (true, Some(asked)) => asked.tell(&ToAgent::TooLarge),
            (true, None) => {}
            (false, Some(asked)) => asked.tell(&ToAgent::Have(file())),
            (false, None) => peers::tell(file(), mover),
        }
        Ok(Some(held))
    }

    /// Removes an entry that is not what it should be.
    ///
    /// # Errors
    /// It cannot be removed, or a signal arrived.
    pub(crate) fn discard(&self, key: &str, interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
        while !self.store.discard(key)? {
            pause(interrupts)?;
        }
        Ok(())
    }
}

fn directory(base: &Path) -> PathBuf {
    base.join(format!(".pegasus-lite-{}-cache", getuid()))
}

fn report(unremoved: &[Unremoved], log: &Log) {
    for Unremoved { key, error } in unremoved {
        log.say(format_args!("{key} cannot be removed from the cache: {error}"));
    }
}

/// Waits a moment.
///
/// # Errors
/// A signal arrived.
pub(crate) fn pause(interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
    if poll_interrupts(Some(POLL_INTERVAL), None, interrupts)?.abandoned {
        interrupts.abandoned();
    }
    while let Some(interrupt) = interrupts.take() {
        if let Interrupt::Forward(signal) = interrupt {
            return Err(DataError::Signal(signal));
        }
    }
    Ok(())
}
