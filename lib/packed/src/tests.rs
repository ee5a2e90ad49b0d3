//! Packs that are written, torn and read.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use pmc_files::with_suffix;
use proptest::prelude::*;

use super::*;

fn file(text: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text).unwrap();
    file
}

fn append(pack: &mut Pack, task: &str, number: u32, out: &[u8], err: &[u8]) {
    let attempt = Attempt {
        task: task.as_bytes(),
        number,
        submit: 7,
        start_ms: 5,
    };
    pack.append(attempt, &file(out), b"record\n", &file(err)).unwrap();
}

fn read(output: &mut TaskOutput, task: &str, channel: Channel, number: u32) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    output
        .open(task.as_bytes(), channel, number)?
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn packs(dag: &Path) -> [std::path::PathBuf; 2] {
    let pack = folder(dag.parent().unwrap()).join("x.dag.1");
    [pack.clone(), with_suffix(&pack, INDEX)]
}

#[test]
fn attempts_are_found_in_files_and_packs() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let mut output = TaskOutput::new(dir.path());
    assert!(!has_packs(dir.path(), "x.dag".as_ref()));
    assert_eq!((output.last(b"a"), output.place(b"a", 0)), (None, None));
    fs::write(dir.path().join("a.out.000"), "file").unwrap();
    let mut first = Pack::open(&dag, 1).unwrap();
    let mut second = Pack::open(&dag, 2).unwrap();
    append(&mut first, "a", 1, b"out\n", b"err\n");
    append(&mut second, "sub/b c", 0, b"", b"");
    assert_eq!(read(&mut output, "a", Channel::Out, 0).unwrap(), b"file");
    assert_eq!(read(&mut output, "a", Channel::Out, 1).unwrap(), b"out\nrecord\n");
    assert_eq!(read(&mut output, "a", Channel::Err, 1).unwrap(), b"err\n");
    assert_eq!(
        read(&mut output, "sub/b c", Channel::Out, 0).unwrap(),
        b"record\n"
    );
    // What comes later is seen, too, and numbers may have gaps: those submissions had no output.
    append(&mut second, "a", 4, b"late", b"");
    assert_eq!(read(&mut output, "a", Channel::Out, 4).unwrap(), b"laterecord\n");
    let missing = read(&mut output, "a", Channel::Out, 2).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(output.last(b"a"), Some(4));
    assert_eq!(
        output.place(b"a", 4).unwrap().file_name(),
        Some("x.dag.2".as_ref())
    );
    assert!(has_packs(dir.path(), "x.dag".as_ref()) && !has_packs(dir.path(), "y.dag".as_ref()));
    assert_eq!(output.packed().len(), 3);
    assert!(output.left_over().is_empty());
}

#[test]
fn large_streams_are_copied_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let mut pack = Pack::open(&dag, 1).unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    append(&mut pack, "a", 0, &large, &large[..2_000_000]);
    append(&mut pack, "b", 0, b"small", b"");
    let mut output = TaskOutput::new(dir.path());
    let out = read(&mut output, "a", Channel::Out, 0).unwrap();
    assert!(out[..large.len()] == large && out[large.len()..] == *b"record\n");
    assert!(read(&mut output, "a", Channel::Err, 0).unwrap() == large[..2_000_000]);
    let mut stream = output.open(b"a", Channel::Out, 0).unwrap();
    assert_eq!(stream.size().unwrap(), 3_000_007);
    stream.seek(SeekFrom::End(-4)).unwrap();
    let mut end = String::new();
    stream.read_to_string(&mut end).unwrap();
    assert_eq!(end, "ord\n");
    assert_eq!(read(&mut output, "b", Channel::Out, 0).unwrap(), b"smallrecord\n");
}

#[test]
fn a_second_writer_gets_another_pack() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let mut first = Pack::open(&dag, 1).unwrap();
    let mut second = Pack::open(&dag, 1).unwrap();
    assert_ne!(first.path(), second.path());
    append(&mut first, "a", 0, b"1", b"");
    append(&mut second, "b", 0, b"2", b"");
    let mut output = TaskOutput::new(dir.path());
    assert_eq!(read(&mut output, "a", Channel::Out, 0).unwrap(), b"1record\n");
    assert_eq!(read(&mut output, "b", Channel::Out, 0).unwrap(), b"2record\n");
    drop(first);
    assert_eq!(Pack::open(&dag, 1).unwrap().path(), packs(&dag)[0]);
}

#[test]
fn damage_is_an_error_of_the_attempt_that_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let mut pack = Pack::open(&dag, 1).unwrap();
    append(&mut pack, "a", 0, b"first", b"");
    append(&mut pack, "b", 0, b"second", b"");
    let [path, _] = packs(&dag);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|part| part == b"first").unwrap();
    bytes[at] = b'F';
    bytes.truncate(bytes.len() - 1);
    fs::write(&path, &bytes).unwrap();
    let mut output = TaskOutput::new(dir.path());
    let error = read(&mut output, "a", Channel::Out, 0).unwrap_err().to_string();
    assert!(error.contains("the checksum does not match"), "{error}");
    let error = read(&mut output, "b", Channel::Out, 0).unwrap_err().to_string();
    assert!(error.contains("shorter than its index says"), "{error}");
    assert_eq!(read(&mut output, "b", Channel::Err, 0).unwrap(), b"");
}

/// A killed writer leaves any prefix of the pack and its index; the index is never ahead of the pack.
#[test]
fn whatever_a_killed_writer_leaves_the_complete_attempts_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let [path, index_path] = packs(&dag);
    let mut pack = Pack::open(&dag, 1).unwrap();
    let mut ends = Vec::new();
    for (number, task) in ["a", "b"].into_iter().enumerate() {
        append(&mut pack, task, 0, format!("out {number}\n").as_bytes(), b"err");
        ends.push([&path, &index_path].map(|path| fs::metadata(path).unwrap().len()));
    }
    drop(pack);
    let (whole, whole_index) = (fs::read(&path).unwrap(), fs::read(&index_path).unwrap());
    let cuts = (0..=whole.len()).map(|end| {
        let complete = ends.iter().filter(|[pack, _]| *pack <= end as u64).count();
        (
            end,
            complete.checked_sub(1).map_or(0, |last| ends[last][1] as usize),
        )
    });
    let index_cuts = (0..=whole_index.len()).map(|end| (whole.len(), end));
    for (end, index_end) in cuts.chain(index_cuts) {
        fs::write(&path, &whole[..end]).unwrap();
        fs::write(&index_path, &whole_index[..index_end]).unwrap();
        let complete = |index_end: usize| {
            ends.iter()
                .filter(|[_, index]| *index <= index_end as u64)
                .count()
        };
        let left = |complete: usize| end as u64 - complete.checked_sub(1).map_or(0, |last| ends[last][0]);
        let check = |output: &mut TaskOutput, complete: usize, more: usize| {
            for (number, task) in ["a", "b"].into_iter().take(complete).enumerate() {
                let expected = format!("out {number}\nrecord\n");
                assert_eq!(read(output, task, Channel::Out, 0).unwrap(), expected.as_bytes());
                assert_eq!(read(output, task, Channel::Err, 0).unwrap(), b"err");
            }
            output.refresh().unwrap();
            assert_eq!(output.packed().len(), complete + more, "{end} {index_end}");
            let reported: u64 = output.left_over().iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(reported, left(complete), "{end} {index_end}");
        };
        let mut output = TaskOutput::new(dir.path());
        check(&mut output, complete(index_end), 0);
        // The next run goes on after it, also for a reader that has read the torn end. It ends the last line,
        // which may lack nothing else.
        let complete = complete(index_end + 1);
        let mut pack = Pack::open(&dag, 1).unwrap();
        assert_eq!(pack.left_over(), left(complete));
        append(&mut pack, "c", 3, b"next", b"");
        for output in [&mut output, &mut TaskOutput::new(dir.path())] {
            assert_eq!(read(output, "c", Channel::Out, 3).unwrap(), b"nextrecord\n");
            check(output, complete, 1);
        }
    }
}

/// The disk was full in the middle of a line of the index, and the run went on.
#[test]
fn a_torn_line_of_the_index_costs_no_other_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let [_, index] = packs(&dag);
    let mut pack = Pack::open(&dag, 1).unwrap();
    append(&mut pack, "a", 0, b"1", b"");
    let line = fs::read(&index).unwrap();
    let mut torn = OpenOptions::new().append(true).open(&index).unwrap();
    torn.write_all(&line[..line.len() / 2]).unwrap();
    append(&mut pack, "b", 0, b"2", b"");
    let mut output = TaskOutput::new(dir.path());
    assert_eq!(read(&mut output, "a", Channel::Out, 0).unwrap(), b"1record\n");
    assert_eq!(read(&mut output, "b", Channel::Out, 0).unwrap(), b"2record\n");
    assert_eq!(output.packed().len(), 2);
}

/// A sparse file of another user takes a view no time.
#[test]
fn an_index_has_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let [_, index] = packs(&dag);
    drop(Pack::open(&dag, 1).unwrap());
    File::options()
        .write(true)
        .open(&index)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let error = TaskOutput::new(dir.path()).refresh().unwrap_err().to_string();
    assert!(error.contains("is larger than 1 GiB"), "{error}");
}

/// `pmc unpack` would write a sparse file of another user for hours.
#[test]
fn a_sparse_pack_counts_with_little_more_than_it_takes_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let [path, _] = packs(&dag);
    let mut pack = Pack::open(&dag, 1).unwrap();
    append(&mut pack, "a", 0, b"1", b"");
    let mut output = TaskOutput::new(dir.path());
    output.refresh().unwrap();
    let length = fs::metadata(&path).unwrap().len();
    assert_eq!(output.packed_bytes(), length);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    assert!(output.packed_bytes() < 2 << 30);
}

/// All entries are those of one task, the last number first.
#[test]
fn an_index_of_another_user_takes_a_time_that_grows_with_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let dag = dir.path().join("x.dag");
    let [_, index] = packs(&dag);
    drop(Pack::open(&dag, 1).unwrap());
    let mut lines = Vec::new();
    for number in (0..300_000).rev() {
        let attempt = Attempt {
            task: b"t",
            number,
            submit: 1,
            start_ms: 1,
        };
        crate::entry::write(&mut lines, 0, attempt, Default::default(), Default::default());
    }
    std::fs::write(&index, lines).unwrap();
    let mut output = TaskOutput::new(dir.path());
    output.refresh().unwrap();
    assert_eq!(output.last(b"t"), Some(299_999));
    assert!(output.pack(b"t", 299_990).is_some() && output.pack(b"t", 0).is_none());
}

#[test]
fn other_files_are_no_packs() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FOLDER), "a file").unwrap();
    assert_eq!(TaskOutput::new(dir.path()).last(b"a"), None);
    let (path, _) = Pack::open(&dir.path().join("x.dag"), 1).unwrap_err();
    assert!(path.starts_with(folder(dir.path())), "{}", path.display());
    fs::remove_file(dir.path().join(FOLDER)).unwrap();
    fs::create_dir_all(dir.path().join(FOLDER).join("d.index")).unwrap();
    let error = TaskOutput::new(dir.path()).refresh().unwrap_err().to_string();
    assert!(error.contains("d.index: Is a directory"), "{error}");
}

proptest! {
    #[test]
    fn what_is_written_is_read(attempts in prop::collection::vec(
        (0..5_u32, prop::collection::vec(any::<u8>(), 0..300), prop::collection::vec(any::<u8>(), 0..30)), 0..20)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let dag = dir.path().join("x.dag");
        let mut output = TaskOutput::new(dir.path());
        let mut packs = [Pack::open(&dag, 1).unwrap(), Pack::open(&dag, 2).unwrap()];
        for (number, (task, out, err)) in (0..).zip(&attempts) {
            append(&mut packs[*task as usize % 2], &format!("t{task}"), number, out, err);
        }
        for (number, (task, out, err)) in (0..).zip(&attempts) {
            let task = format!("t{task}");
            let found = read(&mut output, &task, Channel::Out, number).unwrap();
            prop_assert_eq!(&found[..], &[out, &b"record\n"[..]].concat()[..]);
            prop_assert_eq!(&read(&mut output, &task, Channel::Err, number).unwrap(), err);
        }
    }

    #[test]
    fn any_index_is_read(index in prop::collection::vec(any::<u8>(), 0..400)) {
        let dir = tempfile::tempdir().unwrap();
        let dag = dir.path().join("x.dag");
        let mut pack = Pack::open(&dag, 1).unwrap();
        let [_, path] = packs(&dag);
        OpenOptions::new().append(true).open(path).unwrap().write_all(&index).unwrap();
        let mut output = TaskOutput::new(dir.path());
        output.refresh().unwrap();
        drop(pack);
        pack = Pack::open(&dag, 1).unwrap();
        append(&mut pack, "a", 0, b"x", b"");
        prop_assert_eq!(read(&mut output, "a", Channel::Out, 0).unwrap(), b"xrecord\n");
    }
}
