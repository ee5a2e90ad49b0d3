//! A web server, nginx.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::command::Program;
use super::server::{Server, system_program};

/// Starts nginx in the directory `top`, with the directives of one `server` block. It serves `top/root` on a
/// port of this machine, for the user who runs the tests.
pub fn start(top: &Path, port: u16, directives: &str) -> Server {
    let words = command(top, &format!("127.0.0.1:{port}"), directives);
    Server::start(Program::new(&words[0]).args(&words[1..]), port)
}

/// Makes the directories and the configuration of a server that listens on `address`. Returns the program and
/// its arguments. The file `top/pid` is there when it listens.
pub fn command(top: &Path, address: &str, directives: &str) -> Vec<OsString> {
    let user = if nix::unistd::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let configuration = format!(
        "{user} daemon off; pid {top}/pid; error_log {top}/logs/error; worker_processes 1;
         events {{ worker_connections 64; }}
         http {{
           access_log {top}/logs/access; client_body_temp_path {top}/body; client_max_body_size 0;
           proxy_temp_path {top}/body; fastcgi_temp_path {top}/body; uwsgi_temp_path {top}/body; scgi_temp_path {top}/body;
           server {{ listen {address}; root {top}/root; {directives} }}
         }}",
        top = top.display()
    );
    for directory in ["root", "body", "logs"] {
        fs::create_dir_all(top.join(directory)).expect("a directory");
    }
    fs::write(top.join("nginx.conf"), configuration).expect("a file");
    vec![
        system_program("nginx").into(),
        "-e".into(),
        "stderr".into(),
        "-p".into(),
        top.into(),
        "-c".into(),
        top.join("nginx.conf").into(),
    ]
}
