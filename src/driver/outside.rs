//! What the outside says of the end of a run: the batch system, how long the job still runs; the site, by a
//! file, that nodes are about to be cleared. A thread asks, since both may take long to answer.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pmc_batch::ask::{ANSWER_TIMEOUT, ask, output};
use pmc_batch::node_states::{self, draining};
use pmc_batch::{BatchJob, Scheduler};
use pmc_files::Owner;

use crate::interrupt::Interrupt;
use crate::options::Options;

/// How often the batch system is asked.
const ASK_INTERVAL: Duration = Duration::from_secs(300);

/// How long to wait after a question that had no answer.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// How often the file of the site is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum bytes of the file of the site that are read.
const MAX_REASON: u64 = 4096;

/// Maximum characters of a reason that are shown.
const SHOWN: usize = 200;

/// What is new.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The time that the batch job had left at this moment.
    pub(super) time_left: Option<(Instant, Duration)>,
    /// Nodes of the batch job that its system takes out of service.
    pub(super) draining: Vec<String>,
    /// The site clears its nodes; what it says.
    pub(super) site_drain: Option<String>,
    /// What the user should know.
    pub(super) problems: Vec<String>,
}

/// Asks until it is dropped.
#[derive(Debug)]
pub(super) struct Outside {
    news: Arc<Mutex<News>>,
    /// The thread ends without it.
    _end: Sender<()>,
}

impl Outside {
    /// Begins to ask what the options say. `None` if there is nobody to ask.
    pub(super) fn start(options: &Options, interrupt: &Interrupt) -> Option<Self> {
        let job = options.batch_job.clone().filter(|_| options.asks_time_left);
        let file = options.drain_file.clone();
        if job.is_none() && file.is_none() {
            return None;
        }
        let news = Arc::new(Mutex::new(News::default()));
        let (end, ended) = channel::<()>();
        let (shared, wake) = (Arc::clone(&news), interrupt.waker());
        let thread = std::thread::Builder::new().name("outside".to_owned());
        let started = thread.spawn(move || {
            let mut questions = Questions {
                job,
                file,
                has_ignored: false,
                ask_at: Some(Instant::now()),
                has_warned: false,
            };
            loop {
                let found = questions.ask(Instant::now());
                if !found.is_empty() {
                    shared.lock().unwrap_or_else(PoisonError::into_inner).add(found);
                    wake();
                }
                if ended.recv_timeout(questions.pause(Instant::now())) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        if let Err(error) = started {
            tracing::warn!(
                "Unable to watch the end of the batch job: {}",
                pmc_dag::reason(&error)
            );
        }
        Some(Self { news, _end: end })
    }

    /// Takes what is new.
    pub(super) fn take(&self) -> News {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl News {
    fn is_empty(&self) -> bool {
        self.time_left.is_none()
            && self.draining.is_empty()
            && self.site_drain.is_none()
            && self.problems.is_empty()
    }

    fn add(&mut self, other: Self) {
        self.time_left = other.time_left.or(self.time_left);
        self.draining.extend(other.draining);
        self.site_drain = other.site_drain.or(self.site_drain.take());
        self.problems.extend(other.problems);
    }
}

struct Questions {
    job: Option<BatchJob>,
    /// The file of the site, until it has said something.
    file: Option<PathBuf>,
    /// The user knows that something has its name that does not count.
    has_ignored: bool,
    ask_at: Option<Instant>,
    has_warned: bool,
}

impl Questions {
    fn ask(&mut self, now: Instant) -> News {
        let mut news = News::default();
        if let Some(file) = &self.file
            && let Some(found) = site_drain(file)
        {
            match found {
                Ok(reason) => {
                    self.file = None;
                    news.site_drain = Some(reason);
                }
                // The site can put its own there later.
                Err(problem) if !self.has_ignored => {
                    self.has_ignored = true;
                    news.problems.push(problem);
                }
                Err(_) => {}
            }
        }
        if let Some(job) = self
            .job
            .as_ref()
            .filter(|_| self.ask_at.is_some_and(|at| at <= now))
        {
            let pause = match ask(job, ANSWER_TIMEOUT) {
                Ok(status) => {
                    news.time_left = status.time_left.map(|left| (now, left));
                    news.draining = draining_nodes(job, &status.nodes);
                    ASK_INTERVAL
                }
                Err(error) => {
                    if !self.has_warned {
                        self.has_warned = true;
                        let text = format!(
                            "{error}: the end of the batch job {} is taken from --max-wall-time",
                            job.id
                        );
                        news.problems.push(text);
                    }
                    ASK_AGAIN
                }
            };
            self.ask_at = now.checked_add(pause);
        }
        news
    }

    fn pause(&self, now: Instant) -> Duration {
        let ask = self.ask_at.filter(|_| self.job.is_some());
        let ask = ask.map(|at| at.saturating_duration_since(now));
        let look = self.file.as_ref().map(|_| LOOK_INTERVAL);
        ask.into_iter().chain(look).min().unwrap_or(Duration::MAX)
    }
}

/// Returns the nodes of a job that drain. Without an answer, none does.
fn draining_nodes(job: &BatchJob, nodes: &[String]) -> Vec<String> {
    if job.scheduler != Scheduler::Slurm || nodes.is_empty() {
        return Vec::new();
    }
    let printed = output(&node_states::query(nodes), ANSWER_TIMEOUT);
    printed.map_or_else(|_| Vec::new(), |printed| draining(&printed))
}

/// Returns the text of the file by which the site says that it clears its nodes, or why the file does not
/// count. `None` if there is no such file.
fn site_drain(file: &Path) -> Option<Result<String, String>> {
    let ignored = |why: &str| Some(Err(format!("{} is ignored: {why}", file.display())));
    let (opened, owner) = match pmc_files::open_with_owner(file) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return ignored(&pmc_dag::reason(&error).to_string()),
    };
    if owner == Owner::Other {
        return ignored("it belongs to another user");
    }
    let text = match pmc_files::read_at_most(opened, MAX_REASON) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    };
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    let plain = line.unwrap_or_default().chars().filter(|c| !c.is_control());
    Some(Ok(plain.take(SHOWN).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_site_has_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("drain");
        assert_eq!(site_drain(&file), None);
        std::fs::write(&file, "\n  cooling\u{1b}[31m at noon \nmore\n").unwrap();
        assert_eq!(site_drain(&file), Some(Ok("cooling[31m at noon".to_owned())));
        std::fs::write(&file, "").unwrap();
        assert_eq!(site_drain(&file), Some(Ok(String::new())));
        // That of another user does not count. Only root can give it away.
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
            let theirs = site_drain(&file).unwrap().unwrap_err();
            assert!(
                theirs.ends_with(" is ignored: it belongs to another user"),
                "{theirs}"
            );
        }
        let directory = site_drain(folder.path()).unwrap().unwrap_err();
        assert!(directory.contains(" is ignored: "), "{directory}");
    }

    #[test]
    fn what_is_ignored_does_not_hide_the_file_of_the_site() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("drain");
        std::fs::create_dir(&file).unwrap();
        let mut questions = Questions {
            job: None,
            file: Some(file.clone()),
            has_ignored: false,
            ask_at: None,
            has_warned: false,
        };
        let now = Instant::now();
        assert_eq!(questions.ask(now).problems.len(), 1);
        assert!(questions.ask(now).is_empty(), "it is said once");
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, "at noon\n").unwrap();
        assert_eq!(questions.ask(now).site_drain.as_deref(), Some("at noon"));
    }
}
