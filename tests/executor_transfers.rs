//! Built-in transfers that end at random moments. Every file with its final name is whole, and no temporary
//! file is left.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use testutils::Random;

const TASKS: usize = 4;

/// What ends a run early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Signal(Signal),
    /// The time limit of the tasks, which have two attempts.
    Limit,
}

struct Place {
    folder: TempDir,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Place {
    /// Tasks that copy a file to a new name and over an older file, a directory, and a small file with its
    /// checksum.
    fn new() -> Self {
        let mut random = Random(1);
        let mut content =
            |words: usize| -> Vec<u8> { (0..words).flat_map(|_| random.number().to_le_bytes()).collect() };
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
            old: content(10_000),
            new: content(250_000),
        };
        let (kickstart, transfer) = (
            testutils::programs::path("pegasus-kickstart"),
            testutils::programs::path("pegasus-transfer"),
        );
        let mut dag = String::new();
        for task in 0..TASKS {
            let one = |source: &str, name: &str| {
                let checksum = source == "old";
                format!(
                    r#"{{"type":"transfer","lfn":"{name}","generate_checksum":{checksum},
                        "src_urls":[{{"site_label":"s","url":"{source}"}}],
                        "dest_urls":[{{"site_label":"d","url":"out/{task}/{name}"}}]}}"#
                )
            };
            let list = [
                one("new", "fresh"),
                one("new", "older"),
                one("tree", "tree"),
                one("old", "checked"),
            ];
            fs::write(place.path(&format!("{task}.in")), format!("[{}]", list.join(","))).unwrap();
            dag.push_str(&format!("TASK t{task} {kickstart} {transfer} -f {task}.in\n"));
        }
        fs::write(place.path("x.dag"), dag).unwrap();
        fs::create_dir(place.path("tree")).unwrap();
        for name in ["new", "tree/1", "tree/2"] {
            fs::write(place.path(name), &place.new).unwrap();
        }
        fs::write(place.path("old"), &place.old).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Restores the state before the run, with the older file.
    fn reset(&self) {
        let _ = fs::remove_dir_all(self.path("out"));
        let _ = fs::remove_file(self.path("x.dag.rescue"));
        for task in 0..TASKS {
            fs::create_dir_all(self.path(&format!("out/{task}"))).unwrap();
            fs::write(self.path(&format!("out/{task}/older")), &self.old).unwrap();
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(testutils::programs::path("pegasus-mpi-cluster"));
        command
            .current_dir(self.folder.path())
            .args(["--workers", "2", "--host-cpus", "2", "--drain-grace", "0"])
            .args(arguments)
            .arg("x.dag")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        testutils::launcher::forget_launcher(&mut command);
        command
    }

    fn run_until(&self, ending: Ending, moment: Duration) -> Output {
        match ending {
            Ending::Limit => {
                let limit = moment.as_secs_f64().max(0.001).to_string();
                self.command(&["-t", "2", "--runtime-limit", &limit])
                    .output()
                    .unwrap()
            }
            Ending::Signal(signal) => {
                let run = self.command(&[]).spawn().unwrap();
                std::thread::sleep(moment);
                // It may have ended by itself.
                let _ = kill(Pid::from_raw(run.id().cast_signed()), signal);
                run.wait_with_output().unwrap()
            }
        }
    }

    /// Checks that everything with a final name is whole. Returns the number of missing transfers.
    fn check(&self, when: &str) -> usize {
        let mut missing = 0;
        for task in 0..TASKS {
            let read = |name: &str| fs::read(self.path(&format!("out/{task}/{name}"))).ok();
            for (name, whole) in [("fresh", &self.new), ("checked", &self.old)] {
                match read(name) {
                    Some(bytes) => assert!(bytes == *whole, "{when}: {name}"),
                    None => missing += 1,
                }
            }
            let older = read("older").unwrap_or_else(|| panic!("{when}: the older file is gone"));
            assert!(older == self.old || older == self.new, "{when}: older");
            missing += usize::from(older != self.new);
            if self.path(&format!("out/{task}/tree")).exists() {
                for name in ["tree/1", "tree/2"] {
                    assert!(read(name).as_ref() == Some(&self.new), "{when}: {name}");
                }
            } else {
                missing += 1;
            }
        }
        missing
    }

    /// Temporary files in the destinations of tasks. A kickstart that does not end within half a second is
    /// killed, and cannot clean up; such tasks are left out.
    fn leftovers(&self, stderr: &str) -> Vec<PathBuf> {
        let mut open: Vec<PathBuf> = (0..TASKS)
            .filter(|task| !stderr.contains(&format!("Task t{task}: its kickstart exited on signal 9")))
            .map(|task| self.path(&format!("out/{task}")))
            .collect();
        let mut left = Vec::new();
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.file_name().unwrap().to_string_lossy().starts_with('.') {
                    left.push(path);
                } else if path.is_dir() {
                    open.push(path);
                }
            }
        }
        left
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the number of rounds that ended with some of the files in place.
fn ended_early(place: &Place, ending: Ending, longest: Duration) -> usize {
    const ROUNDS: u32 = 6;
    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let mut midway = 0;
    for round in 0..ROUNDS {
        place.reset();
        let moment = longest.mul_f64(random.unit());
        let output = place.run_until(ending, moment);
        let stderr = stderr(&output);
        let when = format!("{ending:?}, seed {seed}, round {round}, {moment:?}: {stderr}");
        let missing = place.check(&when);
        midway += usize::from(missing > 0 && missing < 4 * TASKS);
        if ending != Ending::Signal(Signal::SIGKILL) {
            assert_eq!(place.leftovers(&stderr), [] as [&Path; 0], "{when}");
        }
    }
    // The next run succeeds.
    let again = place.command(&[]).output().unwrap();
    assert!(
        again.status.success(),
        "{ending:?}, seed {seed}: {}",
        stderr(&again)
    );
    assert_eq!(place.check("the next run"), 0, "{ending:?}, seed {seed}");
    midway
}

#[test]
fn ended_transfers_leave_no_temporary_files() {
    let place = Place::new();
    place.reset();
    let started = Instant::now();
    let whole = place.command(&[]).output().unwrap();
    let longest = started.elapsed();
    assert!(whole.status.success(), "{}", stderr(&whole));
    assert_eq!(place.check("the whole run"), 0);
    let endings = [
        Ending::Signal(Signal::SIGTERM),
        Ending::Signal(Signal::SIGINT),
        Ending::Limit,
        Ending::Signal(Signal::SIGKILL),
    ];
    // On a busy machine, one run may take much longer than another.
    let mut midway = 0;
    for _ in 0..5 {
        midway += endings
            .map(|ending| ended_early(&place, ending, longest))
            .iter()
            .sum::<usize>();
        if midway > 2 {
            return;
        }
    }
    panic!("{midway} of 120 were ended midway, {longest:?} long");
}
