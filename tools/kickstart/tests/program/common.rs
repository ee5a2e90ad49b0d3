//! Runs the program in a temporary directory and parses its record.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use saphyr_parser::{Event, Parser};
use tempfile::TempDir;

/// A working directory, and a directory for temporary files.
pub struct Scene {
    folder: TempDir,
}

impl Scene {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        fs::create_dir(folder.path().join("run")).unwrap();
        Self { folder }
    }

    /// Returns the path of a file in the working directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(testutils::programs::path("pegasus-kickstart"));
        command
            .args(arguments)
            .current_dir(self.path(""))
            .stdin(Stdio::null())
            .env_clear();
        command
            .env("PATH", "/usr/bin:/bin")
            .env("KICKSTART_TMP", self.folder.path().join("tmp"));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Run {
        self.finish(self.command(arguments).output().unwrap())
    }

    pub fn finish(&self, output: Output) -> Run {
        assert_eq!(self.left_behind(), Vec::<String>::new());
        Run {
            code: output.status.code().unwrap(),
            text: String::from_utf8(output.stdout).unwrap(),
            messages: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns the temporary files that still exist.
    pub fn left_behind(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("tmp")).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

/// The result of a run.
pub struct Run {
    pub code: i32,
    pub text: String,
    pub messages: String,
}

impl Run {
    pub fn record(&self) -> Record {
        Record::parse(&self.text)
    }
}

/// The scalars of a record by path, for instance `mainjob/status/raw`.
#[derive(Debug, PartialEq)]
pub struct Record(pub BTreeMap<String, String>);

impl Record {
    /// Parses one record: a list with one mapping. The last of equal keys counts.
    pub fn parse(text: &str) -> Self {
        let mut events =
            Parser::new_from_str(text).map(|event| event.unwrap_or_else(|e| panic!("{e}\n{text}")).0);
        let mut found = BTreeMap::new();
        while let Some(event) = events.next() {
            if matches!(event, Event::SequenceStart(..)) {
                collect(&mut events, &event, "", &mut found);
            }
        }
        Self(found)
    }

    pub fn get(&self, path: &str) -> &str {
        self.find(path)
            .unwrap_or_else(|| panic!("no {path} in {:#?}", self.0))
    }

    pub fn find(&self, path: &str) -> Option<&str> {
        self.0.get(&format!("/0/{path}")).map(String::as_str)
    }

    pub fn number(&self, path: &str) -> f64 {
        self.get(path).parse().unwrap()
    }

    /// Returns whether the mapping at `path` has entries.
    pub fn has(&self, path: &str) -> bool {
        let below = format!("/0/{path}/");
        self.0.keys().any(|key| key.starts_with(&below))
    }
}

fn collect<'e>(
    events: &mut impl Iterator<Item = Event<'e>>,
    event: &Event<'e>,
    path: &str,
    found: &mut BTreeMap<String, String>,
) {
    match event {
        Event::Scalar(value, ..) => {
            found.insert(path.to_owned(), value.to_string());
        }
        Event::SequenceStart(..) => {
            let mut number = 0;
            while let Some(event) = events.next().filter(|event| !matches!(event, Event::SequenceEnd)) {
                collect(events, &event, &format!("{path}/{number}"), found);
                number += 1;
            }
        }
        Event::MappingStart(..) => {
            while let Some(Event::Scalar(key, ..)) = events.next() {
                let value = events.next().unwrap();
                collect(events, &value, &format!("{path}/{key}"), found);
            }
        }
        other => panic!("{other:?}"),
    }
}
