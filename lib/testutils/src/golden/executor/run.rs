//! Runs the executor in a temporary directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};

use super::super::text::matches_any;
use super::super::{Case, process};
use super::config::Config;
use super::normalize::{Normalizer, remove_launcher_remarks};
use super::{Edges, Outcome, Tree};

const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Files of a case that are no inputs.
const NO_INPUTS: [&str; 3] = ["np", "env", "compare.json"];

/// The kind, the mode and the content of each file.
type Snapshot = BTreeMap<String, (&'static str, u32, Vec<u8>)>;

pub fn run(case: &Case, config: &Config, start: &dyn Fn(u32) -> Vec<String>) -> Outcome {
    let temporary = tempfile::Builder::new()
        .prefix("pmccase.")
        .tempdir()
        .expect("a directory");
    let directory = temporary.path().canonicalize().expect("a directory");
    prepare(case, config, &directory);
    let before = snapshot(&directory);
    let ranks = case.file("np").trim().parse().expect("a number of ranks");
    let mut normalizer = Normalizer::new(&directory, config.resource);
    let mut results = BTreeMap::new();
    let lock = config.hold_lock.as_ref().map(|path| lock(&directory.join(path)));
    let mut wall_time = Duration::ZERO;
    for number in 1.. {
        let suffix = if number == 1 {
            String::new()
        } else {
            format!(".{number}")
        };
        let Some(arguments) = case.archive.get(&format!("args{suffix}")) else {
            break;
        };
        let words = start(ranks);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&directory);
        let work = directory.display().to_string();
        command.args(
            arguments
                .lines()
                .map(|argument| argument.replace("<WORK>", &work)),
        );
        set_environment(case, &directory, &mut command);
        let ended = process::run(&mut command, TIME_LIMIT, config.leftovers);
        wall_time = ended.elapsed;
        if config.leftovers {
            let names = ended.leftovers.iter().map(|name| format!("{name}\n")).collect();
            let names = if ended.leftovers.is_empty() {
                "none\n".to_owned()
            } else {
                names
            };
            results.insert(format!("leftovers{suffix}"), names);
        }
        let code = ended
            .code
            .map_or("time limit exceeded".to_owned(), |code| code.to_string());
        results.insert(format!("exit{suffix}"), format!("{code}\n"));
        results.insert(format!("stdout{suffix}"), normalizer.records(&ended.stdout));
        let stderr = normalizer.stderr(&remove_launcher_remarks(&ended.stderr));
        results.insert(format!("stderr{suffix}"), stderr);
    }
    drop(lock);
    if let Some((least, most)) = config.wall {
        let seconds = wall_time.as_secs_f64();
        let verdict = if (least..=most).contains(&seconds) {
            format!("within {least}..{most} s\n")
        } else {
            format!("{seconds:.1} s, not within {least}..{most} s\n")
        };
        results.insert("wall".to_owned(), verdict);
    }
    let edges = edges(&directory);
    let (list, tree) = changes(&before, &snapshot(&directory), config, &mut normalizer);
    results.insert("files".to_owned(), list);
    Outcome { results, tree, edges }
}

/// Lists new, changed and removed files, and returns the content of new and changed ones.
fn changes(
    before: &Snapshot,
    after: &Snapshot,
    config: &Config,
    normalizer: &mut Normalizer,
) -> (String, Tree) {
    let (mut list, mut tree) = (String::new(), Tree::new());
    let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for path in paths
        .into_iter()
        .filter(|path| !matches_any(&config.ignore, path))
    {
        let (change, file) = match (before.get(path), after.get(path)) {
            (_, None) => {
                let _ = writeln!(list, "gone     {path}");
                continue;
            }
            (None, Some(file)) => ("new    ", file),
            (Some(old), Some(file)) if old != file => ("changed", file),
            _ => continue,
        };
        let (kind, mode, content) = file;
        let _ = writeln!(list, "{change}  {kind:<5} {mode:04o} {path}");
        if matches!(*kind, "file" | "link") {
            tree.insert(path.clone(), normalizer.file(path, content));
        }
    }
    (list, tree)
}

/// Writes the inputs.
fn prepare(case: &Case, config: &Config, directory: &Path) {
    for file in &case.archive.files {
        let first = file.path.split('/').next().unwrap_or_default();
        let is_arguments = file.path == "args" || file.path.starts_with("args.");
        if first != "expected" && !is_arguments && !NO_INPUTS.contains(&file.path.as_str()) {
            file.write(&directory.join(&file.path)).expect("an input");
        }
    }
    for path in &config.mkdir {
        fs::create_dir_all(directory.join(path)).expect("a directory");
    }
    for (path, size) in &config.bigfile {
        let content: Vec<u8> = b"0123456789abcde\n".iter().copied().cycle().take(*size).collect();
        fs::write(directory.join(path), content).expect("an input");
    }
}

fn set_environment(case: &Case, directory: &Path, command: &mut Command) {
    const KEPT_VARIABLES: [&str; 5] = ["PATH", "TMPDIR", "LD_LIBRARY_PATH", "USER", "LOGNAME"];
    const KEPT_PREFIXES: [&str; 9] = [
        "OMPI_", "PMIX_", "PRTE_", "MPICH_", "HYDRA_", "I_MPI_", "FI_", "UCX_", "RDMAV_",
    ];
    command.env_clear();
    for (name, value) in std::env::vars() {
        if KEPT_VARIABLES.contains(&name.as_str())
            || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        {
            command.env(name, value);
        }
    }
    command.env("HOME", directory).envs([
        ("LANG", "C"),
        ("LC_ALL", "C"),
        ("TZ", "UTC"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("RDMAV_FORK_SAFE", "1"),
        ("OMPI_MCA_orte_base_help_aggregate", "0"),
    ]);
    let own = case.archive.get("env").unwrap_or_default();
    command.envs(own.lines().filter_map(|line| line.split_once('=')));
}

/// Locks a file for writing. The lock belongs to the open file: other tests in this process cannot release
/// it.
fn lock(path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("a file to lock");
    let whole = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&whole)).expect("a lock");
    file
}

fn snapshot(directory: &Path) -> Snapshot {
    let mut found = Snapshot::new();
    visit(directory, "", &mut |name, path| {
        let data = path.symlink_metadata().expect("a file");
        let kind = data.file_type();
        let (kind, content) = if kind.is_symlink() {
            let target = fs::read_link(path).expect("a link");
            ("link", target.to_string_lossy().into_owned().into_bytes())
        } else if kind.is_dir() {
            ("dir", Vec::new())
        } else if kind.is_file() {
            ("file", fs::read(path).expect("a file"))
        } else {
            ("other", Vec::new())
        };
        found.insert(
            name.to_owned(),
            (kind, data.permissions().mode() & 0o7777, content),
        );
    });
    found
}

/// Calls a function for everything below a directory, with the path relative to it.
fn visit(directory: &Path, prefix: &str, call: &mut dyn FnMut(&str, &Path)) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        call(&name, &entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&entry.path(), &format!("{name}/"), call);
        }
    }
}

/// Reads the edges of all DAG files.
fn edges(directory: &Path) -> Edges {
    let mut edges = Edges::new();
    visit(directory, "", &mut |name, path| {
        if !name.ends_with(".dag") || !path.is_file() {
            return;
        }
        let text = fs::read(path).expect("a DAG");
        for line in String::from_utf8_lossy(&text).lines() {
            if let ["EDGE", parent, child] = line.split_whitespace().collect::<Vec<_>>()[..] {
                edges.entry(child.to_owned()).or_default().push(parent.to_owned());
            }
        }
    });
    edges
}
