//! A web server, nginx.

use std::fs;
use std::path::Path;

use super::command::Program;
use super::server::{Server, system_program};

/// Starts nginx in the directory `top`, with the directives of one `server` block. It serves `top/root` on a
/// port of this machine, for the user who runs the tests.
pub fn start(top: &Path, port: u16, directives: &str) -> Server {
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
           server {{ listen 127.0.0.1:{port}; root {top}/root; {directives} }}
         }}",
        top = top.display()
    );
    for directory in ["root", "body", "logs"] {
        fs::create_dir_all(top.join(directory)).expect("a directory");
    }
    fs::write(top.join("nginx.conf"), configuration).expect("a file");
    let server = Program::new(system_program("nginx"))
        .args(["-e", "stderr", "-p"])
        .arg(top)
        .arg("-c")
        .arg(top.join("nginx.conf"));
    Server::start(server, port)
}
