//! Requests of tools in a simulation: there is no socket between.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use pmc_control::{Answer, Request};
use pmc_system::simulated::context;

use super::{Control, Reply};
use crate::interrupt::Interrupt;

/// The run of a process of a simulation, as tools see it: the context of the process, see
/// [`pmc_system::simulated::context`].
#[derive(Default)]
pub struct Tools(RefCell<Option<Run>>);

struct Run {
    control: Control,
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// A request that was made.
#[derive(Debug)]
pub struct Asked(Receiver<Reply>);

impl Tools {
    /// Asks the run. `None` if it takes no requests yet. Whatever process the caller is.
    pub fn ask(&self, request: Request) -> Option<Asked> {
        let run = self.0.borrow();
        let run = run.as_ref()?;
        let (sender, receiver) = sync_channel(1);
        run.control.push(request, sender);
        (run.wake)();
        Some(Asked(receiver))
    }
}

impl Asked {
    /// The answer, if it has come.
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        match self.0.try_recv().ok()? {
            Reply::Answer(answer) => Some(answer),
            // What comes with output is for connections.
            Reply::Output(_) | Reply::Relay(..) | Reply::Redirected(..) => None,
        }
    }
}

/// Lets tools of the simulation ask the run of this process.
pub(crate) fn open(control: &Control, interrupt: &Interrupt) {
    // Requests to guests come by other sockets.
    if control.guest.is_none()
        && let Some(tools) = context::<Tools>()
    {
        let (control, wake) = (control.clone(), interrupt.waker());
        tools.0.replace(Some(Run { control, wake }));
    }
}
