//! Views of directories that somebody else has prepared, and outputs that cannot be written.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;

use crate::support::{Finished, Place};

/// Longest time that a view of a small hostile directory may take.
const MAX_TIME: Duration = Duration::from_secs(30);
/// Changes the title of a terminal and clears it.
const CONTROLS: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J";

/// Writes a run with a failed task, whose names and outputs hold control characters.
fn write_run(place: &Place, dir: &str) {
    let name = format!("t{CONTROLS}");
    place.write(
        &format!("{dir}/w.dag"),
        &format!("TASK {name} /bin/false {CONTROLS}\nTASK b /bin/true\nEDGE {name} b\n"),
    );
    place.write(
        &format!("{dir}/w.dag.dagman.out"),
        &format!(
            "11/21/26 12:00:00 Parsing w.dag ...\n\
             11/21/26 12:00:00 Event: ULOG_SUBMIT for Condor Node {name} (1.0)\n\
             11/21/26 12:00:00 Event: ULOG_EXECUTE for Condor Node {name} (1.0)\n\
             11/21/26 12:00:02 Event: ULOG_JOB_TERMINATED for Condor Node {name} (1.0)\n\
             11/21/26 12:00:02 Node {name} job proc (1.0) failed with status 256.\n\
             11/21/26 12:00:02 **** condor_scheduniv_exec.0.0 (condor_DAGMAN) pid 1 EXITING WITH STATUS 1\n"
        ),
    );
    place.write(&format!("{dir}/{name}.out.000"), &format!("out {CONTROLS}\n"));
    place.write(&format!("{dir}/{name}.err.000"), &format!("err {CONTROLS}\n"));
}

const VIEWS: [&[&str]; 9] = [
    &["status", "run"],
    &["status", "--json", "run"],
    &["analyzer", "run"],
    &["analyzer", "--json", "run"],
    &["statistics", "-s", "all", "run"],
    &["statistics", "-s", "all", "--csv", "run"],
    &["statistics", "--json", "-s", "all", "run"],
    &["report", "-o", "r.html", "run"],
    &["log", "-f", "b", "run"],
];

#[test]
fn names_and_outputs_do_not_control_the_terminal() {
    let place = Place::new();
    write_run(&place, "run");
    for view in VIEWS {
        let finished = place.run(view);
        for text in [finished.stdout(), finished.stderr()] {
            let control = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t'));
            assert_eq!(control, None, "{view:?}: {text}");
        }
    }
    let shown = place.run(["analyzer", "run"]).stdout();
    assert!(shown.contains(r"t\u001b]0;owned\u0007"), "{shown}");
    let json = place.run(["analyzer", "--json", "run"]).json();
    assert_eq!(
        json["causes"][0]["example"]["task"],
        format!("t{CONTROLS}"),
        "{json}"
    );
}

/// Spreadsheets compute cells that begin with `=`.
#[test]
fn names_in_csv_are_no_formulas() {
    let place = Place::new();
    write_run(&place, "run");
    for file in ["w.dag", "w.dag.dagman.out"] {
        let path = format!("run/{file}");
        let name = format!("t{CONTROLS}");
        place.write(&path, &place.read(&path).replace(&name, "=1+1"));
    }
    let csv = place.run(["statistics", "-s", "all", "--csv", "run"]).stdout();
    assert!(csv.contains(",'=1+1,"), "{csv}");
    assert!(!csv.contains(",=") && !csv.contains("\n="), "{csv}");
}

/// Every file of a run is once a FIFO, once a link to a device.
#[test]
fn views_of_special_files_end() {
    let files = [
        "w.dag",
        "w.dag.dagman.out",
        "w.dag.rescue",
        "w.dag.resource",
        "w.static.bp",
        "w.stampede.db",
        "w.fingerprints",
        "braindump.yml",
        "jobstate.log",
        "b.out.000",
    ];
    let place = Place::new();
    for file in files {
        for kind in ["fifo", "link"] {
            let _ = std::fs::remove_dir_all(place.path().join("run"));
            write_run(&place, "run");
            let path = place.path().join("run").join(file);
            let _ = std::fs::remove_file(&path);
            match kind {
                "fifo" => nix::unistd::mkfifo(&path, Mode::S_IRWXU).expect("a FIFO"),
                _ => symlink("/dev/zero", &path).expect("a link"),
            }
            for view in VIEWS {
                ends_in_time(&place, view, &format!("{file} is a {kind}"));
            }
        }
    }
}

/// The same, as the planner would have made it: its events are read.
fn write_planned_run(place: &Place) {
    write_run(place, "run");
    place.write("run/braindump.yml", "wf_uuid: u\ndag: w.dag\n");
}

/// Every file of a run is once a file of a terabyte that takes no place on the disk.
#[test]
fn views_of_sparse_files_end() {
    let place = Place::new();
    let output = "t\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J.out.000";
    let errors = &output.replace(".out.", ".err.");
    for file in ["w.static.bp", "w.dag.rescue", output, errors] {
        let _ = std::fs::remove_dir_all(place.path().join("run"));
        write_planned_run(&place);
        let path = place.path().join("run").join(file);
        let sparse = File::options().create(true).append(true).open(&path);
        sparse
            .and_then(|file| file.set_len(1 << 40))
            .expect("a sparse file");
        for view in VIEWS {
            ends_in_time(&place, view, &format!("{file} is sparse"));
        }
        if file == "w.static.bp" {
            let refused = place.run(["statistics", "run"]).code(4).stderr();
            assert!(
                refused.contains("w.static.bp: larger than 16384 MiB"),
                "{refused}"
            );
        }
        if file == output {
            let page = std::fs::metadata(place.path().join("r.html")).expect("a page");
            assert!(page.len() < 4 << 20, "{} bytes of a line of zeros", page.len());
        }
    }
    let _ = std::fs::remove_dir_all(place.path().join("run"));
    write_planned_run(&place);
    place.write("run/w.static.bp", &"damaged\n".repeat(1000));
    let warnings = place.run(["statistics", "run"]).code(0).stderr();
    assert_eq!(warnings.matches("damaged or incomplete event").count(), 1);
    assert!(warnings.contains("as 999 more after it"), "{warnings}");
    let lines: String = (0..100).map(|n| format!("no line of a log {n}\n")).collect();
    place.write(
        "run/w.dag.dagman.out",
        &(place.read("run/w.dag.dagman.out") + &lines),
    );
    let warnings = place.run(["statistics", "run"]).code(0).stderr();
    assert!(warnings.lines().count() < 20, "{warnings}");
    assert!(warnings.contains("more of this kind"), "{warnings}");
}

fn ends_in_time(place: &Place, view: &[&str], case: &str) {
    let command = place.pmc(view);
    // An address space of 4 GiB shows reading without end.
    let mut limited = Command::new("prlimit");
    limited
        .arg(format!("--as={}", 4_u64 << 30))
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(place.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let start = Instant::now();
    let mut child = limited.spawn().expect("prlimit of util-linux");
    while child.try_wait().expect("the child").is_none() {
        if start.elapsed() > MAX_TIME {
            let _ = child.kill();
            panic!("pmc {view:?} hangs: {case}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = child.wait().expect("the child");
    assert!(
        status.code().is_some_and(|code| code < 100),
        "pmc {view:?}: {case}: {status}"
    );
}

#[test]
fn lost_output_is_an_error() {
    let place = Place::new();
    write_run(&place, "run");
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    let full = || File::options().write(true).open("/dev/full").expect("/dev/full");
    let programs = [
        ("pmc", &["run", "--json", "workflow.yml"][..], 4),
        ("pmc", &["status", "run"], 4),
        ("pmc", &["status", "--json", "run"], 4),
        ("pmc", &["analyzer", "run"], 1),
        ("pmc", &["statistics", "run"], 4),
        ("pmc", &["--help"], 4),
        ("pmc-plan", &["--version"], 4),
        ("pmc-monitord", &["--help"], 4),
        ("pegasus-transfer", &["--help"], 4),
        ("pegasus-cluster", &["--help"], 4),
        ("pegasus-rc-client", &["--help"], 4),
        ("pegasus-kickstart-server", &["--version"], 4),
    ];
    for (program, arguments, code) in programs {
        let path = testutils::programs::path(program);
        let output = Command::new(path)
            .args(arguments)
            .current_dir(place.path())
            .stdout(full())
            .output();
        let finished = Finished::from(output.expect("a program"));
        finished.code(code);
        assert!(
            finished.stderr().contains("cannot write standard output"),
            "{program}"
        );
    }
    // Messages that cannot be written do not end a program by a panic.
    for (program, arguments, code) in [
        ("pmc", &["status", "absent"][..], 2),
        ("pmc-plan", &["absent.yml"], 1),
        ("pmc-monitord", &["-v", "-r", "absent"], 1),
    ] {
        let path = testutils::programs::path(program);
        let output = Command::new(path)
            .args(arguments)
            .current_dir(place.path())
            .stderr(full())
            .output();
        Finished::from(output.expect("a program")).code(code);
    }
}
