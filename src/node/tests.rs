//! The service as the processes of a task see it.

use std::path::{Path, PathBuf};

use pmc_checkpoint::{FileRecord, Store, Use};
use pmc_tcsio::{ClientError, Connection, Process};

use super::*;

struct Run {
    _dir: tempfile::TempDir,
    dag: PathBuf,
    service: Arc<NodeService>,
}

impl Run {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let dag = dir.path().join("w.dag");
        let service = NodeService::for_run(&dag).unwrap();
        Self {
            _dir: dir,
            dag,
            service,
        }
    }

    fn begin(&self, submit: u64) -> ServedAttempt {
        self.service.begin(SubmitId(submit), b"a", &self.dag)
    }

    fn records(&self) -> Vec<FileRecord> {
        let text = std::fs::read_to_string(FileRecord::path(&self.dag)).unwrap_or_default();
        text.lines()
            .map(|line| FileRecord::parse(line.as_bytes()).unwrap())
            .collect()
    }

    fn series(&self) -> Vec<u64> {
        let task = Store::open(&self.dag).unwrap().unwrap().task(b"a").unwrap();
        task.scan().unwrap().0.complete()
    }
}

fn connect(attempt: &ServedAttempt, rank: u32, ranks: u32) -> Result<Connection, ClientError> {
    let (name, address) = attempt.variable();
    assert_eq!(name, "PMC_NODE");
    Connection::open(Some(&address), Process { rank, ranks })
}

fn save(connection: &Connection, text: &str) {
    let mut file = connection.create("p").unwrap();
    file.append(text.as_bytes()).unwrap();
    connection.close(file).unwrap();
}

fn load(connection: &Connection) -> String {
    let mut file = connection.open_given("p").unwrap();
    let mut bytes = Vec::new();
    file.copy_to(&mut bytes).unwrap();
    connection.end_reading(file).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn refusal<T>(result: Result<T, ClientError>) -> String {
    match result {
        Err(ClientError::Refused(reason)) => reason,
        Err(other) => other.to_string(),
        Ok(_) => String::new(),
    }
}

#[test]
fn ranks_go_on_from_one_series() {
    let run = Run::new();
    let first = run.begin(1);
    let ranks: Vec<_> = (0..3).map(|rank| connect(&first, rank, 3).unwrap()).collect();
    assert!(ranks.iter().all(|rank| rank.given().is_none()));
    for step in 1..=3 {
        ranks
            .iter()
            .enumerate()
            .for_each(|(rank, connection)| save(connection, &format!("{step} {rank}")));
    }
    // The fourth series lacks the last rank, and one of the others has its file open.
    save(&ranks[0], "4 0");
    let open = ranks[1].create("p").unwrap();
    assert_eq!(run.series(), [2, 3]);
    drop(first);
    // Nothing is added after the end, not even what was open.
    assert_eq!(refusal(ranks[2].create("p")), "the attempt has ended");
    assert_eq!(refusal(ranks[1].close(open)), "the attempt has ended");
    let second = run.begin(2);
    for rank in [2, 0, 1] {
        let connection = connect(&second, rank, 3).unwrap();
        assert_eq!(connection.given(), Some(3));
        // A rank that is ahead changes nothing for the others.
        save(&connection, "5");
        assert_eq!(load(&connection), format!("3 {rank}"));
    }
    // Series go on after those that are not complete.
    assert_eq!(run.series(), [3, 5]);
    let records = run.records();
    assert_eq!(
        records.iter().filter(|record| record.usage == Use::Read).count(),
        3
    );
    let complete: Vec<u64> = records
        .iter()
        .filter(|record| record.complete)
        .map(|record| record.series)
        .collect();
    assert_eq!(complete, [1, 2, 3, 5]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let run = Run::new();
    let attempt = run.begin(1);
    let task = connect(&attempt, 0, 1).unwrap();
    let open = task.create("p").unwrap();
    assert_eq!(
        refusal(task.create("p")),
        "a file with the prefix p is open already"
    );
    // Also in another process with this rank.
    let other = connect(&attempt, 0, 1).unwrap();
    assert_eq!(
        refusal(other.create("p")),
        "a file with the prefix p is open already"
    );
    assert!(refusal(task.create("../p")).contains("is no prefix"));
    assert_eq!(
        refusal(task.open_given("p")),
        "there is no checkpoint to go on from"
    );
    assert_eq!(refusal(connect(&attempt, 2, 2)), "there is no rank 2 of 2");
    task.close(open).unwrap();
    let ended = run.begin(2).variable().1;
    let late = Connection::open(Some(&ended), Process { rank: 0, ranks: 1 });
    assert_eq!(refusal(late), "the attempt has ended, or runs elsewhere");
    for wrong in [
        None,
        Some(""),
        Some("x"),
        Some("x:"),
        Some(":1"),
        Some("pmc-node-none:1"),
    ] {
        assert!(Connection::open(wrong, Process { rank: 0, ranks: 1 }).is_err());
    }
}

#[test]
fn what_was_not_closed_never_counts() {
    let run = Run::new();
    let attempt = run.begin(1);
    let task = connect(&attempt, 0, 1).unwrap();
    save(&task, "1");
    let mut file = task.create("p").unwrap();
    file.append(b"2").unwrap();
    // The process dies.
    drop((file, task));
    let task = connect(&attempt, 0, 1).unwrap();
    save(&task, "3");
    assert_eq!(run.series(), [1, 3]);
    assert_eq!(run.records().len(), 2);
}

#[test]
fn a_series_that_an_attempt_fails_with_is_not_given_again() {
    let run = Run::new();
    let first = run.begin(1);
    let task = connect(&first, 0, 1).unwrap();
    ["1", "2"].iter().for_each(|text| save(&task, text));
    first.fail();
    let given = |submit, reads: bool, saves: bool, fails: bool| {
        let attempt = run.begin(submit);
        let task = connect(&attempt, 0, 1).unwrap();
        if reads {
            load(&task);
        }
        if saves {
            save(&task, "next");
        }
        if fails {
            attempt.fail();
        }
        task.given()
    };
    // It has not read it; it was ended; it has saved a newer one.
    assert_eq!(given(2, false, false, true), Some(2));
    assert_eq!(given(3, true, false, false), Some(2));
    assert_eq!(given(4, true, true, true), Some(2));
    assert_eq!(given(5, true, false, true), Some(3));
    assert_eq!(given(6, true, false, true), Some(2));
    assert_eq!(given(7, false, false, false), None);
}

#[test]
fn a_damaged_file_is_noticed_by_who_reads_it() {
    let run = Run::new();
    let first = run.begin(1);
    let task = connect(&first, 0, 1).unwrap();
    ["1", "2"].iter().for_each(|text| save(&task, text));
    drop(first);
    let second = run.begin(2);
    let task = connect(&second, 0, 1).unwrap();
    let file = Store::path_for(&run.dag).join("a/2/p.0");
    std::fs::write(file, "3").unwrap();
    assert_eq!(
        refusal(task.open_given("p")),
        "the checkpoint file p of series 2 is damaged"
    );
    drop(second);
    let third = run.begin(3);
    assert_eq!(load(&connect(&third, 0, 1).unwrap()), "1");
}

#[test]
fn a_store_of_another_user_is_refused() {
    let run = Run::new();
    let attempt = run.begin(1);
    // A file in its place, and one that another user could have made.
    std::fs::write(Store::path_for(&run.dag), "").unwrap();
    assert!(connect(&attempt, 0, 1).is_err());
    std::fs::remove_file(Store::path_for(&run.dag)).unwrap();
    std::os::unix::fs::symlink("/nowhere", Store::path_for(&run.dag)).unwrap();
    assert!(connect(&attempt, 0, 1).is_err());
    assert!(!Path::new("/nowhere").exists());
}

#[test]
fn tasks_hear_what_the_run_says() {
    let run = Run::new();
    let attempt = run.begin(1);
    let task = connect(&attempt, 0, 1).unwrap();
    save(&task, "1");
    assert!(!task.is_draining().unwrap() && !task.is_due().unwrap());
    let notice = Notice {
        drained: Some(now()),
        ends: None,
    };
    set_notice(&run.dag, notice);
    assert!(task.is_draining().unwrap() && task.is_due().unwrap());
    save(&task, "2");
    assert!(task.is_draining().unwrap() && !task.is_due().unwrap());
    // A worker in another process finds it in the store.
    lock(&NOTICES).remove(&run.dag);
    assert!(task.is_draining().unwrap());
    task.message("step 2".to_owned()).unwrap();
    let store = Store::open(&run.dag).unwrap().unwrap();
    assert_eq!(store.task(b"a").unwrap().message().as_deref(), Some("step 2"));
}
