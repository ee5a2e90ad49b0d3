//! Between the server of PMIx and the run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use chrono::Local;
use pmc_files::Destination;
use pmc_monitor::history::{History, Phase};
use pmc_pmix::Server;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::output_format::{OutputFormat, Source};
use super::redirect::Running;
use super::requests::PmixRequests;
use crate::cli::{self, From};
use crate::commands::attach::format::{Origin, Printer, Receiver};
use crate::commands::attach::select::{Chosen, Selection};
use crate::commands::attach::{self, Attach};
use crate::commands::log::Stream;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;

/// Permissions of the file by which tools find the server, before the umask.
const URI_MODE: u32 = 0o644;
/// Time for the run to begin its log.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks for it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Messages that wait.
const QUEUE_LENGTH: usize = 64;
/// Bytes of lines that are passed on at a time.
const PIECE_SIZE: usize = 32 << 10;
/// Maximum characters of the name of the DAG in that of the run.
const MAX_NAME: usize = 100;

/// Serves tools until the run ends. Returns the exit code.
pub fn serve(arguments: &cli::Pmix) -> Result<u8, Failure> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM] {
        let number_of = usize::try_from(number).unwrap_or_default();
        flag::register_usize(number, Arc::clone(&signal), number_of).or_code(exit::NOT_RUN)?;
    }
    let history = begun(&layout::given_or_latest(arguments.run.as_deref(), false))?;
    let dag = pmc_files::real_path(&history.dir.dag)
        .with_context(|| format!("cannot read {}", history.dir.dag.display()))
        .or_code(exit::NOT_RUN)?;
    let namespace = namespace(&dag, std::process::id());
    let uri_file = dag.with_added_extension("pmix");
    let chosen = Arc::new(Mutex::new(Chosen::default()));
    let requests = Arc::new(PmixRequests::new(&dag, namespace, Arc::clone(&chosen)));
    let started = Server::start(requests.namespace(), Arc::clone(&requests) as _);
    let server = Arc::new(started.or_code(exit::NOT_RUN)?);
    let address = server.address().and_then(|address| write(&uri_file, &address));
    address
        .with_context(|| format!("cannot write {}", uri_file.display()))
        .or_code(exit::NOT_RUN)?;
    let printer = Printer::passing(Box::new(ToTools::new(&server, &requests)));
    let mut attach = Attach::new(
        printer,
        history,
        Selection::Chosen(chosen),
        sync_channel(QUEUE_LENGTH),
    );
    attach.join(From::Start, false);
    let result = run(&mut attach, &server, &requests, &signal);
    drop(attach);
    drop(server);
    // If it stays, tools find nobody there.
    let _ = fs::remove_file(uri_file);
    result
}

fn run(
    attach: &mut Attach,
    server: &Arc<Server>,
    requests: &Arc<PmixRequests>,
    signal: &AtomicUsize,
) -> Result<u8, Failure> {
    let mut table = Table::default();
    let mut redirects = Redirects {
        requests,
        threads: Vec::new(),
    };
    loop {
        table.update(&attach.history, requests);
        if requests.has_pulls() {
            requests.end_pulls(server.has_tools());
        }
        let changes = requests.take_changes();
        if changes.is_reset {
            attach.leave();
        }
        if changes.has_new {
            attach.join_chosen();
        }
        for redirecting in requests.take_redirects() {
            redirects.threads.retain(|thread| !thread.is_finished());
            // Without a thread, the redirect has ended, and the output goes to its files.
            redirects
                .threads
                .extend(redirecting.start(ToTools::new(server, requests)).ok());
        }
        let is_over = attach.turn()?;
        if let Ok(signal @ 1..) = u8::try_from(signal.load(Ordering::Relaxed)) {
            return Ok(exit::SIGNAL_BASE + signal);
        }
        if is_over {
            return Ok(exit::SUCCESS);
        }
    }
}

/// Writes the file by which tools find the server, in place of whatever has its name: the directory can be
/// that of another user.
fn write(path: &Path, address: &str) -> io::Result<()> {
    let destination = Destination::named(path)?;
    let new = destination.replacement(".pmix-", URI_MODE)?;
    new.file().write_all(address.as_bytes())?;
    new.publish()
}

/// Returns the history of a run that goes on. Waits for one that is about to start.
fn begun(run: &Path) -> Result<History, Failure> {
    let end = Instant::now() + START_TIMEOUT;
    loop {
        let history = History::open(layout::find_run(run)?).or_code(exit::NOT_RUN)?;
        let is_early = match history.phase() {
            Phase::NotStarted => true,
            Phase::Running => history.runs.is_empty(),
            _ => false,
        };
        if !is_early || Instant::now() >= end {
            attach::check(&history)?;
            return Ok(history);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the name of a run: that of its DAG, and the number of the server's process. The library takes
/// some characters for separators.
fn namespace(dag: &Path, process: u32) -> String {
    let name = dag.file_stem().unwrap_or_default().to_string_lossy();
    let is_plain = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let name = name
        .chars()
        .take(MAX_NAME)
        .map(|character| if is_plain(character) { character } else { '-' });
    format!("{}-{process}", name.collect::<String>())
}

/// The attempts that run.
#[derive(Default)]
struct Table {
    /// Attempts of the log that were looked at.
    looked_at: usize,
    /// Index of each attempt that runs, by submit number.
    open: BTreeMap<u32, usize>,
    /// A host was not known.
    lacks_host: bool,
}

impl Table {
    fn update(&mut self, history: &History, requests: &PmixRequests) {
        let before = self.open.len();
        let is_running = |index: usize| !attach::has_ended(&history.attempts[index]);
        self.open.retain(|_, index| is_running(*index));
        let mut has_changed = self.open.len() != before || self.lacks_host;
        for index in self.looked_at..history.attempts.len() {
            let number = history.submit_number(index);
            if number > 0 && is_running(index) {
                self.open.insert(number, index);
                has_changed = true;
            }
        }
        self.looked_at = history.attempts.len();
        if !has_changed {
            return;
        }
        let running = self.open.iter().map(|(number, index)| {
            let attempt = &history.attempts[*index];
            let host = history.hosts.name(attempt.host).unwrap_or_default();
            let running = Running {
                task: history.plan.text_name(attempt.task),
                host: host.to_owned(),
            };
            (*number, running)
        });
        let running: BTreeMap<u32, Running> = running.collect();
        self.lacks_host = running.values().any(|running| running.host.is_empty());
        requests.set_running(running);
    }
}

/// Threads that pass redirected output on. They end before the server does.
struct Redirects<'a> {
    requests: &'a PmixRequests,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Redirects<'_> {
    fn drop(&mut self) {
        self.requests.end_pulls(false);
        for thread in self.threads.drain(..) {
            // A thread that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// Delivers output to tools.
struct ToTools {
    server: Arc<Server>,
    requests: Arc<PmixRequests>,
    /// Lines of one source.
    gathered: Vec<u8>,
    source: (u32, Stream),
}

impl ToTools {
    fn new(server: &Arc<Server>, requests: &Arc<PmixRequests>) -> Self {
        Self {
            server: Arc::clone(server),
            requests: Arc::clone(requests),
            gathered: Vec::new(),
            source: (0, Stream::Out),
        }
    }
}

impl Receiver for ToTools {
    fn has_lines(&self) -> bool {
        !self.requests.format().is_plain()
    }

    fn raw(&mut self, origin: &Origin, stream: Stream, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.server
                .deliver(origin.submit_number, stream == Stream::Err, bytes);
        }
    }

    fn line(&mut self, origin: &Origin, stream: Stream, line: &[u8], is_part: bool) {
        let source = (origin.submit_number, stream);
        if self.source != source || self.gathered.len() >= PIECE_SIZE {
            self.flush();
            self.source = source;
        }
        let format: OutputFormat = self.requests.format();
        let source = Source {
            namespace: self.requests.namespace(),
            rank: origin.submit_number,
            stream: match stream {
                Stream::Out => "stdout",
                Stream::Err => "stderr",
            },
        };
        let time = Local::now().format("%a %b %e %H:%M:%S %Y").to_string();
        format.add(&mut self.gathered, source, (line, is_part), &time);
    }

    fn end(&mut self, origin: &Origin) {
        self.flush();
        for is_error in [false, true] {
            self.server.deliver(origin.submit_number, is_error, &[]);
        }
    }

    fn flush(&mut self) {
        if !self.gathered.is_empty() {
            let (number, stream) = self.source;
            self.server.deliver(number, stream == Stream::Err, &self.gathered);
            self.gathered.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_tools_is_written_through_no_link() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let (path, other) = (place.path().join("w.dag.pmix"), place.path().join("other"));
        fs::write(&other, "mine")?;
        std::os::unix::fs::symlink(&other, &path)?;
        for address in ["first", "second"] {
            write(&path, address)?;
            assert_eq!(fs::read_to_string(&path)?, address);
            assert!(!path.is_symlink());
        }
        assert_eq!(fs::read_to_string(&other)?, "mine");
        Ok(())
    }

    #[test]
    fn names_of_runs_have_no_separators() {
        assert_eq!(namespace(Path::new("/x/a.b;c d.dag"), 7), "a-b-c-d-7");
        let long = format!("/x/{}.dag", "é".repeat(300));
        assert_eq!(namespace(Path::new(&long), 8).len(), MAX_NAME + 2);
    }
}
