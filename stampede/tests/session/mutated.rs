//! Damage to a file of a run affects only the damaged part.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pmc_stampede::error::Notice;
use pmc_stampede::session::{self, Options};
use proptest::prelude::*;
use proptest::sample::Index;
use rusqlite::Connection;

use crate::support::Fixture;

const JOBS: usize = 7;

/// A change to a line of a text file.
#[derive(Clone, Debug)]
enum Change {
    Byte(Index, u8),
    Cut(Index, Index),
    Insert(Index, Vec<u8>),
    Duplicate,
    Remove,
}

fn change() -> impl Strategy<Value = Change> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..12),
        prop::sample::select(vec![
            &b"\n"[..],
            b"\0",
            b"\"",
            b"'",
            b": |\n",
            b"[cluster-task id=1, name=",
            b"- invocation: True\n",
            b"---------------pegasus-multipart\n",
            b"99999999999999999999",
            b"-1",
            b"@@@MONITORING_PAYLOAD - START@@@",
            b"\xff\xfe",
            b"Event: ULOG_",
            b"02/30/26 25:61:61 ",
            b"&a *a {",
        ])
        .prop_map(<[u8]>::to_vec),
    ];
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Cut(from, to)),
        (any::<Index>(), piece).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        Just(Change::Duplicate),
        Just(Change::Remove),
    ]
}

/// Changes one line of a file. With `torn`, removes all later lines.
fn damage(path: &Path, line: &Index, change: &Change, torn: bool) {
    let bytes = fs::read(path).unwrap();
    let mut lines: Vec<Vec<u8>> = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    let at = line.index(lines.len());
    let line = &mut lines[at];
    match change {
        Change::Byte(place, byte) => {
            let place = place.index(line.len());
            line[place] = *byte;
        }
        Change::Cut(from, to) => {
            let (from, to) = (from.index(line.len()), to.index(line.len()));
            line.drain(from.min(to)..=from.max(to));
        }
        Change::Insert(place, piece) => {
            let place = place.index(line.len());
            line.splice(place..place, piece.iter().copied());
        }
        Change::Duplicate => line.extend_from_within(..),
        Change::Remove => line.clear(),
    }
    if torn {
        lines.truncate(at + 1);
    }
    fs::write(path, lines.concat()).unwrap();
}

/// Returns the rows of each job as text, without ids.
fn by_job(database: &Path) -> BTreeMap<String, String> {
    let connection = Connection::open(database).unwrap();
    let sql = "SELECT exec_job_id, group_concat(quote(i.exitcode) || quote(stdout_file) || quote(stdout_text)
                   || quote(local_duration) || quote(hostname) || quote(v.exitcode) || quote(start_time)
                   || quote(v.transformation) || quote(abs_task_id) || quote(maxrss)
                   || (SELECT group_concat(state || timestamp) FROM (SELECT * FROM jobstate s
                       WHERE s.job_instance_id = i.job_instance_id ORDER BY jobstate_submit_seq)))
               FROM (SELECT * FROM job_instance ORDER BY job_submit_seq) i JOIN job USING (job_id)
                   LEFT JOIN host USING (host_id) LEFT JOIN invocation v USING (job_instance_id)
               GROUP BY exec_job_id";
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement
        .query_map((), |row| {
            Ok((row.get(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default()))
        })
        .unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// Loads the run. Returns the rows of each job, and all notices.
fn load(run: &Fixture) -> (BTreeMap<String, String>, Vec<String>) {
    let options = Options {
        log: run.log_path(),
        ..Options::default()
    };
    let mut notices = Vec::new();
    session::replay(&options, &mut |notice: Notice| notices.push(notice.to_string())).unwrap();
    (by_job(&run.database()), notices)
}

/// Returns the number of unchanged jobs.
fn count_same(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> usize {
    before
        .iter()
        .filter(|(job, what)| now.get(*job) == Some(what))
        .count()
}

/// One job for each length to which a record can be truncated.
#[test]
fn a_truncated_record_is_reported() {
    let probe = Fixture::run(1);
    // Some jobs stay complete.
    let length = fs::read(probe.dir.join("work_ID0.out.000")).unwrap().len();
    let jobs = length + 20;
    let run = Fixture::run(jobs);
    run.write_log();
    let (before, notices) = load(&run);
    assert_eq!(notices, [""; 0]);
    for cut in 0..length {
        let path = run.dir.join(format!("work_ID{cut}.out.000"));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..cut]).unwrap();
    }
    let (now, notices) = load(&run);
    assert_eq!(now.len(), jobs);
    for job in length..jobs {
        let name = format!("work_ID{job}");
        assert_eq!(now[&name], before[&name]);
    }
    for cut in 0..length {
        let name = format!("work_ID{cut}.out.000:");
        assert!(
            notices.iter().any(|notice| notice.contains(&name)),
            "cut at {cut} of {length}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_damaged_record_affects_one_job(job in 0..JOBS, line in any::<Index>(), change in change(), torn in any::<bool>()) {
        let run = Fixture::run(JOBS);
        run.write_log();
        let (before, _) = load(&run);
        damage(&run.dir.join(format!("work_ID{job}.out.000")), &line, &change, torn);
        let (now, _) = load(&run);
        prop_assert!(count_same(&before, &now) >= JOBS - 1, "{before:?} {now:?}");
        prop_assert_eq!(now.len(), JOBS);
    }

    #[test]
    fn a_damaged_log_affects_two_jobs(line in any::<Index>(), change in change()) {
        let run = Fixture::run(JOBS);
        run.write_log();
        let (before, _) = load(&run);
        damage(&run.log_path(), &line, &change, false);
        let (now, notices) = load(&run);
        // The line may be read as one of another job.
        prop_assert!(count_same(&before, &now) >= JOBS - 2, "{notices:?} {before:?} {now:?}");
    }

    #[test]
    fn a_torn_log_is_reported(line in any::<Index>(), change in change()) {
        let run = Fixture::run(JOBS);
        run.write_log();
        damage(&run.log_path(), &line, &change, true);
        let (_, notices) = load(&run);
        let text = fs::read(run.log_path()).unwrap();
        let ended = String::from_utf8_lossy(&text).contains("EXITING WITH STATUS");
        prop_assert!(ended || notices.iter().any(|notice| notice.contains("x-0.dag.dagman.out")), "{notices:?}");
    }

    #[test]
    fn a_damaged_plan_keeps_all_jobs(line in any::<Index>(), change in change(), torn in any::<bool>()) {
        let run = Fixture::run(JOBS);
        run.write_log();
        let (before, _) = load(&run);
        damage(&run.dir.join("x-0.static.bp"), &line, &change, torn);
        let (now, notices) = load(&run);
        if !torn {
            prop_assert!(count_same(&before, &now) >= JOBS - 2, "{notices:?} {before:?} {now:?}");
        }
        // Jobs that are missing in the plan are loaded and reported.
        prop_assert_eq!(before.keys().filter(|job| now.contains_key(*job)).count(), JOBS);
        let connection = Connection::open(run.database()).unwrap();
        let unknown = "SELECT count(*) FROM job WHERE submit_file = '' AND type_desc = 'unknown'";
        let unknown: i64 = connection.query_row(unknown, (), |row| row.get(0)).unwrap();
        let reported = notices.iter().filter(|notice| notice.contains("its kind is unknown")).count();
        prop_assert!(reported as i64 <= unknown && (reported > 0 || unknown <= 1), "{unknown}: {notices:?}");
    }
}
