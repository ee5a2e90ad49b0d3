//! `pmc launch` and `pmc-launch`: what a person sees of programs that cannot start, that crash, that have
//! another MPI; no rank runs before all are there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::gangs::{Mpi, Scene, output, pmc_launch};
use crate::support::command::{CommandResult, Program, wait_until};
use crate::support::programs::Build;

/// Dies in the way that its argument names.
const CRASH: &str = r#"#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int *volatile nowhere;
static sigjmp_buf back;
static void handle(int signal) { siglongjmp(back, signal); }
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
    // One that handles the signal, starts threads and other programs, and ends as it would otherwise.
    let result = launch(top, "-g -n 3 ./crash caught").ok();
    assert!(!result.stderr.contains("#0"), "{}", result.details());
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

/// Without `mpirun`, each of its ranks would take itself for the only one.
#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn programs_of_open_mpi_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let top = folder.path();
    let text = "#include <mpi.h>\nint main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }\n";
    compile(top, "program", text, "mpicc.openmpi");
    let refused = launch(top, "-n 2 ./program");
    assert_eq!(refused.code(), 4, "{}", refused.details());
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.details());
    for word in ["./program: ", "Open MPI", "mpirun", "--pmi none"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.details());
    }
    launch(top, "-n 1 ./program").ok();
    launch(top, "-n 2 --pmi none ./program").ok();
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
    scene.start();
    scene.succeed();
    let out = output(scene.folder.path(), "a");
    println!("{out}");
    assert!(out.contains("pmc-launch"), "{out}");
}
