//! Carries out a list of work: directories first, then transfers, then removals, each kind in parallel.
//!
//! An *attempt* tries one source of one entry. In a *round* every open entry is attempted with its sources
//! in turn, until one works. Entries whose failure may heal are tried again in the next round, after a wait.

mod after;
mod observer;
mod settings;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use crate::error::{Retry, TransferError};
use crate::protocol::{Context, Handler, Pair, Registry};
use crate::report::{Failure, Report};
use crate::spec::Work;

pub use observer::{Event, Observer, Silent};
pub use settings::{Settings, Waits};

/// Carries out `work`. Does not fail as a whole: what failed is in the report.
///
/// Removals wait for everything else; if anything failed they are not attempted, for they might remove what
/// a failed transfer still needs.
pub fn run(work: &[Work], settings: &Settings, observer: &dyn Observer) -> Report {
    run_with(&Registry::default(), work, settings, observer)
}

/// The same with other handlers.
pub fn run_with(registry: &Registry, work: &[Work], settings: &Settings, observer: &dyn Observer) -> Report {
    let context = Context {
        symlink: settings.symlink,
        base: settings.base.as_deref(),
        cancel: &settings.cancel,
    };
    let engine = Engine {
        settings,
        observer,
        registry,
        context,
        report: Mutex::new(Report::default()),
        published: Mutex::new(HashSet::new()),
        known: OnceLock::new(),
    };
    for phase in [Phase::Make, Phase::Transfer, Phase::Remove] {
        let items = work.iter().enumerate().filter(|(_, work)| phase.has(work));
        let items: VecDeque<Item<'_>> = items.map(|(entry, work)| Item::new(entry, work)).collect();
        if items.is_empty() {
            continue;
        }
        if phase == Phase::Remove && !lock(&engine.report).failures.is_empty() {
            for item in items {
                engine.fail(item, TransferError::Skipped("entries before it failed"));
            }
        } else {
            engine.rounds(items);
        }
    }
    let mut report = engine.report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.failures.sort_by_key(|failure| failure.entry);
    report
}

/// A poisoned lock only says that another thread panicked; the data are counts and lists.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Make,
    Transfer,
    Remove,
}

impl Phase {
    fn has(self, work: &Work) -> bool {
        matches!(
            (self, work),
            (Self::Make, Work::Mkdir(_))
                | (Self::Transfer, Work::Transfer(_))
                | (Self::Remove, Work::Remove { .. })
        )
    }
}

/// An entry that is not done.
struct Item<'a> {
    entry: usize,
    work: &'a Work,
    /// Sources worth trying, by index; the first is next. For other work than transfers a single 0.
    open: VecDeque<usize>,
    /// How many of `open` were tried in this round.
    tried: usize,
    attempts: u32,
    /// The failure to report, and the source it is about.
    error: Option<TransferError>,
    source: usize,
}

impl<'a> Item<'a> {
    fn new(entry: usize, work: &'a Work) -> Self {
        let sources = match work {
            Work::Transfer(transfer) => transfer.sources.len(),
            _ => 1,
        };
        Self {
            entry,
            work,
            open: (0..sources).collect(),
            tried: 0,
            attempts: 0,
            error: None,
            source: 0,
        }
    }

    fn pair(&self) -> Option<Pair<'a>> {
        match self.work {
            Work::Transfer(transfer) => {
                let source = transfer.sources.get(*self.open.front()?)?;
                Some(Pair { transfer, source })
            }
            _ => None,
        }
    }

    fn what(&self) -> String {
        match self.work {
            Work::Transfer(transfer) => {
                let source = transfer
                    .sources
                    .get(self.source)
                    .map_or_else(String::new, |place| place.url.shown());
                format!("{source} -> {}", transfer.destination.url.shown())
            }
            Work::Mkdir(place) => format!("mkdir {}", place.url.shown()),
            Work::Remove { target, .. } => format!("remove {}", target.url.shown()),
        }
    }
}

/// The entries of one round, shared by its threads.
struct Queue<'a> {
    ready: VecDeque<Item<'a>>,
    /// Threads that hold an entry which may come back.
    busy: usize,
    /// Entries for the next round.
    later: Vec<Item<'a>>,
    /// Attempts with remote handlers in this round that worked, and that failed.
    remote: (usize, usize),
}

impl Queue<'_> {
    /// Whether so many remote transfers fail that the rest is not worth the time.
    fn hopeless(&self) -> bool {
        let (completed, failed) = self.remote;
        completed + failed > 10 && failed * 10 > (completed + failed) * 8
    }
}

struct Engine<'a> {
    settings: &'a Settings,
    observer: &'a dyn Observer,
    registry: &'a Registry,
    context: Context<'a>,
    report: Mutex<Report>,
    /// Logical names whose checksum was published.
    published: Mutex<HashSet<Vec<u8>>>,
    /// Checksums of the `*.meta` files, read when first needed.
    known: OnceLock<HashMap<Vec<u8>, String>>,
}

impl Engine<'_> {
    fn rounds(&self, items: VecDeque<Item<'_>>) {
        let mut items = items;
        for round in 1..=self.settings.rounds.max(1) {
            self.observer.event(&Event::Round(round));
            let (later, hopeless) = self.round(items);
            let retry = later
                .iter()
                .filter_map(|item| item.error.as_ref().map(TransferError::retry))
                .max();
            let last = round >= self.settings.rounds || hopeless || self.settings.cancel.is_cancelled();
            let Some(retry) = retry.filter(|_| !last) else {
                later.into_iter().for_each(|item| self.give_up(item));
                return;
            };
            let wait = self.settings.waits.after(round, retry);
            self.observer.event(&Event::Wait(wait));
            // A request to stop is noticed by the next round.
            let _ = self.settings.cancel.sleep(wait);
            items = later.into();
        }
    }

    /// Tries every item; returns those worth another round, and whether so much failed that there should be
    /// none.
    fn round<'w>(&self, items: VecDeque<Item<'w>>) -> (Vec<Item<'w>>, bool) {
        let threads = self.settings.threads.clamp(1, items.len().max(1));
        let queue = Mutex::new(Queue {
            ready: items,
            busy: 0,
            later: Vec::new(),
            remote: (0, 0),
        });
        let changed = Condvar::new();
        if threads == 1 {
            self.work(&queue, &changed);
        } else {
            std::thread::scope(|scope| {
                for _ in 1..threads {
                    // A thread that cannot be started leaves its work to the others.
                    let work = || self.work(&queue, &changed);
                    let _ = std::thread::Builder::new().spawn_scoped(scope, work);
                }
                self.work(&queue, &changed);
            });
        }
        let mut queue = queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        let hopeless = queue.hopeless();
        for mut item in std::mem::take(&mut queue.ready) {
            let cancelled = self.settings.cancel.is_cancelled();
            let reason = if cancelled {
                TransferError::Cancelled
            } else {
                TransferError::Skipped("too many failures to continue trying")
            };
            let error = item.error.take().unwrap_or(reason);
            self.fail(item, error);
        }
        (queue.later, hopeless)
    }

    /// One thread of a round.
    fn work<'w>(&self, queue: &Mutex<Queue<'w>>, changed: &Condvar) {
        let mut shared = lock(queue);
        loop {
            if self.settings.cancel.is_cancelled() || shared.hopeless() {
                changed.notify_all();
                return;
            }
            let Some((mut set, handler)) = self.next_set(&mut shared) else {
                if shared.busy == 0 && shared.ready.is_empty() {
                    changed.notify_all();
                    return;
                }
                if shared.ready.is_empty() {
                    shared = changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
                }
                continue;
            };
            shared.busy += 1;
            drop(shared);
            let results = self.attempt(&mut set, handler);
            shared = lock(queue);
            shared.busy -= 1;
            for (item, result) in set.into_iter().zip(results) {
                if handler.is_some_and(Handler::is_remote) {
                    let counter = if result.is_ok() {
                        &mut shared.remote.0
                    } else {
                        &mut shared.remote.1
                    };
                    *counter += 1;
                }
                if let Err(error) = result {
                    self.failed(item, error, &mut shared);
                }
            }
            changed.notify_all();
        }
    }

    /// Takes from the queue the next item and those that its handler can do along with it.
    fn next_set<'w>(&self, queue: &mut Queue<'w>) -> Option<(Vec<Item<'w>>, Option<&dyn Handler>)> {
        let first = queue.ready.pop_front()?;
        let Some(pair) = first.pair() else {
            return Some((vec![first], None));
        };
        let Ok(handler) = self.registry.for_transfer(&pair) else {
            return Some((vec![first], None));
        };
        let share = queue.ready.len().div_ceil(self.settings.threads.max(1)).max(1);
        let size = handler.set_size().min(share);
        let mut set = vec![first];
        let mut index = 0;
        while set.len() < size && index < queue.ready.len() {
            let fits = queue.ready[index]
                .pair()
                .is_some_and(|other| same_protocols(&pair, &other));
            if fits {
                set.extend(queue.ready.remove(index));
            } else {
                index += 1;
            }
        }
        Some((set, Some(handler)))
    }

    /// Notes a failure: the next source now, another round later, or the end.
    fn failed<'w>(&self, mut item: Item<'w>, error: TransferError, queue: &mut Queue<'w>) {
        let retry = error.retry();
        let source = item.open.pop_front().unwrap_or(0);
        // Of several sources, report the failure that was most worth another attempt.
        if item.error.as_ref().is_none_or(|old| old.retry() <= retry) {
            item.error = Some(error);
            item.source = source;
        }
        if retry != Retry::Never {
            item.open.push_back(source);
            item.tried += 1;
        } else if item.open.is_empty() {
            self.give_up(item);
            return;
        }
        if item.tried < item.open.len() {
            queue.ready.push_back(item);
        } else {
            item.tried = 0;
            queue.later.push(item);
        }
    }

    fn give_up(&self, mut item: Item<'_>) {
        let error = item.error.take().unwrap_or(TransferError::Cancelled);
        self.fail(item, error);
    }

    fn fail(&self, item: Item<'_>, error: TransferError) {
        let failure = Failure {
            entry: item.entry,
            what: item.what(),
            error,
            attempts: item.attempts,
        };
        lock(&self.report).failures.push(failure);
    }

    fn attempt(&self, set: &mut [Item<'_>], handler: Option<&dyn Handler>) -> Vec<Result<(), TransferError>> {
        for item in set.iter_mut() {
            item.attempts += 1;
        }
        let pairs: Vec<Pair<'_>> = set.iter().filter_map(Item::pair).collect();
        if pairs.is_empty() {
            return set.iter().map(|item| self.attempt_other(item)).collect();
        }
        let start = (SystemTime::now(), Instant::now());
        let results = match handler {
            Some(handler) => handler.transfer(&self.context, &pairs),
            None => Vec::new(),
        };
        let mut results = results.into_iter();
        pairs
            .iter()
            .map(|pair| {
                // A handler that is missing, or answers for too few entries, has not done the rest.
                let result = results.next().unwrap_or_else(|| Err(self.no_handler(pair)));
                self.finish(pair, result, start)
            })
            .collect()
    }

    fn no_handler(&self, pair: &Pair<'_>) -> TransferError {
        self.registry
            .for_transfer(pair)
            .err()
            .unwrap_or(TransferError::Skipped("its handler gave no answer"))
    }

    fn attempt_other(&self, item: &Item<'_>) -> Result<(), TransferError> {
        let result = match item.work {
            Work::Mkdir(place) => self
                .registry
                .for_url(&place.url)
                .and_then(|handler| handler.make_directory(&self.context, &place.url)),
            Work::Remove { target, recursive } => self
                .registry
                .for_url(&target.url)
                .and_then(|handler| handler.remove(&self.context, &target.url, *recursive)),
            Work::Transfer(_) => Ok(()),
        };
        self.observer
            .event(&Event::Other(&item.what(), result.as_ref().err()));
        result
    }
}

fn same_protocols(one: &Pair<'_>, other: &Pair<'_>) -> bool {
    one.source.url.scheme() == other.source.url.scheme()
        && one.destination().url.scheme() == other.destination().url.scheme()
}

#[cfg(test)]
mod tests;
