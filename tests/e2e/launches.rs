//! `pmc launch` and `pmc-launch`: what a person sees of programs that cannot start, that crash, that have
//! another MPI; no rank runs before all are there.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::gangs::{Mpi, Scene, output, pmc_launch};
use crate::support::command::{CommandResult, Program, Running, wait_until};
use crate::support::programs::Build;

/// Dies in the way that its argument names.
const CRASH: &str = r#"#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static int *volatile nowhere;
static sigjmp_buf back;
static void handle(int signal) { siglongjmp(back, signal); }
#define PAGES 200
static char *pages;
static long page;
static void open_page(int number, siginfo_t *info, void *context) {
    (void)number; (void)context;
    char *at = (char *)((long)info->si_addr & ~(page - 1));
    if (mprotect(at, page, PROT_READ | PROT_WRITE) != 0) _exit(3);
}
static void *touch_pages(void *own) {
    static __thread char stack[65536];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, NULL);
    for (long i = 0; i < PAGES; i++) pages[((long)own * PAGES + i) * page] = 1;
    return own;
}
/* As the virtual machine of Java does: threads that use pages before they may, again and again. */
static int use_faults(void) {
    pthread_t threads[4];
    struct sigaction action = {.sa_sigaction = open_page, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    page = sysconf(_SC_PAGESIZE);
    pages = mmap(NULL, 4 * PAGES * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || sigaction(SIGSEGV, &action, NULL) != 0) return 1;
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, touch_pages, (void *)i);
    for (long i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (long i = 0; i < 4 * PAGES; i++) if (pages[i * page] != 1) return 2;
    return 0;
}
static void write_nowhere(void) { *nowhere = 1; }
static void divide_by_zero(void) { raise(SIGFPE); }
static void give_up(void) { abort(); }
static void *in_thread(void *nothing) { divide_by_zero(); return nothing; }
static void *nothing(void *value) { return value; }
int main(int argc, char **argv) {
    pthread_t thread;
    const char *rank = getenv("PMC_LAUNCH_RANK");
    if (argc > 2 && strcmp(rank, argv[2]) != 0) return 0;
    if (strcmp(argv[1], "segv") == 0) write_nowhere();
    if (strcmp(argv[1], "abort") == 0) give_up();
    if (strcmp(argv[1], "faults") == 0) return use_faults();
    if (strcmp(argv[1], "thread") == 0) {
        pthread_create(&thread, NULL, in_thread, NULL);
        pthread_join(thread, NULL);
    }
    if (strcmp(argv[1], "caught") == 0) {
        signal(SIGSEGV, handle);
        if (sigsetjmp(back, 1) == 0) write_nowhere();
        for (int i = 0; i < 50; i++) {
            pthread_create(&thread, NULL, nothing, NULL);
            pthread_join(thread, NULL);
        }
        return system("exit 7") == 7 << 8 ? 0 : 1;
    }
    return 0;
}
"#;

/// Counts the processes of its name, with those that have ended and that nobody has taken note of.
const FIRST: &str = r#"#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    int count = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; (entry = readdir(all)) != NULL;) {
        char path[300], name[32] = "";
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL) continue;
        if (fgets(name, sizeof name, file) != NULL && strcmp(name, "pmc-first\n") == 0) count++;
        fclose(file);
    }
    printf("%d of %s\n", count, getenv("PMC_LAUNCH_SIZE"));
    return 0;
}
"#;

/// Loads a library while it runs, as a module of Python does.
const LOADS: &str = r#"#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    if (dlopen("libmpi.so.40", RTLD_NOW) == NULL) return puts(dlerror());
    while (access("go", F_OK) != 0) usleep(10000);
    return 0;
}
"#;

fn compile(folder: &Path, name: &str, text: &str, compiler: &str) {
    fs::write(folder.join(format!("{name}.c")), text).expect("a source");
    let line = format!("{compiler} -g -O0 -o {name} {name}.c -pthread -ldl");
    Program::from_line(&line).in_directory(folder).run().ok();
}

fn launch(folder: &Path, words: &str) -> CommandResult {
    Program::new(Build::Local.program("pmc"))
        .arg("launch")
        .args(words.split(' '))
        .in_directory(folder)
        .envs(&Build::OpenMpi.environment())
        .run()
}

fn rounds(default: usize) -> usize {
    let rounds = std::env::var("PMC_TEST_LAUNCHES").ok();
    rounds.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
#[ignore = "needs a C compiler: tests/run e2e"]
fn a_rank_that_crashes_is_shown_with_function_file_and_line() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    compile(top, "crash", CRASH, "cc");
    let line_of = |function: &str| {
        let at = CRASH.lines().position(|line| line.contains(function));
        at.expect("a line") + 1
    };
    for (words, code, function) in [
        ("segv 1", 139, "write_nowhere"),
        ("abort 0", 134, "give_up"),
        ("thread 2", 136, "divide_by_zero"),
    ] {
        let result = launch(top, &format!("-g -n 3 --keep-going ./crash {words}"));
        assert_eq!(result.code(), code, "{}", result.details());
        let place = format!("crash.c:{}", line_of(&format!("void {function}")));
        let has_place = |line: &str| line.contains(function) && line.ends_with(&place);
        assert!(result.stderr.lines().any(has_place), "{}", result.details());
        let rank = &words[words.len() - 1..];
        assert!(
            result.stderr.contains(&format!("rank {rank} (crash) on ")),
            "{}",
            result.details()
        );
    }
    // Those that handle the signal, start threads and other programs, and end as they would otherwise.
    for words in ["caught", "faults"] {
        let result = launch(top, &format!("-g -n 3 ./crash {words}")).ok();
        assert!(!result.stderr.contains("#0"), "{}", result.details());
    }
    // A rank that is a script.
    fs::write(top.join("script"), "#!/bin/sh\n./crash segv\nexit 5\n").expect("a script");
    fs::set_permissions(top.join("script"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let result = launch(top, "-g ./script");
    assert_eq!(result.code(), 5, "{}", result.details());
    assert!(
        result.stderr.contains("write_nowhere at "),
        "{}",
        result.details()
    );
}

/// A program of Open MPI that does what its first argument says.
const OPEN_MPI: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks, sum %d\n", size, sum);
    fflush(stdout);
    if (rank == 1 && strcmp(argv[1], "abort") == 0)
        MPI_Abort(MPI_COMM_WORLD, 3);
    if (rank == 1 && strcmp(argv[1], "exit") == 0)
        _exit(0);
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Finalize();
}
"#;

/// The PMIx library lets its ranks find each other. Without it, each would take itself for the only one.
#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn ranks_of_open_mpi_find_each_other_by_pmix() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    compile(top, "program", OPEN_MPI, "mpicc.openmpi");
    // Other tests have servers, too.
    let servers = top.join("servers");
    fs::create_dir(&servers).expect("a directory");
    let launch = |top: &Path, words: &str| {
        Program::from_line(&format!("{} {words}", pmc_launch()))
            .in_directory(top)
            .envs(&Build::OpenMpi.environment())
            .env("TMPDIR", &servers)
            .run()
    };
    let result = launch(top, "-n 3 ./program go").ok();
    assert_eq!(result.stdout, "3 ranks, sum 3\n", "{}", result.details());
    let result = launch(top, "-n 3 --wait 1 ./program abort");
    assert_eq!(result.code(), 3, "{}", result.details());
    // One that goes without a word: the others would wait for it.
    let result = launch(top, "-n 3 --wait 1 ./program exit");
    assert_ne!(result.code(), 0, "{}", result.details());
    let refused = launch(top, "-n 2 --pmi 1 ./program go");
    assert_eq!(refused.code(), 4, "{}", refused.details());
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.details());
    for word in ["./program: ", "Open MPI", "--pmi pmix", "--pmi none"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.details());
    }
    launch(top, "-n 1 ./program go").ok();
    let alone = launch(top, "-n 2 --pmi none ./program go").ok();
    assert_eq!(alone.stdout, "1 ranks, sum 0\n".repeat(2), "{}", alone.details());
    let left = fs::read_dir(&servers).expect("a directory").flatten();
    let is_left = |name: &str| name.starts_with("pmc-pmix-");
    let left = left.filter(|file| is_left(&file.file_name().to_string_lossy()));
    assert_eq!(left.count(), 0, "no directory of a server is left");
}

/// As on a host whose `pmc` was built without the feature.
#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn programs_of_open_mpi_are_refused_without_pmix() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    compile(top, "program", OPEN_MPI, "mpicc.openmpi");
    fs::copy(Build::Local.program("pmc-launch"), top.join("pmc-launch")).expect("a copy");
    fs::write(top.join("pmc"), "#!/bin/sh\nexit 4\n").expect("a script");
    fs::set_permissions(top.join("pmc"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let refused = Program::new(top.join("pmc-launch"))
        .args(["-n", "2", "./program", "go"])
        .in_directory(top)
        .run();
    assert_eq!(refused.code(), 4, "{}", refused.details());
    for word in ["PMIx: ", "pmc has no PMIx", "mpirun"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.details());
    }
    assert_eq!(refused.stdout, "", "no rank runs: {}", refused.details());
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn ranks_that_load_open_mpi_later_are_named_once() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    compile(top, "loads", LOADS, "cc");
    let line = format!("{} -n 2 ./loads 2> said", pmc_launch());
    let running = Program::new("sh").args(["-c", &line]).in_directory(top).start();
    let said = || fs::read_to_string(top.join("said")).unwrap_or_default();
    wait_until("there is no warning", 60, || said().contains("uses Open MPI"));
    fs::write(top.join("go"), "").expect("a file");
    running.wait().ok();
    assert_eq!(said().matches("uses Open MPI").count(), 1, "{}", said());
}

/// What a rank finds when it begins: all others are there. As many times as `PMC_TEST_LAUNCHES` says.
#[test]
#[ignore = "needs a C compiler: tests/run e2e"]
fn no_rank_runs_before_all_are_there() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    // Those of other tests have the same name, but for the namespace.
    compile(top, "pmc-first", FIRST, "cc");
    for round in 0..rounds(10) {
        let line = format!(
            "unshare --pid --fork --mount-proc {} -q -n 24 ./pmc-first",
            pmc_launch()
        );
        let result = Program::from_line(&line).in_directory(top).run().ok();
        let lines: Vec<&str> = result.stdout.lines().collect();
        assert_eq!(lines, ["24 of 24"; 24], "round {round}: {}", result.details());
    }
}

/// A rank that says which signals have come, until a file `end` is there.
const TRAPS: &str = "#!/bin/sh\n\
                     for name in USR1 TERM; do trap \"echo $name >> got.$PMC_LAUNCH_RANK\" $name; done\n\
                     : > ready.$PMC_LAUNCH_RANK\nwhile [ ! -e end ]; do sleep 0.02; done\n";

/// Those signals that both ranks of a launch of `TRAPS` have got.
fn got(top: &Path) -> [String; 2] {
    [0, 1].map(|rank| fs::read_to_string(top.join(format!("got.{rank}"))).unwrap_or_default())
}

/// Starts two ranks of `TRAPS`, and waits until both run.
fn start_traps(top: &Path) -> Running {
    fs::write(top.join("traps"), TRAPS).expect("a script");
    fs::set_permissions(top.join("traps"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let running = Program::from_line(&format!("{} -n 2 --wait 100 ./traps", pmc_launch()));
    let running = running.in_directory(top).start();
    wait_until("the ranks do not start", 60, || {
        [0, 1]
            .iter()
            .all(|rank| top.join(format!("ready.{rank}")).exists())
    });
    running
}

#[test]
#[ignore = "needs a build of all programs: tests/run e2e"]
fn signals_reach_all_ranks_and_interrupts_become_stronger() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    let mut running = start_traps(top);
    running.signal(Signal::SIGUSR1);
    wait_until("USR1 does not come", 60, || got(top) == ["USR1\n", "USR1\n"]);
    running.signal(Signal::SIGINT);
    wait_until("TERM does not come", 60, || {
        got(top) == ["USR1\nTERM\n", "USR1\nTERM\n"]
    });
    assert!(running.is_running(), "the ranks go on");
    running.signal(Signal::SIGINT);
    let result = running.wait();
    assert_eq!(result.code(), 128 + 9, "{}", result.details());
    assert!(result.stderr.contains("ranks 0-1 on "), "{}", result.details());
}

/// The third interrupt does not wait for a proxy that does nothing any more.
#[test]
#[ignore = "needs a build of all programs: tests/run e2e"]
fn the_third_interrupt_ends_a_launch_at_once() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    let running = start_traps(top);
    let family = testutils::processes::family(running.id());
    let proxy = Pid::from_raw(i32::try_from(family[1]).expect("a process"));
    kill(proxy, Signal::SIGSTOP).expect("a signal");
    // Signals of one kind that come at once are one.
    for _ in 0..2 {
        running.signal(Signal::SIGINT);
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    running.signal(Signal::SIGINT);
    let result = running.wait();
    assert_eq!(result.code(), 128 + 2, "{}", result.details());
    // The system may have done so: the group of the proxy has lost its parent.
    let _ = kill(proxy, Signal::SIGCONT);
    wait_until("the ranks go on", 60, || {
        family[1..].iter().all(|pid| is_gone(*pid))
    });
}

/// True if there is no such process, or one that nobody has taken note of.
fn is_gone(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

#[test]
#[ignore = "needs a build of all programs: tests/run e2e"]
fn launches_are_noted_in_the_usage_log_of_the_site() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    let launch = |words: &str| {
        let program = Program::from_line(&format!("{} {words}", pmc_launch()));
        program.in_directory(top).env("PMC_USAGE_LOG", "usage").run()
    };
    launch("-n 2 /bin/true").ok();
    assert_eq!(launch("-n 3 -q /bin/false").code(), 1);
    assert_eq!(launch("-n 3 ./missing").code(), 4, "nothing has run");
    let text = fs::read_to_string(top.join("usage")).expect("a log");
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let records = lines.iter().map(|line| {
        let status = line.get("status").and_then(serde_json::Value::as_u64);
        (
            line["event"].as_str().expect("an event"),
            line["ranks"].as_u64(),
            status,
        )
    });
    let expected = [
        ("begin", Some(2), None),
        ("end", Some(2), Some(0)),
        ("begin", Some(3), None),
        ("end", Some(3), Some(1)),
    ];
    assert_eq!(records.collect::<Vec<_>>(), expected, "{text}");
    assert_eq!(lines[0]["program"], "/bin/true");
}

#[test]
#[ignore = "needs a build of all programs: tests/run e2e"]
fn ranks_of_pytorch_find_their_numbers_and_the_first_one() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    let script = "#!/bin/sh\n\
                  echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT\n";
    fs::write(top.join("rank"), script).expect("a script");
    fs::set_permissions(top.join("rank"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let result = launch(top, "-q -n 2 --set torch ./rank").ok();
    let mut lines: Vec<&str> = result.stdout.lines().collect();
    lines.sort_unstable();
    let (first, port) = lines[0].rsplit_once(':').expect("a port");
    assert_eq!(first, "0 of 2, 0 of 2 at 127.0.0.1");
    assert!(port.parse::<u16>().is_ok_and(|port| port > 0), "{port}");
    assert_eq!(lines[1], format!("1 of 2, 1 of 2 at 127.0.0.1:{port}"));
}

#[test]
#[ignore = "needs strace: tests/run e2e"]
fn system_calls_of_ranks_are_written_by_strace() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    fs::write(top.join("rank"), "#!/bin/sh\nexit $((5 + PMC_LAUNCH_RANK))\n").expect("a script");
    fs::set_permissions(top.join("rank"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let line = format!(
        "{} --keep-going -n 3 --strace calls --strace-ranks 0,2",
        pmc_launch()
    );
    let program = Program::from_line(&line).args(["--strace-options", "-f -e trace=execve", "./rank"]);
    let result = program.in_directory(top).run();
    assert!((5..8).contains(&result.code()), "{}", result.details());
    for end in 5..8 {
        assert!(
            result.stderr.contains(&format!("exit code {end}")),
            "{}",
            result.details()
        );
    }
    let files = || {
        let files = fs::read_dir(top.join("calls")).expect("a directory").flatten();
        let mut files: Vec<_> = files.map(|file| file.path()).collect();
        files.sort_unstable();
        files
    };
    let names = files();
    let names: Vec<_> = names
        .iter()
        .filter_map(|file| file.extension()?.to_str())
        .collect();
    assert_eq!(names, ["0", "2"], "{}", result.details());
    // What traces a rank ends a moment after it.
    wait_until("the system calls are not complete", 60, || {
        let ends = ["exited with 5", "exited with 7"];
        files().iter().zip(ends).all(|(file, end)| {
            let text = fs::read_to_string(file).unwrap_or_default();
            text.contains("execve(") && text.contains(end)
        })
    });
    // A host without strace says so.
    let program = Program::from_line(&format!("{} --strace calls ./rank", pmc_launch()));
    let refused = program.in_directory(top).env("PATH", "/nowhere").run();
    assert_eq!(refused.code(), 4, "{}", refused.details());
    assert!(
        refused.stderr.contains("strace: it is not installed"),
        "{}",
        refused.details()
    );
}

/// A run of `pmc serve` takes launches as a session does.
#[test]
#[ignore = "needs a build of all programs: tests/run e2e"]
fn a_run_that_takes_tasks_takes_launches() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    let pmc = || Program::new(Build::Local.program("pmc")).in_directory(top);
    let words = [
        "serve",
        "run",
        "--agents",
        "1",
        "--launch",
        "local",
        "--idle-limit",
        "120s",
        "--quiet",
    ];
    let serving = pmc().args(words).start();
    wait_until("the run takes no tasks", 60, || {
        let nodes = pmc().args(["nodes", "run"]).run();
        nodes.code() == 0 && nodes.stdout.contains("working")
    });
    fs::create_dir(top.join("sub")).expect("a directory");
    let launch = |words: &[&str]| {
        let program = pmc().in_directory(&top.join("sub")).env("OWN", "mine");
        program
            .args(["launch", "-q", "--run", "../run"])
            .args(words)
            .run()
    };
    let result = launch(&[
        "-n",
        "1",
        "sh",
        "-c",
        "echo $PMC_LAUNCH_SIZE $OWN ${PWD##*/}; exit 7",
    ]);
    assert_eq!(result.code(), 7, "{}", result.details());
    assert_eq!(result.stdout, "1 mine sub\n", "{}", result.details());
    let refused = launch(&["--on", "nowhere", "true"]);
    assert_eq!(refused.code(), 4, "{}", refused.details());
    assert!(
        refused
            .stderr
            .contains("nowhere is no host of the run ../run: it has "),
        "{}",
        refused.details()
    );
    let result = pmc().args(["launch", "--run", "nothing", "true"]).run();
    assert_eq!(result.code(), 2, "{}", result.details());
    let result = Program::from_line(&format!("{} --run run true", pmc_launch()))
        .in_directory(top)
        .run();
    assert_eq!(result.code(), 2, "{}", result.details());
    pmc().args(["serve", "run", "--stop"]).run().ok();
    serving.wait();
    let left = fs::read_dir(top.join("run")).expect("a directory").flatten();
    let is_ticket = |name: &str| name.starts_with("launch-") && !name.contains('.');
    let left = left.filter(|file| is_ticket(&file.file_name().to_string_lossy()));
    assert_eq!(left.count(), 0, "no ticket is left");
}

/// A line to the launch lets them go, and what follows it is for rank 0.
#[test]
#[ignore = "needs a build of all programs: tests/run e2e"]
fn ranks_are_held_for_debuggers_until_enter_is_pressed() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    nix::unistd::mkfifo(&top.join("input"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let line = format!(
        "{} --hold -n 2 sh -c 'echo ran; cat' < input 2> said",
        pmc_launch()
    );
    let running = Program::new("sh").args(["-c", &line]).in_directory(top).start();
    let mut input = fs::OpenOptions::new()
        .write(true)
        .open(top.join("input"))
        .expect("a reader");
    let said = || fs::read_to_string(top.join("said")).unwrap_or_default();
    wait_until("the ranks do not stand", 60, || {
        said().contains("Enter lets them go")
    });
    let text = said();
    let pids: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once(": process "))
        .map(|(_, pid)| pid)
        .collect();
    assert_eq!(pids.len(), 2, "{text}");
    let is_stopped = |pid: &&str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("State:\tT (stopped)") && status.contains("TracerPid:\t0")
    };
    wait_until("the ranks are not stopped", 60, || pids.iter().all(is_stopped));
    input.write_all(b"\nrest\n").expect("a reader");
    drop(input);
    let result = running.wait().ok();
    let mut lines: Vec<&str> = result.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["ran", "ran", "rest"], "{}", said());
}

/// Each node has a `/dev/shm` of its own: the program is on two of the three.
#[test]
#[ignore = "needs network namespaces and MPICH: tests/run e2e"]
fn hosts_that_cannot_start_a_program_are_avoided() {
    let launch = pmc_launch();
    let copy = "for host in $(tail -n 2 $PMC_NODEFILE); do \
                pmc-rsh -n $host cp /bin/hostname /dev/shm/program || exit; done";
    let copy = copy.replace("pmc-rsh", &Build::Local.program("pmc-rsh").display().to_string());
    let script = format!(
        "#!/bin/sh\n{copy}\n{launch} --tag -N 2 -n 2 /dev/shm/program; echo code $?\n\
         {launch} --load-tries 1 -N 2 -n 2 /dev/shm/program; echo once $?\n\
         {launch} -N 3 -n 3 /dev/shm/program; echo all $?\n{launch} -n 2 /dev/shm/nothing; echo nothing $?\n"
    );
    let mut scene = Scene::new(Mpi::debian("mpicc.mpich"), "TASK a -N 3 -m 100 ./script\n");
    fs::write(scene.path("script"), script).expect("a script");
    fs::set_permissions(scene.path("script"), fs::Permissions::from_mode(0o755)).expect("a mode");
    scene.start();
    scene.succeed();
    let out = output(scene.folder.path(), "a");
    let err = scene.text("a.err.000");
    for line in ["code 0", "once 4", "all 4", "nothing 4"] {
        assert!(out.lines().any(|known| known == line), "{line}: {out}\n{err}");
    }
    assert_eq!(
        out.matches("[0] n").count() + out.matches("[1] n").count(),
        2,
        "{out}"
    );
    assert_eq!(err.matches("try 2 of 3, without n").count(), 1, "{err}");
    scene.nothing_is_left(&["pmc-rsh", "pmc-launch"]);
}

/// Starts a program that does nothing on three hosts, in turn by Hydra and by `pmc-launch`, as many times as
/// `PMC_TEST_LAUNCHES` says, and prints the times of both.
#[test]
#[ignore = "needs network namespaces and MPICH: tests/run e2e"]
fn hydra_and_pmc_launch_start_programs_in_turn() {
    let script = format!(
        "#!/bin/bash\nhydra=0 own=0\nfor i in $(seq {}); do\n\
         a=$EPOCHREALTIME; mpiexec.mpich /bin/true || exit; b=$EPOCHREALTIME\n\
         {} -q /bin/true || exit; c=$EPOCHREALTIME\n\
         hydra=$((hydra + ${{b/./}} - ${{a/./}})); own=$((own + ${{c/./}} - ${{b/./}}))\ndone\n\
         echo hydra $((hydra / 1000)) ms, pmc-launch $((own / 1000)) ms\n",
        rounds(3),
        pmc_launch()
    );
    let mut scene = Scene::new(
        Mpi::debian("mpicc.mpich"),
        "TASK a -N 3 --ranks-per-node 2 -m 100 ./script\n",
    );
    fs::write(scene.path("script"), script).expect("a script");
    fs::set_permissions(scene.path("script"), fs::Permissions::from_mode(0o755)).expect("a mode");
    scene.limit += Duration::from_millis(200) * u32::try_from(rounds(3)).expect("a number");
    scene.start();
    scene.succeed();
    let out = output(scene.folder.path(), "a");
    println!("{out}");
    assert!(out.contains("pmc-launch"), "{out}");
}
