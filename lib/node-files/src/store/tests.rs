use super::*;

/// A store with entries of ten bytes, used this many seconds ago.
fn store(base: &Path, entries: &[(&str, u64)]) -> Store {
    let store = open(base);
    for (key, age) in entries {
        fs::create_dir(store.directory.join(key)).unwrap();
        fs::write(store.data(key), [0; 10]).unwrap();
        let lock = store.open_file(&format!("{key}{LOCK}")).unwrap();
        lock.write_all_at(b"its identity", 0).unwrap();
        lock.set_modified(SystemTime::now() - Duration::from_secs(*age))
            .unwrap();
    }
    store
}

fn open(base: &Path) -> Store {
    Store::open(base.join("store")).unwrap().0
}

fn keys(store: &Store) -> Vec<String> {
    let mut keys: Vec<_> = store.entries().into_iter().map(|entry| entry.key).collect();
    keys.sort();
    keys
}

fn hold(store: &Store, key: &str) -> File {
    let lock = store.open_file(&format!("{key}{LOCK}")).unwrap();
    flock(&lock, FlockOperation::LockShared).unwrap();
    lock
}

fn filling<'s>(store: &'s Store, key: &str) -> Filling<'s> {
    match store.access(key).unwrap() {
        Access::Fill(filling) => filling,
        other => panic!("{other:?}"),
    }
}

fn fill(store: &Store, key: &str, text: &str, limit: Limit) -> Held {
    let filling = filling(store, key);
    let new = filling.directory().unwrap().join("f");
    fs::write(&new, text).unwrap();
    filling.finish(&new, limit, false).unwrap().unwrap()
}

#[test]
fn a_file_is_brought_once_and_held_by_many() {
    let base = tempfile::tempdir().unwrap();
    let store = open(base.path());
    let first = filling(&store, "k");
    assert!(matches!(store.access("k").unwrap(), Access::Busy));
    let new = first.directory().unwrap().join("f");
    fs::write(&new, "data").unwrap();
    let held = first.finish(&new, Limit::None, true).unwrap().unwrap();
    assert!(held.is_new && held.bytes == 4 && !held.is_large);
    assert_eq!(fs::metadata(&held.file).unwrap().mode() & 0o222, 0);
    let Access::Held(second) = store.access("k").unwrap() else {
        panic!("it is there");
    };
    assert_eq!(fs::read(&second.file).unwrap(), b"data");
    assert!(!store.discard("k").unwrap());
    drop((held, second));
    assert!(store.discard("k").unwrap());
    assert!(matches!(store.access("k").unwrap(), Access::Fill(_)));
}

/// Nor does what a process has brought so far count when it fails.
#[test]
fn nothing_is_left_of_a_file_that_was_not_finished() {
    let base = tempfile::tempdir().unwrap();
    let store = open(base.path());
    let first = filling(&store, "k");
    fs::write(first.directory().unwrap().join("f"), "da").unwrap();
    drop(first);
    assert!(!store.directory.join("k").exists());
    drop(fill(&store, "k", "data", Limit::None));
    assert!(matches!(store.access("k").unwrap(), Access::Held(_)));
}

#[test]
fn a_file_that_was_changed_leaves_the_store() {
    let base = tempfile::tempdir().unwrap();
    let store = open(base.path());
    let held = fill(&store, "k", "data", Limit::None);
    fs::write(&held.file, "DATA").unwrap();
    assert!(matches!(store.access("k").unwrap(), Access::Changed));
    drop(held);
    assert!(matches!(store.access("k").unwrap(), Access::Fill(_)));
}

#[test]
fn a_file_that_is_too_large_is_used_once() {
    let base = tempfile::tempdir().unwrap();
    let store = open(base.path());
    let held = fill(&store, "k", "data", Limit::Bytes(3));
    assert!(held.is_large);
    let file = held.file.clone();
    held.release();
    assert!(!file.exists());
    assert!(matches!(store.access("k").unwrap(), Access::TooLarge));
}

#[test]
fn what_nobody_has_used_for_an_hour_is_removed() {
    let base = tempfile::tempdir().unwrap();
    let first = store(base.path(), &[("old", 7200), ("held", 7200), ("new", 10)]);
    let _held = hold(&first, "held");
    let note = first.note("a.docker").unwrap();
    note.set_modified(SystemTime::now() - 2 * UNUSED_LIMIT).unwrap();
    drop(note);
    assert_eq!(keys(&open(base.path())).len(), 3);
    let swept = first.open_file(SWEPT).unwrap();
    swept.set_modified(SystemTime::now() - SWEEP_INTERVAL).unwrap();
    let second = open(base.path());
    assert_eq!(keys(&second), ["held", "new"]);
    let mut left: Vec<_> = fs::read_dir(&second.directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["held", "held.lock", "new", "new.lock", SWEPT]);
}

#[test]
fn what_killed_processes_have_left_is_removed() {
    let base = tempfile::tempdir().unwrap();
    let entries = [("fetched", 0), ("large", 0), ("fetching", 0), ("good", 0)];
    let store = store(base.path(), &entries);
    let lock = |key: &str| store.open_file(&format!("{key}{LOCK}")).unwrap();
    for key in ["fetched", "fetching"] {
        lock(key).set_len(0).unwrap();
    }
    let _fetching = hold(&store, "fetching");
    lock("large").set_len(0).unwrap();
    lock("large").write_all_at(TOO_LARGE.as_bytes(), 0).unwrap();
    assert!(store.sweep().is_empty());
    assert_eq!(keys(&store), ["fetching", "good", "large"]);
    let is_there = |key: &str| store.directory.join(key).exists();
    assert!(is_there("fetching") && is_there("good") && !is_there("large"));
}

#[test]
fn least_recently_used_entries_give_way_unless_they_are_in_use() {
    let base = tempfile::tempdir().unwrap();
    let entries = [("a", 50), ("b", 40), ("c", 30), ("d", 20)];
    let store = store(base.path(), &entries);
    let _held = hold(&store, "a");
    assert!(store.has_room(10, Limit::Bytes(25)).unwrap());
    assert_eq!(keys(&store), ["a", "d"]);
    assert!(!store.has_room(10, Limit::Bytes(9)).unwrap());
    assert!(store.has_room(10, Limit::None).unwrap());
    assert!(Store::make_room(store.directory.clone()).is_empty());
    assert_eq!(keys(&store), ["a"]);
}

/// Any task of the node's user can put something else there: the job must not wait for it, or fill memory.
#[test]
fn what_is_no_lock_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let lock = |key: &str| store.directory.join(format!("{key}{LOCK}"));
    nix::unistd::mkfifo(&lock("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(store.access("fifo").is_err());
    let large = File::create(lock("large")).unwrap();
    large.set_len(1 << 40).unwrap();
    fs::create_dir(store.directory.join("large")).unwrap();
    fs::write(store.data("large"), "").unwrap();
    assert!(matches!(store.access("large").unwrap(), Access::Fill(_)));
}

#[test]
fn a_store_that_nobody_uses_goes_with_what_killed_processes_have_left() {
    let base = tempfile::tempdir().unwrap();
    let directory = base.path().join("store");
    let store = open(base.path());
    let held = fill(&store, "used", "data", Limit::None);
    drop(fill(&store, "unused", "data", Limit::None));
    let killed = filling(&store, "killed");
    fs::write(killed.directory().unwrap().join("f"), "half").unwrap();
    // Its lock goes, and nothing else.
    fs::rename(directory.join("killed.lock"), base.path().join("kept")).unwrap();
    fs::write(directory.join("killed.lock"), "").unwrap();
    std::mem::forget(killed);
    let live = filling(&store, "live");
    live.directory().unwrap();
    assert!(Store::dissolve(directory.clone()).is_empty());
    assert_eq!(keys(&store), ["live", "used"]);
    drop((held, live));
    assert!(store.clear().is_empty() && keys(&store).is_empty());
    assert!(Store::dissolve(directory.clone()).is_empty());
    assert!(!directory.exists());
    assert!(Store::dissolve(directory).is_empty());
}
