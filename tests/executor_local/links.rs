//! Links of another user in place of files of a run, in a directory where others may write. They need root,
//! who can make them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

use super::{Run, text};

/// A user who is not root.
const OTHER: u32 = 65_534;

const PER_TASK: [&str; 1] = ["--per-task-stdio"];
const PACKED: [&str; 1] = ["--packed-output"];
const LOGS: [&str; 2] = ["--jobstate-log", "--monitord-hack"];

#[test]
fn links_of_another_user_in_place_of_files_of_a_run_are_not_followed() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: links_of_another_user_in_place_of_files_of_a_run needs root");
        return;
    }
    for (link, options) in [
        ("x.dag.out.1", &[][..]),
        ("x.dag.err.1", &[]),
        ("x.dag.rescue", &[]),
        ("x.dag.rescue.journal", &[]),
        ("x.dag.rescue.journal.new", &[]),
        ("x.dag.resource", &[]),
        ("all", &[]),
        ("t.err.000", &PER_TASK),
        ("t.out.000", &PER_TASK),
        ("x.dag.dagman.out", &LOGS),
        ("jobstate.log", &LOGS),
        ("packed-output", &PACKED),
    ] {
        for exists in [true, false] {
            let run = Run::new("TASK t -f OUT=all /bin/sh -c 'echo x >&$OUT; echo y; echo z >&2'\n");
            fs::set_permissions(run.path(), fs::Permissions::from_mode(0o777)).unwrap();
            fs::create_dir(run.path().join("mine")).unwrap();
            run.write("mine/precious", "precious\n");
            let target = match (link, exists) {
                ("packed-output", _) => "mine",
                (_, true) => "mine/precious",
                (_, false) => "mine/new",
            };
            let path = run.path().join(link);
            symlink(run.path().join(target), &path).unwrap();
            lchown(&path, Some(OTHER), Some(OTHER)).unwrap();
            // It may succeed or refuse, but does not write where the link leads.
            let output = run.run(&[options, &["--workers", "1", "x.dag"]].concat());
            let case = format!("{link} {target}: {}", text(&output.stderr));
            assert!(matches!(output.status.code(), Some(0 | 1)), "{case}");
            assert_eq!(run.read("mine/precious"), "precious\n", "{case}");
            assert_eq!(
                fs::read_dir(run.path().join("mine")).unwrap().count(),
                1,
                "{case}"
            );
        }
    }
}
