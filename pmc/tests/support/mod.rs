//! Support for integration tests: programs, a working directory, small workflows.

#![allow(dead_code, reason = "not all test programs need all of it")]

pub mod schema;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

/// Returns the directory of the programs. Cargo builds them, and the example `synthetic`, for these tests.
pub fn bin() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pmc"))
        .parent()
        .expect("a program is in a directory")
}

/// A temporary working directory.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Place {
            dir: tempfile::tempdir().expect("temporary directory"),
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the command `pmc` in this directory with a clean environment.
    pub fn pmc<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(bin().join("pmc"));
        command.args(arguments).current_dir(self.path()).env_clear();
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.path());
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Finished {
        Finished(self.pmc(arguments).output().expect("pmc runs"))
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("it is in a directory")).expect("directory");
        std::fs::write(path, text).expect("file");
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Writes a workflow `chain`. The jobs `first` and `second`, both shell scripts, make `mid.txt` of
    /// `in.txt` and `out.txt` of `mid.txt`. The independent job `alone` writes `alone.txt`.
    pub fn chain(&self, first: &str, second: &str) {
        for (name, script) in [
            ("first", first),
            ("second", second),
            ("alone", "echo alone > alone.txt"),
        ] {
            self.script(&format!("bin/{name}"), script);
        }
        self.write("in.txt", "something\n");
        self.write(
            "workflow.yml",
            r#"pegasus: "5.0.4"
name: chain
transformationCatalog:
  transformations:
  - {name: first, sites: [{name: local, type: installed, pfn: "${PMC_WORKFLOW_DIR}/bin/first"}]}
  - {name: second, sites: [{name: local, type: installed, pfn: "${PMC_WORKFLOW_DIR}/bin/second"}]}
  - {name: alone, sites: [{name: local, type: installed, pfn: "${PMC_WORKFLOW_DIR}/bin/alone"}]}
replicaCatalog:
  replicas:
  - {lfn: in.txt, pfns: [{site: local, pfn: "${PMC_WORKFLOW_DIR}/in.txt"}]}
jobs:
- {type: job, id: A, name: first, uses: [{lfn: in.txt, type: input}, {lfn: mid.txt, type: output, stageOut: false, registerReplica: false}]}
- {type: job, id: B, name: second, uses: [{lfn: mid.txt, type: input}, {lfn: out.txt, type: output, registerReplica: false}]}
- {type: job, id: C, name: alone, uses: [{lfn: alone.txt, type: output, registerReplica: false}]}
"#,
        );
    }

    pub fn script(&self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        self.write(name, &format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(self.path().join(name), std::fs::Permissions::from_mode(0o755))
            .expect("mode");
    }
}

/// A command that has ended.
pub struct Finished(Output);

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Finished(output)
    }
}

impl Finished {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// Asserts the exit code; shows all output if it differs.
    #[track_caller]
    pub fn code(&self, code: i32) -> &Self {
        let status = self.0.status;
        assert_eq!(
            status.code(),
            Some(code),
            "{status}\nstdout:\n{}\nstderr:\n{}",
            self.stdout(),
            self.stderr()
        );
        self
    }

    /// Returns what was printed as JSON. If it says its format, it is checked against the schema of that.
    pub fn json(&self) -> serde_json::Value {
        let value: serde_json::Value = serde_json::from_slice(&self.0.stdout).unwrap_or_else(|error| {
            panic!("{error}\nstdout:\n{}\nstderr:\n{}", self.stdout(), self.stderr())
        });
        if let Some(format) = value["format"].as_str() {
            schema::check(format, &value);
        }
        value
    }
}
