//! Two users of one machine: the one who runs the tests, which is root, and another one without rights.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::command::Program;
use super::programs::Build;

/// Number of the other user and of its group: `nobody` in most systems. No account is needed.
pub const OTHER: u32 = 65534;

/// Number of a third user, who has nothing.
pub const THIRD: u32 = 65533;

/// A place that both users can enter, with the programs and a directory of each user.
pub struct TwoUsers {
    top: TempDir,
}

impl TwoUsers {
    /// Returns `None` if the tests do not run as root: only root can become another user.
    pub fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: {test} needs root");
            return None;
        }
        let top = tempfile::Builder::new()
            .prefix("pmc-two-users.")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .expect("a temporary directory");
        let users = Self { top };
        for name in ["bin", "mine", "theirs"] {
            fs::create_dir(users.top.path().join(name)).expect("a directory");
        }
        users.give(&users.theirs());
        // The other user may not be able to enter the directory of the build.
        for entry in fs::read_dir(Build::Local.bin()).expect("the programs") {
            let from = entry.expect("a program").path();
            let to = users.program(&from.file_name().expect("a name").to_string_lossy());
            if fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).expect("a copy of a program");
            }
        }
        Some(users)
    }

    /// Path of a program that both users can start.
    pub fn program(&self, name: &str) -> PathBuf {
        self.top.path().join("bin").join(name)
    }

    /// Directory of the user who runs the tests. All may read it.
    pub fn mine(&self) -> PathBuf {
        self.top.path().join("mine")
    }

    /// Directory of the other user. All may read it.
    pub fn theirs(&self) -> PathBuf {
        self.top.path().join("theirs")
    }

    /// Makes the other user the owner of a file.
    pub fn give(&self, path: &Path) {
        chown(path, Some(OTHER), Some(OTHER)).expect("another owner");
    }

    /// Writes a file of the user who runs the tests.
    pub fn write_mine(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.mine().join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        path
    }

    /// Writes a file of the other user.
    pub fn write_theirs(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.theirs().join(name);
        let dir = path.parent().expect("a directory");
        if !dir.exists() {
            fs::create_dir(dir).expect("a directory");
            self.give(dir);
        }
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        self.give(&path);
        path
    }

    /// A program, started by the user who runs the tests in a directory of this user.
    pub fn me(&self, program: &str) -> Program {
        Program::new(self.program(program))
            .in_directory(&self.mine())
            .env("HOME", self.mine())
    }

    /// A program, started by the other user in a directory of that user. One of this project, if it has the
    /// name.
    pub fn other(&self, program: &str) -> Program {
        self.as_user(OTHER, program)
    }

    /// The same for any user.
    pub fn as_user(&self, user: u32, program: &str) -> Program {
        let own = self.program(program);
        let program = if own.exists() { own } else { program.into() };
        Program::new("setpriv")
            .args([format!("--reuid={user}"), format!("--regid={user}")])
            .args(["--clear-groups", "--"])
            .arg(program)
            .in_directory(&self.theirs())
            .env("HOME", self.theirs())
    }
}
