//! An SSH server on this machine, with keys of its own.

use std::fs;
use std::path::{Path, PathBuf};

use super::command::Program;
use super::server::{Server, free_port, system_program};

/// A server that stops when it is dropped.
pub struct Sshd {
    pub port: u16,
    /// The private key that it accepts.
    pub key: PathBuf,
    _server: Server,
}

impl Sshd {
    /// Starts a server whose files are in a directory.
    pub fn start(directory: &Path) -> Self {
        let path = |name: &str| directory.join(name);
        for name in ["host", "key"] {
            Program::from_line("ssh-keygen -q -t ed25519 -N")
                .arg("")
                .arg("-f")
                .arg(path(name))
                .run()
                .ok();
        }
        let port = free_port();
        let configuration = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n\
             Subsystem sftp internal-sftp\n",
            path("host").display(),
            path("key.pub").display()
        );
        fs::write(path("sshd_config"), configuration).expect("the configuration");
        if nix::unistd::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").expect("the directory that sshd needs");
        }
        let server = Program::new(system_program("sshd"))
            .args(["-D", "-e", "-f"])
            .arg(path("sshd_config"));
        Self {
            port,
            key: path("key"),
            _server: Server::start(server, port),
        }
    }
}
