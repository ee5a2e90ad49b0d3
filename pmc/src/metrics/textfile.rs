//! A file with the metrics of a run, which a node exporter or another collector of text files reads.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use pmc_files::Destination;
use pmc_monitor::dir::RunDir;
use pmc_monitor::history::History;
use pmc_monitor::progress::Observer;

use super::render;
use crate::clock::now;
use crate::layout;
use crate::reach;
use crate::recorded;

/// The property that names the file, or a directory for it.
const PROPERTY: &str = "pegasus.metrics.textfile";

/// Time between two writes: collectors commonly read every 15 seconds or more seldom.
const INTERVAL: Duration = Duration::from_secs(15);

/// Access rights of the file: collectors are other users.
const FILE_MODE: u32 = 0o644;

/// Writes the file every 15 seconds, and a last time when it is dropped. The file stays.
#[derive(Debug)]
pub struct TextFile {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TextFile {
    /// Starts to write if the properties of the plan in a submit directory say so. What fails is said once:
    /// it is no reason to end a run.
    pub fn start(submit_dir: &Path) -> Option<Self> {
        let dir = layout::find_run(submit_dir).ok()?;
        let named = recorded::property(&dir, PROPERTY)?.value;
        let path = path(&dir, &named);
        let (stop, stopped) = mpsc::channel();
        let write = move || keep(&dir, &path, &stopped);
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(write);
        Some(Self {
            stop: Some(stop),
            thread: thread.ok(),
        })
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

/// Returns the path of the file. In a directory, it has a name of its own for each run.
fn path(dir: &RunDir, named: &str) -> PathBuf {
    // A relative name is one beside the plan: where the run is started does not matter.
    let path = dir.dir.join(named);
    if !path.is_dir() {
        return path;
    }
    let id = dir.braindump.get("wf_uuid").map_or("", String::as_str);
    let safe = |text: &str| -> String {
        let is_safe = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        text.chars()
            .map(|char| if is_safe(char) { char } else { '_' })
            .collect()
    };
    path.join(format!("pmc-{}-{}.prom", safe(&dir.label), safe(id)))
}

/// Writes the file again and again until the other end of the channel is dropped.
fn keep(dir: &RunDir, path: &Path, stopped: &mpsc::Receiver<()>) {
    let mut reader = None;
    let mut is_said = false;
    loop {
        let ended = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
        let written = read(dir, &mut reader).and_then(|text| write(path, &text));
        if let Err(error) = written
            && !is_said
        {
            is_said = true;
            pmc_terminal::message(format_args!(
                "pmc: warning: {PROPERTY}: {} cannot be written: {}",
                path.display(),
                pmc_dag::reason(&error)
            ));
        }
        if ended {
            return;
        }
    }
}

/// Returns the metrics of now.
fn read(dir: &RunDir, reader: &mut Option<(History, Observer)>) -> io::Result<String> {
    if reader.as_ref().is_none_or(|(history, _)| history.is_stale()) {
        let history = History::open(dir.clone()).map_err(io::Error::other)?;
        let observer = Observer::new(&history.plan);
        *reader = Some((history, observer));
    }
    let Some((history, observer)) = reader else {
        return Ok(String::new());
    };
    history.update().map_err(io::Error::other)?;
    let progress = observer.progress(history, now());
    Ok(render(history, &progress, &reach::limits(history, &progress)))
}

/// Replaces the file at once: a collector never sees a part of it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let destination = Destination::named(path)?;
    let name = destination.name().to_string_lossy().into_owned();
    let replacement = destination.only_replacement(&format!(".{name}.part"), FILE_MODE)?;
    replacement.file().write_all(text.as_bytes())?;
    replacement.publish()
}
