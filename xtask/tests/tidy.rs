//! Checks the shape of the whole repository.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;
use xtask::workspace::{Workspace, root};
use xtask::{manual, modules};

/// Maximum lines of a source file, its tests included.
const MAX_FILE_LINES: usize = 700;

/// Maximum columns of a line.
const MAX_COLUMNS: usize = 110;

fn sources(dir: &Path) -> Vec<PathBuf> {
    WalkDir::new(dir)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| entry.file_name() != "target" && entry.file_name() != ".git")
        // What a build beside the tests takes away is not there any more.
        .filter(|entry| !entry.as_ref().is_err_and(is_gone))
        .map(|entry| entry.expect("the repository can be read").into_path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

fn is_gone(error: &walkdir::Error) -> bool {
    let error = error.io_error();
    error.is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

#[test]
fn manual_pages_and_completions_are_current() {
    let stale = manual::stale(&root().join("share")).expect("pages can be made");
    assert!(stale.is_empty(), "run `cargo xtask generate`; stale: {stale:#?}");
    let keys = std::fs::read_to_string(root().join(manual::KEYS_PAGE)).expect("the page about keys");
    assert_eq!(keys, pmc_plan::keys::page(), "run `cargo xtask generate`");
}

/// Units of one folder that may import each other in a circle, by package and folder, and why.
const KNOTS: [(&str, &str, &[&str], &str); 11] = [
    (
        "pmc-plan",
        "refine",
        &[
            "cleanup",
            "cluster",
            "mapping",
            "output_mapper",
            "programs",
            "reuse",
            "select",
            "settings",
            "sites",
            "staging_sites",
        ],
        "the settings hold those of each step, and the steps read the settings",
    ),
    (
        "pmc-plan",
        "refine/sites",
        &[
            "callout",
            "group",
            "heft",
            "random",
            "round_robin",
            "selection",
            "settings",
        ],
        "the selectors of sites, and the one place that calls them and says what they get",
    ),
    (
        "pegasus-mpi-cluster",
        "scheduler",
        &[
            "avoidance",
            "cache_index",
            "categories",
            "gangs",
            "nodes",
            "prefill",
            "queue",
            "run",
            "run_times",
            "segments",
            "shares",
        ],
        "parts of one state machine, whose state is in `run`",
    ),
    (
        "pegasus-mpi-cluster",
        "scheduler/sim",
        &["machines", "model"],
        "one simulation, for tests",
    ),
    (
        "pegasus-mpi-cluster",
        "control",
        &["read_ahead", "redirect", "server"],
        "the server hands its request to what reads ahead, and to redirections",
    ),
    (
        "pegasus-mpi-cluster",
        "driver",
        &["guests", "subworkflows"],
        "a guest joins as a sub-workflow does, and has a socket and notes beside that",
    ),
    (
        "pegasus-mpi-cluster",
        "transport",
        &["agents", "error", "parts"],
        "the error of all transports names those of agents",
    ),
    (
        "pegasus-mpi-cluster",
        "worker",
        &["running", "sentinel"],
        "an attempt tells the sentinel of itself, and both share how they read a pipe",
    ),
    (
        "pmc-stampede",
        "session",
        &["follow", "nested"],
        "a session follows those of sub-workflows",
    ),
    (
        "pegasus-transfer",
        "local",
        &["copy", "tree"],
        "a directory is copied file by file",
    ),
    (
        "testutils",
        "golden/planner",
        &["compare", "dag", "events"],
        "the comparison calls one for each kind of file, and they share its helpers",
    ),
];

#[test]
fn units_of_a_folder_import_each_other_in_one_direction() {
    let mut found = String::new();
    let mut is_used = [false; KNOTS.len()];
    for package in Workspace::read().expect("cargo answers").packages {
        for knot in modules::knots(&package.dir.join("src")).expect("sources can be read") {
            let known = KNOTS.iter().position(|(name, folder, units, _)| {
                let is_part = |unit: &String| units.contains(&unit.as_str());
                *name == package.name && *folder == knot.folder && knot.units.iter().all(is_part)
            });
            if let Some(known) = known {
                is_used[known] = true;
                continue;
            }
            let _ = writeln!(
                found,
                "{}: {}: {}",
                package.name,
                knot.folder,
                knot.units.join(", ")
            );
            for (from, to, file) in &knot.imports {
                let _ = writeln!(found, "    {from} imports {to} in {file}");
            }
        }
    }
    assert!(found.is_empty(), "files import each other in a circle:\n{found}");
    let unused = KNOTS.iter().zip(is_used).filter(|(_, is_used)| !is_used);
    let unused: Vec<_> = unused.map(|((name, folder, ..), _)| (name, folder)).collect();
    assert!(
        unused.is_empty(),
        "remove from KNOTS what is no circle any more: {unused:?}"
    );
}

#[test]
fn files_and_lines_are_short() {
    let mut found = String::new();
    for path in sources(&root()) {
        let name = path
            .strip_prefix(root())
            .expect("a file of the repository")
            .display();
        let text = fs::read_to_string(&path).expect("sources are UTF-8");
        let lines = text.lines().count();
        if lines > MAX_FILE_LINES {
            let _ = writeln!(found, "{name}: {lines} lines, at most {MAX_FILE_LINES}");
        }
        for (number, line) in text.lines().enumerate() {
            // Long texts in strings cannot always be broken; comments can.
            if line.trim_start().starts_with("//") && line.chars().count() > MAX_COLUMNS {
                let _ = writeln!(found, "{name}:{}: more than {MAX_COLUMNS} columns", number + 1);
            }
        }
    }
    assert!(found.is_empty(), "{found}");
}

/// A reader who looks for what to type finds it at once.
#[test]
fn pages_of_the_guide_begin_with_a_command() {
    let pages = fs::read_dir(root().join("docs/guide"))
        .expect("the guide")
        .flatten();
    let mut pages: Vec<_> = pages.map(|page| page.path()).collect();
    pages.push(root().join("docs/guide.md"));
    for page in pages {
        let text = fs::read_to_string(&page).expect("pages are UTF-8");
        let has_command = text.lines().take(10).any(|line| line.starts_with("$ "));
        assert!(
            has_command,
            "{}: no command in the first ten lines",
            page.display()
        );
    }
    let readme = fs::read_to_string(root().join("README.md")).expect("it is UTF-8");
    assert!(
        readme.split_whitespace().count() <= 900,
        "README.md has more than 900 words"
    );
}

#[test]
fn modules_are_not_included_across_packages() {
    let mut found = String::new();
    for package in Workspace::read().expect("cargo answers").packages {
        for path in sources(&package.dir) {
            let text = fs::read_to_string(&path).expect("sources are UTF-8");
            for line in text
                .lines()
                .filter(|line| line.trim_start().starts_with("#[path"))
            {
                let up = line.matches("../").count();
                let depth = path
                    .strip_prefix(&package.dir)
                    .map_or(0, |below| below.components().count() - 1);
                if up > depth {
                    let _ = writeln!(found, "{}: {line}", path.display());
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "put what packages share into lib/testutils:\n{found}"
    );
}

/// Packages that read or write files of runs that may belong to other users.
const LOOK_AT_OTHERS: [&str; 13] = [
    "monitor",
    "stampede",
    "pmc",
    "monitord-compat",
    "lib/batch",
    "lib/checkpoint",
    "lib/packed",
    "lib/sqlite",
    "lib/tcsio",
    "src/node",
    "tools/exitcode",
    "tools/rc-client",
    "tools/rsh",
];

/// Calls that open or change what a path leads to at that moment. `pmc_files` does not.
const BY_PATH: &str = r"\bfs::(metadata|read|read_to_string|write|copy|rename)\(|\bFile::(open|create|create_new|options)\(|\bOpenOptions::new\(";

/// Files that may call these functions, the number of calls, and why.
const ALLOWED: [(&str, usize, &str); 21] = [
    (
        "stampede/src/session/nested.rs",
        1,
        "asks whether a log has grown; reads nothing",
    ),
    (
        "stampede/src/markers.rs",
        2,
        "asks whether a log is standard error; reads nothing",
    ),
    (
        "stampede/src/dashboard.rs",
        1,
        "the list of the user's own workflows, or one that the user has named",
    ),
    ("stampede/src/pgpass.rs", 2, "passwords of the user"),
    (
        "pmc/src/layout.rs",
        2,
        "makes the directory of a new run of the user",
    ),
    (
        "pmc/src/submit.rs",
        1,
        "sizes of outputs of a run that has just ended",
    ),
    ("pmc/src/killed_run.rs", 1, "compares times; reads nothing"),
    (
        "pmc/src/executor.rs",
        1,
        "asks whether there are notifications; reads nothing",
    ),
    (
        "pmc/src/commands/init.rs",
        1,
        "makes new files that the user has named",
    ),
    (
        "pmc/src/commands/pegasus/keg.rs",
        3,
        "stands in for a program of the workflow, which opens what it is told",
    ),
    ("pmc/src/commands/pegasus/remove.rs", 1, "/proc"),
    (
        "pmc/src/commands/report.rs",
        1,
        "a new file in a private directory",
    ),
    (
        "pmc/src/commands/report/ro_crate.rs",
        2,
        "new files in a private directory, which is renamed at the end",
    ),
    ("pmc/build.rs", 1, "the build"),
    (
        "monitord-compat/src/replacement.rs",
        11,
        "replaces a plan of the user under the lock of its DAG",
    ),
    (
        "lib/checkpoint/src/own.rs",
        1,
        "syncs a directory of the user's own store; reads nothing",
    ),
    (
        "tools/exitcode/src/output.rs",
        2,
        "gives outputs of the user's own jobs the numbers of their attempts",
    ),
    ("lib/packed/src/packs.rs", 3, "asks for lengths; reads nothing"),
    ("tools/rc-client/src/catalog/lock.rs", 1, "/proc"),
    (
        "tools/rc-client/src/catalog/sqlite.rs",
        2,
        "asks whether the database that is open was replaced",
    ),
    (
        "tools/rc-client/src/inproc.rs",
        1,
        "asks for the kind of a file; reads nothing",
    ),
];

#[test]
fn files_of_others_are_opened_by_lib_files() {
    let pattern = regex::Regex::new(BY_PATH).expect("a valid pattern");
    let mut found = String::new();
    for path in LOOK_AT_OTHERS
        .iter()
        .flat_map(|package| sources(&root().join(package)))
    {
        let below = path.strip_prefix(root()).expect("a file of the repository");
        let name = below.to_str().expect("a UTF-8 name");
        let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "benches" || part == "tests.rs";
        if below.iter().any(is_test) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("sources are UTF-8");
        let code = text.split("#[cfg(test)]\n").next().unwrap_or_default();
        let lines: Vec<usize> = (1..)
            .zip(code.lines())
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .flat_map(|(number, line)| pattern.find_iter(line).map(move |_| number))
            .collect();
        let allowed = ALLOWED
            .iter()
            .find(|(file, ..)| *file == name)
            .map_or(0, |(_, count, _)| *count);
        if lines.len() != allowed {
            let _ = writeln!(
                found,
                "{name}: {} calls, {allowed} allowed: lines {lines:?}",
                lines.len()
            );
        }
    }
    assert!(
        found.is_empty(),
        "open files with pmc_files, or say in ALLOWED why that is not needed:\n{found}"
    );
}

/// Each row of the table of SECURITY.md names tests, and there are such tests.
#[test]
fn promises_name_the_tests_that_show_them() {
    let page = fs::read_to_string(root().join("SECURITY.md")).expect("the page");
    let table = page
        .split("## Who may do what to whom")
        .nth(1)
        .expect("the table");
    let rows = table.split("\n## ").next().unwrap_or_default().lines();
    let rows: Vec<&str> = rows.filter(|line| line.starts_with("| ")).skip(1).collect();
    let code: String = sources(&root())
        .iter()
        .map(|path| fs::read_to_string(path).expect("sources are UTF-8"))
        .collect();
    let test = regex::Regex::new(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn (\w+)").expect("a valid pattern");
    let tests: BTreeSet<&str> = test
        .captures_iter(&code)
        .filter_map(|found| Some(found.get(1)?.as_str()))
        .collect();
    let mut found = String::new();
    for row in rows {
        let named = row
            .trim_end_matches([' ', '|'])
            .rsplit(" | ")
            .next()
            .unwrap_or_default();
        let names: Vec<&str> = named.split(", ").map(|name| name.trim_matches('`')).collect();
        if let Some(name) = names.iter().find(|name| !tests.contains(*name)) {
            let _ = writeln!(found, "{name:?} in {row:.60}");
        }
    }
    assert!(found.is_empty(), "no such tests:\n{found}");
}

#[test]
fn every_dependency_is_used() {
    let mut found = String::new();
    for package in Workspace::read().expect("cargo answers").packages {
        let mut code = String::new();
        // What a package compiles from outside its directory, or from that of another package.
        let more = match package.name.as_str() {
            "pmc" => sources(&root().join("examples")),
            "pegasus-mpi-cluster" => ["entries", "logs", "planner"]
                .map(|name| root().join(format!("fuzz/{name}.rs")))
                .to_vec(),
            _ => Vec::new(),
        };
        for path in more {
            code += &fs::read_to_string(&path).expect("sources are UTF-8");
        }
        for path in sources(&package.dir) {
            // The root package holds the directories of all others.
            let inner = path.ancestors().find(|dir| dir.join("Cargo.toml").exists());
            if inner == Some(package.dir.as_path()) {
                code += &fs::read_to_string(&path).expect("sources are UTF-8");
            }
        }
        for dependency in &package.dependencies {
            let used = regex::Regex::new(&format!(r"\b{dependency}\b")).expect("a valid pattern");
            if !used.is_match(&code) {
                let _ = writeln!(found, "{}: {dependency}", package.name);
            }
        }
    }
    assert!(found.is_empty(), "unused dependencies:\n{found}");
}

#[test]
fn dependencies_build_with_the_promised_rust() {
    let too_new = Workspace::read().expect("cargo answers").too_new;
    assert!(
        too_new.is_empty(),
        "these need a newer Rust than rust-version: {too_new:?}"
    );
}
