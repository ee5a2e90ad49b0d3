//! Carries out a list of work: directories first, then transfers, then removals, each kind in parallel.
//!
//! An *attempt* tries one source of one entry. In a *round* every open entry is attempted with its sources
//! in turn, until one works. Entries whose failure may heal are tried again in the next round, after a wait.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::cancel::Cancel;
use crate::error::{Retry, TransferError};
use crate::integrity::{self, Checks};
use crate::local;
use crate::protocol::{Context, Done, Handler, Pair, Registry};
use crate::report::{Attempt, Failure, Report};
use crate::shown;
use crate::spec::{Transfer, Work};

/// How to carry out a list of work.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most rounds; at least 1.
    pub rounds: u32,
    /// Most transfers at a time; at least 1.
    pub threads: usize,
    /// Make links instead of copies of local files.
    pub symlink: bool,
    /// Where relative paths start; the working directory of the process if `None`.
    pub base: Option<PathBuf>,
    /// Waits between rounds.
    pub waits: Waits,
    /// File that published checksums are appended to (`KICKSTART_INTEGRITY_DATA`); they are reported as
    /// [`Event::Checksum`] if `None`.
    pub integrity_data: Option<PathBuf>,
    /// Test hook: percentage of copies to spoil by appending a text.
    pub error_rate: u8,
    /// Set when the run shall stop.
    pub cancel: Cancel,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rounds: 3,
            threads: 8,
            symlink: false,
            base: None,
            waits: Waits::default(),
            integrity_data: None,
            error_rate: 0,
            cancel: Cancel::new(),
        }
    }
}

/// How long to wait before the next round. Each wait is a random time between half of and the whole of
/// `first × 4^(round − 1)`, at most `longest`.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// For failures of local files.
    pub soon: Duration,
    /// For failures of remote services.
    pub later: Duration,
    /// Most of all waits.
    pub longest: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            soon: Duration::from_secs(2),
            later: Duration::from_secs(60),
            longest: Duration::from_secs(300),
        }
    }
}

impl Waits {
    fn after(&self, round: u32, retry: Retry) -> Duration {
        let first = if retry == Retry::Later {
            self.later
        } else {
            self.soon
        };
        let whole = first
            .saturating_mul(4u32.saturating_pow(round.saturating_sub(1)))
            .min(self.longest);
        whole.mul_f64(0.5 + f64::from(random_below(1000)) / 2000.0)
    }
}

/// A number below `limit`, from the seeds that the standard library draws for its hash maps.
fn random_below(limit: u32) -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    u32::try_from(random % u64::from(limit.max(1))).unwrap_or(0)
}

/// Something that an observer may want to tell its user at once.
#[derive(Debug)]
pub enum Event<'a> {
    /// A round starts.
    Round(u32),
    /// An attempt of a transfer ended; with the reason if it failed.
    Transfer(&'a Attempt, Option<&'a TransferError>),
    /// A directory was made or something removed, or not: what, and why not.
    Other(&'a str, Option<&'a TransferError>),
    /// The next round starts after a wait.
    Wait(Duration),
    /// A checksum that no file collects.
    Checksum(&'a str),
    /// Something went wrong that does not fail the transfer.
    Warning(String),
}

/// Is told what happens, from several threads.
pub trait Observer: Sync {
    /// Takes note of an event.
    fn event(&self, event: &Event<'_>);
}

/// An observer that takes no note.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

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
        known: std::sync::OnceLock::new(),
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
    /// Attempts with remote handlers in this run that worked, and that failed.
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
    known: std::sync::OnceLock<HashMap<Vec<u8>, String>>,
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

    /// What follows an attempt of a transfer: checksums and the record.
    fn finish(
        &self,
        pair: &Pair<'_>,
        result: Result<Done, TransferError>,
        (start, clock): (SystemTime, Instant),
    ) -> Result<(), TransferError> {
        let (from, to) = (pair.source, pair.destination());
        let result = result.and_then(|done| {
            self.spoil(pair, &done);
            if pair.transfer.generate_checksum {
                self.publish_checksum(pair, &done, clock.elapsed());
            }
            if pair.transfer.verify_checksum {
                self.verify(pair.transfer, &done)?;
            }
            Ok(done)
        });
        let attempt = Attempt {
            source: from.url.shown(),
            source_site: from.site.clone(),
            destination: to.url.shown(),
            destination_site: to.site.clone(),
            lfn: shown::bytes(&pair.transfer.lfn).to_string(),
            success: result.is_ok(),
            start,
            duration: clock.elapsed(),
            bytes: result.as_ref().ok().and_then(|done| done.bytes).unwrap_or(0),
            local: from.url.is_local() || to.url.is_local(),
        };
        self.observer
            .event(&Event::Transfer(&attempt, result.as_ref().err()));
        lock(&self.report).attempts.push(attempt);
        result.map(drop)
    }

    /// Publishes the checksum of the source if that is a local file, else of the destination; each logical
    /// name once. Failing to do so does not fail the transfer.
    fn publish_checksum(&self, pair: &Pair<'_>, done: &Done, took: Duration) {
        let destination = pair.destination();
        let copy = done
            .path
            .clone()
            .unwrap_or_else(|| self.context.path(&destination.url));
        let source = self.context.path(&pair.source.url);
        // A file that was moved is at its destination.
        let path = if pair.source.url.is_local() && source.exists() {
            source
        } else {
            copy
        };
        let lfn = if pair.transfer.lfn.is_empty() {
            destination
                .url
                .path()
                .file_name()
                .unwrap_or_default()
                .as_encoded_bytes()
                .to_vec()
        } else {
            pair.transfer.lfn.clone()
        };
        if !lock(&self.published).insert(lfn.clone()) {
            return;
        }
        let clock = Instant::now();
        let hashed = match done.sha256 {
            Some(sha256) => Ok(Some((sha256, took))),
            None => local::hash_path(&path, self.context.cancel)
                .map(|hash| hash.map(|sha256| (sha256, clock.elapsed()))),
        };
        let warn = |message: String| {
            let name = shown::bytes(&lfn);
            self.observer.event(&Event::Warning(format!(
                "no checksum of {name} is published: {message}"
            )));
        };
        let (sha256, took) = match hashed {
            Ok(Some(hashed)) => hashed,
            Ok(None) => return warn("it is a directory".to_owned()),
            Err(error) => return warn(error.to_string()),
        };
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) => return warn(error.to_string()),
        };
        let block = integrity::record(&lfn, &path, &meta, &sha256, took);
        match &self.settings.integrity_data {
            Some(file) => {
                if let Err(error) = integrity::append(file, &block) {
                    warn(format!("{}: {error}", shown::path(file)));
                }
            }
            None => self.observer.event(&Event::Checksum(&block)),
        }
    }

    /// Compares the copy with the checksum that the metadata files of the working directory give.
    fn verify(&self, transfer: &Transfer, done: &Done) -> Result<(), TransferError> {
        let known = self.known.get_or_init(|| {
            integrity::known_checksums(self.context.base.unwrap_or(std::path::Path::new(".")))
        });
        let destination = &transfer.destination.url;
        if !destination.is_local() {
            self.observer.event(&Event::Warning(format!(
                "{} cannot be verified",
                destination.shown()
            )));
            return Ok(());
        }
        let path = done
            .path
            .clone()
            .unwrap_or_else(|| self.context.path(destination));
        let clock = Instant::now();
        let result = integrity::verify(&transfer.lfn, &path, known, self.context.cancel);
        if !matches!(result, Err(TransferError::ChecksumUnknown(_))) {
            let checks: &mut Checks = &mut lock(&self.report).checks;
            checks.add(&transfer.linkage, result.is_ok(), clock.elapsed());
        }
        result
    }

    /// The test hook that spoils copies.
    fn spoil(&self, pair: &Pair<'_>, done: &Done) {
        if self.settings.error_rate == 0 || random_below(100) >= u32::from(self.settings.error_rate) {
            return;
        }
        if pair.destination().url.scheme() != "file" {
            return;
        }
        let path = done
            .path
            .clone()
            .unwrap_or_else(|| self.context.path(&pair.destination().url));
        let spoilt = fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| {
                std::io::Write::write_all(&mut file, b"spoilt by PEGASUS_TRANSFER_ERROR_RATE")
            });
        let outcome = if spoilt.is_ok() {
            "was spoilt"
        } else {
            "could not be spoilt"
        };
        let name = shown::path(&path);
        self.observer.event(&Event::Warning(format!(
            "PEGASUS_TRANSFER_ERROR_RATE: {name} {outcome}"
        )));
    }
}

fn same_protocols(one: &Pair<'_>, other: &Pair<'_>) -> bool {
    one.source.url.scheme() == other.source.url.scheme()
        && one.destination().url.scheme() == other.destination().url.scheme()
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
