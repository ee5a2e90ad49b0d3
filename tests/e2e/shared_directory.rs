//! Two users share a directory such as `/tmp`: links that one of them has put there lead the other nowhere,
//! whether the kernel protects them or not.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::command::{CommandResult, Program};
use crate::support::users::{OTHER, THIRD, TwoUsers};
use crate::two_users::{LIMIT, run_theirs};

/// The kernel's own protection: links of others in directories such as `/tmp` are not followed.
const SWITCH: &str = "/proc/sys/fs/protected_symlinks";

/// Sets the switch until it is dropped.
struct Protection(String);

impl Protection {
    /// `None` if the system does not let the tests do it, and has another value.
    fn set(value: &str) -> Option<Self> {
        let before = fs::read_to_string(SWITCH).ok()?;
        let is_set = before.trim() == value || fs::write(SWITCH, value).is_ok();
        is_set.then_some(Self(before))
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // If it could be set, it can be set back.
        let _ = fs::write(SWITCH, &self.0);
    }
}

/// Commands of a victim, each of which writes `NAME` in the working directory. `RUN` is a run.
const WRITERS: [(&str, &[&str]); 9] = [
    ("report.html", &["pmc", "report", "-o", "NAME", "RUN"]),
    (
        "trace.json",
        &["pmc", "report", "-o", "page.html", "--trace", "NAME", "RUN"],
    ),
    (
        "rc.txt",
        &[
            "pegasus-rc-client",
            "-Dr=File",
            "-Dr.file=NAME",
            "--prefix",
            "r",
            "insert",
            "f",
            "file:///f",
        ],
    ),
    (
        "rc.yml",
        &[
            "pegasus-rc-client",
            "-Dr=YAML",
            "-Dr.file=NAME",
            "--prefix",
            "r",
            "insert",
            "f",
            "file:///f",
        ],
    ),
    (
        "rc.db",
        &[
            "pegasus-rc-client",
            "-Dr=JDBCRC",
            "-Dr.db.url=jdbc:sqlite:NAME",
            "--prefix",
            "r",
            "insert",
            "f",
            "file:///f",
        ],
    ),
    ("crate", &["pmc", "report", "--ro-crate", "NAME", "RUN"]),
    (
        "numbers",
        &["pmc", "statistics", "-s", "all", "-o", "NAME", "RUN"],
    ),
    // A run and a list of the victim in the shared directory.
    ("t.out.000", &["pmc", "unpack", "."]),
    ("copy", &["pegasus-transfer", "-m", "1", "-f", "list.json"]),
];

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn links_of_another_user_in_a_shared_directory_are_not_followed() {
    let Some(users) = TwoUsers::new("links_of_another_user_in_a_shared_directory_are_not_followed") else {
        return;
    };
    let run = run_theirs(&users, &[]);
    for protection in ["0", "1"] {
        let Some(_set) = Protection::set(protection) else {
            eprintln!("SKIPPED: {SWITCH} cannot be {protection}");
            continue;
        };
        for victim in [0, OTHER] {
            let place = format!("{protection}-{victim}");
            let private = match victim {
                0 => users.mine().join(&place),
                _ => users.theirs().join(&place),
            };
            fs::create_dir(&private).expect("a directory");
            if victim != 0 {
                users.give(&private);
            }
            let shared = users.mine().join(format!("shared-{place}"));
            fs::create_dir(&shared).expect("a directory");
            fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("a mode");
            let start = |program: &str| match victim {
                0 => users.me(program),
                victim => users.as_user(victim, program),
            };
            fs::write(shared.join("w.dag"), "TASK t /bin/echo text\n").expect("a DAG");
            if victim != 0 {
                users.give(&shared.join("w.dag"));
            }
            start("pegasus-mpi-cluster")
                .args(["--workers", "1", "--packed-output", "w.dag"])
                .in_directory(&shared)
                .run()
                .ok();
            let list = format!(
                "[{{\"type\": \"transfer\", \"id\": 1, \"src_urls\": [{{\"site_label\": \"local\", \"url\": \
                 \"file:///etc/passwd\"}}], \"dest_urls\": [{{\"site_label\": \"local\", \"url\": \
                 \"file://{}/copy\"}}]}}]",
                shared.display()
            );
            fs::write(shared.join("list.json"), list).expect("a list");
            for (name, words) in WRITERS {
                leads_nowhere(&users, victim, (&shared, &private, &run), name, words);
            }
        }
    }
}

/// Lets a victim write where a link of a third user is: to a file of the victim, then to one that does not
/// exist.
fn leads_nowhere(
    users: &TwoUsers,
    victim: u32,
    (shared, private, run): (&Path, &Path, &Path),
    name: &str,
    words: &[&str],
) {
    let command = || -> Program {
        let program = match victim {
            0 => users.me(words[0]),
            victim => users.as_user(victim, words[0]),
        };
        let arguments = words[1..].iter().map(|word| match *word {
            "RUN" => run.display().to_string(),
            word => word.replace("NAME", name),
        });
        program.args(arguments).in_directory(shared).limit(LIMIT)
    };
    let link = shared.join(name);
    let precious = private.join(format!("precious-{name}"));
    for exists in [true, false] {
        let _ = fs::remove_file(&precious);
        if exists {
            fs::write(&precious, "").expect("a file");
            if victim != 0 {
                users.give(&precious);
            }
        }
        let target = precious.as_os_str();
        users
            .as_user(THIRD, "ln")
            .args(["-sfn".as_ref(), target, link.as_os_str()])
            .in_directory(shared)
            .run()
            .ok();
        let result: CommandResult = command().run();
        assert_ne!(result.code(), 0, "{victim} {words:?}: {}", result.details());
        assert!(link.is_symlink(), "{victim} {words:?}: {}", result.details());
        let content = fs::read(&precious).ok();
        assert_eq!(
            content,
            exists.then(Vec::new),
            "{victim} {words:?}: {}",
            result.details()
        );
    }
    fs::remove_file(&link).expect("a link");
    command().run().ok();
}
