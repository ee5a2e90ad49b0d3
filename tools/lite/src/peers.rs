//! Entries of the cache that other nodes of the run have: the agent of the node gets them.
//!
//! Without an agent, or if anything fails, there are none, and the job fetches the file itself.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use pegasus_kickstart::interrupts::{Interrupt, Interrupts};
use pegasus_kickstart::wait::poll_interrupts;
use pmc_node_files::NodeFile;
use pmc_wire::peers::{self, ToAgent, ToJob};

use crate::data::{DataError, Mover};

/// Maximum time for a message to an agent that does not read, and between the parts of one.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What the agent knows of an entry that this job fetches. If it is dropped, the job has failed to do so.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    agent: Option<UnixStream>,
}

impl Asked {
    /// Asks for the entry with a key, whose bytes are to come into a file. Also returns their number, if they
    /// are there. Otherwise, this job is to fetch the file.
    ///
    /// # Errors
    /// A signal arrived.
    pub(crate) fn want(
        key: &str,
        into: &Path,
        mover: &Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<(Self, Option<u64>), DataError> {
        let mut this = Self {
            agent: connect(mover),
        };
        let want = ToAgent::Want {
            key: key.to_owned(),
            into: into.to_owned(),
        };
        let bytes = match this.ask(&want, interrupts)? {
            Some(ToJob::Got { bytes }) => Some(bytes),
            Some(ToJob::Fetch) | None => None,
        };
        Ok((this, bytes))
    }

    /// Says that the bytes are wrong. The job is to fetch the file now.
    ///
    /// # Errors
    /// A signal arrived.
    pub(crate) fn wrong(&mut self, interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
        self.ask(&ToAgent::Wrong, interrupts).map(|_| ())
    }

    /// Says what has become of the entry.
    pub(crate) fn tell(self, what: &ToAgent) {
        if let Some(agent) = self.agent {
            // Without its agent, the node has no peers.
            let _ = peers::send(agent, what);
        }
    }

    /// Asks the agent. Returns `None` if it does not answer: it is not asked again.
    fn ask(
        &mut self,
        question: &ToAgent,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Option<ToJob>, DataError> {
        let Some(agent) = self.agent.take() else {
            return Ok(None);
        };
        match peers::send(&agent, question).and_then(|()| agent.try_clone()) {
            Ok(copy) => wait(&copy.into(), interrupts)?,
            Err(_) => return Ok(None),
        }
        let answer = peers::receive(&agent).ok();
        self.agent = answer.is_some().then_some(agent);
        Ok(answer)
    }
}

/// Says that the node has an entry, which this job has found in the cache.
pub(crate) fn tell(entry: NodeFile, mover: &Mover) {
    let asked = Asked {
        agent: connect(mover),
    };
    asked.tell(&ToAgent::Have(entry));
}

fn connect(mover: &Mover) -> Option<UnixStream> {
    let name = mover.variable(peers::VARIABLE)?;
    let prepared = || -> io::Result<UnixStream> {
        let agent = peers::connect(&name)?;
        agent.set_read_timeout(Some(TIMEOUT))?;
        agent.set_write_timeout(Some(TIMEOUT))?;
        Ok(agent)
    };
    prepared().ok()
}

/// Waits for the agent or a signal.
fn wait(agent: &OwnedFd, interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
    loop {
        let wakeup = poll_interrupts(None, Some(agent), interrupts)?;
        if wakeup.abandoned {
            interrupts.abandoned();
        }
        while let Some(interrupt) = interrupts.take() {
            if let Interrupt::Forward(signal) = interrupt {
                return Err(DataError::Signal(signal));
            }
        }
        if wakeup.watched {
            return Ok(());
        }
    }
}
