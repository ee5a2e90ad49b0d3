//! Starts agents.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pmc_link::Endpoint;

/// How agents are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// As processes of this machine.
    Local {
        /// Options of each agent.
        options: Vec<OsString>,
    },
}

/// An agent cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The launcher does not start.
    #[error("Unable to start {program}: {}", pmc_dag::reason(.source))]
    Start {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The path of this program is unknown.
    #[error("Unable to find this program: {}", pmc_dag::reason(.0))]
    OwnPath(io::Error),
}

/// Agents and launchers that were started. Dropping it kills them.
#[derive(Debug, Default)]
pub struct Launcher {
    children: Vec<Child>,
}

/// Returns the addresses of the master's port, for agents that are started so.
pub(super) fn addresses(launch: Option<&Launch>, port: u16) -> Vec<String> {
    match launch {
        Some(Launch::Local { .. }) => vec![format!("127.0.0.1:{port}")],
        None => vec![format!("{}:{port}", crate::host::name())],
    }
}

impl Launcher {
    /// Starts agents.
    ///
    /// # Errors
    /// A process does not start. Those that did are killed.
    pub(super) fn start(
        launch: &Launch,
        agents: u32,
        path: &Path,
        _endpoint: &Endpoint,
    ) -> Result<Self, LaunchError> {
        let mut launcher = Self::default();
        let Launch::Local { options } = launch;
        let program = std::env::current_exe().map_err(LaunchError::OwnPath)?;
        for _ in 0..agents {
            let mut command = Command::new(&program);
            command.arg("--agent").arg(path).args(options);
            // Signals from the terminal are for the master.
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .process_group(0);
            let child = command.spawn().map_err(|source| LaunchError::Start {
                program: program.display().to_string(),
                source,
            })?;
            launcher.children.push(child);
        }
        Ok(launcher)
    }

    /// True if all processes have ended.
    pub(super) fn all_have_exited(&mut self) -> bool {
        self.children
            .iter_mut()
            .all(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// What the processes said last.
    pub(super) fn last_words(&self) -> String {
        String::new()
    }

    /// Waits for the end of all processes, at most `timeout`, and kills the rest.
    pub(super) fn end(&mut self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while self
            .children
            .iter_mut()
            .any(|child| matches!(child.try_wait(), Ok(None)))
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill();
    }

    fn kill(&mut self) {
        for mut child in self.children.drain(..) {
            if matches!(child.try_wait(), Ok(None)) {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.kill();
    }
}
