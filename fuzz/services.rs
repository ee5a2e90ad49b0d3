//! Entries for what agents do for tasks: commands of gangs, and the checkpoint store. Their inputs choose
//! well-formed messages and files, and changes of them, see [`super::structure`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pmc_checkpoint::{AllSeries, BlockSums, FileRecord, Notice, Prefix, Store, TaskStore, Usage};
use pmc_link::{Commands, Gang, Handle, Running};
use pmc_wire::command::{self, Call, Stream, ToCaller, ToCommand};

use super::structure::Source;

/// What a command of a gang writes.
const WRITTEN: &[u8] = b"what the command writes";

/// A host on which commands run that end at once.
#[derive(Default)]
struct Host {
    knows: bool,
    refuses: bool,
    status: i32,
    started: AtomicUsize,
    is_cut: AtomicBool,
}

/// A command that has ended.
struct Ended {
    status: i32,
    is_taken: Cell<bool>,
}

impl Handle for Ended {
    fn signal(&self, _: i32) {}

    fn end(&mut self) -> Option<i32> {
        assert!(!self.is_taken.replace(true), "its end is asked for once");
        Some(self.status)
    }
}

/// The reading end of a pipe into which these bytes were written.
fn pipe_with(bytes: &[u8]) -> OwnedFd {
    let (reader, mut writer) = io::pipe().expect("a pipe can be made");
    writer.write_all(bytes).expect("they fit into it");
    reader.into()
}

impl Commands for Host {
    fn knows(&self, _: Gang) -> Result<bool, String> {
        Ok(self.knows)
    }

    fn learn(&self, _: Gang, _: &[u8]) -> Result<(), String> {
        assert!(!self.knows, "it knows the gang");
        Ok(())
    }

    fn start(&self, _: Gang, call: &Call) -> Result<Running, String> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let again = command::frame(call).and_then(|frame| command::receive(&frame[..]));
        assert_eq!(
            again.expect("a call can be written and read").as_ref(),
            Some(call)
        );
        if self.refuses {
            return Err("no".to_owned());
        }
        let (_, input) = io::pipe().expect("a pipe can be made");
        Ok(Running {
            input: (!call.no_input).then(|| input.into()),
            output: [pipe_with(WRITTEN), pipe_with(b"")],
            process: pipe_with(b""),
            handle: Box::new(Ended {
                status: self.status,
                is_taken: Cell::new(false),
            }),
        })
    }

    fn cut(&self, _: Gang) {
        self.is_cut.store(true, Ordering::Relaxed);
    }
}

/// What an agent gets from another one that runs a command of a gang. It has one answer, and only a
/// connection that breaks counts as cut.
pub fn gang_frames(data: &[u8]) {
    let mut source = Source::new(data);
    let host = Host {
        knows: source.one_in(2),
        refuses: source.one_in(8),
        status: i32::from(source.byte()),
        ..Host::default()
    };
    let mut said = Vec::new();
    if !host.knows {
        said.extend(command::frame(&[source.byte(); 5]).expect("it is short"));
    }
    let call = Call {
        token: source
            .one_of(&["0123456789abcdef0123456789abcdef", "", "é"])
            .to_owned(),
        host: source.one_of(&["n1", "n1.cluster", ""]).to_owned(),
        command: source.one_of(&[&b"true"[..], b"", b"\xff\0"]).to_owned(),
        no_input: source.one_in(2),
    };
    said.extend(command::frame(&call).expect("it is short"));
    for _ in 0..source.below(8) {
        let message = match source.below(5) {
            0 => ToCommand::Input(Vec::new()),
            1 => ToCommand::Input(vec![source.byte(); source.below(256)]),
            2 => ToCommand::Taken(Stream::Out),
            3 => ToCommand::Taken(Stream::Err),
            _ => ToCommand::Signal(i32::from(source.byte()) - 9),
        };
        said.extend(command::frame(&message).expect("it is short"));
    }
    source.edit(&mut said);
    let (ended, answer) = pmc_link::serve_bytes(&said, 1, &host).expect("it can be served");
    let kind = ended.as_ref().err().map(io::Error::kind);
    let started = host.started.load(Ordering::Relaxed);
    assert!(started <= 1, "a call starts one command");
    let is_cut = host.is_cut.load(Ordering::Relaxed);
    assert!(!is_cut || (started == 1 && kind.is_some() && kind != Some(io::ErrorKind::InvalidData)));
    let ends = check_answer(&answer);
    assert!(
        !host.refuses || ends == started,
        "a call that is refused is answered"
    );
}

/// Checks what an agent has answered: the admission, output as it was written, and at most one end. Returns
/// the number of ends: a caller that goes gets none.
fn check_answer(answer: &[u8]) -> usize {
    let mut rest = answer;
    let mut length = [0; 4];
    rest.read_exact(&mut length).expect("there is an admission");
    let (_, mut rest) = rest.split_at(u32::from_be_bytes(length) as usize);
    let (mut output, mut ends) = (Vec::new(), 0);
    while let Some(message) = command::receive::<ToCaller>(&mut rest).expect("it is a frame") {
        assert_eq!(ends, 0, "nothing follows the end");
        match message {
            ToCaller::Output(_, bytes) => output.extend(bytes),
            ToCaller::Taken => {}
            ToCaller::Ended(_) | ToCaller::Refused(_) => ends += 1,
        }
    }
    assert!(WRITTEN.starts_with(&output));
    ends
}

/// Files of a task, by series, prefix and rank.
type Files = BTreeMap<(u64, String, u32), Vec<u8>>;

/// A checkpoint store of which one file was changed. A series that is given has the files that were saved.
pub fn checkpoint_store(data: &[u8]) {
    let mut source = Source::new(data);
    let dir = tempfile::tempdir().expect("a directory can be made");
    let dag = dir.path().join("x.dag");
    let store = Store::make(&dag).expect("a store can be made");
    let task = store
        .task(source.one_of(&[&b"t"[..], b"a/b", b"\xff."]))
        .expect("the name is short");
    let written = save_all(&mut source, &task);
    if source.one_in(2) {
        task.set_message("step 7").expect("it can be kept");
        store.set_notice(Notice::default()).expect("it can be kept");
    }
    if source.one_in(4) {
        task.withhold(1, "damaged").expect("it can be noted");
    }
    let statistics = FileRecord::path(&dag);
    fs::write(&statistics, record(&task).line().repeat(1 + source.below(3))).expect("it can be written");
    let mut files = files_below(store.path());
    files.push(statistics);
    let changed = files[source.below(files.len().min(256))].clone();
    change(&mut source, &changed, &files);
    let _ = Usage::read(&dag).map(|usage| usage.0.values().map(|task| task.share()).fold(0.0, f64::max));
    let Ok(Some(store)) = Store::open(&dag) else {
        return;
    };
    let _ = store.notice();
    for task in store.tasks().expect("it can be read") {
        let _ = task.message();
        let Ok((mut all, _)) = task.scan() else { continue };
        if let Some(given) = task.choose(&mut all).given {
            check_given(&task, &all, given, &written);
        }
        for number in all.superfluous() {
            let _ = task.remove_series(number);
        }
    }
    store.remove().expect("it can be removed");
}

/// Saves some series. Some files are not closed.
fn save_all(source: &mut Source<'_>, task: &TaskStore) -> Files {
    let mut files = Files::new();
    for series in 1..=1 + source.below(4) as u64 {
        let (ranks, prefixes) = (1 + source.below(2) as u32, 1 + source.below(2));
        for prefix in &["p", "fields0"][..prefixes] {
            for rank in 0..ranks {
                let name = Prefix::try_from(*prefix).expect("it is one");
                let bytes = vec![source.byte(); source.below(100)];
                let mut file = task.create(series, &name, rank).expect("it can be created");
                file.write_all(&bytes).expect("it can be written");
                if source.one_in(16) {
                    continue;
                }
                let mut sums = BlockSums::default();
                sums.add(&bytes);
                let mut sidecar = task.sidecar(name);
                (sidecar.series, sidecar.rank, sidecar.ranks) = (series, rank, ranks);
                sidecar.bytes = sums.bytes();
                sidecar.crc32 = sums.finish();
                task.publish(&sidecar).expect("it can be closed");
                files.insert((series, (*prefix).to_owned(), rank), bytes);
            }
        }
    }
    files
}

fn check_given(task: &TaskStore, all: &AllSeries, given: u64, written: &Files) {
    let series = all.get(given).expect("it is known");
    assert!(series.count() > 0 && series.withheld().is_none());
    for (prefix, rank) in series.names() {
        let (mut file, sidecar) = task.open(given, prefix, rank).expect("it was verified");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("it can be read");
        assert_eq!(bytes.len() as u64, sidecar.bytes);
        let key = (given, prefix.as_str().to_owned(), rank);
        assert_eq!(Some(&bytes), written.get(&key), "{key:?}");
    }
}

fn record(task: &TaskStore) -> FileRecord {
    let text = format!(
        "{{\"task\":\"{}\",\"submit\":7,\"rank\":0,\"prefix\":\"p\",\"series\":3,\"use\":\"written\",\"bytes\":4,\
         \"open\":0.5,\"read\":0.0,\"write\":0.25,\"close\":0.125,\"errors\":0,\"closed\":1.5,\"elapsed\":8.0,\
         \"host\":\"n1\",\"complete\":true}}",
        task.directory()
    );
    FileRecord::parse(text.as_bytes()).expect("it is one")
}

/// All files below a directory, in the order of their paths.
fn files_below(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).expect("it can be read").flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let below = |path: PathBuf| match path.is_dir() {
        true => files_below(&path),
        false => vec![path],
    };
    paths.into_iter().flat_map(below).collect()
}

/// Changes a file, or what has its name.
fn change(source: &mut Source<'_>, file: &Path, others: &[PathBuf]) {
    let other = &others[source.below(others.len().min(256))];
    let changed = match source.below(8) {
        0 => fs::remove_file(file),
        1 => fs::remove_file(file).and_then(|()| fs::create_dir(file)),
        2 => fs::remove_file(file).and_then(|()| std::os::unix::fs::symlink("/dev/zero", file)),
        3 => fs::rename(file, other),
        4 => fs::copy(file, file.with_extension("json")).map(drop),
        _ => fs::read(file).and_then(|mut bytes| {
            source.edit(&mut bytes);
            fs::write(file, bytes)
        }),
    };
    changed.expect("it can be changed");
}
