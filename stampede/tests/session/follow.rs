//! A running workflow is followed; interruptions change nothing.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rusqlite::OpenFlags;
use rustc_hash::FxHashSet;

use crate::support::{Fixture, dump};
use testutils::Random;

/// Waits for the end of a loader, for a minute at most.
pub fn wait(child: &mut Child) -> i32 {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or(-1);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("the loader does not end");
}

pub fn replayed(run: &Fixture) -> String {
    run.load(&["-r", "--no-dashboard"]);
    dump(&run.database())
}

#[test]
fn a_log_that_appears_and_grows() {
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

#[test]
fn killed_at_any_moment_it_goes_on_where_it_stopped() {
    const ROUNDS: usize = 100;
    let run = Fixture::run(90);
    let begin = Instant::now();
    let expected = {
        run.write_log();
        replayed(&run)
    };
    // A round has only a little of the log to read; it may well get to its end.
    let longest = usize::try_from(begin.elapsed().as_micros()).unwrap_or(usize::MAX);
    fs::remove_file(run.database()).unwrap();
    fs::remove_file(run.dir.join("jobstate.log")).unwrap();
    fs::remove_file(run.dir.join("monitord.done")).unwrap();
    fs::remove_file(run.log_path()).unwrap();

    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(run.log_path())
        .unwrap();
    let mut rest = &run.log[..];
    let (mut midway, mut positions) = (0, FxHashSet::default());
    let said = run.dir.join("said");
    let began = Instant::now();
    let mut rounds = 0;
    // A machine that is very busy does fewer.
    while rounds < ROUNDS && began.elapsed() < Duration::from_secs(60) {
        let stderr = fs::File::create(&said).unwrap();
        let mut loader = run.monitord(&[]).stderr(stderr).spawn().unwrap();
        // Some of the log, in the middle of a line as often as not. The last line stays to be written, so
        // that no loader ends by itself.
        let part = random.index(2 * run.log.len() / ROUNDS).min(rest.len() - 1);
        log.write_all(&rest[..part]).unwrap();
        rest = &rest[part..];
        std::thread::sleep(Duration::from_micros(random.index(longest) as u64));
        // However busy the machine is, some rounds come on.
        let begin = Instant::now();
        let patient = rounds % 4 == 0;
        while patient && position(&run) < complete_lines(&run) {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "seed {seed}, round {rounds}: the loader has read {} of {} bytes and does not come on; it says: {}",
                position(&run),
                complete_lines(&run),
                fs::read_to_string(&said).unwrap()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        loader.kill().unwrap();
        assert_eq!(
            loader.wait().unwrap().code(),
            None,
            "seed {seed}, round {rounds}: ended by itself and says: {}",
            fs::read_to_string(&said).unwrap()
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
        "{midway} of {rounds} rounds came on, seed {seed}"
    );
    let mut loader = run.monitord(&[]).spawn().unwrap();
    assert_eq!(wait(&mut loader), 0);
    similar(&dump(&run.database()), &expected, seed);
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
    assert!(!run.dir.join("x-0.stampede.db.000").exists(), "never begun anew");
    assert_eq!(
        run.count("SELECT count(*) FROM pmc_loader WHERE log_bytes > 0"),
        1
    );
}

#[test]
fn tries_that_wait_survive_a_kill_and_are_written_when_they_begin() {
    const JOBS: usize = 12;
    let mut run = Fixture::run(JOBS);
    // All are submitted first, and one begins. What is tried again is submitted later.
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
    for name in ["x-0.stampede.db", "jobstate.log", "monitord.done"] {
        fs::remove_file(run.dir.join(name)).unwrap();
    }
    fs::write(run.log_path(), &early).unwrap();
    for _ in 0..2 {
        let mut loader = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        while position(&run) < early.len() as i64 {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
        loader.kill().unwrap();
        loader.wait().unwrap();
        let tries = "SELECT count(*) FROM job_instance";
        let queued = "SELECT sum(length(tries) - length(replace(tries, char(10), ''))) FROM pmc_queued";
        assert_eq!((run.count(tries), run.count(queued)), (1, JOBS as i64 - 1));
    }
    let text = fs::read_to_string(run.dir.join("jobstate.log")).unwrap();
    assert_eq!(text.matches(" SUBMIT ").count(), JOBS, "text has them at once");
    let mut log = OpenOptions::new().append(true).open(run.log_path()).unwrap();
    log.write_all(late.as_bytes()).unwrap();
    let mut loader = run.monitord(&[]).spawn().unwrap();
    assert_eq!(wait(&mut loader), 0);
    assert_eq!(dump(&run.database()), expected);
    assert_eq!(run.count("SELECT count(*) FROM pmc_queued"), 0);
}

#[test]
fn tries_that_never_begin_are_written_at_the_end() {
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

/// Bytes of the log that are in the database.
fn position(run: &Fixture) -> i64 {
    let position = "SELECT coalesce(max(log_bytes), 0) FROM pmc_loader";
    // Killed while it made the tables, there are none.
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

/// Compares dumps and shows the first line that differs.
fn similar(found: &str, expected: &str, seed: u64) {
    let differs = found
        .lines()
        .zip(expected.lines())
        .find(|(found, expected)| found != expected);
    assert_eq!(differs, None, "seed {seed}");
    assert_eq!(found.len(), expected.len(), "seed {seed}");
}

#[test]
fn a_run_that_was_not_planned_is_followed_to_its_end() {
    let run = Fixture::run(3);
    for name in ["braindump.yml", "x-0.static.bp"] {
        fs::remove_file(run.dir.join(name)).unwrap();
    }
    let mut loader = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert!(loader.try_wait().unwrap().is_none(), "it waits for a run");
    let half = run.log.len() / 2;
    fs::write(run.log_path(), &run.log[..half]).unwrap();
    let begin = Instant::now();
    while !run.database().exists() {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut log = OpenOptions::new().append(true).open(run.log_path()).unwrap();
    log.write_all(&run.log[half..]).unwrap();
    assert_eq!(wait(&mut loader), 0);
    assert_eq!(
        run.count("SELECT count(*) FROM job_instance WHERE exitcode = 0"),
        3
    );
    // Without its DAG, nobody knows what it was.
    fs::remove_file(run.dir.join("x-0.dag")).unwrap();
    let said = run.monitord(&[]).output().unwrap();
    assert_eq!(said.status.code(), Some(1));
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("braindump.yml: No such file"), "{said}");
}

#[test]
fn a_second_loader_is_told_who_holds_the_directory() {
    let run = Fixture::planned(1);
    run.write_log();
    let mut first = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
    let pid = first.id().to_string();
    let file = run.dir.join("monitord.pid");
    let begin = Instant::now();
    while !fs::read_to_string(&file).is_ok_and(|text| text.contains("host ")) {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    for options in [&[][..], &["-r"]] {
        let second = run.monitord(options).output().unwrap();
        assert_eq!(second.status.code(), Some(43));
        let said = String::from_utf8(second.stderr).unwrap();
        assert!(
            said.contains(&format!("is followed already by process {pid} on ")),
            "{said}"
        );
    }
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(file.exists(), "a killed loader leaves its file");
    let mut next = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(next.try_wait().unwrap().is_none(), "it holds nobody up");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(next.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert_eq!(wait(&mut next), 1);
    assert!(!file.exists() && !run.dir.join("monitord.done").exists());
}

#[test]
fn a_rerun_goes_on_in_the_same_database() {
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
fn a_rerun_whose_log_was_begun_anew_goes_on_too() {
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
    let said = run.load(&[]);
    assert!(said.contains("a new log"), "{said}");
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
fn a_database_of_another_loader_is_kept_aside() {
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
fn an_executor_that_dies_is_noticed() {
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
    let mut said = String::new();
    loader.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("the log ends before the end of the run"), "{said}");
    let text = fs::read_to_string(run.dir.join("jobstate.log")).unwrap();
    assert!(text.ends_with("MONITORD_FINISHED 42 ***\n"), "{text}");
    assert_eq!(run.count("SELECT count(*) FROM workflowstate"), 1);
}
