//! Test fixtures: a temporary directory, runs of the program, entries of a specification.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// SHA-256 of `hello`.
pub const HELLO_SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// A temporary working directory.
pub struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("directory"),
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("has a parent")).expect("mkdir");
        fs::write(path, content).expect("write");
        self
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect(name)
    }

    /// Writes a file that only its owner may read. Returns its path.
    pub fn write_secret(&self, name: &str, content: &str) -> String {
        self.write(name, content).set_mode(name, 0o600);
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    pub fn set_mode(&self, name: &str, mode: u32) -> &Self {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).expect("chmod");
        self
    }

    /// Returns the permission bits of a file.
    pub fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).expect(name).permissions().mode() & 0o777
    }

    /// Returns the sorted names in a directory, including hidden ones.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).expect("directory");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns whether the file system supports unnamed temporary files.
    pub fn supports_unnamed_files(&self) -> bool {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE;
        rustix::fs::open(self.dir(), flags, rustix::fs::Mode::from_raw_mode(0o600)).is_ok()
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(testutils::programs::path("pegasus-transfer"));
        command.current_dir(self.dir());
        for name in [
            "KICKSTART_INTEGRITY_DATA",
            "PEGASUS_MULTIPART_DIR",
            "PEGASUS_TRANSFER_THREADS",
            "PEGASUS_CREDENTIALS",
            "PEGASUS_TRANSFER_S3_PART_MB",
            "STORAGE_EMULATOR_HOST",
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "no_proxy",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "NO_PROXY",
            "OSG_SQUID_LOCATION",
        ] {
            command.env_remove(name);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program with a specification on stdin. `@DIR@` stands for the directory.
    pub fn run(&self, spec: &str, args: &[&str]) -> Run {
        let mut command = self.command();
        command.args(args);
        self.start(command, spec)
    }

    pub fn start(&self, mut command: Command, spec: &str) -> Run {
        let mut child = command.spawn().expect("start");
        let spec = spec.replace("@DIR@", self.dir().to_str().expect("UTF-8"));
        // Fails if the program ends without reading.
        let _ = child.stdin.take().expect("piped").write_all(spec.as_bytes());
        Run::new(child.wait_with_output().expect("wait"))
    }
}

/// Result of a run of the program.
pub struct Run {
    pub ok: bool,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    fn new(output: Output) -> Self {
        Self {
            ok: output.status.success(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub fn expect_ok(&self) -> &Self {
        assert!(self.ok, "{}", self.stderr);
        assert!(
            self.stderr
                .trim_end()
                .ends_with("All transfers completed successfully."),
            "{}",
            self.stderr
        );
        assert_eq!(self.stdout, "");
        self
    }

    #[track_caller]
    pub fn expect_failed(&self, message: &str) -> &Self {
        assert_eq!(self.code, Some(1), "{}", self.stderr);
        assert!(self.stderr.contains(message), "{message:?} in\n{}", self.stderr);
        self
    }

    /// Returns the log messages of one level.
    pub fn lines(&self, level: &str) -> Vec<&str> {
        let start = format!("{level}:  ");
        self.stderr
            .lines()
            .filter_map(|line| Some(line.split_once(&start)?.1))
            .collect()
    }
}

/// Returns the entry for a transfer of one file, as the planner writes it.
pub fn transfer(source: &str, destination: &str) -> String {
    format!(
        r#" {{ "type": "transfer", "linkage": "input", "lfn": "x", "id": 1,
   "src_urls": [ {{ "site_label": "local", "url": {}, "priority": 50 }} ],
   "dest_urls": [ {{ "site_label": "local", "url": {} }} ] }}"#,
        json(source),
        json(destination)
    )
}

/// Returns the entry for a directory to make.
pub fn mkdir(url: &str) -> String {
    format!(
        r#"{{"id": 1, "type": "mkdir", "target": {{ "site_label": "local", "url": {} }} }}"#,
        json(url)
    )
}

/// Returns the entry for a removal. `recursive` is the string that the planner writes.
pub fn remove(url: &str, recursive: &str) -> String {
    format!(
        r#"{{"id": 1, "type": "remove", "target": {{ "site_label": "local", "url": {}, "recursive": "{recursive}" }} }}"#,
        json(url)
    )
}

/// Sets a boolean option of a transfer, or of a list with one transfer.
pub fn with_option(spec: &str, name: &str, value: bool) -> String {
    spec.replace("\"id\": 1", &format!("\"{name}\": {value}"))
}

/// Returns `size` bytes without an obvious pattern.
pub fn content(size: usize) -> Vec<u8> {
    (0..size)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

pub fn send_signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    kill(pid, signal).expect("kill");
}

/// Returns the JSON list of the entries.
pub fn list(entries: &[String]) -> String {
    format!("[\n{}\n]\n", entries.join("\n ,\n"))
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
