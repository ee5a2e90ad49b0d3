//! Checks the shape of the whole repository.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;
use xtask::workspace::{Workspace, root};
use xtask::{imports, manual};

/// Maximum lines of a source file, its tests included.
const MAX_FILE_LINES: usize = 700;

/// Maximum columns of a line.
const MAX_COLUMNS: usize = 110;

fn sources(dir: &Path) -> Vec<PathBuf> {
    WalkDir::new(dir)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| entry.file_name() != "target" && entry.file_name() != ".git")
        .map(|entry| entry.expect("the repository can be read").into_path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

#[test]
fn manual_pages_and_completions_are_current() {
    let stale = manual::stale(&root().join("share")).expect("pages can be made");
    assert!(stale.is_empty(), "run `cargo xtask generate`; stale: {stale:#?}");
    let keys = std::fs::read_to_string(root().join(manual::KEYS_PAGE)).expect("the page about keys");
    assert_eq!(keys, pmc_plan::keys::page(), "run `cargo xtask generate`");
}

#[test]
fn folders_import_each_other_in_one_direction() {
    let mut found = String::new();
    for package in Workspace::read().expect("cargo answers").packages {
        let src = package.dir.join("src");
        let imports = imports::read(&src).expect("sources can be read");
        if let Some(circle) = imports::find_circle(&imports) {
            let _ = writeln!(found, "{}: {}", package.name, circle.join(" → "));
            for step in circle.windows(2) {
                let _ = writeln!(found, "    {} imports {}", imports[&step[0]][&step[1]], step[1]);
            }
        }
    }
    assert!(
        found.is_empty(),
        "folders import each other in a circle:\n{found}"
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

#[test]
fn every_dependency_is_used() {
    let mut found = String::new();
    for package in Workspace::read().expect("cargo answers").packages {
        let mut code = String::new();
        // What a package compiles from outside its directory, or from that of another package.
        let more = match package.name.as_str() {
            "pmc" => sources(&root().join("examples")),
            "pegasus-mpi-cluster" => vec![root().join("fuzz/entries.rs")],
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
