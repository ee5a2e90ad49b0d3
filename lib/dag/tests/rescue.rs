//! The rescue file: its bytes, its error messages, and its state after a crash.

#![expect(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::fs;

use pmc_dag::rescue::{self, DoneSet, RescueError, Writer};
use pmc_dag::{Dag, TaskId};
use proptest::prelude::*;

fn dag(names: &[&str]) -> Dag {
    let text: String = names
        .iter()
        .map(|name| format!("TASK {name} /bin/true\n"))
        .collect();
    Dag::parse(text.into_bytes()).unwrap()
}

fn done(dag: &Dag, text: &str) -> Vec<String> {
    names(dag, &rescue::parse(text.as_bytes(), dag).unwrap())
}

fn names(dag: &Dag, done: &DoneSet) -> Vec<String> {
    done.ids()
        .map(|task| String::from_utf8_lossy(dag.name(task)).into_owned())
        .collect()
}

fn refuse(dag: &Dag, text: &str) -> RescueError {
    rescue::parse(text.as_bytes(), dag).unwrap_err()
}

#[test]
fn files_written_by_hand_are_read() {
    let dag = dag(&["a", "b", "c", "d"]);
    let text = "# written by hand\n\nDONE a\n  DONE   b  \nDONE a\r\n   # indented comment\nDONEX c";
    assert_eq!(done(&dag, text), ["a", "b", "c"]);
    assert_eq!(done(&dag, ""), [""; 0]);
    assert_eq!(done(&dag, "\nDONE b\nDONE a"), ["a", "b"]);
}

#[test]
fn error_messages_are_those_of_the_original() {
    let dag = dag(&["a", "b"]);
    for (text, message, line) in [
        (
            "DONE a\nDONE stranger\n",
            "Unknown task stranger in rescue file",
            2,
        ),
        ("DONE a\nDONE stranger", "Unknown task stranger in rescue file", 2),
        ("\nDONE a b\n", "Unknown task a b in rescue file", 2),
        ("DONE a\n FINISHED b \n", "Invalid rescue record: FINISHED b", 2),
        ("DONE\n", "Invalid DONE record: DONE\n", 1),
    ] {
        let error = refuse(&dag, text);
        assert_eq!(error.to_string(), message);
        assert_eq!(error.line(), Some(line));
    }
}

#[test]
fn a_missing_file_is_empty_and_a_directory_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let dag = dag(&["a"]);
    assert_eq!(
        rescue::read(&folder.path().join("missing"), &dag).unwrap(),
        DoneSet::new()
    );
    let error = rescue::read(folder.path(), &dag).unwrap_err();
    assert_eq!(error.to_string(), "Error reading rescue file: Is a directory");
    assert!(Writer::open_append(folder.path(), &DoneSet::new()).is_err());
}

#[test]
fn appended_bytes_are_those_of_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rescue");
    let dag = dag(&["d", "c", "b", "a"]);
    fs::write(&path, "# old\nDONE d\nDONE a\n").unwrap();
    let old = rescue::read(&path, &dag).unwrap();
    assert_eq!(old.len(), 2);
    let mut writer = Writer::open_append(&path, &old).unwrap();
    writer.repeat(&dag, &old).unwrap();
    writer.done(b"b").unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "# old\nDONE d\nDONE a\n\nDONE a\nDONE d\nDONE b"
    );
    writer.push(b"c");
    writer.push(b"c");
    writer.flush().unwrap();
    writer.flush().unwrap();
    writer.sync().unwrap();
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .ends_with("\nDONE b\nDONE c\nDONE c")
    );
    assert_eq!(rescue::read(&path, &dag).unwrap().len(), 4);
}

#[test]
fn a_torn_record_is_ignored_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rescue");
    let dag = dag(&["task1", "task22"]);
    let whole = "\nDONE task1";
    for torn in ["", "\nD", "\nDONE", "\nDONE ", "\nDONE tas", "\nDONE task2"] {
        fs::write(&path, format!("{whole}{torn}")).unwrap();
        let done = rescue::read(&path, &dag).unwrap();
        assert_eq!(names(&dag, &done), ["task1"], "{torn:?}");
        assert_eq!(done.is_torn(), !torn.is_empty());
        Writer::open_append(&path, &done)
            .unwrap()
            .done(b"task22")
            .unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "\nDONE task1\nDONE task22",
            "{torn:?}"
        );
    }
    // Also if the run ignores the file.
    fs::write(&path, "DONE nonsense\nDONE tas").unwrap();
    let skipped = rescue::skip(&path, &dag);
    assert!(skipped.is_empty() && skipped.is_torn());
    Writer::open_append(&path, &skipped)
        .unwrap()
        .done(b"task1")
        .unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "DONE nonsense\nDONE task1");
    // With a line feed, the record was written like this, which is an error.
    assert!(rescue::parse(b"DONE tas\n", &dag).is_err());
}

#[test]
fn a_record_that_is_a_prefix_of_another_is_torn_at_sector_boundaries() {
    let dag = dag(&["t1", "t10", "filler"]);
    // Elsewhere, the kernel would have written the whole record, so it is t1.
    assert_eq!(done(&dag, "\nDONE filler\nDONE t1"), ["t1", "filler"]);
    let text = |len: usize| {
        let comment = "#".repeat(len - "\nDONE t1".len());
        format!("{comment}\nDONE t1")
    };
    assert_eq!(done(&dag, &text(4096)), [""; 0]);
    assert_eq!(done(&dag, &text(512)), [""; 0]);
    assert_eq!(done(&dag, &text(513)), ["t1"]);
    assert_eq!(done(&dag, &format!("{}\n", text(511))), ["t1"]);
    assert_eq!(
        done(&dag, &text(512).replace("t1", "t10").replacen("##", "#", 1)),
        ["t10"]
    );
    let twice = format!("DONE t1\n{}", &text(512)[8..]);
    assert_eq!(done(&dag, &twice), ["t1"], "it was done before");
}

#[test]
fn a_full_disk_leaves_only_complete_records() {
    let full = std::path::Path::new("/dev/full");
    let mut writer = Writer::open_append(full, &DoneSet::new()).unwrap();
    assert!(writer.done(b"a").is_err());
}

#[test]
fn sets_contain_inserted_tasks() {
    let mut done = DoneSet::new();
    assert!(done.is_empty() && !done.contains(TaskId(1000)));
    for task in [5, 64, 0, 63, 200] {
        assert!(done.insert(TaskId(task)));
    }
    assert!(!done.insert(TaskId(5)));
    assert_eq!(done.ids().collect::<Vec<_>>(), [0, 5, 63, 64, 200].map(TaskId));
    assert_eq!(done.len(), 5);
    assert!(done.contains(TaskId(63)) && !done.contains(TaskId(62)));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = rescue::parse(&text, &dag(&["a", "b", "ab"]));
    }

    /// A truncated file names only tasks whose records are in it, unless the rest of a record is the name of
    /// another task, which the rule of sector boundaries covers.
    #[test]
    fn a_truncated_file_is_readable(order in proptest::collection::vec(0_usize..4, 0..12), cut: prop::sample::Index) {
        let tasks = ["alpha", "beta", "gamma", "delta"];
        let dag = dag(&tasks);
        let text: String = order.iter().map(|task| format!("\nDONE {}", tasks[*task])).collect();
        let cut = cut.index(text.len() + 1);
        let done = rescue::parse(&text.as_bytes()[..cut], &dag).unwrap();
        let whole = order.iter().scan(0, |end, task| {
            *end += 6 + tasks[*task].len();
            Some((*end, *task))
        });
        for task in dag.ids() {
            let recorded = whole.clone().any(|(end, number)| end <= cut && number == task.index());
            prop_assert_eq!(done.contains(task), recorded);
        }
    }
}
