//! A simulated system: processes and their threads as coroutines of one thread, a virtual clock, a network.
//!
//! [`Simulation::step`] runs one coroutine until it waits, or lets the clock go on to the next event. Which
//! of those that could go on does is random, as is everything else: the seed determines a run.
//!
//! A process that is killed does nothing more: its coroutines are unwound, and meanwhile what they do to
//! files and connections has no effect.

pub mod net;
mod random;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use net::Network;
pub use random::Random;

/// Bytes of the stack of a thread. The system gives those that are used.
const STACK: usize = 512 << 10;

/// When simulated time begins: 2026-01-01.
const BEGIN: Duration = Duration::from_secs(1_767_225_600);

/// A process; also its process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(u64);

/// A change of a file, for a simulation.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// These bytes are appended or written.
    Write(&'a File, &'a [u8]),
    /// The content of the file reaches the disk.
    Sync(&'a File),
    /// The names in a directory reach the disk.
    SyncFolder(&'a Path),
    /// The file gets this length.
    SetLen(&'a File, u64),
    /// The file gets another name.
    Rename(&'a Path, &'a Path),
    /// The file is removed.
    Remove(&'a Path),
}

/// What becomes of a change.
#[derive(Debug)]
pub enum Fate {
    /// It is done.
    Done,
    /// It fails. Of a write, this number of bytes are written before.
    Fails(io::Error, usize),
    /// The process dies. Of a write, this number of bytes are written before.
    Killed(usize),
    /// The process is dead, and does nothing any more.
    Dead,
}

/// What a simulation decides about the files of a process.
pub trait Disk {
    /// Decides what becomes of a change.
    fn fate_of(&self, process: ProcessId, change: Change<'_>) -> Fate;
}

type Body = Coroutine<(), (), ()>;

struct Process {
    host: HostId,
    is_alive: bool,
    is_stopped: bool,
    /// What the simulation knows of it.
    context: Option<Rc<dyn Any>>,
}

struct Thread_ {
    process: ProcessId,
    body: Option<Body>,
    yielder: *const Yielder<(), ()>,
    /// Counts its waits: an old alarm does not end a new wait.
    parks: u64,
    is_parked: bool,
    is_ready: bool,
    /// It was woken while it did not wait.
    token: bool,
    joiners: Vec<ThreadId>,
}

enum Alarm {
    Thread(ThreadId, u64),
    Event(Box<dyn FnOnce()>),
}

struct State {
    random: Random,
    next_process: u32,
    next_thread: u64,
    next_alarm: u64,
    processes: BTreeMap<ProcessId, Process>,
    threads: BTreeMap<ThreadId, Thread_>,
    ready: Vec<ThreadId>,
    times: BinaryHeap<Reverse<(u64, u64)>>,
    alarms: BTreeMap<u64, Alarm>,
    current: Option<ThreadId>,
    disk: Rc<dyn Disk>,
    network: Network,
    panics: Vec<String>,
    steps: u64,
}

/// More looks at the clock in a step are a loop that does not wait.
const MAX_LOOKS: u32 = 1 << 20;

/// No simulation runs.
const NEVER: u64 = u64::MAX;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(NEVER) };
    /// How often somebody has looked at the clock in this step.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// What other modules of this package see.
fn with<R>(f: impl FnOnce(&mut State) -> R) -> Option<R> {
    STATE.with_borrow_mut(|state| state.as_mut().map(f))
}

#[inline]
pub(crate) fn is_running() -> bool {
    NOW.get() != NEVER
}

/// The time since the simulation began.
#[must_use]
#[inline]
pub fn now() -> Option<Duration> {
    let now = NOW.get();
    (now != NEVER).then(|| Duration::from_nanos(now))
}

/// A moment of a simulation.
#[must_use]
pub fn instant(now: Duration) -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    // What is before the simulation can be expressed, too.
    *ORIGIN.get_or_init(|| Instant::now() + Duration::from_secs(1 << 20)) + now
}

/// A thread looks at the clock. If it does so without end, the simulation finds it.
pub(crate) fn look() {
    let looks = LOOKS.get() + 1;
    LOOKS.set(looks);
    assert!(
        looks != MAX_LOOKS,
        "a thread looks at the clock again and again, and does not wait"
    );
}

fn now_instant() -> Instant {
    instant(now().unwrap_or_default())
}

/// The time of the day at a moment of a simulation.
#[must_use]
pub fn system_time(now: Duration) -> SystemTime {
    UNIX_EPOCH + BEGIN + now
}

/// The thread that runs.
#[must_use]
pub fn current_thread() -> Option<ThreadId> {
    with(|state| state.current).flatten()
}

/// The process that runs.
#[must_use]
pub fn current_process() -> Option<ProcessId> {
    with(|state| state.current.map(|thread| state.threads[&thread].process)).flatten()
}

/// What the simulation has said of the process that runs.
#[must_use]
pub fn context<T: 'static>() -> Option<Rc<T>> {
    let process = current_process()?;
    let context = with(|state| state.processes[&process].context.clone()).flatten()?;
    context.downcast().ok()
}

/// A number for the system of the process that runs: another one on each host, and after each loss of power.
#[must_use]
pub fn running_system() -> Option<u32> {
    with(|state| {
        let thread = state.current?;
        let host = state.processes[&state.threads[&thread].process].host;
        Some(((host.0 + 1) << 16) | state.network.boots(host))
    })
    .flatten()
}

/// Random numbers of the simulation.
pub fn random<R>(f: impl FnOnce(&mut Random) -> R) -> Option<R> {
    with(|state| f(&mut state.random))
}

pub(crate) fn fate_of(change: Change<'_>) -> Fate {
    let known = with(|state| {
        let process = state.threads[&state.current?].process;
        let is_alive = state.processes[&process].is_alive;
        Some((process, is_alive, Rc::clone(&state.disk)))
    });
    match known.flatten() {
        Some((_, false, _)) => Fate::Dead,
        Some((process, true, disk)) => disk.fate_of(process, change),
        None => Fate::Done,
    }
}

/// Waits for some time.
pub(crate) fn sleep(time: Duration) {
    let until = now_instant().checked_add(time);
    while until.is_some_and(|until| now_instant() < until) && is_current_alive() {
        park(until);
    }
}

fn is_current_alive() -> bool {
    with(|state| {
        let thread = state.current.and_then(|thread| state.threads.get(&thread));
        thread.is_some_and(|thread| state.processes[&thread.process].is_alive)
    })
    .unwrap_or(false)
}

/// Waits until another thread calls [`unpark`], or until a moment. May end sooner.
pub fn park(until: Option<Instant>) {
    let yielder = with(|state| {
        let id = state.current?;
        let thread = state.threads.get_mut(&id)?;
        // A dead process does not wait.
        if !state.processes[&thread.process].is_alive || std::mem::take(&mut thread.token) {
            return None;
        }
        thread.is_parked = true;
        thread.parks += 1;
        let (yielder, parks) = (thread.yielder, thread.parks);
        if let Some(until) = until {
            let at = until.saturating_duration_since(instant(Duration::ZERO));
            state.add_alarm(at, Alarm::Thread(id, parks));
        }
        Some(yielder)
    });
    if let Some(yielder) = yielder.flatten() {
        #[expect(unsafe_code, reason = "the coroutine that runs has this yielder")]
        // SAFETY: the yielder lives on the stack of the coroutine of `current`, which is the one that runs.
        unsafe { &*yielder }.suspend(());
    }
}

/// Wakes a thread.
pub fn unpark(thread: ThreadId) {
    with(|state| state.unpark(thread));
}

struct ThreadWaker(ThreadId);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        unpark(self.0);
    }
}

/// Wakes the thread that runs.
#[must_use]
pub fn waker() -> Waker {
    current_thread().map_or_else(
        || Waker::noop().clone(),
        |thread| Arc::new(ThreadWaker(thread)).into(),
    )
}

/// A thread that was started.
#[derive(Debug)]
pub struct Thread(ThreadId);

impl Thread {
    pub(crate) fn join(self) {
        loop {
            let waits = with(|state| {
                let current = state.current?;
                let thread = state.threads.get_mut(&self.0)?;
                thread.joiners.push(current);
                Some(())
            });
            if waits.flatten().is_none() || !is_current_alive() {
                return;
            }
            park(None);
        }
    }
}

/// Starts a thread of the process that runs.
pub(crate) fn spawn(_name: &str, run: impl FnOnce() + 'static) -> Thread {
    let process = current_process().unwrap_or(ProcessId(0));
    Thread(start_thread(process, run))
}

fn start_thread(process: ProcessId, run: impl FnOnce() + 'static) -> ThreadId {
    let id = with(|state| {
        state.next_thread += 1;
        ThreadId(state.next_thread)
    })
    .unwrap_or(ThreadId(0));
    let stack = STACKS.with_borrow_mut(Vec::pop);
    #[expect(clippy::expect_used, reason = "without memory, there is no simulation")]
    let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
    let body = Coroutine::with_stack(stack, move |yielder, ()| {
        with(|state| {
            if let Some(thread) = state.threads.get_mut(&id) {
                thread.yielder = yielder;
            }
        });
        run();
    });
    with(|state| {
        let thread = Thread_ {
            process,
            body: Some(body),
            yielder: std::ptr::null(),
            parks: 0,
            is_parked: false,
            is_ready: true,
            token: false,
            joiners: Vec::new(),
        };
        state.threads.insert(id, thread);
        state.ready.push(id);
    });
    id
}

/// Lets something happen at a moment, outside of all processes.
pub fn at(time: Duration, event: impl FnOnce() + 'static) {
    with(|state| state.add_alarm(time, Alarm::Event(Box::new(event))));
}

/// Ends the process that runs.
pub fn exit() {
    if let (Some(process), Some(now)) = (current_process(), now()) {
        at(now, move || kill(process));
    }
}

/// What the unwinding of a thread carries whose process dies.
struct Death;

/// Lets the process that runs die at once.
pub(crate) fn die() {
    let process = current_process();
    with(|state| {
        if let Some(process) = process.and_then(|process| state.processes.get_mut(&process)) {
            process.is_alive = false;
        }
    });
    if let (Some(process), Some(now)) = (process, now()) {
        at(now, move || kill(process));
    }
    if !std::thread::panicking() {
        std::panic::resume_unwind(Box::new(Death));
    }
}

/// Kills a process. To be called from outside of all processes.
pub fn kill(process: ProcessId) {
    let threads = with(|state| {
        if let Some(process) = state.processes.get_mut(&process) {
            process.is_alive = false;
        }
        let threads = state
            .threads
            .iter()
            .filter(|(_, thread)| thread.process == process);
        threads.map(|(id, _)| *id).collect::<Vec<_>>()
    });
    for id in threads.unwrap_or_default() {
        let body = with(|state| {
            state.current = Some(id);
            state.threads.get_mut(&id)?.body.take()
        });
        if let Some(mut body) = body.flatten() {
            if catch_unwind(AssertUnwindSafe(|| body.force_unwind())).is_err() {
                with(|state| state.panics.push("a panic while a process was killed".to_owned()));
            }
            recycle(body);
        }
        with(|state| state.end_thread(id));
    }
    with(|state| state.current = None);
    net::close_all_of(process);
}

/// Stops a process, as SIGSTOP does, or lets it go on.
pub fn set_stopped(process: ProcessId, is_stopped: bool) {
    with(|state| {
        if let Some(process) = state.processes.get_mut(&process) {
            process.is_stopped = is_stopped;
        }
    });
}

/// Returns whether a process has neither ended nor been killed.
#[must_use]
pub fn is_alive(process: ProcessId) -> bool {
    with(|state| {
        state
            .processes
            .get(&process)
            .is_some_and(|process| process.is_alive)
    })
    .unwrap_or(false)
}

fn recycle(body: Body) {
    if body.done() {
        STACKS.with_borrow_mut(|stacks| stacks.push(body.into_stack()));
    }
}

impl State {
    fn add_alarm(&mut self, at: Duration, alarm: Alarm) {
        self.next_alarm += 1;
        let at = u64::try_from(at.as_nanos()).unwrap_or(NEVER - 1).max(NOW.get());
        self.alarms.insert(self.next_alarm, alarm);
        self.times.push(Reverse((at, self.next_alarm)));
    }

    fn unpark(&mut self, id: ThreadId) {
        let Some(thread) = self.threads.get_mut(&id) else {
            return;
        };
        if !thread.is_parked {
            thread.token = true;
        } else if !thread.is_ready {
            thread.is_ready = true;
            self.ready.push(id);
        }
    }

    fn end_thread(&mut self, id: ThreadId) {
        if let Some(thread) = self.threads.remove(&id) {
            thread.joiners.into_iter().for_each(|joiner| self.unpark(joiner));
        }
        self.ready.retain(|ready| *ready != id);
    }

    /// Takes a thread that can go on.
    fn take_ready(&mut self) -> Option<ThreadId> {
        let may_run = |id: &ThreadId| {
            let thread = self.threads.get(id);
            thread.is_some_and(|thread| {
                let process = &self.processes[&thread.process];
                process.is_alive && !process.is_stopped
            })
        };
        if self.ready.iter().all(may_run) {
            if self.ready.is_empty() {
                return None;
            }
            let at = self.random.below(self.ready.len() as u64) as usize;
            return Some(self.ready.swap_remove(at));
        }
        let able: Vec<usize> = (0..self.ready.len())
            .filter(|at| may_run(&self.ready[*at]))
            .collect();
        if able.is_empty() {
            return None;
        }
        let at = able[self.random.below(able.len() as u64) as usize];
        Some(self.ready.swap_remove(at))
    }
}

/// A simulation, on the thread that has begun it.
pub struct Simulation {
    // It must stay on its thread.
    _private: std::marker::PhantomData<*const ()>,
}

impl Simulation {
    /// Begins a simulation on this thread.
    ///
    /// # Panics
    /// There is one already.
    #[must_use]
    pub fn begin(seed: u64, disk: Rc<dyn Disk>) -> Self {
        assert!(!is_running(), "a thread runs one simulation at a time");
        let state = State {
            random: Random::new(seed),
            next_process: 100,
            next_thread: 0,
            next_alarm: 0,
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            ready: Vec::new(),
            times: BinaryHeap::new(),
            alarms: BTreeMap::new(),
            current: None,
            disk,
            network: Network::default(),
            panics: Vec::new(),
            steps: 0,
        };
        STATE.set(Some(state));
        NOW.set(0);
        Self {
            _private: std::marker::PhantomData,
        }
    }

    /// Starts a process on a host. `context` is what [`context`] returns in it.
    pub fn start(
        &self,
        host: HostId,
        context: Option<Rc<dyn Any>>,
        run: impl FnOnce() + 'static,
    ) -> ProcessId {
        start(host, context, run)
    }

    /// Runs a thread until it waits, or what happens next. False if nothing can happen any more.
    pub fn step(&self) -> bool {
        LOOKS.set(0);
        let next = with(|state| {
            state.steps += 1;
            state.take_ready()
        });
        if let Some(id) = next.flatten() {
            resume(id);
            return true;
        }
        let alarm = with(|state| {
            let Reverse((at, number)) = state.times.pop()?;
            NOW.set(NOW.get().max(at));
            state.alarms.remove(&number)
        });
        match alarm.flatten() {
            None => false,
            Some(Alarm::Event(event)) => {
                event();
                true
            }
            Some(Alarm::Thread(id, parks)) => {
                with(|state| {
                    let thread = state.threads.get(&id);
                    if thread.is_some_and(|thread| thread.is_parked && thread.parks == parks) {
                        state.unpark(id);
                    }
                });
                true
            }
        }
    }

    /// Number of steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        with(|state| state.steps).unwrap_or(0)
    }

    /// Takes what panics have said.
    #[must_use]
    pub fn take_panics(&self) -> Vec<String> {
        with(|state| std::mem::take(&mut state.panics)).unwrap_or_default()
    }
}

/// See [`Simulation::start`].
pub fn start(host: HostId, context: Option<Rc<dyn Any>>, run: impl FnOnce() + 'static) -> ProcessId {
    let process = with(|state| {
        state.next_process += 1;
        let id = ProcessId(state.next_process);
        let process = Process {
            host,
            is_alive: true,
            is_stopped: false,
            context,
        };
        state.processes.insert(id, process);
        id
    });
    let process = process.unwrap_or(ProcessId(0));
    start_thread(process, run);
    process
}

fn resume(id: ThreadId) {
    let body = with(|state| {
        let thread = state.threads.get_mut(&id)?;
        (thread.is_ready, thread.is_parked) = (false, false);
        state.current = Some(id);
        thread.body.take()
    });
    let Some(mut body) = body.flatten() else { return };
    let resumed = catch_unwind(AssertUnwindSafe(|| body.resume(())));
    with(|state| state.current = None);
    match resumed {
        Ok(CoroutineResult::Yield(())) => {
            with(|state| {
                if let Some(thread) = state.threads.get_mut(&id) {
                    thread.body = Some(body);
                }
            });
        }
        Ok(CoroutineResult::Return(())) => {
            recycle(body);
            with(|state| state.end_thread(id));
        }
        Err(panic) if panic.is::<Death>() => {
            recycle(body);
            with(|state| state.end_thread(id));
        }
        Err(panic) => {
            recycle(body);
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            with(|state| {
                state.panics.push(text.unwrap_or_else(|| "a panic".to_owned()));
                state.end_thread(id);
            });
        }
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        let processes = with(|state| state.processes.keys().copied().collect::<Vec<_>>());
        processes.into_iter().flatten().for_each(kill);
        let state = STATE.take();
        // What events hold may ask for the state.
        drop(state);
        NOW.set(NEVER);
    }
}
