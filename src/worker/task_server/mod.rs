//! The client of task servers: hands tasks of kickstart and `pegasus-lite` to a server that stays beside the
//! worker.

mod command;
mod server;
mod tickets;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

use pmc_dag::reason;
use pmc_spawn::Spawner;
use pmc_spawn::open_files::are_short;
use pmc_wire::{SERVER_NAME, Ticket};

pub(super) use self::command::ToolCommand;
use self::command::Tools;
pub(super) use self::server::TaskServer;
use self::tickets::Tickets;

/// Recognizes tasks for a server, and keeps one for them.
pub(super) struct TaskServerClient {
    /// The programs of this installation. `None` if there is no server for them.
    tools: Option<Tools>,
    /// The idle server.
    idle: Option<TaskServer>,
    tickets: Tickets,
}

impl TaskServerClient {
    /// Returns a client for tasks of the program `kickstart` and of those beside it. They need a server
    /// program there.
    pub(super) fn new(kickstart: Option<&Path>) -> Self {
        let kickstart = kickstart.filter(|program| server_program(program).is_file());
        Self {
            tools: kickstart.and_then(Tools::beside),
            idle: None,
            tickets: Tickets::default(),
        }
    }

    /// Returns the ticket of the next request. `None` if the system has no random bytes.
    pub(super) fn next_ticket(&mut self) -> Option<Ticket> {
        self.tickets.next()
    }

    /// Returns the command in the words of a task, if a server can run it.
    pub(super) fn command<'w>(&self, words: &'w [Vec<u8>], path: &[PathBuf]) -> Option<ToolCommand<'w>> {
        self.tools.as_ref()?.command(words, path)
    }

    /// Returns the idle server, or starts one. `None` if that fails; tasks then start their own program.
    pub(super) fn take_server(
        &mut self,
        environment: &[CString],
        spawner: &mut Spawner,
    ) -> Option<TaskServer> {
        if let Some(server) = self.idle.take() {
            return Some(server);
        }
        let program = server_program(self.tools.as_ref()?.kickstart());
        match TaskServer::start(&program, environment, spawner) {
            Ok(server) => Some(server),
            // Perhaps what the server sent could not be received.
            Err(_) if files_are_short() => None,
            Err(error) => {
                self.tools = None;
                warn_once(&program, &error);
                None
            }
        }
    }

    /// Keeps a server for the next task.
    pub(super) fn keep(&mut self, server: TaskServer) {
        self.idle = Some(server);
    }

    /// Ends the idle server.
    pub(super) fn close(&mut self) {
        if let Some(server) = self.idle.take() {
            server.shut_down();
        }
    }
}

/// Returns whether this process cannot open a file at present.
fn files_are_short() -> bool {
    File::open("/dev/null").is_err_and(|error| are_short(&error))
}

fn server_program(kickstart: &Path) -> PathBuf {
    kickstart.with_file_name(SERVER_NAME)
}

/// Warns once per process: all workers have the same error.
fn warn_once(program: &Path, error: &io::Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "Unable to keep {} running: {}; each task starts its own",
            program.display(),
            reason(error)
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_does_not_serve_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("pegasus-kickstart");
        for file in [&own, &folder.path().join(SERVER_NAME)] {
            std::fs::copy("/bin/true", file).unwrap();
        }
        let task = [own.display().to_string().into_bytes(), b"x".to_vec()];
        let mut client = TaskServerClient::new(Some(&own));
        assert!(client.command(&task, &[]).is_some());
        assert!(client.take_server(&[], &mut Spawner::new()).is_none());
        assert_eq!(client.command(&task, &[]), None);
    }

    #[test]
    fn kickstart_without_a_server_program_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("pegasus-kickstart");
        std::fs::copy("/bin/true", &own).unwrap();
        let task = [own.display().to_string().into_bytes()];
        assert_eq!(TaskServerClient::new(Some(&own)).command(&task, &[]), None);
        assert_eq!(TaskServerClient::new(None).command(&task, &[]), None);
    }
}
