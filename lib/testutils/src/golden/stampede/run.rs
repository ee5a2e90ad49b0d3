//! Executes a submit directory, and loads it into a database.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::super::text::{glob, regex, replace_path};
use super::super::{Case, process};
use super::dump::dump;

/// Directories in golden cases, and what stands in their place in a dump.
const RECORDED_PLACES: [(&str, &str); 3] = [
    ("/golden/submit", "<SUBMIT>"),
    ("/golden/base", "<WORK>"),
    ("/golden/bin", "<BIN>"),
];
/// What monitoring leaves in a submit directory.
const OF_MONITORING: [&str; 3] = ["monitord.*", "*.stampede.db*", "statistics"];
/// What the executor and its jobs leave in a submit directory.
const OF_EXECUTION: [&str; 8] = [
    "*.out.???",
    "*.err.???",
    "*.dag.dagman.out",
    "*.dag.rescue",
    "*.dag.resource",
    "*.dag.out.*",
    "*.dag.err.*",
    "jobstate.log*",
];
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Directories, and what stands in their place in a dump.
type Places = Vec<(String, &'static str)>;

/// How a case is executed: its `run.json`.
#[derive(Deserialize)]
struct Spec {
    /// The number of ranks.
    np: u32,
    args: Vec<String>,
    /// The exit code of each run.
    exit: Vec<i32>,
}

/// An executed submit directory.
pub struct Executed {
    directory: tempfile::TempDir,
    places: Places,
}

/// A copy of a submit directory that monitoring has loaded.
pub struct Loaded {
    directory: tempfile::TempDir,
    /// The content of the database.
    pub dump: Value,
}

impl Executed {
    /// Returns the submit directory.
    pub fn submit(&self) -> PathBuf {
        self.directory.path().join("submit")
    }

    /// Loads a copy of the directory.
    ///
    /// # Panics
    /// As [`load`].
    pub fn load(&self, monitord: &Path) -> Loaded {
        load_with(&self.submit(), monitord, self.places.clone())
    }
}

impl Loaded {
    /// Returns the submit directory.
    pub fn submit(&self) -> PathBuf {
        self.directory.path().join("submit")
    }

    /// Returns the directory that was the user's home during the load.
    pub fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }
}

/// Executes the workflow of a case again. `programs` has the programs of the jobs, and `start` returns the
/// words of the command that starts the executor, given the number of ranks.
///
/// # Panics
/// The case cannot be executed, or the executor ends with another exit code than expected.
pub fn execute(case: &Case, programs: &Path, start: &dyn Fn(u32) -> Vec<String>) -> Executed {
    let spec: Spec = serde_json::from_str(case.file("run.json")).expect("JSON");
    let directory = tempfile::Builder::new()
        .prefix("stamprun.")
        .tempdir()
        .expect("a directory");
    let [submit, work, bin] = ["submit", "work", "bin"].map(|name| directory.path().join(name));
    case.unpack("executed", &submit);
    case.unpack("work", &work);
    remove(&submit, &OF_EXECUTION);
    remove(&submit, &OF_MONITORING);
    fs::create_dir(&bin).expect("a directory");
    for name in ["pegasus-kickstart", "pegasus-cluster"] {
        std::os::unix::fs::symlink(programs.join(name), bin.join(name)).expect("a link");
    }
    // Kickstart records the real path of what it runs.
    fs::copy(programs.join("pegasus-transfer"), bin.join("pegasus-transfer")).expect("a program");
    let shown = [&submit, &work, &bin].map(|path| path.display().to_string());
    let here: Vec<(&str, &str)> = RECORDED_PLACES
        .iter()
        .zip(&shown)
        .map(|((recorded, _), path)| (*recorded, path.as_str()))
        .collect();
    for folder in [&submit, &work] {
        substitute(folder, &["*"], &here);
    }
    for (expected, number) in spec.exit.iter().zip(1..) {
        let words = start(spec.np);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(&spec.args)
            .current_dir(&submit)
            .env("HOME", directory.path())
            .env("TZ", "UTC")
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let ended = process::run(&mut command, TIME_LIMIT, false);
        assert_eq!(
            ended.code,
            Some(*expected),
            "{}: run {number}: {}",
            case.name,
            ended.stderr
        );
    }
    let marks = RECORDED_PLACES.iter().map(|(_, mark)| *mark);
    let places = shown.into_iter().zip(marks).collect();
    Executed { directory, places }
}

/// Has a monitord load a copy of a submit directory.
///
/// # Panics
/// The monitord fails, or logs an error.
pub fn load(submit: &Path, monitord: &Path) -> Loaded {
    load_with(submit, monitord, Places::new())
}

fn load_with(submit: &Path, monitord: &Path, mut places: Places) -> Loaded {
    let directory = tempfile::Builder::new()
        .prefix("stampede.")
        .tempdir()
        .expect("a directory");
    let loaded = Loaded {
        directory,
        dump: Value::Null,
    };
    let (copy, home) = (loaded.submit(), loaded.home());
    fs::create_dir(&home).expect("a directory");
    copy_directory(submit, &copy);
    remove(&copy, &OF_MONITORING);
    let here = copy.display().to_string();
    places.push((here.clone(), "<SUBMIT>"));
    places.extend(
        RECORDED_PLACES
            .iter()
            .map(|(path, mark)| ((*path).to_owned(), *mark)),
    );
    // Monitoring reads and writes the directory that the braindump names.
    if let Some(recorded) = from_braindump(&copy, "submit_dir") {
        substitute(&copy, &["braindump.yml", "*.properties"], &[(&recorded, &here)]);
        places.push((recorded, "<SUBMIT>"));
    }
    places.extend(from_braindump(&copy, "bindir").map(|path| (path, "<BIN>")));
    let log = only(&copy, "*.dag.dagman.out");
    let mut command = Command::new(monitord);
    command
        .args(["-N", "-r"])
        .arg(log)
        .current_dir(&copy)
        .env("HOME", &home)
        .env("TZ", "UTC");
    let ended = process::run(&mut command, TIME_LIMIT, false);
    let mut output = format!("{}\n{}", ended.stdout, ended.stderr);
    for path in find(&copy, "monitord.log*") {
        output += &String::from_utf8_lossy(&fs::read(path).expect("a log"));
    }
    let complaint = regex!(r"(?m):(ERROR|CRITICAL):|^Traceback |^ERROR\b|^CRITICAL\b");
    assert!(
        ended.code == Some(0) && !complaint.is_match(&output),
        "{} ended with {:?}: {output}",
        monitord.display(),
        ended.code
    );
    let dump = dump(&only(&copy, "*.stampede.db"), &places);
    Loaded { dump, ..loaded }
}

/// Returns a value of `braindump.yml`.
fn from_braindump(submit: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(submit.join("braindump.yml")).expect("a braindump");
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| *name == key)?;
    let value = value.trim().trim_matches('"');
    (!value.is_empty() && value != "null").then(|| value.to_owned())
}

/// Replaces paths in the text files of a directory whose names match.
fn substitute(directory: &Path, patterns: &[&str], places: &[(&str, &str)]) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            substitute(&path, patterns, places);
        } else if patterns.iter().any(|pattern| glob(pattern).is_match(&name))
            && let Ok(text) = fs::read_to_string(&path)
        {
            let replaced = places
                .iter()
                .fold(text.clone(), |text, (from, to)| replace_path(&text, from, to));
            if replaced != text {
                fs::write(&path, replaced).expect("a file");
            }
        }
    }
}

/// Returns the entries of a directory whose names match.
fn find(directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    entries
        .filter(|entry| glob(pattern).is_match(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect()
}

fn only(directory: &Path, pattern: &str) -> PathBuf {
    let mut found = find(directory, pattern);
    assert_eq!(
        found.len(),
        1,
        "files {pattern} in {}: {found:?}",
        directory.display()
    );
    found.remove(0)
}

fn remove(directory: &Path, patterns: &[&str]) {
    for path in patterns.iter().flat_map(|pattern| find(directory, pattern)) {
        if path.is_dir() {
            fs::remove_dir_all(path).expect("a directory");
        } else {
            fs::remove_file(path).expect("a file");
        }
    }
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_directory(&path, &target);
        } else {
            fs::copy(path, target).expect("a copy");
        }
    }
}
