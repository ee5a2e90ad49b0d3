//! What ends a launch whose `pmc launch` was killed.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Reads until its input ends. Without a word before, the launch gets SIGTERM, and SIGKILL some time after.
const SCRIPT: &str = "read -r word; [ \"$word\" = done ] && exit; \"$0\" cancel \"$1\" \"$2\"; sleep \"$3\"; \
                      \"$0\" kill -s 9 \"$2\" \"$1\"";

/// A process that ends a launch unless it is dismissed.
pub(super) struct Guard(Child);

impl Guard {
    /// Starts it for a task of a run.
    pub(super) fn start(run: &Path, label: &str, wait: u32) -> io::Result<Self> {
        Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .arg(std::env::current_exe()?)
            .arg(run)
            .args([label, &wait.to_string()])
            // What ends the launch by its group does not end this.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Self)
    }

    /// The launch has ended.
    pub(super) fn dismiss(mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            // One that was killed needs no word.
            let _ = input.write_all(b"done\n");
        }
        let _ = self.0.wait();
    }
}
