//! Tools that are written against Debian's PMIx library, in C, look at runs: `pmix/tool.c`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::command::{CommandResult, Program, Running};
use crate::support::programs::{Build, project};
use crate::support::users::OTHER;

/// Time limit for what takes a moment.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that a tool pushes.
const INPUT: usize = 3_000_000;

/// Writes on and on until there is a file `go`, then a part of a line.
const SCRIPT: &str = "\
echo out
echo err >&2
while [ ! -e go ]; do echo more; sleep 0.1; done
printf '<end\\1>'
";

/// The second and third task print sums of their input.
const DAG: &str = "\
TASK a /bin/sh script
TASK b --stdin push /usr/bin/sha256sum
TASK c --stdin push /usr/bin/sha256sum
";

/// Counts until there is a file `go`. Its output can be redirected.
const COUNTER: &str = "\
at=0
while [ ! -e go ]; do echo $at; at=$((at + 1)); sleep 0.05; done
printf end
";
const COUNTER_DAG: &str = "TASK a --io relay /bin/sh script\n";

/// Compiles a program of `pmix/`.
fn compile(name: &str, into: &Path) -> PathBuf {
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "pmix"])
        .output();
    let flags = flags.expect("pkg-config: `tests/run packages` installs it");
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let program = into.join(name);
    Program::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(project().join(format!("tests/e2e/pmix/{name}.c")))
        .args(flags.split_whitespace())
        .run()
        .ok();
    program
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < TIMEOUT, "no {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A run and a tool for it.
struct Tools {
    folder: TempDir,
    tool: PathBuf,
}

impl Tools {
    fn new() -> Self {
        Self::of(DAG, SCRIPT)
    }

    fn of(dag: &str, script: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let tool = compile("tool", folder.path());
        fs::write(folder.path().join("w.dag"), dag).expect("the DAG");
        fs::write(folder.path().join("script"), script).expect("the script");
        Self { folder, tool }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The tool, with words that are split at blanks. It finds the run by its file.
    fn tool(&self, words: &str) -> Program {
        self.tool_by(&self.path("w.dag.pmix").display().to_string(), words)
    }

    fn tool_by(&self, how: &str, words: &str) -> Program {
        Program::new(&self.tool)
            .arg(how)
            .args(words.split(' '))
            .env("TMPDIR", self.folder.path())
            .in_directory(self.folder.path())
            .limit(60)
    }

    /// Starts the run, and waits until all tasks run.
    fn start(&self, build: Build) -> Running {
        let run = build
            .executor_with(3)
            .args(["--pmix", "--host-cpus", "3", "w.dag"])
            .env("TMPDIR", self.folder.path())
            .in_directory(self.folder.path())
            .limit(120)
            .start();
        wait_for("server", || self.path("w.dag.pmix").exists());
        let tasks = self.text("w.dag").lines().count();
        wait_for("tasks", || self.first_list().lines().count() == tasks);
        run
    }

    /// The list, empty if the tool is not through in a moment: under load, the handshake of Debian's library
    /// was seen to wait for ever once. The next tool gets through.
    fn first_list(&self) -> String {
        let words = self.tool("list").words().to_vec();
        let tool = Program::new("timeout").args(["--signal=KILL", "15"]).args(words);
        let result = tool
            .env("TMPDIR", self.folder.path())
            .in_directory(self.folder.path())
            .run();
        result.stdout
    }

    fn list(&self) -> String {
        self.tool("list").run().ok().stdout
    }

    /// Rank of a task.
    fn rank(&self, task: &str) -> String {
        let list = self.list();
        let line = list.lines().find(|line| line.split(' ').nth(2) == Some(task));
        let line = line.unwrap_or_else(|| panic!("{task} is not in {list}"));
        line.split(' ').nth(1).expect("a rank").to_owned()
    }
}

/// Asserts that the server refuses, with this status.
fn refused(result: &CommandResult, status: &str) {
    assert_eq!(result.code(), 3, "{}", result.details());
    let last = result.stderr.lines().last().unwrap_or_default();
    assert_eq!(last, status, "{}", result.details());
}

/// Numbers of a task that counts.
fn numbers(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn a_tool_gets_output_instead_of_the_file(build: Build) {
    let tools = Tools::of(COUNTER_DAG, COUNTER);
    let run = tools.start(build);
    let rank = tools.rank("a");
    let file = || tools.text("a.out.000");
    let pull = || {
        let tool = tools.tool(&format!("pull {rank} redirect")).start();
        wait_for("redirect", || {
            let before = file();
            std::thread::sleep(Duration::from_secs(1));
            before == file()
        });
        tool
    };

    // The task goes on when the tool is killed, and its output goes to the file again.
    wait_for("output", || file().lines().count() > 3);
    let killed = pull();
    for words in ["redirect", "copy"] {
        refused(
            &tools.tool(&format!("pull {rank} {words}")).run(),
            "NOT-SUPPORTED",
        );
    }
    let before = file().len();
    killed.signal(Signal::SIGKILL);
    wait_for("output after the tool", || file().len() > before);
    drop(killed);

    let last = pull();
    let seam = numbers(&file()).len();
    fs::write(tools.path("go"), "").expect("a file");
    let got = last.wait().ok().stdout;
    run.wait().ok();
    let (in_file, got_numbers) = (numbers(&file()), numbers(&got));
    assert_eq!(in_file.len(), seam, "{}", file());
    assert!(got.ends_with("\nend"), "{got}");
    let all: Vec<u32> = in_file.into_iter().chain(got_numbers).collect();
    // Only what the killed tool had is missing.
    let gaps = all.windows(2).filter(|pair| pair[1] != pair[0] + 1);
    assert!(gaps.count() <= 1 && all.is_sorted(), "{all:?}");
    assert_eq!(all[seam] - all[seam - 1], 1, "{all:?}");
}

#[test]
#[ignore = "needs libpmix-dev: tests/run e2e"]
fn a_pmix_tool_gets_output_instead_of_the_file_on_this_machine() {
    a_tool_gets_output_instead_of_the_file(Build::Local);
}

#[test]
#[ignore = "needs Open MPI and libpmix-dev: tests/run e2e"]
fn a_pmix_tool_gets_output_instead_of_the_file_under_open_mpi() {
    a_tool_gets_output_instead_of_the_file(Build::OpenMpi);
}

fn tools_look_at_a_run(build: Build) {
    let tools = Tools::new();
    let run = tools.start(build);
    let address = tools.text("w.dag.pmix");
    let namespace = address.split('.').next().expect("a name").to_owned();
    assert!(namespace.starts_with("w-"), "{address}");
    wait_for("hosts", || !tools.list().lines().any(|line| line.ends_with(' ')));

    // The other ways to find it.
    let pid = namespace.trim_start_matches("w-");
    for how in [format!("namespace:{namespace}"), format!("pid:{pid}")] {
        let list = tools.tool_by(&how, "list").run().ok().stdout;
        assert_eq!(list, tools.list(), "{how}");
    }

    // What is not there, and what is not possible.
    let rank = tools.rank("a");
    for (words, status) in [
        ("ask pmix.no.such.key".to_owned(), "NOT-SUPPORTED"),
        ("ask pmix.qry.ptable other".to_owned(), "NOT-FOUND"),
        ("pull 4242".to_owned(), "NOT-FOUND"),
        (format!("pull other:{rank}"), "NOT-FOUND"),
        (format!("pull {rank} redirect"), "NOT-SUPPORTED"),
        (format!("pull {rank} file"), "NOT-SUPPORTED"),
        (format!("push {rank} text"), "NOT-SUPPORTED"),
        ("push 4242 text".to_owned(), "NOT-FOUND"),
    ] {
        refused(&tools.tool(&words).run(), status);
    }

    // Input: a blob of the tool's, and its whole standard input.
    let b = tools.rank("b");
    tools.tool(&format!("push {b} hello")).run().ok();
    let input: Vec<u8> = (0..INPUT)
        .map(|at| u8::try_from(at * at % 251).unwrap_or(0))
        .collect();
    fs::write(tools.path("input"), input).expect("the input");
    let c = tools.rank("c");
    let words = format!("exec \"$0\" w.dag.pmix stdin {c} < input");
    let pusher = Program::new("/bin/sh")
        .args(["-c", &words])
        .arg(&tools.tool)
        .in_directory(tools.folder.path())
        .limit(60)
        .start();
    let sum = |file: &str| Program::new("sha256sum").arg(tools.path(file)).run().ok().stdout[..64].to_owned();
    fs::write(tools.path("hello"), "hello").expect("a file");
    for (file, output) in [("hello", "b.out.000"), ("input", "c.out.000")] {
        let expected = sum(file);
        wait_for(&format!("sum of {file}"), || {
            tools.text(output).contains(&expected)
        });
    }
    drop(pusher);

    // Output: two tools with the same form, and one that wants another.
    let pull = || tools.tool(&format!("pull {rank} copy tag timestamp")).start();
    let first = pull();
    std::thread::sleep(Duration::from_secs(2));
    let second = pull();
    refused(&tools.tool(&format!("pull {rank} xml")).run(), "NOT-SUPPORTED");
    std::thread::sleep(Duration::from_secs(2));
    fs::write(tools.path("go"), "").expect("a file");
    let (first, second) = (first.wait().ok(), second.wait().ok());
    run.wait().ok();
    let tag = format!("[{namespace},{rank}]<stdout>: ");
    let plain = |output: &str| -> String {
        let text = |line: &str| {
            let (time, text) = line.split_once(&tag).unwrap_or_else(|| panic!("no tag: {line}"));
            assert!(time.starts_with('[') && time.ends_with(']'), "{line}");
            format!("{text}\n")
        };
        output.lines().map(text).collect()
    };
    let (all, later) = (plain(&first.stdout), plain(&second.stdout));
    let lines = tools.text("a.out.000").matches("more\n").count();
    assert_eq!(all, format!("out\n{}<end\u{1}>\n", "more\n".repeat(lines)));
    assert!(later.len() < all.len() && all.ends_with(&later), "{later}");
    assert!(later.ends_with("<end\u{1}>\n"), "{later}");
    assert!(first.stderr.contains("<stderr>: err\n"), "{}", first.details());
    // Nothing is left behind.
    assert!(!tools.path("w.dag.pmix").exists());
    let left = fs::read_dir(tools.folder.path()).expect("a directory").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    let is_of_server = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("pmc-pmix-");
    assert!(!left.iter().any(is_of_server), "{left:?}");
}

#[test]
#[ignore = "needs libpmix-dev: tests/run e2e"]
fn pmix_tools_look_at_a_run_on_this_machine() {
    tools_look_at_a_run(Build::Local);
}

#[test]
#[ignore = "needs libpmix-dev: tests/run e2e"]
fn pmix_tools_look_at_a_run_in_agents() {
    tools_look_at_a_run(Build::Agents);
}

#[test]
#[ignore = "needs Open MPI and libpmix-dev: tests/run e2e"]
fn pmix_tools_look_at_a_run_under_open_mpi() {
    tools_look_at_a_run(Build::OpenMpi);
}

#[test]
#[ignore = "needs MPICH and libpmix-dev: tests/run e2e"]
fn pmix_tools_look_at_a_run_under_mpich() {
    tools_look_at_a_run(Build::Mpich);
}

#[test]
#[ignore = "needs libpmix-dev: tests/run e2e"]
fn pmix_gives_nothing_to_another_user() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: pmix_gives_nothing_to_another_user needs root");
        return;
    }
    let tools = Tools::new();
    fs::set_permissions(tools.folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    // A run of root may be looked at by root only.
    let run = tools.start(Build::Local);
    let other = OTHER.to_string();
    let result = Program::new("setpriv")
        .args([
            "--reuid",
            &other,
            "--regid",
            &other,
            "--clear-groups",
            "timeout",
            "20",
        ])
        .arg(&tools.tool)
        .arg(tools.path("w.dag.pmix"))
        .arg("list")
        .env("TMPDIR", "/tmp")
        .in_directory(tools.folder.path())
        .run();
    assert!(!matches!(result.code(), 0 | 3), "{}", result.details());
    assert_eq!(result.stdout, "", "{}", result.details());
    // Those of the owner go on.
    assert_eq!(tools.list().lines().count(), 3);
    drop(run);
}

/// Why another user's tool is cut, and not refused.
#[test]
#[ignore = "needs libpmix-dev: tests/run e2e"]
fn the_pmix_library_does_not_survive_to_refuse_a_tool() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let program = compile("refused_tool", folder.path());
    let status = Command::new(program)
        .arg(folder.path().join("address"))
        .env("TMPDIR", folder.path())
        .status()
        .expect("the program");
    assert_eq!(status.signal(), Some(Signal::SIGSEGV as i32), "{status}");
}
