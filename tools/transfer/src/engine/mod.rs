//! Carries out a list of work: directories first, then transfers, then removals, each kind in parallel.
//!
//! An *attempt* uses one source of one entry. In a *round* every open entry is attempted with its sources in
//! turn, until one succeeds. Entries that may succeed later are attempted again in the next round, after a
//! wait.

mod after;
mod hosts;
mod item;
mod settings;
mod staged;

use std::collections::{HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use crate::error::{Retry, TransferError};
use crate::integrity::Checksums;
use crate::observer::{Event, Observer};
use crate::protocol::{Context, Handler, Pair, Registry, Route};
use crate::report::{Failure, Report};
use crate::spec::{Location, Work};
use hosts::Hosts;
use item::{Item, Phase, Queue};

pub use settings::{Settings, Waits};

/// Maximum entries of a list that one thread processes alone.
const MAX_QUICK_ENTRIES: usize = 16;
/// Maximum size of a file in such a list, in bytes.
const MAX_QUICK_BYTES: u64 = 256 << 10;

/// Reason of a missing result.
const NO_RESULT: &str = "its handler gave no answer";

/// Carries out `work` with local files. Failures are in the report.
///
/// Removals come last. They are skipped after a failure, because a failed transfer may still need the files.
pub fn run(work: &[Work], settings: &Settings, observer: &dyn Observer) -> Report {
    run_with(&Registry::default(), work, settings, observer)
}

/// Carries out `work` with the given handlers, for instance those of remote protocols.
pub fn run_with(registry: &Registry, work: &[Work], settings: &Settings, observer: &dyn Observer) -> Report {
    let context = Context {
        symlink: settings.symlink,
        base: settings.base.as_deref(),
        keeps_directories: settings.keeps_directories,
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
        let items = work.iter().enumerate().filter(|(_, work)| phase.includes(work));
        let items: VecDeque<Item<'_>> = items.map(|(entry, work)| Item::new(entry, work)).collect();
        if items.is_empty() {
            continue;
        }
        if phase == Phase::Remove && !lock(&engine.report).failures.is_empty() {
            for item in items {
                engine.report_failure(item, TransferError::Skipped("entries before it failed"));
            }
        } else {
            engine.run_rounds(items);
        }
    }
    let mut report = engine.report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.failures.sort_by_key(|failure| failure.entry);
    report
}

/// Locks a mutex. Poisoning is ignored: the data are counts and lists, valid after a panic of another thread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Engine<'a> {
    settings: &'a Settings,
    observer: &'a dyn Observer,
    registry: &'a Registry,
    context: Context<'a>,
    report: Mutex<Report>,
    /// Logical names with a published checksum.
    published: Mutex<HashSet<Vec<u8>>>,
    /// Checksums in the `*.meta` files, read on first use.
    known: OnceLock<Checksums>,
    /// Failures of the remote hosts.
    hosts: Mutex<Hosts>,
}

/// The handlers of a set of entries.
#[derive(Clone, Copy)]
enum Handlers<'a> {
    Transfer(Route<'a>),
    Manage(&'a dyn Handler),
}

impl Handlers<'_> {
    fn is_remote(self) -> bool {
        match self {
            Self::Transfer(Route::Direct(handler)) | Self::Manage(handler) => handler.is_remote(),
            Self::Transfer(Route::Staged(..)) => true,
        }
    }

    fn set_size(self) -> usize {
        match self {
            Self::Transfer(Route::Direct(handler)) | Self::Manage(handler) => handler.set_size(),
            Self::Transfer(Route::Staged(..)) => 1,
        }
    }
}

impl Engine<'_> {
    fn run_rounds(&self, mut items: VecDeque<Item<'_>>) {
        for round in 1..=self.settings.rounds.max(1) {
            self.observer.event(&Event::Round(round));
            let (later, mostly_fails) = self.run_round(items);
            let retry = later
                .iter()
                .filter_map(|item| item.error.as_ref().map(TransferError::retry))
                .max();
            let last = round >= self.settings.rounds || mostly_fails || self.settings.cancel.is_cancelled();
            let Some(retry) = retry.filter(|_| !last) else {
                later.into_iter().for_each(|item| self.give_up(item));
                return;
            };
            let wait = self.settings.waits.before_next(round, retry);
            self.observer.event(&Event::Wait(wait));
            // The next round notices a cancellation.
            let _ = self.settings.cancel.sleep(wait);
            lock(&self.hosts).forgive();
            items = later.into();
        }
    }

    /// Attempts every item. Returns the items for another round, and whether too many failed to start one.
    fn run_round<'w>(&self, items: VecDeque<Item<'w>>) -> (Vec<Item<'w>>, bool) {
        let threads = if self.is_quick(&items) {
            1
        } else {
            self.settings.threads.clamp(1, items.len().max(1))
        };
        let queue = Mutex::new(Queue {
            ready: items,
            busy: 0,
            later: Vec::new(),
            remote_successes: 0,
            remote_failures: 0,
        });
        let changed = Condvar::new();
        if threads == 1 {
            self.run_worker(&queue, &changed);
        } else {
            std::thread::scope(|scope| {
                for _ in 1..threads {
                    // If a thread cannot start, the others do its work.
                    let work = || self.run_worker(&queue, &changed);
                    let _ = std::thread::Builder::new().spawn_scoped(scope, work);
                }
                self.run_worker(&queue, &changed);
            });
        }
        let mut queue = queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mostly_fails = queue.mostly_fails();
        for mut item in std::mem::take(&mut queue.ready) {
            let cancelled = self.settings.cancel.is_cancelled();
            let reason = if cancelled {
                TransferError::Cancelled
            } else {
                TransferError::Skipped("too many failures to continue trying")
            };
            let error = item.error.take().unwrap_or(reason);
            self.report_failure(item, error);
        }
        (queue.later, mostly_fails)
    }

    /// Returns whether the work is local and so small that starting threads would take longer.
    fn is_quick(&self, items: &VecDeque<Item<'_>>) -> bool {
        let is_small = |place: &Location| {
            let meta = std::fs::metadata(self.context.path(&place.url));
            place.url.is_local() && meta.is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_QUICK_BYTES)
        };
        items.len() <= MAX_QUICK_ENTRIES
            && items.iter().all(|item| match item.work {
                Work::Transfer(transfer) => {
                    transfer.destination.url.is_local() && transfer.sources.iter().all(is_small)
                }
                Work::Mkdir(place) => place.url.is_local(),
                Work::Remove { target, recursive } => target.url.is_local() && !recursive,
            })
    }

    /// Runs one thread of a round.
    fn run_worker<'w>(&self, queue: &Mutex<Queue<'w>>, changed: &Condvar) {
        let mut shared = lock(queue);
        loop {
            if self.settings.cancel.is_cancelled() || shared.mostly_fails() {
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
                    .event(&Event::Detail(format!("{}: {error}", item.description())));
                self.skip_set(set, &error, &mut shared);
                changed.notify_all();
                continue;
            }
            shared.busy += 1;
            drop(shared);
            let (remote, results) = self.attempt_set(&mut set);
            shared = lock(queue);
            shared.busy -= 1;
            for (item, result) in set.into_iter().zip(results) {
                if remote {
                    lock(&self.hosts).record(&hosts, result.as_ref().copied());
                    if result.is_ok() {
                        shared.remote_successes += 1;
                    } else {
                        shared.remote_failures += 1;
                    }
                }
                if let Err(error) = result {
                    self.record_failure(item, error, &mut shared);
                }
            }
            changed.notify_all();
        }
    }

    /// Takes the next item from the queue, and others for the same call of its handler.
    fn next_set<'w>(&self, queue: &mut Queue<'w>) -> Option<Vec<Item<'w>>> {
        let mut set = vec![queue.ready.pop_front()?];
        let Ok(handlers) = self.find_handlers(&set[0]) else {
            return Some(set);
        };
        let share = (queue.ready.len() + 1).div_ceil(self.settings.threads.max(1));
        let size = handlers.set_size().min(share);
        let mut index = 0;
        while set.len() < size && index < queue.ready.len() {
            if set[0].can_join(&queue.ready[index]) {
                set.extend(queue.ready.remove(index));
            } else {
                index += 1;
            }
        }
        Some(set)
    }

    fn find_handlers(&self, item: &Item<'_>) -> Result<Handlers<'_>, TransferError> {
        match item.work {
            Work::Transfer(_) => {
                let pair = item
                    .pair()
                    .ok_or(TransferError::Skipped("it has no source left"))?;
                self.registry.route(&pair).map(Handlers::Transfer)
            }
            Work::Mkdir(place) | Work::Remove { target: place, .. } => {
                self.registry.for_url(&place.url).map(Handlers::Manage)
            }
        }
    }

    /// Records that a set was not attempted because its host failed too often.
    fn skip_set<'w>(&self, set: Vec<Item<'w>>, error: &TransferError, queue: &mut Queue<'w>) {
        for item in set {
            if let TransferError::HostGivenUp { host, failures } = error {
                let error = TransferError::HostGivenUp {
                    host: host.clone(),
                    failures: *failures,
                };
                self.record_failure(item, error, queue);
            }
        }
    }

    /// Records a failure and queues the next source, another round, or nothing.
    fn record_failure<'w>(&self, mut item: Item<'w>, error: TransferError, queue: &mut Queue<'w>) {
        let retry = match self.settings.full_disk_is_final && error.is_full_disk() {
            true => Retry::Never,
            false => error.retry(),
        };
        let source = item.sources.pop_front().unwrap_or(0);
        // Of several sources, report the failure that was most worth another attempt. A real failure is
        // better than a skipped attempt.
        let attempted = !matches!(error, TransferError::HostGivenUp { .. });
        if item
            .error
            .as_ref()
            .is_none_or(|old| attempted && old.retry() <= retry)
        {
            item.error = Some(error);
            item.source = source;
        }
        if retry != Retry::Never {
            item.sources.push_back(source);
            item.attempted += 1;
        } else if item.sources.is_empty() {
            self.give_up(item);
            return;
        }
        if item.attempted < item.sources.len() {
            queue.ready.push_back(item);
        } else {
            item.attempted = 0;
            queue.later.push(item);
        }
    }

    fn give_up(&self, mut item: Item<'_>) {
        let error = item.error.take().unwrap_or(TransferError::Cancelled);
        self.report_failure(item, error);
    }

    fn report_failure(&self, item: Item<'_>, error: TransferError) {
        let failure = Failure {
            entry: item.entry,
            description: item.description(),
            error,
            attempts: item.attempts,
        };
        lock(&self.report).failures.push(failure);
    }

    /// Attempts a set of similar items. Returns whether a remote service was used, and the results.
    fn attempt_set(&self, set: &mut [Item<'_>]) -> (bool, Vec<Result<(), TransferError>>) {
        for item in set.iter_mut() {
            item.attempts += 1;
        }
        let set = &*set;
        let handlers = match set.first().map(|item| self.find_handlers(item)) {
            Some(Ok(handlers)) => handlers,
            Some(Err(error)) => return (false, vec![self.record_unsupported(&set[0], error)]),
            None => return (false, Vec::new()),
        };
        let results = match handlers {
            Handlers::Transfer(Route::Direct(handler)) => self.attempt_transfers(set, handler),
            Handlers::Transfer(Route::Staged(first, second)) => set
                .iter()
                .filter_map(Item::pair)
                .map(|pair| self.transfer_staged(&pair, first, second))
                .collect(),
            Handlers::Manage(handler) => self.attempt_managed(set, handler),
        };
        (handlers.is_remote(), results)
    }

    /// Records that an item has no handler.
    fn record_unsupported(&self, item: &Item<'_>, error: TransferError) -> Result<(), TransferError> {
        match item.pair() {
            Some(pair) => self.finish_attempt(&pair, Err(error), (SystemTime::now(), Instant::now())),
            None => {
                self.observer
                    .event(&Event::Other(&item.description(), Some(&error)));
                Err(error)
            }
        }
    }

    fn attempt_transfers(&self, set: &[Item<'_>], handler: &dyn Handler) -> Vec<Result<(), TransferError>> {
        let start = (SystemTime::now(), Instant::now());
        let pairs: Vec<Pair<'_>> = set.iter().filter_map(Item::pair).collect();
        let mut results = handler.transfer_set(&self.context, &pairs).into_iter();
        pairs
            .iter()
            .map(|pair| {
                // Entries without a result were not transferred.
                let result = results.next();
                let result = result.unwrap_or(Err(TransferError::Skipped(NO_RESULT)));
                self.finish_attempt(pair, result, start)
            })
            .collect()
    }

    fn attempt_managed(&self, set: &[Item<'_>], handler: &dyn Handler) -> Vec<Result<(), TransferError>> {
        let recursive = matches!(set[0].work, Work::Remove { recursive: true, .. });
        let removals: Vec<&Location> = set
            .iter()
            .filter_map(|item| match item.work {
                Work::Remove { target, .. } => Some(target),
                _ => None,
            })
            .collect();
        let mut results = match set[0].work {
            Work::Mkdir(place) => vec![handler.make_directory(&self.context, place)],
            _ => handler.remove_set(&self.context, &removals, recursive),
        }
        .into_iter();
        set.iter()
            .map(|item| {
                let result = results.next();
                let result = result.unwrap_or(Err(TransferError::Skipped(NO_RESULT)));
                self.observer
                    .event(&Event::Other(&item.description(), result.as_ref().err()));
                result
            })
            .collect()
    }

    /// Returns the context with links disabled.
    fn copy_context(&self) -> Context<'_> {
        Context {
            symlink: false,
            ..self.context
        }
    }
}

#[cfg(test)]
mod tests;
