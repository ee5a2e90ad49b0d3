//! Loading a running workflow, with interruptions.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rusqlite::OpenFlags;
use rustc_hash::FxHashSet;

use crate::support::{Fixture, dump};
use testutils::Random;

/// Waits for the end of a loader, at most a minute.
pub fn wait(child: &mut Child) -> i32 {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or(-1);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("the loader does not end");
}

fn remove(run: &Fixture, names: &[&str]) {
    for name in names {
        fs::remove_file(run.dir.join(name)).unwrap();
    }
}

pub fn replayed(run: &Fixture) -> String {
    run.load(&["-r", "--no-dashboard"]);
    dump(&run.database())
}

#[test]
fn a_growing_log_is_followed() {
    let run = Fixture::run(12);
    let mut loader = run.monitord(&[]).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(run.log_path())
        .unwrap();
    for part in run.log.chunks(run.log.len() / 7) {
        log.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(60));
    }
    assert_eq!(wait(&mut loader), 0);
    let followed = dump(&run.database());
    assert!(run.dir.join("monitord.done").exists());
    assert!(!run.dir.join("x-0.stampede.db-journal").exists());
    let text = fs::read_to_string(run.dir.join("jobstate.log")).unwrap();
    assert_eq!(text.matches("JOB_SUCCESS").count(), 12);
    assert_eq!(followed, replayed(&run));
}

/// Waits until all complete lines are in the database.
fn wait_until_loaded(run: &Fixture, stderr: &Path) {
    let start = Instant::now();
    while position(run) < complete_lines(run) {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the loader read {} of {} bytes and makes no progress: {}",
            position(run),
            complete_lines(run),
            fs::read_to_string(stderr).unwrap()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_loader_continues_where_it_stopped() {
    const ROUNDS: usize = 100;
    let run = Fixture::run(90);
    let start = Instant::now();
    let expected = {
        run.write_log();
        replayed(&run)
    };
    // The time for the whole log is enough for the part of any round.
    let longest = usize::try_from(start.elapsed().as_micros()).unwrap_or(usize::MAX);
    remove(
        &run,
        &[
            "x-0.stampede.db",
            "jobstate.log",
            "monitord.done",
            "x-0.dag.dagman.out",
        ],
    );

    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(run.log_path())
        .unwrap();
    let mut rest = &run.log[..];
    let (mut midway, mut positions) = (0, FxHashSet::default());
    let stderr_path = run.dir.join("stderr");
    let began = Instant::now();
    let mut rounds = 0;
    // A busy machine does fewer rounds.
    while rounds < ROUNDS && began.elapsed() < Duration::from_secs(60) {
        let stderr = fs::File::create(&stderr_path).unwrap();
        let mut loader = run.monitord(&[]).stderr(stderr).spawn().unwrap();
        // A part of the log, which often ends within a line. Without the last line, no loader ends by itself.
        let part = random.index(2 * run.log.len() / ROUNDS).min(rest.len() - 1);
        log.write_all(&rest[..part]).unwrap();
        rest = &rest[part..];
        std::thread::sleep(Duration::from_micros(random.index(longest) as u64));
        // Even on a busy machine, some rounds make progress.
        if rounds % 4 == 0 {
            wait_until_loaded(&run, &stderr_path);
        }
        loader.kill().unwrap();
        assert_eq!(
            loader.wait().unwrap().code(),
            None,
            "seed {seed}, round {rounds}: ended by itself: {}",
            fs::read_to_string(&stderr_path).unwrap()
        );
        if run.database().exists() {
            let position = position(&run);
            midway += usize::from(position > 0 && positions.insert(position));
        }
        rounds += 1;
    }
    assert!(!run.dir.join("monitord.done").exists());
    log.write_all(rest).unwrap();
    assert!(
        midway > rounds / 10,
        "{midway} of {rounds} rounds made progress, seed {seed}"
    );
    let mut loader = run.monitord(&[]).spawn().unwrap();
    assert_eq!(wait(&mut loader), 0);
    assert_same_dump(&dump(&run.database()), &expected, seed);
    let text = fs::read_to_string(run.dir.join("jobstate.log")).unwrap();
    let states = |word: &str| text.lines().filter(|line| line.contains(word)).count();
    assert_eq!(
        (
            states(" SUBMIT "),
            states(" JOB_SUCCESS "),
            states("DAGMAN_FINISHED")
        ),
        (120, 90, 1)
    );
    assert!(
        !run.dir.join("x-0.stampede.db.000").exists(),
        "the database was never replaced"
    );
    assert_eq!(
        run.count("SELECT count(*) FROM pmc_loader WHERE log_bytes > 0"),
        1
    );
}

#[test]
fn queued_attempts_survive_a_kill() {
    const JOBS: usize = 12;
    let mut run = Fixture::run(JOBS);
    // All jobs are submitted first, and one begins. Retries are submitted later.
    let log = String::from_utf8(std::mem::take(&mut run.log)).unwrap();
    let (mut early, mut late) = (Vec::new(), Vec::new());
    let mut submitted = FxHashSet::default();
    for (at, line) in log.split_inclusive('\n').enumerate() {
        let job = line.split("Node ").nth(1).and_then(|rest| rest.split(' ').next());
        let first = line.contains("ULOG_SUBMIT") && job.is_some_and(|job| submitted.insert(job));
        let to = if at < 3 || first { &mut early } else { &mut late };
        to.push(line);
    }
    assert_eq!(submitted.len(), JOBS);
    let begins = late
        .iter()
        .position(|line| line.contains("ULOG_EXECUTE"))
        .unwrap();
    early.push(late.remove(begins));
    let (early, late) = (early.concat(), late.concat());
    run.log = (early.clone() + &late).into_bytes();
    run.write_log();
    let expected = replayed(&run);
    remove(&run, &["x-0.stampede.db", "jobstate.log", "monitord.done"]);
    fs::write(run.log_path(), &early).unwrap();
    for _ in 0..2 {
        let mut loader = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while position(&run) < early.len() as i64 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
        loader.kill().unwrap();
        loader.wait().unwrap();
        let attempts = "SELECT count(*) FROM job_instance";
        let queued = "SELECT sum(length(tries) - length(replace(tries, char(10), ''))) FROM pmc_queued";
        assert_eq!((run.count(attempts), run.count(queued)), (1, JOBS as i64 - 1));
    }
    let text = fs::read_to_string(run.dir.join("jobstate.log")).unwrap();
    assert_eq!(
        text.matches(" SUBMIT ").count(),
        JOBS,
        "the log of states has them at once"
    );
    let mut log = OpenOptions::new().append(true).open(run.log_path()).unwrap();
    log.write_all(late.as_bytes()).unwrap();
    let mut loader = run.monitord(&[]).spawn().unwrap();
    assert_eq!(wait(&mut loader), 0);
    assert_eq!(dump(&run.database()), expected);
    assert_eq!(run.count("SELECT count(*) FROM pmc_queued"), 0);
}

#[test]
fn attempts_that_never_begin_are_inserted_at_the_end() {
    let mut run = Fixture::run(4);
    let log = String::from_utf8(std::mem::take(&mut run.log)).unwrap();
    let begun = |line: &&str| !line.contains("work_ID3 ") || line.contains("ULOG_SUBMIT");
    let log: String = log.split_inclusive('\n').filter(begun).collect();
    run.log = log.into_bytes();
    run.write_log();
    let expected = replayed(&run);
    fs::remove_file(run.database()).unwrap();
    fs::remove_file(run.dir.join("monitord.done")).unwrap();
    let mut loader = run.monitord(&[]).spawn().unwrap();
    assert_eq!(wait(&mut loader), 0);
    assert_eq!(dump(&run.database()), expected);
    let open = "SELECT count(*) FROM job_instance JOIN jobstate USING (job_instance_id)
                WHERE stdout_file IS NULL AND state = 'SUBMIT'";
    assert_eq!(run.count(open), 1);
}

/// Returns the bytes of the log that are in the database.
fn position(run: &Fixture) -> i64 {
    let position = "SELECT coalesce(max(log_bytes), 0) FROM pmc_loader";
    // A loader that was killed early has no tables.
    let connection = rusqlite::Connection::open_with_flags(run.database(), OpenFlags::SQLITE_OPEN_READ_ONLY);
    connection
        .and_then(|connection| connection.query_row(position, (), |row| row.get(0)))
        .unwrap_or(0)
}

fn complete_lines(run: &Fixture) -> i64 {
    let log = fs::read(run.log_path()).unwrap();
    let end = log.iter().rposition(|byte| *byte == b'\n');
    end.map_or(0, |end| end as i64 + 1)
}

/// Compares dumps and shows the first difference.
fn assert_same_dump(found: &str, expected: &str, seed: u64) {
    let differs = found
        .lines()
        .zip(expected.lines())
        .find(|(found, expected)| found != expected);
    assert_eq!(differs, None, "seed {seed}");
    assert_eq!(found.len(), expected.len(), "seed {seed}");
}

#[test]
fn an_unplanned_run_is_followed_to_its_end() {
    let run = Fixture::run(3);
    remove(&run, &["braindump.yml", "x-0.static.bp"]);
    let mut loader = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert!(loader.try_wait().unwrap().is_none(), "the loader waits for a run");
    let half = run.log.len() / 2;
    fs::write(run.log_path(), &run.log[..half]).unwrap();
    let start = Instant::now();
    while !run.database().exists() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut log = OpenOptions::new().append(true).open(run.log_path()).unwrap();
    log.write_all(&run.log[half..]).unwrap();
    assert_eq!(wait(&mut loader), 0);
    assert_eq!(
        run.count("SELECT count(*) FROM job_instance WHERE exitcode = 0"),
        3
    );
    // Without its DAG, the run is unknown.
    fs::remove_file(run.dir.join("x-0.dag")).unwrap();
    let stderr = run.monitord(&[]).output().unwrap();
    assert_eq!(stderr.status.code(), Some(1));
    let stderr = String::from_utf8(stderr.stderr).unwrap();
    assert!(stderr.contains("braindump.yml: No such file"), "{stderr}");
}

#[test]
fn a_second_loader_names_the_first() {
    let run = Fixture::planned(1);
    run.write_log();
    let mut first = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
    let pid = first.id().to_string();
    let file = run.dir.join("monitord.pid");
    let start = Instant::now();
    while !fs::read_to_string(&file).is_ok_and(|text| text.contains("host ")) {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    for options in [&[][..], &["-r"]] {
        let second = run.monitord(options).output().unwrap();
        assert_eq!(second.status.code(), Some(43));
        let stderr = String::from_utf8(second.stderr).unwrap();
        assert!(
            stderr.contains(&format!("is being loaded by process {pid} on ")),
            "{stderr}"
        );
    }
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(file.exists(), "a killed loader leaves its file");
    let mut next = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        next.try_wait().unwrap().is_none(),
        "an old file does not stop a loader"
    );
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(next.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert_eq!(wait(&mut next), 1);
    assert!(!file.exists() && !run.dir.join("monitord.done").exists());
}

#[test]
fn a_rerun_continues_in_the_same_database() {
    let mut run = Fixture::planned(2);
    run.begin();
    run.job(0, 0);
    run.job(1, 256);
    run.end(false);
    run.write_log();
    run.load(&[]);
    assert_eq!(run.count("SELECT count(*) FROM workflowstate"), 2);
    run.begin();
    run.job(1, 0);
    run.end(true);
    run.write_log();
    run.load(&[]);
    assert_eq!(
        run.count("SELECT count(*) FROM workflowstate WHERE restart_count = 1"),
        2
    );
    assert_eq!(run.count("SELECT max(job_submit_seq) FROM job_instance"), 3);
    let followed = dump(&run.database());
    assert_eq!(followed, replayed(&run));
}

#[test]
fn a_rerun_with_a_new_log_continues_too() {
    let mut run = Fixture::planned(2);
    run.begin();
    run.job(0, 0);
    run.job(1, 256);
    run.end(false);
    run.write_log();
    run.load(&[]);
    run.log.clear();
    run.begin();
    run.job(1, 0);
    run.end(true);
    run.write_log();
    let stderr = run.load(&[]);
    assert!(stderr.contains("a new log"), "{stderr}");
    assert_eq!(
        run.count("SELECT count(*) FROM job_instance WHERE exitcode = 0"),
        2
    );
    assert_eq!(
        run.count("SELECT count(*) FROM workflowstate WHERE status IS NOT NULL"),
        2
    );
}

#[test]
fn a_database_of_another_loader_is_renamed() {
    let run = Fixture::run(2);
    run.write_log();
    run.load(&["-r"]);
    rusqlite::Connection::open(run.database())
        .unwrap()
        .execute_batch("DROP TABLE pmc_loader")
        .unwrap();
    fs::remove_file(run.dir.join("monitord.done")).unwrap();
    run.load(&[]);
    assert!(run.dir.join("x-0.stampede.db.000").exists());
    assert_eq!(run.count("SELECT count(*) FROM pmc_loader"), 1);
}

#[test]
fn the_death_of_an_executor_is_noticed() {
    let mut run = Fixture::run(6);
    let half = run.log.len() / 2;
    run.log.truncate(half);
    let dag = OpenOptions::new()
        .read(true)
        .write(true)
        .open(run.dir.join("x-0.dag"))
        .unwrap();
    let whole = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as nix::libc::c_short,
        l_whence: nix::libc::SEEK_SET as nix::libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&dag, nix::fcntl::FcntlArg::F_OFD_SETLK(&whole)).unwrap();
    run.write_log();
    let mut loader = run.monitord(&[]).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(loader.try_wait().unwrap().is_none(), "the executor lives");
    drop(dag);
    assert_eq!(wait(&mut loader), 0);
    let mut stderr = String::new();
    loader.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(
        stderr.contains("the log ends before the end of the run"),
        "{stderr}"
    );
    let text = fs::read_to_string(run.dir.join("jobstate.log")).unwrap();
    assert!(text.ends_with("MONITORD_FINISHED 42 ***\n"), "{text}");
    assert_eq!(run.count("SELECT count(*) FROM workflowstate"), 1);
}

/// As in the files that the planners write.
const NOTIFICATIONS: &str = "WORKFLOW 5d0b1c52-0000-4000-8000-0000000000aa all ./n.sh workflow\n\n\
    JOB work_ID2 start ./n.sh start\nJOB work_ID2 on_error ./n.sh 'two words'\nJOB work_ID2 success ./n.sh ok\n\n\
    JOB work_ID0 error ./n.sh error\nINVOCATION work_ID1 1 at_end ./n.sh one\nJOB work_ID1 end /no/such\n";

#[test]
fn notifications_are_sent_once() {
    use std::os::unix::fs::PermissionsExt as _;
    let run = Fixture::run(3);
    let mut braindump = fs::read_to_string(run.dir.join("braindump.yml")).unwrap();
    braindump.push_str("notify: \"x-0.notify\"\ndax_index: \"0\"\n");
    fs::write(run.dir.join("braindump.yml"), braindump).unwrap();
    fs::write(run.dir.join("x-0.notify"), NOTIFICATIONS).unwrap();
    let script = "#!/bin/sh\necho \"$1: $PEGASUS_EVENT $PEGASUS_JOBID $PEGASUS_INVID $PEGASUS_WFID $PEGASUS_STATUS \
        ${PEGASUS_STDOUT#$PEGASUS_SUBMIT_DIR/}\" >> sent\necho \"said $1\"\n";
    fs::write(run.dir.join("n.sh"), script).unwrap();
    fs::set_permissions(run.dir.join("n.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    run.write_log();
    for quiet in [
        &["-r"][..],
        &["--no-notifications"],
        &["--notifications-max", "0"],
    ] {
        run.load(quiet);
        assert!(!run.dir.join("sent").exists(), "{quiet:?}");
        remove(&run, &["x-0.stampede.db", "monitord.done", "jobstate.log"]);
    }
    let stderr = run.load(&["--notifications-max", "1"]);
    assert_eq!(
        stderr,
        "pmc-monitord: cannot start the notification /no/such: No such file or directory\n"
    );
    let sent = fs::read_to_string(run.dir.join("sent")).unwrap();
    let expected = "\
        workflow: start 5d0b1c52-0000-4000-8000-0000000000aa  x-0  x-0.dag.dagman.out\n\
        one: at_end work_ID1 1 x-0 0 work_ID1.out.000\n\
        start: start work_ID2  x-0  work_ID2.out\n\
        two words: on_error work_ID2  x-0 1 work_ID2.out.000\n\
        start: start work_ID2  x-0  work_ID2.out\n\
        ok: success work_ID2  x-0 0 work_ID2.out.001\n\
        workflow: at_end 5d0b1c52-0000-4000-8000-0000000000aa  x-0 0 x-0.dag.dagman.out\n";
    assert_eq!(sent, expected);
    let log = fs::read_to_string(run.dir.join("monitord-notifications.log")).unwrap();
    assert!(
        log.contains("\nNotification event : work_ID2 - on_error\nNotification action: ./n.sh 'two words'\n"),
        "{log}"
    );
    assert!(log.contains("\nstdout:\nsaid two words\n\nstderr:\n"), "{log}");
    // A slow command ends at its limit.
    remove(
        &run,
        &[
            "x-0.stampede.db",
            "monitord.done",
            "jobstate.log",
            "monitord-notifications.log",
        ],
    );
    fs::write(run.dir.join("n.sh"), "#!/bin/sh\nsleep 1000\n").unwrap();
    run.load(&["--notifications-timeout", "1"]);
    let log = fs::read_to_string(run.dir.join("monitord-notifications.log")).unwrap();
    assert_eq!(log.matches("\nNotification status: -15\n").count(), 7, "{log}");
}
