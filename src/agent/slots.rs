//! The slots of an agent: threads that run one task at a time, like the workers of other transports.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pmc_link::Link;
use pmc_system::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use pmc_system::clock;
use pmc_system::planted::{Planted, is_planted};
use pmc_system::thread::{self, JoinHandle};

use super::channels::{Leftover, Members};
use crate::bell::Bell;
use crate::interrupt::Interrupt;
use crate::options::WorkerOptions;
use crate::protocol::{
    AnswerBody, AttemptAnswer, AttemptRequest, EarlierAttempt, EarlierGang, EarlierMember, Membership,
    NodeChange, Rank, Registration, RequestBody, SubmitId, ToMaster, ToWorker,
};
use crate::requests::AttemptHandle as _;
use crate::stacks;
use crate::transport::agents::messages::{self, Content};
use crate::transport::{TransportError, WorkerTransport, parts};
use crate::worker::{self, RunningAttempt};

/// Attempts of a slot whose results the master may not have settled: at most those that it can prefill, and
/// one.
const MAX_ENDED: usize = 64;

/// A result may wait while the slot has more attempts than this, with the one that has just ended.
const MIN_WAITING: usize = 4;

/// Maximum time for slots to give back prefilled tasks.
const RETRACT_TIMEOUT: Duration = Duration::from_secs(2);

/// An attempt that a slot has been given.
#[derive(Clone, Debug)]
struct Given {
    submit: SubmitId,
    task: Vec<u8>,
    cpu_set: Vec<u32>,
    gpu_set: Vec<u32>,
    /// The DAG file of its sub-workflow, if it is in one.
    dag: Option<Vec<u8>>,
    /// Set if the slot is the lead of a gang.
    gang: Option<Box<EarlierGang>>,
}

/// What the link's thread and a slot's thread know of the slot.
#[derive(Default)]
struct SlotState {
    /// Attempts without a result: the first one runs, the others are prefilled.
    given: VecDeque<Given>,
    /// Attempts whose results may be unknown to the master.
    ended: VecDeque<Given>,
    /// What the slot said about its host.
    registration: Option<Registration>,
    is_set_up: bool,
    /// What the slot said when the host script had ended.
    readiness: Option<ToMaster>,
    /// The gang of which it is a member.
    member: Option<Box<Membership>>,
}

struct Slot {
    rank: Rank,
    current: Arc<RunningAttempt>,
    state: Arc<Mutex<SlotState>>,
    inbound: Sender<ToWorker>,
    bell: Option<Bell>,
    thread: JoinHandle,
}

/// All slots of an agent.
pub(super) struct Slots {
    first_rank: u32,
    slots: Vec<Slot>,
    /// Slots whose threads have not ended. The last one is counted until the host has left all gangs.
    alive: Arc<AtomicUsize>,
    link: Arc<Link>,
    /// Without it, the host is no member of gangs.
    members: Option<Arc<dyn Members>>,
    /// The host joins no more gangs: all threads have ended.
    are_over: Arc<Mutex<bool>>,
}

/// A slot's side of the link.
struct SlotTransport {
    rank: Rank,
    link: Arc<Link>,
    inbound: Receiver<ToWorker>,
    bell: Option<Bell>,
    state: Arc<Mutex<SlotState>>,
}

impl Slot {
    /// Passes a message on. The slot sees at once what is about the task that runs.
    fn send(&self, message: ToWorker) {
        let is_urgent = matches!(message, ToWorker::Request(_) | ToWorker::Abort);
        // A slot whose thread has ended needs no messages.
        let _ = self.inbound.send(message);
        if let Some(bell) = self.bell.as_ref().filter(|_| is_urgent) {
            bell.ring();
        }
    }
}

impl Slot {
    /// Ends an attempt: SIGTERM, and SIGKILL after a moment. It may be about to start.
    fn end(&self, submit: SubmitId) {
        let (current, state) = (Arc::clone(&self.current), Arc::clone(&self.state));
        let end = move || {
            let mut signal = libc::SIGTERM;
            while lock(&state).given.iter().any(|given| given.submit == submit) {
                current.signal(submit, signal);
                signal = libc::SIGKILL;
                thread::sleep(worker::GRACE);
            }
        };
        if let Err(error) = thread::spawn("end", end) {
            tracing::error!("Unable to end an attempt: {}", pmc_dag::reason(&error));
        }
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // The state is valid at every moment, even if a thread panicked.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// Starts a thread for each rank. Each registers its worker with the master. `before_end` is called by
    /// the last one before it ends.
    pub(super) fn start(
        ranks: Range<u32>,
        link: &Arc<Link>,
        options: &Arc<WorkerOptions>,
        members: Option<Arc<dyn Members>>,
        before_end: &Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, TransportError> {
        let first_rank = ranks.start;
        let alive = Arc::new(AtomicUsize::new(ranks.len()));
        let are_over = Arc::new(Mutex::new(false));
        let working = Arc::new(AtomicUsize::new(ranks.len()));
        let mut slots = Vec::with_capacity(ranks.len());
        for rank in ranks.map(Rank) {
            let (inbound, receiver) = unbounded();
            let state = Arc::new(Mutex::default());
            // Without it, the slot looks for messages now and then.
            let bell = if pmc_system::is_simulated() {
                None
            } else {
                Bell::new().ok()
            };
            let mut transport = SlotTransport {
                rank,
                link: Arc::clone(link),
                inbound: receiver,
                bell: bell.clone(),
                state: Arc::clone(&state),
            };
            let (options, alive, link) = (Arc::clone(options), Arc::clone(&alive), Arc::clone(link));
            let working = Arc::clone(&working);
            // The guard of this agent ends its tasks.
            let current = Arc::new(RunningAttempt::new());
            let (running, gangs) = (Arc::clone(&current), members.clone());
            let are_over = Arc::clone(&are_over);
            let before_end = Arc::clone(before_end);
            let serve = move || {
                // Signals to the agent are handled by its main thread.
                let ended = worker::serve_process(&mut transport, options, current, &Interrupt::new());
                if let Err(error) = ended {
                    tracing::debug!("Slot {}: {error}", rank.0);
                }
                // What gangs have here goes with the last one, before all are said to have ended.
                if working.fetch_sub(1, Ordering::AcqRel) == 1 {
                    *lock(&are_over) = true;
                    if let Some(gangs) = gangs {
                        gangs.leave_all();
                    }
                    before_end();
                }
                if alive.fetch_sub(1, Ordering::AcqRel) == 1 {
                    link.goodbye();
                }
            };
            let thread = thread::spawn(&format!("worker-{}", rank.0), serve)
                .map_err(|source| TransportError::StartWorker { rank, source })?;
            slots.push(Slot {
                rank,
                current: running,
                state,
                inbound,
                bell,
                thread,
            });
        }
        Ok(Self {
            first_rank,
            slots,
            alive,
            link: Arc::clone(link),
            members,
            are_over,
        })
    }

    /// Passes a message of the master on.
    pub(super) fn deliver(&self, rank: Rank, message: ToWorker) {
        let slot = rank.0.checked_sub(self.first_rank);
        let Some(slot) = slot.and_then(|index| self.slots.get(index as usize)) else {
            tracing::error!(
                "The master sent a message to worker {}, which is not here",
                rank.0
            );
            return;
        };
        match &message {
            ToWorker::Join(membership) => return self.join_gang(slot, membership),
            ToWorker::Leave { submit } => return self.leave_gang(slot, *submit),
            ToWorker::Request(request) if self.trace_member(slot, request) => return,
            _ => {}
        }
        if let ToWorker::Run(task) = &message {
            lock(&slot.state).given.push_back(Given {
                submit: task.submit,
                task: task.name.clone(),
                cpu_set: task.cpu_set.clone(),
                gpu_set: task.gpu_set.clone(),
                dag: task.place.as_ref().map(|place| place.dag.clone()),
                gang: task.gang.as_ref().map(|gang| Box::new(gang.earlier(task.cpus))),
            });
        }
        if let ToWorker::Setup { .. } = &message {
            let mut state = lock(&slot.state);
            if std::mem::replace(&mut state.is_set_up, true) {
                // The next master asks again. If the host script still runs, the slot answers later.
                if let Some(readiness) = &state.readiness {
                    self.link
                        .send(messages::address(rank, |body| readiness.encode(body)));
                }
                return;
            }
        }
        slot.send(message);
    }

    /// Lets a slot be a member of a gang.
    fn join_gang(&self, slot: &Slot, membership: &Membership) {
        let submit = membership.submit;
        let are_over = lock(&self.are_over);
        let mut state = lock(&slot.state);
        let joined = match &self.members {
            _ if *are_over => Err("its agent ends".to_owned()),
            _ if !state.given.is_empty() => Err("it runs another task".to_owned()),
            _ if state.member.is_some() => Err("it is a member of another task".to_owned()),
            Some(members) => members.join(membership, (slot.rank, slot.rank.0 - self.first_rank)),
            None => Err("it cannot listen for other hosts".to_owned()),
        };
        let answer = match joined {
            Ok(addresses) => {
                state.member = Some(Box::new(membership.clone()));
                ToMaster::Joined { submit, addresses }
            }
            Err(why) => ToMaster::NotJoined { submit, why },
        };
        // While the state is locked: the next master hears of it by this message, or when it is introduced.
        say(&self.link, slot.rank, &answer);
    }

    /// Lets a slot be no member of a gang any more, or end its attempt if it is the lead.
    fn leave_gang(&self, slot: &Slot, submit: SubmitId) {
        if lock(&slot.state).given.iter().any(|given| given.submit == submit) {
            return slot.end(submit);
        }
        let (link, rank, state) = (Arc::clone(&self.link), slot.rank, Arc::clone(&slot.state));
        let members = self.members.clone();
        let leave = move || {
            let left = members.and_then(|members| members.leave(submit));
            let Leftover { is_cut, killed } = left.unwrap_or_default();
            let answer = ToMaster::Left {
                submit,
                cut: is_cut,
                killed,
            };
            let mut state = lock(&state);
            if state
                .member
                .as_ref()
                .is_some_and(|member| member.submit == submit)
            {
                state.member = None;
            }
            say(&link, rank, &answer);
        };
        // It takes a moment, and the link must not wait.
        if let Err(error) = thread::spawn("leave", leave) {
            tracing::error!("Unable to leave a gang: {}", pmc_dag::reason(&error));
        }
    }

    /// Answers a request for what a gang does here of which the slot is a member. Returns whether it was one.
    fn trace_member(&self, slot: &Slot, request: &AttemptRequest) -> bool {
        let RequestBody::Stacks { all_threads } = request.body else {
            return false;
        };
        let state = lock(&slot.state);
        let Some(members) = self.members.as_ref().filter(|_| {
            let member = state.member.as_ref();
            member.is_some_and(|member| member.submit == request.submit)
        }) else {
            return false;
        };
        let (link, rank, number) = (Arc::clone(&self.link), slot.rank, request.number);
        stacks::trace(members.groups(request.submit), all_threads, move |found| {
            let body = AnswerBody::Stacks(found.map(Box::new));
            let answer = ToMaster::Answer(Box::new(AttemptAnswer { number, body }));
            say(&link, rank, &answer);
        });
        true
    }

    /// Sends a message to all slots.
    pub(super) fn deliver_all(&self, message: &ToWorker) {
        for slot in &self.slots {
            slot.send(message.clone());
        }
    }

    /// Asks the master for no more tasks.
    pub(super) fn leave(&self) {
        for rank in self.ranks().map(Rank) {
            let leaving = ToMaster::Node(NodeChange::Leaving);
            self.link
                .send(messages::address(rank, |body| leaving.encode(body)));
        }
    }

    /// True if all threads have ended, and so all tasks and what gangs had here.
    pub(super) fn have_ended(&self) -> bool {
        self.alive.load(Ordering::Acquire) == 0
    }

    /// True if no slot has a task, or is a member of a gang.
    pub(super) fn are_idle(&self) -> bool {
        let is_idle = |state: &SlotState| state.given.is_empty() && state.member.is_none();
        self.slots.iter().all(|slot| is_idle(&lock(&slot.state)))
    }

    /// Waits for the end of all threads, at most `timeout`. True if they have ended.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let end = clock::now() + timeout;
        while !self.have_ended() {
            if clock::now() >= end {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Takes back the threads, which have ended.
    pub(super) fn join(self) {
        for slot in self.slots {
            // Its panic was printed.
            slot.thread.join();
        }
    }

    /// The ranks.
    pub(super) fn ranks(&self) -> Range<u32> {
        self.first_rank..self.first_rank + u32::try_from(self.slots.len()).unwrap_or(0)
    }

    /// Number of slots.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Asks all slots to give back prefilled tasks, and waits until none has one. Their master has died.
    pub(super) fn give_back_prefilled(&self) {
        self.deliver_all(&ToWorker::Retract);
        let end = clock::now() + RETRACT_TIMEOUT;
        let has_prefilled = |slot: &Slot| lock(&slot.state).given.len() > 1;
        while self.slots.iter().any(has_prefilled) && clock::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the first messages for another master, from those that the dead one has not settled: the
    /// attempts that ran or run, the results, and the registrations.
    pub(super) fn introduce(&self, unsettled: &[Bytes]) -> Vec<Vec<u8>> {
        let mut results: BTreeMap<Rank, Vec<(SubmitId, Vec<&Bytes>)>> = BTreeMap::new();
        let mut parts: BTreeMap<Rank, Vec<&Bytes>> = BTreeMap::new();
        for body in unsettled {
            match messages::addressed(body) {
                Some((rank, Content::Part(_))) => parts.entry(rank).or_default().push(body),
                Some((rank, Content::Message(message))) => {
                    if let Ok(ToMaster::Finished(result)) = ToMaster::decode(message) {
                        let mut bodies = parts.remove(&rank).unwrap_or_default();
                        bodies.push(body);
                        results.entry(rank).or_default().push((result.submit, bodies));
                    }
                }
                None => {}
            }
        }
        let mut said = Vec::new();
        for (rank, slot) in (self.first_rank..).map(Rank).zip(&self.slots) {
            let state = lock(&slot.state);
            let encoded = |message: &ToMaster| messages::address(rank, |body| message.encode(body));
            let Some(registration) = &state.registration else {
                continue;
            };
            let results = results.remove(&rank).unwrap_or_default();
            for (submit, bodies) in &results {
                let mut known = state.ended.iter().chain(&state.given);
                if let Some(given) = known.find(|given| given.submit == *submit) {
                    said.push(encoded(&given.running()));
                    said.extend(bodies.iter().map(|body| body.to_vec()));
                }
            }
            let has_result = |given: &Given| results.iter().any(|(submit, _)| *submit == given.submit);
            let running = state.given.iter().filter(|given| !has_result(given));
            said.extend(running.map(|given| encoded(&given.running())));
            let member = state.member.as_deref();
            let member = member.filter(|_| !is_planted(Planted::ForgottenMember));
            said.extend(member.map(|member| encoded(&earlier(member))));
            // Last: the master may start when all have registered.
            said.push(encoded(&ToMaster::Register(registration.clone())));
        }
        said
    }
}

/// Sends what a slot says.
fn say(link: &Link, rank: Rank, message: &ToMaster) {
    link.send(messages::address(rank, |body| message.encode(body)));
}

/// What a member of a gang says to the next master.
fn earlier(member: &Membership) -> ToMaster {
    ToMaster::Member(Box::new(EarlierMember {
        submit: member.submit,
        task: member.task.clone(),
        dag: member.place.as_ref().map(|place| place.dag.clone()),
        part: member.part.clone(),
    }))
}

impl Given {
    fn running(&self) -> ToMaster {
        ToMaster::Running(EarlierAttempt {
            submit: self.submit,
            task: self.task.clone(),
            cpu_set: self.cpu_set.clone(),
            gpu_set: self.gpu_set.clone(),
            dag: self.dag.clone(),
            gang: self.gang.clone(),
        })
    }
}

impl WorkerTransport for SlotTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&mut self, message: ToMaster) -> Result<(), TransportError> {
        let mut message = message;
        parts::send_ahead(&mut message, |part| {
            let is_sent = self.link.send(messages::address_part(self.rank, part));
            is_sent.then_some(()).ok_or(TransportError::MasterEnded)
        })?;
        if let ToMaster::Register(registration) = &message {
            lock(&self.state).registration = Some(registration.clone());
        }
        let body = messages::address(self.rank, |body| message.encode(body));
        // The master need not hear at once of a result while this slot has more to do.
        let may_wait =
            matches!(message, ToMaster::Finished(_)) && lock(&self.state).given.len() > MIN_WAITING;
        let is_sent = match may_wait {
            true => self.link.send_soon(body),
            false => self.link.send(body),
        };
        if !is_sent {
            return Err(TransportError::MasterEnded);
        }
        // After the message is with the link: an attempt is known there or here, whenever the master changes.
        let mut state = lock(&self.state);
        match &message {
            ToMaster::Finished(result) => {
                let at = state.given.iter().position(|given| given.submit == result.submit);
                if let Some(given) = at.and_then(|at| state.given.remove(at)) {
                    state.ended.push_back(given);
                }
                let old = state.ended.len().saturating_sub(MAX_ENDED);
                state.ended.drain(..old);
            }
            ToMaster::Ready | ToMaster::NotReady { .. } => state.readiness = Some(message),
            ToMaster::Retracted { submits } => {
                state.given.retain(|given| !submits.contains(&given.submit));
            }
            _ => {}
        }
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError> {
        match self.inbound.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TransportError::MasterEnded),
        }
    }

    fn bell(&self) -> Option<&Bell> {
        self.bell.as_ref()
    }
}
