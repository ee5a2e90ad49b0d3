//! The files of a task.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::{BlockSums, Notice, Store};

fn prefix() -> Prefix {
    Prefix::try_from("p").unwrap()
}

/// Saves a series of one file.
fn save(task: &TaskStore, series: u64, data: &[u8]) {
    let mut file = task.create(series, &prefix(), 0).unwrap();
    file.write_all(data).unwrap();
    file.sync_all().unwrap();
    task.publish(&sidecar(task, series, data)).unwrap();
}

fn sidecar(task: &TaskStore, series: u64, data: &[u8]) -> Sidecar {
    let mut sums = BlockSums::default();
    sums.add(data);
    Sidecar {
        series,
        bytes: sums.bytes(),
        crc32: sums.finish(),
        ..task.sidecar(prefix())
    }
}

fn place() -> (tempfile::TempDir, Store, TaskStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::make(&dir.path().join("w.dag")).unwrap();
    let task = store.task(b"a/b").unwrap();
    (dir, store, task)
}

fn chosen(task: &TaskStore) -> (Option<u64>, usize) {
    let (mut all, _) = task.scan().unwrap();
    let Verified { given, problems } = task.choose(&mut all);
    (given, problems.len())
}

#[test]
fn what_was_saved_is_found_again() {
    let (dir, store, task) = place();
    let dag = dir.path().join("w.dag");
    assert_eq!(
        fs::metadata(store.path()).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(chosen(&task), (None, 0));
    save(&task, 1, b"one");
    save(&task, 2, b"two");
    drop(task.create(3, &prefix(), 0).unwrap());
    let again = Store::make(&dag).unwrap();
    assert_eq!(again.id(), store.id());
    let tasks = again.tasks().unwrap();
    assert_eq!(tasks.len(), 1);
    assert_eq!(chosen(&tasks[0]), (Some(2), 0));
    let (file, sidecar) = tasks[0].open(2, &prefix(), 0).unwrap();
    assert!(verify(file, sidecar.bytes, &sidecar.crc32).unwrap());
    let (all, problems) = task.scan().unwrap();
    assert_eq!((all.last(), problems.len()), (3, 0));
    task.remove_series(2).unwrap();
    assert_eq!(chosen(&task), (Some(1), 0));
    again.remove().unwrap();
    assert!(Store::open(&dag).unwrap().is_none());
}

#[test]
fn damaged_series_are_not_given() {
    let (_dir, _store, task) = place();
    (1..=3).for_each(|series| save(&task, series, b"the same length"));
    // A flipped byte.
    fs::write(task.series_path(3).join("p.0"), b"the same lengtH").unwrap();
    assert_eq!(chosen(&task), (Some(2), 1));
    // It is noted.
    assert_eq!(chosen(&task), (Some(2), 0));
    let (all, _) = task.scan().unwrap();
    assert_eq!(all.get(3).unwrap().withheld(), Some("its file p.0 is damaged"));
    // A cut file.
    fs::write(task.series_path(2).join("p.0"), b"the same").unwrap();
    assert_eq!(chosen(&task), (Some(1), 0));
    assert_eq!(task.scan().unwrap().1.len(), 1);
    // A sidecar of another run.
    let path = task.series_path(1).join("p.0.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(&task.run, &"0".repeat(32))).unwrap();
    assert_eq!(chosen(&task), (None, 0));
    // One of another task, and a torn one.
    fs::write(&path, text.replace("a%2Fb", "other")).unwrap();
    assert_eq!(chosen(&task), (None, 0));
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert_eq!(chosen(&task), (None, 0));
    fs::write(&path, &text).unwrap();
    assert_eq!(chosen(&task), (Some(1), 0));
}

#[test]
fn a_series_that_comes_in_does_not_count_before_it_is_accepted() {
    let (_dir, _store, task) = place();
    save(&task, 1, b"one");
    save(&task.incoming(), 2, b"two");
    assert_eq!(task.scan().unwrap().0.complete(), [1]);
    assert_eq!(task.contents().unwrap().sidecars.len(), 1);
    // An earlier attempt has left a file, and one that it had open.
    let left = Sidecar {
        submit: 7,
        prefix: Prefix::try_from("q").unwrap(),
        ..sidecar(&task, 2, b"old")
    };
    let incoming = task.incoming();
    incoming
        .create(2, &left.prefix, 0)
        .unwrap()
        .write_all(b"old")
        .unwrap();
    incoming.publish(&left).unwrap();
    drop(incoming.create(2, &left.prefix, 1).unwrap());
    task.accept(2, 0).unwrap();
    assert_eq!(chosen(&task), (Some(2), 0));
    assert_eq!(task.scan().unwrap().0.get(2).unwrap().count(), 1);
    assert!(task.accept(2, 0).is_err(), "it is not there again");
    // One that is there is not replaced.
    save(&task.incoming(), 1, b"other");
    assert!(task.accept(1, 0).is_err());
    task.withhold(7, "it is spoiled").unwrap();
    let contents = task.contents().unwrap();
    let series: Vec<u64> = contents.sidecars.iter().map(|sidecar| sidecar.series).collect();
    assert_eq!(series, [1, 2]);
    assert_eq!(contents.withheld, [(7, "it is spoiled".to_owned())]);
    task.remove().unwrap();
    assert!(task.contents().unwrap().withheld.is_empty());
}

#[test]
fn numbers_that_no_run_gives_are_no_series() {
    let (_dir, _store, task) = place();
    save(&task, 3, b"three");
    for name in ["18446744073709551615", "007", "-1", "281474976710657"] {
        fs::create_dir(task.path.join(name)).unwrap();
    }
    let (all, problems) = task.scan().unwrap();
    assert_eq!((all.last(), problems.len()), (3, 0));
}

#[test]
fn what_a_run_removes_meanwhile_is_no_problem() {
    let (_dir, _store, task) = place();
    save(&task, 1, b"one");
    let (mut all, mut problems) = (AllSeries::default(), Vec::new());
    task.scan_series(2, &mut all, &mut problems).unwrap();
    assert_eq!((all.last(), problems.len()), (0, 0));
    assert!(is_gone(&task.series_path(2)));
    // Without its file, a sidecar that is there is one.
    fs::remove_file(task.series_path(1).join("p.0")).unwrap();
    assert_eq!(task.scan().unwrap().1.len(), 1);
}

#[test]
fn a_store_that_is_none_is_refused() {
    let (dir, store, _) = place();
    let dag = dir.path().join("w.dag");
    fs::write(store.path().join("id"), "17\n").unwrap();
    assert!(matches!(Store::open(&dag), Err(StoreError::Id(_))));
    fs::remove_dir_all(store.path()).unwrap();
    fs::write(store.path(), "a file").unwrap();
    assert!(Store::make(&dag).is_err());
}

#[test]
fn the_last_message_counts() {
    let (_dir, _store, task) = place();
    assert_eq!(task.message(), None);
    task.set_message("step 1").unwrap();
    task.set_message(&"ä".repeat(2 * MAX_MESSAGE)).unwrap();
    assert_eq!(task.message(), Some("ä".repeat(MAX_MESSAGE)));
}

#[test]
fn the_notice_of_a_run() {
    let (_dir, store, _) = place();
    assert_eq!(store.notice(), Notice::default());
    let notice = Notice {
        drained: Some(1.5),
        ends: None,
    };
    store.set_notice(notice).unwrap();
    assert_eq!(store.notice(), notice);
}
#[test]
fn what_another_user_has_put_in_the_place_of_the_store_is_not_removed() {
    use std::os::unix::fs::{chown, lchown, symlink};
    let (dir, store, task) = place();
    save(&task, 1, b"abc");
    // A store of the user whose place a link takes.
    let (away, own) = (dir.path().join("away"), dir.path().join("own"));
    fs::rename(store.path(), &away).unwrap();
    fs::create_dir_all(own.join(task.directory()).join("1")).unwrap();
    let kept = own.join(task.directory()).join("1/a.json");
    fs::write(&kept, "").unwrap();
    symlink(&own, store.path()).unwrap();
    if nix::unistd::geteuid().is_root() {
        lchown(store.path(), Some(54321), None).unwrap();
        chown(dir.path(), Some(54321), None).unwrap();
        assert!(task.remove_series(1).is_err() && task.remove().is_err());
        task.discard(1, &prefix(), 0);
    }
    store.remove().unwrap();
    assert!(kept.exists() && away.exists() && !dir.path().join("w.dag.checkpoints").exists());
}

/// Agents of one host have one folder: what is empty when one of them ends may be about to be used by others.
#[test]
fn a_file_is_created_although_another_agent_removes_empty_directories() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("pmc-checkpoints-0");
    let id = "0123456789abcdef0123456789abcdef";
    let store = Store::make_on_node(&folder, id).unwrap();
    let task = store.task(b"a").unwrap();
    // All of them are gone.
    Store::remove_empty_on_node(&folder);
    assert!(!folder.exists());
    save(&task, 1, b"one");
    // They go again and again, also between two steps.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                Store::remove_empty_on_node(&folder);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        for series in 2..100 {
            save(&task, series, b"more");
            task.remove().unwrap();
            let store = Store::make_on_node(&folder, id).unwrap();
            save(&store.task(b"a").unwrap(), series, b"more");
        }
    });
    // What has a file stays.
    Store::remove_empty_on_node(&folder);
    assert_eq!(chosen(&task), (Some(99), 0));
    task.remove().unwrap();
    fs::create_dir_all(folder.join(id).join("b/7")).unwrap();
    Store::remove_empty_on_node(&folder);
    assert!(!folder.exists());
}
