//! Carries out a list of work: directories first, then transfers, then removals, each kind in parallel.
//!
//! An *attempt* tries one source of one entry. In a *round* every open entry is attempted with its sources
//! in turn, until one works. Entries whose failure may heal are tried again in the next round, after a wait.

mod after;
mod hosts;
mod item;
mod settings;
mod staged;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use crate::error::{Retry, TransferError};
use crate::observer::{Event, Observer};
use crate::protocol::{Context, Handler, Pair, Registry, Route};
use crate::report::{Failure, Report};
use crate::spec::{Location, Work};
use hosts::Hosts;
use item::{Item, Phase, Queue};

pub use settings::{Settings, Waits};

/// Up to so many entries, with files of up to so many bytes, are done by one thread.
const QUICK_ENTRIES: usize = 16;
const QUICK_BYTES: u64 = 256 << 10;

/// Carries out `work` with local files. Does not fail as a whole: what failed is in the report.
///
/// Removals wait for everything else; if anything failed they are not attempted, for they might remove what
/// a failed transfer still needs.
pub fn run(work: &[Work], settings: &Settings, observer: &dyn Observer) -> Report {
    run_with(&Registry::default(), work, settings, observer)
}

/// The same with other handlers, for instance those of remote protocols.
pub fn run_with(registry: &Registry, work: &[Work], settings: &Settings, observer: &dyn Observer) -> Report {
    let context = Context {
        symlink: settings.symlink,
        base: settings.base.as_deref(),
        temporary: &settings.temporary,
        cancel: &settings.cancel,
        observer,
    };
    let engine = Engine {
        settings,
        observer,
        registry,
        context,
        report: Mutex::new(Report::default()),
        published: Mutex::new(HashSet::new()),
        known: OnceLock::new(),
        hosts: Mutex::new(Hosts::default()),
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
    /// How the remote hosts are doing.
    hosts: Mutex<Hosts>,
}

/// Who does a set of entries.
#[derive(Clone, Copy)]
enum Doer<'a> {
    Transfer(Route<'a>),
    Other(&'a dyn Handler),
}

impl Doer<'_> {
    fn is_remote(self) -> bool {
        match self {
            Self::Transfer(Route::Direct(handler)) | Self::Other(handler) => handler.is_remote(),
            Self::Transfer(Route::Staged(..)) => true,
        }
    }

    fn set_size(self) -> usize {
        match self {
            Self::Transfer(Route::Direct(handler)) | Self::Other(handler) => handler.set_size(),
            Self::Transfer(Route::Staged(..)) => 1,
        }
    }
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
            lock(&self.hosts).forgive();
            items = later.into();
        }
    }

    /// Tries every item; returns those worth another round, and whether so much failed that there should be
    /// none.
    fn round<'w>(&self, items: VecDeque<Item<'w>>) -> (Vec<Item<'w>>, bool) {
        let threads = if self.is_quick(&items) {
            1
        } else {
            self.settings.threads.clamp(1, items.len().max(1))
        };
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

    /// Whether there is so little to do, all of it here, that threads would take longer than the work.
    fn is_quick(&self, items: &VecDeque<Item<'_>>) -> bool {
        let little = |place: &Location| {
            let meta = std::fs::metadata(self.context.path(&place.url));
            place.url.is_local() && meta.is_ok_and(|meta| meta.is_file() && meta.len() <= QUICK_BYTES)
        };
        items.len() <= QUICK_ENTRIES
            && items.iter().all(|item| match item.work {
                Work::Transfer(transfer) => {
                    transfer.destination.url.is_local() && transfer.sources.iter().all(little)
                }
                Work::Mkdir(place) => place.url.is_local(),
                Work::Remove { target, recursive } => target.url.is_local() && !recursive,
            })
    }

    /// One thread of a round.
    fn work<'w>(&self, queue: &Mutex<Queue<'w>>, changed: &Condvar) {
        let mut shared = lock(queue);
        loop {
            if self.settings.cancel.is_cancelled() || shared.hopeless() {
                changed.notify_all();
                return;
            }
            let Some(mut set) = self.next_set(&mut shared) else {
                if shared.busy == 0 && shared.ready.is_empty() {
                    changed.notify_all();
                    return;
                }
                if shared.ready.is_empty() {
                    shared = changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
                }
                continue;
            };
            let hosts = set.first().map(Item::hosts).unwrap_or_default();
            if let Some(item) = set.first()
                && let Some(error) = lock(&self.hosts).given_up(&hosts)
            {
                self.observer
                    .event(&Event::Detail(format!("{}: {error}", item.what())));
                self.failed_all(set, &error, &mut shared);
                changed.notify_all();
                continue;
            }
            shared.busy += 1;
            drop(shared);
            let (remote, results) = self.attempt(&mut set);
            shared = lock(queue);
            shared.busy -= 1;
            for (item, result) in set.into_iter().zip(results) {
                if remote {
                    lock(&self.hosts).note(&hosts, result.as_ref().copied());
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
    fn next_set<'w>(&self, queue: &mut Queue<'w>) -> Option<Vec<Item<'w>>> {
        let mut set = vec![queue.ready.pop_front()?];
        let Ok(doer) = self.doer(&set[0]) else {
            return Some(set);
        };
        let share = (queue.ready.len() + 1).div_ceil(self.settings.threads.max(1));
        let size = doer.set_size().min(share);
        let mut index = 0;
        while set.len() < size && index < queue.ready.len() {
            if set[0].is_like(&queue.ready[index]) {
                set.extend(queue.ready.remove(index));
            } else {
                index += 1;
            }
        }
        Some(set)
    }

    fn doer(&self, item: &Item<'_>) -> Result<Doer<'_>, TransferError> {
        match item.work {
            Work::Transfer(_) => {
                let pair = item
                    .pair()
                    .ok_or(TransferError::Skipped("it has no source left"))?;
                self.registry.route(&pair).map(Doer::Transfer)
            }
            Work::Mkdir(place) | Work::Remove { target: place, .. } => {
                self.registry.for_url(&place.url).map(Doer::Other)
            }
        }
    }

    /// Notes that none of a set could be tried.
    fn failed_all<'w>(&self, set: Vec<Item<'w>>, error: &TransferError, queue: &mut Queue<'w>) {
        for item in set {
            if let TransferError::HostGivenUp { host, failures } = error {
                let error = TransferError::HostGivenUp {
                    host: host.clone(),
                    failures: *failures,
                };
                self.failed(item, error, queue);
            }
        }
    }

    /// Notes a failure: the next source now, another round later, or the end.
    fn failed<'w>(&self, mut item: Item<'w>, error: TransferError, queue: &mut Queue<'w>) {
        let retry = error.retry();
        let source = item.open.pop_front().unwrap_or(0);
        // Of several sources, report the failure that was most worth another attempt; and rather one that
        // happened than that nothing was tried.
        let tried = !matches!(error, TransferError::HostGivenUp { .. });
        if item
            .error
            .as_ref()
            .is_none_or(|old| tried && old.retry() <= retry)
        {
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

    /// Attempts a set of like items; whether a remote service is involved, and the answers.
    fn attempt(&self, set: &mut [Item<'_>]) -> (bool, Vec<Result<(), TransferError>>) {
        for item in set.iter_mut() {
            item.attempts += 1;
        }
        let set = &*set;
        let doer = match set.first().map(|item| self.doer(item)) {
            Some(Ok(doer)) => doer,
            Some(Err(error)) => return (false, vec![self.refused(&set[0], error)]),
            None => return (false, Vec::new()),
        };
        let results = match doer {
            Doer::Transfer(Route::Direct(handler)) => self.attempt_transfers(set, handler),
            Doer::Transfer(Route::Staged(first, second)) => set
                .iter()
                .filter_map(Item::pair)
                .map(|pair| self.staged(&pair, first, second))
                .collect(),
            Doer::Other(handler) => self.attempt_others(set, handler),
        };
        (doer.is_remote(), results)
    }

    /// Records that no handler does an item.
    fn refused(&self, item: &Item<'_>, error: TransferError) -> Result<(), TransferError> {
        match item.pair() {
            Some(pair) => self.finish(&pair, Err(error), (SystemTime::now(), Instant::now())),
            None => {
                self.observer.event(&Event::Other(&item.what(), Some(&error)));
                Err(error)
            }
        }
    }

    fn attempt_transfers(&self, set: &[Item<'_>], handler: &dyn Handler) -> Vec<Result<(), TransferError>> {
        let start = (SystemTime::now(), Instant::now());
        let pairs: Vec<Pair<'_>> = set.iter().filter_map(Item::pair).collect();
        let mut results = handler.transfer(&self.context, &pairs).into_iter();
        pairs
            .iter()
            .map(|pair| {
                // A handler that answers for too few entries has not done the rest.
                let result = results.next();
                let result = result.unwrap_or(Err(TransferError::Skipped("its handler gave no answer")));
                self.finish(pair, result, start)
            })
            .collect()
    }

    fn attempt_others(&self, set: &[Item<'_>], handler: &dyn Handler) -> Vec<Result<(), TransferError>> {
        let deep = matches!(set[0].work, Work::Remove { recursive: true, .. });
        let removals: Vec<&Location> = set
            .iter()
            .filter_map(|item| match item.work {
                Work::Remove { target, .. } => Some(target),
                _ => None,
            })
            .collect();
        let mut results = match set[0].work {
            Work::Mkdir(place) => vec![handler.make_directory(&self.context, place)],
            _ => handler.remove_set(&self.context, &removals, deep),
        }
        .into_iter();
        set.iter()
            .map(|item| {
                let result = results.next();
                let result = result.unwrap_or(Err(TransferError::Skipped("its handler gave no answer")));
                self.observer
                    .event(&Event::Other(&item.what(), result.as_ref().err()));
                result
            })
            .collect()
    }

    /// The same context, but copies are never replaced by links.
    fn copying(&self) -> Context<'_> {
        Context {
            symlink: false,
            ..self.context
        }
    }
}

#[cfg(test)]
mod tests;
