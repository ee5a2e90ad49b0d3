//! A control socket that another user has planted.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::support::users::TwoUsers;

/// Time for the other user's process to listen.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn a_planted_socket_is_not_asked() {
    let Some(users) = TwoUsers::new("a_planted_socket_is_not_asked") else {
        return;
    };
    // A directory in which everybody may make files.
    let folder = users.mine().join("open");
    fs::create_dir(&folder).expect("a directory");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).expect("it is mine");
    users.write_mine("open/w.dag", "TASK a /bin/true\n", 0o644);
    let socket = folder.join("w.dag.control");
    let script = "import os, socket, sys, time\n\
                  s = socket.socket(socket.AF_UNIX)\n\
                  s.bind(sys.argv[1])\n\
                  os.chmod(sys.argv[1], 0o666)\n\
                  s.listen(5)\n\
                  open(sys.argv[1] + '.listens', 'w').close()\n\
                  time.sleep(600)\n";
    let _listener = users
        .other("/usr/bin/python3")
        .args(["-c", script])
        .arg(&socket)
        .start();
    let begun = Instant::now();
    while !folder.join("w.dag.control.listens").exists() {
        assert!(
            begun.elapsed() < TIMEOUT,
            "the other user's process does not start"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // It would wait for its answer for longer.
    let nodes = users.me("pmc").arg("nodes").arg(&folder).limit(12).run();
    assert_eq!(nodes.code(), 4, "{}", nodes.details());
    assert!(
        nodes.stderr.contains("belongs to another user"),
        "{}",
        nodes.details()
    );
}
