use std::fs;
use std::os::unix::fs::{chown, lchown, symlink};
use std::path::PathBuf;

use nix::sys::stat::Mode;
use tempfile::TempDir;

use std::io::Write as _;

use super::*;

fn reason<T>(result: io::Result<T>) -> String {
    result.err().map_or_else(String::new, |error| error.to_string())
}

#[test]
fn lists_have_a_limit() {
    const MAX: u64 = 3 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list");
    let file = File::create_new(&path).unwrap();
    let text = "larger than 3 MiB, the most that is read";
    for (len, expected) in [(0, ""), (MAX, ""), (MAX + 1, text)] {
        file.set_len(len).unwrap();
        let file = File::open(&path).unwrap();
        let read = read_at_most(&file, MAX);
        assert_eq!(
            read.as_ref().map_or(0, Vec::len) as u64,
            if len > MAX { 0 } else { len }
        );
        assert_eq!(reason(read), expected);
        let mut file = File::open(&path).unwrap();
        assert_eq!(reason(read_rest(&file, MAX)), expected);
        file.seek(io::SeekFrom::Start(1)).unwrap();
        assert_eq!(reason(read_rest(&file, MAX)), "", "what is left counts");
    }
    // As sparse files show, a regular file is refused before it is read.
    file.set_len(1 << 40).unwrap();
    assert_eq!(reason(read_rest(&File::open(&path).unwrap(), MAX)), text);
}

#[test]
fn only_regular_files_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    assert_eq!(reason(open(&fifo)), "is a FIFO, not a regular file");
    assert_eq!(
        reason(open(Path::new("/dev/zero"))),
        "is a device, not a regular file"
    );
    assert_eq!(reason(open(dir.path())), "Is a directory (os error 21)");
    let link = dir.path().join("link");
    symlink("/dev/zero", &link).unwrap();
    assert_eq!(reason(open(&link)), "is a device, not a regular file");
    assert_eq!(
        open(&dir.path().join("none")).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
}

#[test]
fn inputs_are_no_traps_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let own = fifo.clone();
    let writer = std::thread::spawn(move || fs::write(own, "text"));
    assert_eq!(read_at_most(open_input(&fifo).unwrap(), 9).unwrap(), b"text");
    writer.join().unwrap().unwrap();
    // It never ends, no matter who has made the link.
    assert_eq!(
        reason(open_input(Path::new("/dev/zero"))),
        "is a device, not a regular file"
    );
    assert_eq!(
        read_at_most(open_input(Path::new("/dev/null")).unwrap(), 9).unwrap(),
        b""
    );
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: the other half of inputs_are_no_traps_of_others needs root");
        return;
    }
    chown(&fifo, Some(65534), None).unwrap();
    assert_eq!(reason(open_input(&fifo)), "is a FIFO, not a regular file");
}

#[test]
fn own_links_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "text").unwrap();
    symlink(&file, &link).unwrap();
    assert_eq!(read_to_string(&link, 4).unwrap(), "text");
    assert_eq!(reason(read(&link, 3)), "is larger than 3 bytes");
    let destination = Destination::new(&link).unwrap();
    let replacement = destination.replacement(".new-", 0o600).unwrap();
    replacement.file().write_all(b"new").unwrap();
    replacement.publish().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    assert!(link.is_symlink(), "it stays a link");
}

#[test]
fn real_paths_have_no_links() {
    let dir = tempfile::tempdir().unwrap();
    let base = fs::canonicalize(dir.path()).unwrap();
    fs::create_dir(base.join("a")).unwrap();
    fs::write(base.join("a/file"), "").unwrap();
    symlink("a", base.join("link")).unwrap();
    symlink("link/file", base.join("other")).unwrap();
    symlink("nothing", base.join("dangling")).unwrap();
    for (path, real) in [
        ("a", "a"),
        ("link/.", "a"),
        ("link/../a/file", "a/file"),
        ("other", "a/file"),
        ("a/..", ""),
    ] {
        let real = base.join(real).components().collect::<PathBuf>();
        assert_eq!(real_path(&base.join(path)).unwrap(), real, "{path}");
    }
    for path in ["missing", "dangling", "a/missing/x"] {
        let error = real_path(&base.join(path)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{path}");
    }
    assert!(real_path(&base.join("a/file/x")).is_err());
    let here = std::env::current_dir().unwrap();
    assert_eq!(real_path(Path::new("")).unwrap(), fs::canonicalize(here).unwrap());
}

#[test]
fn writing_follows_no_links() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "text").unwrap();
    symlink(&file, &link).unwrap();
    let append = |path| open_for_writing(path, OFlags::WRONLY | OFlags::APPEND, 0);
    assert_eq!(reason(append(&link)), "is a link");
    append(&file).unwrap();
    create_anew(&link).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    assert!(fs::symlink_metadata(&link).unwrap().is_file());
}

#[test]
fn devices_are_not_replaced() {
    let device = Destination::new(Path::new("/dev/null"));
    assert_eq!(reason(device), "is a device, not a regular file");
    let dir = tempfile::tempdir().unwrap();
    assert!(!Destination::new(&dir.path().join("new")).unwrap().exists());
}

#[test]
fn destinations_stay_below_their_directory() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    for path in ["../x", "/x", "a/../../x", ""] {
        let refused = reason(folder.destination(Path::new(path)));
        assert_eq!(refused, "leads out of the directory", "{path}");
        assert_eq!(reason(folder.read(Path::new(path))), refused, "{path}");
    }
    let destination = folder.destination(Path::new("a/b/c")).unwrap();
    let new = destination.replacement(".new-", 0o600).unwrap();
    new.publish_new().unwrap();
    assert!(folder.read(Path::new("a/b/c")).is_ok());
    let again = destination.replacement(".new-", 0o600).unwrap();
    assert_eq!(
        again.publish_new().unwrap_err().kind(),
        io::ErrorKind::AlreadyExists
    );
    assert_eq!(
        fs::read_dir(dir.path().join("a/b")).unwrap().count(),
        1,
        "nothing is left"
    );
}

/// A user who is neither this one nor root.
const OTHER: u32 = 65_534;

/// A directory of another user. `None` if the tests cannot make files of others.
fn of_another_user(test: &str) -> Option<(TempDir, PathBuf)> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: {test} needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(OTHER), None).unwrap();
    Some((dir, theirs))
}

fn plant(target: &Path, link: &Path) {
    symlink(target, link).unwrap();
    lchown(link, Some(OTHER), None).unwrap();
}

#[test]
fn links_of_others_are_not_followed() {
    let Some((dir, theirs)) = of_another_user("links_of_others_are_not_followed") else {
        return;
    };
    let (file, link) = (dir.path().join("file"), theirs.join("link"));
    fs::write(&file, "text").unwrap();
    plant(&file, &link);
    let refused = "is a link of another user";
    assert_eq!(reason(open(&link)), refused);
    assert_eq!(reason(Destination::new(&link)), refused);
    // The link is in the middle, also behind an own one.
    let (folder, own) = (theirs.join("folder"), dir.path().join("own"));
    plant(dir.path(), &folder);
    symlink(&folder, &own).unwrap();
    for path in [
        folder.join("file"),
        own.join("file"),
        theirs.join("./folder/../folder/file"),
    ] {
        let refused = "leads through folder, a link of another user";
        assert_eq!(reason(open(&path)), refused, "{}", path.display());
        assert_eq!(reason(Destination::new(&path)), refused);
        assert_eq!(reason(open_for_writing(&path, OFlags::WRONLY, 0)), refused);
        assert_eq!(reason(create_anew(&path)), refused);
    }
    let base = Folder::open(&theirs).unwrap();
    assert!(base.destination(Path::new("folder/new")).is_err());
    assert!(base.read(Path::new("folder/file")).is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    assert_eq!(reason(real_path(&link)), refused);
    for path in [folder, own, theirs.join("folder/file"), theirs.join("folder/.")] {
        assert_eq!(
            reason(real_path(&path)),
            "leads through folder, a link of another user",
            "{}",
            path.display()
        );
    }
}

/// Somebody who leads to the own directory could as well have put it there.
#[test]
fn links_of_others_to_their_own_directories_are_followed() {
    let Some((dir, theirs)) = of_another_user("links_of_others_to_their_own_directories_are_followed") else {
        return;
    };
    let link = dir.path().join("link");
    plant(&theirs, &link);
    drop(create_anew(&link.join("new")).unwrap());
    assert!(theirs.join("new").is_file());
    assert!(open(&link.join("new")).is_ok());
    assert_eq!(real_path(&link).unwrap(), real_path(&theirs).unwrap());
}

/// A hard link puts a file or link of mine where others choose.
#[test]
fn second_names_in_directories_of_others_do_not_count_as_own() {
    let Some((dir, theirs)) = of_another_user("second_names_in_directories_of_others") else {
        return;
    };
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "text").unwrap();
    symlink(dir.path(), &link).unwrap();
    fs::hard_link(&file, theirs.join("file")).unwrap();
    fs::hard_link(&link, theirs.join("link")).unwrap();
    let flags = OFlags::WRONLY | OFlags::TRUNC;
    assert!(reason(open_for_writing(&theirs.join("file"), flags, 0)).starts_with("has several names"));
    assert!(reason(open(&theirs.join("link/file"))).contains("a link of another user"));
    assert_eq!(open_with_owner(&theirs.join("file")).unwrap().1, Owner::Other);
    assert_eq!(open_with_owner(&file).unwrap().1, Owner::User);
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
}

#[test]
fn a_file_is_read_for_a_user_who_may_read_it() {
    let Some((dir, theirs)) = of_another_user("a_file_is_read_for_a_user_who_may_read_it") else {
        return;
    };
    let set = |path: &Path, mode| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    set(dir.path(), 0o755);
    let (public, private, closed) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
    for (path, mode) in [(&public, 0o644), (&private, 0o640)] {
        fs::write(path, "text").unwrap();
        set(path, mode);
    }
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("a"), "text").unwrap();
    set(&closed, 0o700);
    let link = theirs.join("link");
    for (target, is_readable) in [(&public, true), (&private, false), (&closed.join("a"), false)] {
        assert_eq!(
            open_for(target, OTHER).is_ok(),
            is_readable,
            "{}",
            target.display()
        );
        assert!(open_for(target, 0).is_ok());
        let _ = fs::remove_file(&link);
        plant(target, &link);
        assert_eq!(open_for(&link, OTHER).is_ok(), is_readable);
    }
    fs::hard_link(&private, theirs.join("hard")).unwrap();
    assert!(open_for(&theirs.join("hard"), OTHER).is_err());
}
