//! Packed output, seen by `pmc`.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmc_packed::{Channel, TaskOutput};
use testutils::Random;
use testutils::processes::family;

use crate::attach::wait_until;
use crate::log::spawn_executor;
use crate::support::{Finished, Place};

const DAG: &str =
    "TASK good /bin/sh -c 'echo fine'\nTASK bad /bin/sh -c 'echo half; echo broken >&2; exit 3'\n";

/// Runs the executor in the directory `name` of a place.
pub fn run(place: &Place, name: &str, options: &[&str]) {
    place.write(&format!("{name}/w.dag"), DAG);
    let output = std::process::Command::new(crate::support::bin().join("pegasus-mpi-cluster"))
        .args(["--workers", "2", "--jobstate-log", "--monitord-hack", "-t", "2"])
        .args(options)
        .arg("w.dag")
        .current_dir(place.path().join(name))
        .output()
        .expect("the executor starts");
    Finished::from(output).code(1);
}

/// The names of files with output of tasks.
fn task_files(place: &Place, name: &str) -> Vec<String> {
    let entries = fs::read_dir(place.path().join(name)).expect("the run").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.contains(".0")).collect();
    names.sort();
    names
}

#[test]
fn views_read_packs_as_files_and_unpack_makes_the_files() {
    let place = Place::new();
    run(&place, "files", &[]);
    run(&place, "packed", &["--packed-output"]);
    assert_eq!(task_files(&place, "packed"), Vec::<String>::new());
    let log = place.run(["log", "bad", "packed"]);
    assert_eq!(
        (log.code(0).stdout(), log.stderr()),
        ("half\n".into(), "broken\n".into())
    );
    let log = place.run(["log", "--attempt", "1", "good", "packed"]);
    assert_eq!(log.code(0).stdout(), "fine\n");
    let none = place.run(["log", "--attempt", "3", "bad", "packed"]);
    assert!(
        none.code(4).stderr().contains("it has 2 attempts"),
        "{}",
        none.stderr()
    );
    let causes = |name: &str| {
        let text = place.run(["analyzer", "--json", name]).stdout();
        let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let file = value
            .pointer_mut("/causes/0/example/output_file")
            .expect("the output of the example");
        let file = file.take().as_str().expect("a path").to_owned();
        let example = value.pointer("/causes/0/example").expect("an example").clone();
        (example["stderr"].clone(), example["stdout"].clone(), file)
    };
    let (files, packed) = (causes("files"), causes("packed"));
    assert_eq!((&files.0, &files.1), (&packed.0, &packed.1));
    assert!(
        files.2.ends_with("/bad.out.001") && packed.2.contains("/packed-output/w.dag."),
        "{packed:?}"
    );

    let unpacked = place.run(["unpack", "packed"]);
    assert!(
        unpacked
            .code(0)
            .stdout()
            .starts_with("6 new files of 3 packed attempts in "),
        "{}",
        unpacked.stdout()
    );
    assert_eq!(task_files(&place, "packed"), task_files(&place, "files"));
    assert_eq!(place.read("packed/bad.err.001"), "broken\n");
    assert!(
        place
            .read("packed/bad.out.001")
            .starts_with("half\n[cluster-task name=bad, ")
    );
    let again = place.run(["unpack", "packed"]);
    assert!(
        again.code(0).stdout().starts_with("0 new files of 3 "),
        "{}",
        again.stdout()
    );
}

#[test]
fn damage_is_told_and_the_rest_unpacked() {
    let place = Place::new();
    run(&place, "packed", &["--packed-output", "--workers", "1"]);
    let pack = "packed/packed-output/w.dag.1";
    let text = place.read(pack);
    place.write(pack, &(text.replace("fine", "FINE") + "torn"));
    let unpacked = place.run(["unpack", "packed"]);
    let stderr = unpacked.code(4).stderr();
    assert!(
        stderr.contains("good.out.000: the pack is damaged here"),
        "{stderr}"
    );
    assert!(
        stderr.contains("4 bytes of ") && stderr.contains("1 file cannot be made"),
        "{stderr}"
    );
    assert_eq!(task_files(&place, "packed").len(), 5);
    let log = place.run(["log", "good", "packed"]);
    assert!(
        log.code(4).stderr().contains("the pack is damaged here"),
        "{}",
        log.stderr()
    );
}

/// Adds the entry of the task `good` for ten other tasks to the index of a pack, as attempt `number`.
fn add_entries(place: &Place, number: Option<&str>) {
    let index = "packed/packed-output/w.dag.1.index";
    let text = place.read(index);
    let line = text
        .lines()
        .find(|line| line.contains(" good "))
        .expect("its entry");
    let mut words: Vec<&str> = line.split(' ').collect();
    words.pop().expect("a checksum");
    words[2] = number.unwrap_or(words[2]);
    let mut all = text.clone();
    for task in 0..10 {
        let entry = words.join(" ").replace(" good", &format!(" goo{task}"));
        let checksum = crc32fast::hash(entry.as_bytes());
        all += &format!("{entry} {checksum:08x}\n");
    }
    place.write(index, &all);
}

/// A pack of somebody else can have the same bytes in any number of entries.
#[test]
fn unpack_writes_no_more_bytes_than_the_packs_have() {
    let place = Place::new();
    run(&place, "packed", &["--packed-output", "--workers", "1"]);
    add_entries(&place, None);
    let stderr = place.run(["unpack", "packed"]).code(4).stderr();
    assert!(stderr.contains("they overlap"), "{stderr}");
    let length = |name: &str| place.read(&format!("packed/{name}")).len();
    let files = task_files(&place, "packed");
    let unpacked: usize = files.iter().map(|name| length(name)).sum();
    let pack = length("packed-output/w.dag.1");
    assert!(0 < unpacked && unpacked <= pack, "{unpacked} of {pack} bytes");
    let left_over = fs::read_dir(place.path().join("packed"))
        .expect("the run")
        .flatten();
    let mut left_over = left_over.filter(|entry| entry.file_name().to_string_lossy().contains(".unpack."));
    assert!(left_over.next().is_none());
}

/// A pack of somebody else can be a sparse file, which takes nothing on disk.
#[test]
fn a_sparse_pack_fills_no_disk() {
    const LENGTH: u64 = 32 << 20;
    let place = Place::new();
    run(&place, "packed", &["--packed-output", "--workers", "1"]);
    let pack = place.path().join("packed/packed-output/w.dag.1");
    let begin = fs::metadata(&pack).expect("the pack").len();
    let file = fs::File::options().write(true).open(&pack).expect("the pack");
    let mut line = format!("pmc-pack {begin} 0 99 1");
    let mut zeros = crc32fast::Hasher::new();
    (0..LENGTH >> 20).for_each(|_| zeros.update(&[0; 1 << 20]));
    line += &format!(" {LENGTH} {:08x} 0 00000000 sparse", zeros.finalize());
    line += &format!(" {:08x}\n", crc32fast::hash(line.as_bytes()));
    // The line is in the pack, too, before the bytes of the attempt.
    file.set_len(begin + line.len() as u64 + LENGTH)
        .expect("it grows");
    let index = "packed/packed-output/w.dag.1.index";
    place.write(index, &(place.read(index) + &line));
    place.run(["unpack", "packed"]).code(0);
    let made = fs::metadata(place.path().join("packed/sparse.out.000")).expect("it is unpacked");
    assert_eq!(made.len(), LENGTH);
    assert!(made.blocks() * 512 <= 1 << 16, "{} blocks", made.blocks());
}

/// Numbers of attempts can be far apart; each one between them would get a file.
#[test]
fn unpack_fills_no_disk_with_empty_files() {
    let place = Place::new();
    run(&place, "packed", &["--packed-output", "--workers", "1"]);
    add_entries(&place, Some("4000000000"));
    place.run(["unpack", "packed"]).code(4);
    let files = fs::read_dir(place.path().join("packed"))
        .expect("the run")
        .count();
    // 1000, and a few for each attempt.
    assert!((1000..1060).contains(&files), "{files} files");
}

#[test]
fn a_small_run_is_packed_on_demand() {
    let place = Place::new();
    place.chain("cat in.txt > mid.txt", "cat mid.txt > out.txt");
    place
        .run(["run", "workflow.yml", "--packed-output", "--stampede"])
        .code(0);
    let submit = "pmc-runs/chain/run0001/submit";
    assert_eq!(task_files(&place, submit), Vec::<String>::new());
    assert!(place.path().join(submit).join("packed-output").is_dir());
    let figures = place.run(["statistics", submit]);
    assert!(figures.code(0).stdout().contains("first"), "{}", figures.stdout());
    place.run(["run", "workflow.yml"]).code(0);
    assert!(!task_files(&place, "pmc-runs/chain/run0002/submit").is_empty());
}

/// Number of times that a run is killed.
const KILLS: u64 = 12;
/// Number of its tasks: more than it gets done meanwhile.
const TASKS: usize = 1500;

/// What a task of the killed run prints.
fn numbers(task: usize) -> String {
    (task..=20_000).map(|number| format!("{number}\n")).collect()
}

/// Returns the tasks that are done.
fn done(directory: &Path) -> Vec<usize> {
    let rescue = fs::read_to_string(directory.join("w.dag.rescue")).unwrap_or_default();
    let whole = rescue.rfind('\n').map_or("", |end| &rescue[..end]);
    let names = whole.lines().filter_map(|line| line.strip_prefix("DONE t"));
    names.map(|number| number.parse().expect("a number")).collect()
}

/// Kills a process and all its descendants.
fn kill_family(root: u32) {
    for pid in family(root) {
        // It may have ended.
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
}

/// Kills a run at random moments. Each task that is done has its whole output, and a message names each
/// output that was cut off.
fn killed(options: &[&str], random: u64) {
    let place = Place::new();
    let directory = place.path().join("run");
    let dag: String = (0..TASKS)
        .map(|task| format!("TASK t{task} /usr/bin/seq {task} 20000\n"))
        .collect();
    let options = [options, &["--packed-output", "--jobstate-log"]].concat();
    let mut random = Random(random);
    for round in 0..KILLS {
        let before = done(&directory).len();
        let mut run = spawn_executor(&place, &dag, &options);
        let begun = Instant::now();
        while done(&directory).len() == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "no task ends");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        kill_family(run.id());
        run.wait().expect("it ends");
        let done = done(&directory);
        assert!(done.len() < TASKS, "the run has ended before round {round}");
        let mut output = TaskOutput::new(&directory);
        output.refresh().expect("the packs can be read");
        for task in done {
            let name = format!("t{task}");
            let number = output.last(name.as_bytes()).expect("an attempt");
            let stream = output.open(name.as_bytes(), Channel::Out, number);
            let mut text = String::new();
            let mut stream = stream.expect("the output of a task that is done");
            stream.read_to_string(&mut text).expect("it can be read");
            let rest = text.strip_prefix(&numbers(task));
            let is_whole = rest.is_some_and(|rest| rest.starts_with(&format!("[cluster-task name={name}, ")));
            assert!(is_whole, "the output of {name} is wrong in round {round}");
        }
    }
    let mut output = TaskOutput::new(&directory);
    output.refresh().expect("the packs can be read");
    let torn = output.left_over();
    let unpacked = place.run(["unpack", "run"]);
    for (pack, bytes) in &torn {
        let text = format!(
            "{bytes} bytes of {} are those of attempts that did not end: they are skipped",
            pack.display()
        );
        assert!(unpacked.stderr().contains(&text), "{}", unpacked.stderr());
    }
    assert_eq!(
        unpacked.code(0).stderr().matches("did not end").count(),
        torn.len()
    );
}

#[test]
fn a_killed_local_run_has_the_output_of_all_tasks_that_are_done() {
    killed(&["--workers", "2"], 1);
}

const LOG: [&str; 4] = ["log", "-f", "TASK", "run"];
const ATTACH: [&str; 3] = ["attach", "TASK", "run"];

/// Follows tasks while they run: their output is in files without names. `command` is that of pmc.
fn followed(command: &[&str], options: &[&str]) {
    let place = Place::new();
    let script = "seq 3000; echo oops >&2; n=0; while [ ! -e go ] && [ $((n += 1)) -lt 3000 ]; do sleep 0.02; done; echo end";
    place.script("run/says", script);
    let kickstart = crate::support::bin().join("pegasus-kickstart");
    let dag = format!("TASK plain ./says\nTASK kept {} ./says\n", kickstart.display());
    let options = [options, &["--jobstate-log", "--packed-output"]].concat();
    let mut executor = spawn_executor(&place, &dag, &options);
    let expected: String = (1..=3000).map(|number| format!("{number}\n")).collect();
    let followers = ["plain", "kept"].map(|task| {
        wait_until(|| place.run(["log", task, "run"]).stdout() == expected);
        let words = command
            .iter()
            .map(|word| if *word == "TASK" { task } else { *word });
        let mut follower = place.pmc(words);
        follower.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut follower = follower.spawn().expect("pmc starts");
        let mut begun = vec![0; expected.len()];
        let stdout = follower.stdout.as_mut().expect("it is piped");
        stdout
            .read_exact(&mut begun)
            .expect("it comes while the task runs");
        assert_eq!(begun, expected.as_bytes());
        follower
    });
    place.write("run/go", "");
    for follower in followers {
        let finished = Finished::from(follower.wait_with_output().expect("pmc ends"));
        assert_eq!(finished.code(0).stdout(), "end\n");
        assert_eq!(finished.stderr(), "oops\n");
    }
    executor.wait().expect("the run ends");
}

#[test]
fn packed_output_is_followed_in_a_local_run() {
    followed(&LOG, &["--workers", "2"]);
}

#[test]
fn packed_output_is_followed_in_an_agent() {
    followed(&LOG, &["--agents", "1", "--launch", "local", "--slots", "2"]);
}

#[test]
fn packed_output_is_shown_by_attach_in_a_local_run() {
    followed(&ATTACH, &["--workers", "2"]);
}

#[test]
fn packed_output_is_shown_by_attach_in_an_agent() {
    followed(&ATTACH, &["--agents", "1", "--launch", "local", "--slots", "2"]);
}
