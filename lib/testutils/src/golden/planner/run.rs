//! Runs the planner in a temporary directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::super::{Case, process};
use super::Tree;
use super::normalize::Normalizer;

/// The modification time of all inputs: 2024-05-06T07:08:09Z.
pub const FIXED_TIME: Duration = Duration::from_secs(1_714_979_289);
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// What the planner did.
pub struct Plan {
    pub code: Option<i32>,
    /// Standard error and standard output, normalized.
    pub output: String,
    pub tree: Tree,
}

pub fn run(case: &Case, planner: &Path, variables: &[(&str, &str)]) -> Plan {
    let temporary = tempfile::Builder::new()
        .prefix("plancase-")
        .tempdir()
        .expect("a directory");
    run_in(
        &temporary.path().canonicalize().expect("a directory"),
        case,
        planner,
        variables,
    )
}

/// Plans a case in a directory that exists, and keeps what is there.
pub fn run_in(root: &Path, case: &Case, planner: &Path, variables: &[(&str, &str)]) -> Plan {
    let (base, home, pegasus_home) = (root.join("w"), root.join("home"), root.join("pegasus"));
    let condor = root.join("condor/bin");
    fs::create_dir(&home).expect("a directory");
    install_stubs(&pegasus_home);
    let inputs = unpack(case, &base, &pegasus_home);
    prepare(case, &base, &pegasus_home);
    if asks(case, "condor") {
        install_program(&condor.join("condor_dagman"));
    }
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
    let path = format!("{}:{}/bin:{path}", condor.display(), pegasus_home.display());
    let mut command = Command::new(planner);
    command
        .args(arguments(case, &base, &pegasus_home))
        .current_dir(&base)
        .env("HOME", &home)
        .env("PEGASUS_HOME", &pegasus_home)
        .env_remove("PYTHONPATH")
        .envs([
            ("PATH", path.as_str()),
            ("TZ", "UTC"),
            ("LANG", "C.UTF-8"),
            // For cases about variables in input files.
            ("PLANCASE_WORD", "harbour"),
        ]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LC_") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C.UTF-8").envs(variables.iter().copied());
    let ended = process::run(&mut command, TIME_LIMIT, false);
    let normalizer = Normalizer::new(&base, &home, &pegasus_home, path);
    let tree = if ended.code == Some(0) {
        normalizer.tree(&inputs)
    } else {
        Tree::new()
    };
    Plan {
        code: ended.code,
        output: normalizer.text(&format!("{}\n{}", ended.stderr, ended.stdout)),
        tree,
    }
}

/// Puts real directories in the place of their names in golden cases.
pub fn fill(text: &str, base: &Path, pegasus_home: &Path) -> String {
    text.replace("@BASE@", &base.display().to_string())
        .replace("@PEGASUS_HOME@", &pegasus_home.display().to_string())
}

/// Returns the arguments of a case.
pub fn arguments(case: &Case, base: &Path, pegasus_home: &Path) -> Vec<String> {
    let lines = case.file("args").lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| fill(line, base, pegasus_home)).collect()
}

/// Writes the inputs, and returns their paths below `base`.
pub fn unpack(case: &Case, base: &Path, pegasus_home: &Path) -> Vec<String> {
    let mut inputs = Vec::new();
    for (path, file) in case.archive.below("input") {
        let mut file = file.clone();
        file.content = fill(&file.content, base, pegasus_home);
        let target = base.join(path);
        file.write(&target).expect("an input");
        let opened = fs::File::options().write(true).open(&target).expect("an input");
        opened
            .set_modified(SystemTime::UNIX_EPOCH + FIXED_TIME)
            .expect("a modification time");
        inputs.push(path.to_owned());
    }
    inputs
}

/// Returns whether the file `setup` of a case has a word.
fn asks(case: &Case, word: &str) -> bool {
    let words = case.archive.get("setup").unwrap_or_default();
    words.lines().any(|line| line.trim() == word)
}

/// Does what the file `setup` of a case asks for.
fn prepare(case: &Case, base: &Path, pegasus_home: &Path) {
    if asks(case, "worker-package") {
        let packages = pegasus_home.join("share/pegasus/worker-packages");
        fs::create_dir_all(&packages).expect("a directory");
        fs::write(packages.join("pegasus-worker-5.1.3-x86_64_deb_12.tar.gz"), "").expect("a file");
    }
    if asks(case, "keys") {
        for key in fs::read_dir(base.join("keys")).expect("keys").flatten() {
            fs::set_permissions(key.path(), fs::Permissions::from_mode(0o600)).expect("a mode");
        }
    }
}

/// Makes an installation whose programs do nothing.
fn install_stubs(home: &Path) {
    const PROGRAMS: [&str; 15] = [
        "pegasus-kickstart",
        "pegasus-transfer",
        "pegasus-cluster",
        "pegasus-keg",
        "pegasus-mpi-cluster",
        "pegasus-version",
        "pegasus-plan",
        "pegasus-run",
        "pegasus-rc-client",
        "pegasus-exitcode",
        "pegasus-dagman",
        "pegasus-config",
        "pegasus-db-admin",
        "pegasus-integrity",
        "pegasus-checkpoint",
    ];
    for directory in ["etc", "share/pegasus/sh", "share/pegasus/schema"] {
        fs::create_dir_all(home.join(directory)).expect("a directory");
    }
    for name in PROGRAMS {
        install_program(&home.join("bin").join(name));
    }
}

/// Makes a program that does nothing.
fn install_program(path: &Path) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    fs::write(path, "#!/bin/sh\nexit 0\n").expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
}
