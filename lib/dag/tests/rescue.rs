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
fn a_set_knows_whether_it_is_empty() {
    let dag = dag(&["a"]);
    assert!(DoneSet::new().is_empty());
    assert!(!rescue::parse(b"DONE a\n", &dag).unwrap().is_empty());
}

#[test]
fn at_most_three_unknown_tasks_are_named() {
    let dag = dag(&["a"]);
    let message = |text: &str| {
        let done = rescue::parse(text.as_bytes(), &dag).unwrap();
        done.unknown().unwrap().to_string()
    };
    assert!(message("DONE x\nDONE y\nDONE z\n").contains("x, y, z (from"));
    assert!(message("DONE x\nDONE y\nDONE z\nDONE zz\n").contains("x, y, z, ... (from"));
}

#[test]
fn a_writer_knows_the_length_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.rescue");
    let mut writer = Writer::open_append(&path, &DoneSet::new()).unwrap();
    for name in [&b"a"[..], b"bb", b"ccc"] {
        writer.done(name).unwrap();
        assert_eq!(writer.len(), fs::metadata(&path).unwrap().len());
    }
    writer.sync().unwrap();
    let device = Writer::open_append(std::path::Path::new("/dev/null"), &DoneSet::new()).unwrap();
    assert!(device.sync().is_err(), "a device cannot be synced");
}

#[test]
fn error_messages_are_those_of_the_original() {
    let dag = dag(&["a", "b"]);
    for (text, message, line) in [
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
fn tasks_that_the_dag_lacks_are_reported_and_keep_their_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rescue");
    let dag = dag(&["a", "b"]);
    let text = "# old\nDONE a\nDONE s1\nDONE s2\nDONE a b\nDONE s3\nDONE a\nDONE b";
    fs::write(&path, text).unwrap();
    let mut done = rescue::read(&path, &dag).unwrap();
    assert_eq!(names(&dag, &done), ["a", "b"]);
    assert_eq!(
        done.unknown().unwrap().to_string(),
        "The rescue file names 4 tasks that are not in the DAG: s1, s2, a b, ... (from line 3). Tasks that were \
         renamed run again"
    );
    rescue::compact(&path, &dag, &mut done).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert_eq!(rescue::parse(b"DONE a", &dag).unwrap().unknown(), None);
}

#[test]
fn appended_bytes_are_those_of_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rescue");
    let dag = dag(&["d", "c", "b", "a"]);
    fs::write(&path, "# old\nDONE d\n").unwrap();
    let mut old = rescue::read(&path, &dag).unwrap();
    old.insert_unrecorded(dag.find(b"d").unwrap());
    old.insert_unrecorded(dag.find(b"a").unwrap());
    let mut writer = Writer::open_append(&path, &old).unwrap();
    writer.record_missing(&dag, &old).unwrap();
    writer.done(b"b").unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "# old\nDONE d\n\nDONE a\nDONE b"
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
fn repetitions_are_removed_and_comments_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("rescue"), folder.path().join("link"));
    std::os::unix::fs::symlink("rescue", &link).unwrap();
    let dag = dag(&["b", "a10", "a1"]);
    fs::write(&path, "# mine\nDONE b\n  # too\n\nDONE a1\nDONE b\nDONE a").unwrap();
    let mode = fs::metadata(&path).unwrap().permissions();
    let mut done = rescue::read(&link, &dag).unwrap();
    assert!(done.is_torn());
    rescue::compact(&link, &dag, &mut done).unwrap();
    let expected = "# mine\n  # too\n\nDONE a1\nDONE b";
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    assert!(!done.is_torn() && fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&path).unwrap().permissions(), mode);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "nothing is left beside it"
    );
    Writer::open_append(&path, &done).unwrap().done(b"a10").unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        format!("{expected}\nDONE a10")
    );
    // Without repetitions, the file stays as it is, as does a file with another name.
    let same = |path: &std::path::Path, text: &str| {
        fs::write(path, text).unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        rescue::compact(path, &dag, &mut rescue::read(path, &dag).unwrap()).unwrap();
        assert_eq!(
            std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap()),
            inode
        );
        assert_eq!(fs::read_to_string(path).unwrap(), text);
    };
    same(&path, "DONE b\nDONE a1\n");
    fs::hard_link(&path, folder.path().join("other")).unwrap();
    same(&path, "DONE b\nDONE b\n");
}

#[test]
fn last_record_of_a_compacted_file_does_not_count_as_torn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rescue");
    let dag = dag(&["t1", "t10"]);
    let comment = "#".repeat(512 - "\n\nDONE t1".len());
    fs::write(&path, format!("{comment}\nDONE t1\nDONE t1\n")).unwrap();
    let mut done = rescue::read(&path, &dag).unwrap();
    rescue::compact(&path, &dag, &mut done).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 513);
    assert_eq!(rescue::read(&path, &dag).unwrap().len(), 1);
}

#[test]
fn zero_bytes_at_the_end_are_torn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rescue");
    let dag = dag(&["task1", "task22"]);
    for (kept, torn) in [
        ("\nDONE task1", "\0\0\0"),
        ("\nDONE task1", "\nDONE tas\0"),
        ("\nDONE task1\n", "\0"),
        ("", "\0\0"),
    ] {
        fs::write(&path, format!("{kept}{torn}")).unwrap();
        let done = rescue::read(&path, &dag).unwrap();
        assert!(done.is_torn() && done.unknown().is_none());
        assert_eq!(done.len(), usize::from(!kept.is_empty()), "{torn:?}");
        Writer::open_append(&path, &done)
            .unwrap()
            .done(b"task22")
            .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{kept}\nDONE task22"));
    }
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
    // With a line feed, the record was written like this.
    assert!(rescue::parse(b"DONE tas\n", &dag).unwrap().unknown().is_some());
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
