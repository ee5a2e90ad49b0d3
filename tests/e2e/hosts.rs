//! `pmc run --hosts` with a real SSH server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::support::command::{CommandResult, Program, wait_until};
use crate::support::programs::Build;
use crate::support::server::free_port;
use crate::support::sshd::Sshd;

/// A job that prints through which connection it was started. It takes longer than ssh needs to fail.
const WHERE: &str = "#!/bin/sh\nsleep 0.5\necho \"${SSH_CONNECTION:-nowhere}\" > \"$1\"\n";

const WORKFLOW: &str = "pegasus: '5.0'
name: where
jobs:
- {type: job, id: A, name: where.sh, arguments: [a], uses: [{lfn: a, type: output, stageOut: true}]}
- {type: job, id: B, name: where.sh, arguments: [b], uses: [{lfn: b, type: output, stageOut: true}]}
- {type: job, id: C, name: where.sh, arguments: [c], uses: [{lfn: c, type: output, stageOut: true}]}
";

/// A folder with a workflow, and a server that is reached under several names.
struct Scene {
    folder: tempfile::TempDir,
    _server: Sshd,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let server = Sshd::start(folder.path());
        let scene = Self {
            folder,
            _server: server,
        };
        let configuration = format!(
            "Host *\n HostName 127.0.0.1\n IdentityFile {}\n StrictHostKeyChecking no\n \
             UserKnownHostsFile /dev/null\n LogLevel ERROR\nHost off\n Port {}\nHost *\n Port {}\n",
            scene._server.key.display(),
            free_port(),
            scene._server.port
        );
        fs::write(scene.path("ssh_config"), configuration).expect("the configuration");
        fs::create_dir_all(scene.path("bin")).expect("a directory");
        fs::create_dir_all(scene.path("jobs")).expect("a directory");
        // The real ssh reads the configuration of the user.
        let ssh = format!(
            "#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n",
            scene.path("ssh_config").display()
        );
        scene.program("bin/ssh", &ssh);
        scene.program("jobs/where.sh", WHERE);
        fs::write(scene.path("workflow.yml"), WORKFLOW).expect("the workflow");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a program");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    fn pmc(&self, words: &[&str]) -> Program {
        let path = std::env::var("PATH").unwrap_or_default();
        Program::new(Build::Local.program("pmc"))
            .args(words)
            .in_directory(self.folder.path())
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
    }

    fn run(&self, hosts: &str) -> CommandResult {
        self.pmc(&["run", "-t", "jobs", "-w", "1", "--hosts", hosts, "workflow.yml"])
            .run()
    }

    fn check_outputs(&self, result: &CommandResult) {
        for name in ["a", "b", "c"] {
            let output = self.path("pmc-runs/where/latest/output").join(name);
            let text = fs::read_to_string(output).unwrap_or_else(|e| panic!("{e}: {}", result.details()));
            assert!(text.starts_with("127.0.0.1 "), "{name}: {text}");
        }
    }
}

#[test]
#[ignore = "needs an SSH server: tests/run e2e"]
fn tasks_run_on_hosts_that_ssh_reaches() {
    let scene = Scene::new();
    let result = scene.run("n1,n2").ok();
    scene.check_outputs(&result);
    assert!(!result.stderr.contains("warning"), "{}", result.details());

    // One of them is off.
    let result = scene.run("n1,off").ok();
    scene.check_outputs(&result);
    let said =
        "warning: The agent on off did not come; its launcher said last: ssh: connect to host 127.0.0.1 port";
    assert!(result.stderr.contains(said), "{}", result.details());

    let result = scene.run("off");
    assert_eq!(result.code(), 4, "{}", result.details());
    for text in [
        "pmc: 1 agent did not come: what should start them has ended; off said last: ssh: connect to host",
        "hint: each host has to answer to `ssh -o BatchMode=yes HOST true`; fix the problem, then resume with",
        "--hosts off",
    ] {
        assert!(result.stderr.contains(text), "{text}: {}", result.details());
    }
    let result = scene.run("n1,n2,n1");
    assert_eq!(result.code(), 2, "{}", result.details());
    assert!(
        result.stderr.contains("it names the host n1 twice"),
        "{}",
        result.details()
    );
}

#[test]
#[ignore = "needs an SSH server: tests/run e2e"]
fn a_run_on_hosts_takes_tasks() {
    let scene = Scene::new();
    let served = scene
        .pmc(&[
            "serve",
            "work",
            "-w",
            "1",
            "--hosts",
            "n1,n2",
            "--idle-limit",
            "120",
        ])
        .start();
    wait_until("it takes no tasks", 60, || {
        scene
            .pmc(&["add", "work", "--", "echo ${SSH_CONNECTION:-nowhere}"])
            .run()
            .code()
            == 0
    });
    scene.pmc(&["wait", "work"]).run().ok();
    let output = scene.pmc(&["log", "1", "work"]).run().ok().stdout;
    assert!(output.starts_with("127.0.0.1 "), "{output}");
    scene.pmc(&["serve", "work", "--stop"]).run().ok();
    served.wait().ok();
}
