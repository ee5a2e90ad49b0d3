//! Forwarded data is in its files exactly once, wherever a run is cut off.

#![expect(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pegasus_mpi_cluster::internals::forward_journal::{self, Begin, path_for, recover};
use pegasus_mpi_cluster::internals::{ForwardedData, Forwarding, NotForwarded, SharedFiles};
use pmc_dag::rescue::{self, Writer};
use pmc_dag::{Dag, TaskId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tempfile::TempDir;

/// Names of the targets; the last two are one file.
const TARGETS: [&str; 4] = ["a", "sub/b", "c", "sub/../c"];

/// What a task forwards: indices of targets and lengths of data.
type Pieces = Vec<(usize, usize)>;

/// A folder with a DAG whose tasks forward, as a run finds it.
struct World {
    folder: TempDir,
    dag: Dag,
    tasks: Vec<Pieces>,
}

impl World {
    fn new(tasks: Vec<Pieces>) -> Self {
        let lines = (0..tasks.len()).map(|n| format!("TASK t{n} -f OUT=x /bin/true\n"));
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
            dag: Dag::parse(lines.collect::<String>().into_bytes()).unwrap(),
            tasks,
        };
        // What was there before any run stays.
        fs::write(world.path("a"), "before\n").unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn rescue(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("x.rescue")
    }

    fn data(&self, task: usize) -> Vec<ForwardedData> {
        let pieces = self.tasks[task].iter().enumerate();
        let data = pieces.map(|(number, (target, len))| ForwardedData {
            target: self.path(TARGETS[*target]).as_os_str().as_bytes().to_vec(),
            data: piece(task, number, *len),
        });
        data.collect()
    }

    /// Runs all tasks that are not done, in this order, with a checkpoint after so many, and ends in
    /// good order if it is told so. Gives the number of tasks since the last checkpoint.
    fn run(&self, most_open: usize, checkpoint: usize, orderly: bool) -> usize {
        let recovered = recover(&self.rescue(), &self.dag).unwrap();
        let mut done = rescue::read(&self.rescue(), &self.dag).unwrap();
        for task in recovered.iter().flat_map(|recovered| &recovered.done) {
            done.insert(*task);
        }
        let mut writer = Writer::open_append(&self.rescue(), &done).unwrap();
        writer.repeat(&self.dag, &done).unwrap();
        if let Some(recovered) = recovered {
            recovered.forget().unwrap();
        }
        let mut forwarding = Forwarding::new(SharedFiles::new(most_open), Some(self.rescue()));
        let mut ran = 0;
        for task in (0..self.tasks.len()).filter(|task| !done.contains(TaskId(*task as u32))) {
            if forwarding.wants_journal() || ran == checkpoint {
                forwarding.begin_journal(writer.len()).unwrap();
                ran = 0;
            }
            let name = self.dag.name(TaskId(task as u32));
            forwarding.append(name, &self.data(task)).unwrap().unwrap();
            writer.done(name).unwrap();
            ran += 1;
        }
        if orderly {
            forwarding.end_journal().unwrap();
        }
        ran
    }

    /// Lengths of the files after each write since the last checkpoint of the last run, which was not
    /// ended: first before its first one.
    fn history(&self, ran: usize) -> Vec<BTreeMap<PathBuf, u64>> {
        let journal = fs::read(path_for(&self.rescue())).unwrap_or_default();
        let Ok(content) = forward_journal::decode(&journal) else {
            return vec![self.lengths()];
        };
        assert_eq!(content.records.len(), ran);
        let mut state = self.lengths();
        for record in content.records.iter().rev() {
            for piece in record.pieces.iter().rev() {
                let path = Path::new(std::ffi::OsStr::from_bytes(piece.target));
                state.insert(path.to_owned(), piece.at.unwrap());
            }
        }
        let mut at = forward_journal::header(&Begin::default()).len() as u64;
        let mut rescue_at = content.begin.rescue_len;
        state.insert(path_for(&self.rescue()), at);
        state.insert(self.rescue(), rescue_at);
        let mut history = vec![state.clone()];
        for record in &content.records {
            let mut bytes = Vec::new();
            forward_journal::encode(&mut bytes, record.task, &record.pieces);
            at += bytes.len() as u64;
            state.insert(path_for(&self.rescue()), at);
            history.push(state.clone());
            for piece in &record.pieces {
                let path = Path::new(std::ffi::OsStr::from_bytes(piece.target));
                let end = piece.at.unwrap() + piece.data.len() as u64;
                state.insert(path.to_owned(), end);
                history.push(state.clone());
            }
            rescue_at += (b"\nDONE ".len() + record.task.len()) as u64;
            state.insert(self.rescue(), rescue_at);
            history.push(state.clone());
        }
        assert_eq!(state, self.lengths());
        history
    }

    fn lengths(&self) -> BTreeMap<PathBuf, u64> {
        let mut lengths = BTreeMap::new();
        let root = self.folder.path().canonicalize().unwrap();
        for folder in [root.clone(), root.join("sub")] {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let entry = entry.unwrap();
                if entry.metadata().unwrap().is_file() {
                    lengths.insert(entry.path(), entry.metadata().unwrap().len());
                }
            }
        }
        lengths
    }

    /// Demands that each file holds what was there before and each piece once, torn nowhere.
    fn check(&self) {
        assert!(!path_for(&self.rescue()).exists());
        let done = rescue::read(&self.rescue(), &self.dag).unwrap();
        assert_eq!(done.len(), self.tasks.len());
        for (name, same) in [("a", vec![0]), ("sub/b", vec![1]), ("c", vec![2, 3])] {
            let content = fs::read(self.path(name)).unwrap_or_default();
            let content = content.strip_prefix(if name == "a" { &b"before\n"[..] } else { b"" });
            let mut found: Vec<&[u8]> = content.unwrap().split_inclusive(|b| *b == b'\n').collect();
            let mut wanted: Vec<Vec<u8>> = Vec::new();
            for (task, pieces) in self.tasks.iter().enumerate() {
                let pieces = pieces.iter().enumerate();
                let here = pieces.filter(|(_, (target, _))| same.contains(target));
                wanted.extend(here.map(|(number, (_, len))| piece(task, number, *len)));
            }
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{name}");
        }
    }
}

/// A line that tells what it is.
fn piece(task: usize, number: usize, len: usize) -> Vec<u8> {
    let mut line = format!("t{task}.{number} ").into_bytes();
    line.resize(line.len() + len, b'x');
    line.push(b'\n');
    line
}

fn cut(path: &Path, len: u64) {
    OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(len)
        .unwrap();
}

fn tasks() -> impl Strategy<Value = Vec<Pieces>> {
    let len = prop_oneof![9 => 0..30_usize, 1 => 4000..9000_usize];
    vec(vec((0..TARGETS.len(), len), 0..4), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The process is killed while it writes: after some writes and a part of the next one.
    #[test]
    fn killed_anywhere(
        tasks in tasks(),
        kills in vec((any::<Index>(), any::<Index>()), 1..4),
        most_open in 1..4_usize,
        checkpoint in 1..9_usize,
    ) {
        let world = World::new(tasks);
        for (moment, byte) in kills {
            let ran = world.run(most_open, checkpoint, false);
            let history = world.history(ran);
            let before = moment.index(history.len());
            let after = (before + 1).min(history.len() - 1);
            for (path, end) in &history[after] {
                let begin = history[before].get(path).copied().unwrap_or(0);
                let part = byte.index((end - begin) as usize + 1) as u64;
                // Only a write that was going on is torn; later ones have not begun.
                cut(path, begin + part);
            }
        }
        world.run(most_open, checkpoint, true);
        world.check();
    }

    /// The machine dies: any part of journal and rescue file is left, and of the targets any part of
    /// what the journal tells of, less some blocks.
    #[test]
    fn machine_dies(tasks in tasks(), left in vec(any::<Index>(), 5), holes: bool, checkpoint in 1..9_usize) {
        let world = World::new(tasks);
        let ran = world.run(4, checkpoint, false);
        let history = world.history(ran);
        let begin = &history[0];
        let journal = path_for(&world.rescue());
        let mut left = left.iter();
        let mut part = |path: &Path, end: u64| {
            let begin = begin.get(path).copied().unwrap_or(end);
            let len = begin + left.next().unwrap().index((end - begin) as usize + 1) as u64;
            (begin as usize, len)
        };
        if let Ok(data) = fs::metadata(&journal) {
            cut(&journal, part(&journal, data.len()).1);
        }
        let mut bytes = fs::read(&journal).unwrap_or_default();
        if let Ok(content) = forward_journal::decode(&bytes) {
            // As if the journal had been begun before the machine was started again.
            let header = forward_journal::header(&Begin {
                system: content.begin.system ^ 1,
                ..content.begin
            });
            bytes[..header.len()].copy_from_slice(&header);
            fs::write(&journal, &bytes).unwrap();
        }
        let mut ends: BTreeMap<PathBuf, u64> = begin.clone();
        for piece in forward_journal::decode(&bytes).iter().flat_map(|c| &c.records).flat_map(|r| &r.pieces) {
            let path = Path::new(std::ffi::OsStr::from_bytes(piece.target)).to_owned();
            ends.insert(path, piece.at.unwrap() + piece.data.len() as u64);
        }
        for name in ["a", "sub/b", "c"] {
            let path = world.folder.path().canonicalize().unwrap().join(name);
            let Ok(mut content) = fs::read(&path) else { continue };
            let (begin, len) = part(&path, ends.get(&path).copied().unwrap_or(0));
            content.truncate(len as usize);
            let block = begin.next_multiple_of(4096);
            if let Some(lost) = content.get_mut(block..block + 4096).filter(|_| holes) {
                lost.fill(0);
            }
            fs::write(&path, content).unwrap();
        }
        // A rescue file that is cut within a name is another matter: see its own tests.
        let text = fs::read_to_string(world.rescue()).unwrap();
        let (begin, len) = part(&world.rescue(), text.len() as u64);
        let whole = text[..len as usize].rfind("\nDONE ").filter(|at| *at >= begin);
        cut(&world.rescue(), whole.unwrap_or(begin) as u64);
        world.run(4, checkpoint, true);
        world.check();
    }
}

#[test]
fn a_file_that_others_write_is_left_alone() {
    let world = World::new(vec![vec![(0, 5)], vec![(0, 5), (2, 5)], vec![(0, 5)]]);
    let mut forwarding = Forwarding::new(SharedFiles::new(4), Some(world.rescue()));
    fs::write(world.rescue(), "").unwrap();
    forwarding.begin_journal(0).unwrap();
    forwarding.append(b"t0", &world.data(0)).unwrap().unwrap();
    let mut other = OpenOptions::new().append(true).open(world.path("a")).unwrap();
    other.write_all(b"not ours\n").unwrap();
    forwarding.append(b"t1", &world.data(1)).unwrap().unwrap();
    drop(forwarding);
    let content = fs::read(world.path("a")).unwrap();
    // Of the other file of the last task, a part is missing.
    cut(&world.path("c"), 3);
    let recovered = recover(&world.rescue(), &world.dag).unwrap().unwrap();
    assert_eq!(recovered.done, [TaskId(0), TaskId(1)]);
    assert_eq!(fs::read(world.path("a")).unwrap(), content);
    assert_eq!(fs::read(world.path("c")).unwrap(), piece(1, 1, 5));
}

#[test]
fn a_file_that_was_changed_since_is_left_alone() {
    for change in ["", "before\nt0.0 somebody else wrote this\n", "before\nT"] {
        let world = World::new(vec![vec![(0, 5)]]);
        world.run(4, 100, false);
        fs::write(world.path("a"), change).unwrap();
        let recovered = recover(&world.rescue(), &world.dag).unwrap().unwrap();
        assert_eq!(recovered.done, [TaskId(0)]);
        assert_eq!(fs::read_to_string(world.path("a")).unwrap(), change);
    }
}

#[test]
fn nothing_is_left_of_a_task_that_cannot_be_written() {
    let world = World::new(vec![vec![(0, 5), (1, 5)], vec![(0, 7)]]);
    let mut forwarding = Forwarding::new(SharedFiles::new(4), Some(world.rescue()));
    fs::write(world.rescue(), "").unwrap();
    forwarding.begin_journal(0).unwrap();
    let mut data = world.data(0);
    for target in [
        b"/dev/full".to_vec(),
        world.path("a/x").as_os_str().as_bytes().to_vec(),
    ] {
        data[1].target = target;
        let failed = forwarding.append(b"t0", &data).unwrap();
        assert!(matches!(failed, Err(NotForwarded::Piece(1))), "{failed:?}");
        assert_eq!(fs::read_to_string(world.path("a")).unwrap(), "before\n");
    }
    forwarding.append(b"t1", &world.data(1)).unwrap().unwrap();
    drop(forwarding);
    let recovered = recover(&world.rescue(), &world.dag).unwrap().unwrap();
    assert_eq!(recovered.done, [TaskId(1)]);
}

#[test]
fn no_rescue_file_means_to_begin_anew() {
    let world = World::new(vec![vec![(0, 5)]]);
    fs::write(world.rescue(), "\n# a long history").unwrap();
    world.run(4, 100, false);
    fs::write(world.rescue(), "").unwrap();
    assert_eq!(recover(&world.rescue(), &world.dag).unwrap().unwrap().done, []);
    fs::remove_file(world.rescue()).unwrap();
    assert_eq!(recover(&world.rescue(), &world.dag).unwrap().unwrap().done, []);
}

#[test]
fn a_rescue_file_that_somebody_has_edited_is_believed() {
    let world = World::new(vec![vec![(0, 5)], vec![]]);
    fs::write(world.rescue(), "\n# a long history").unwrap();
    world.run(4, 1, false);
    // The second task is in the journal, the first one in front of it.
    let text = fs::read_to_string(world.rescue()).unwrap();
    fs::write(world.rescue(), format!("# edited by hand{text}")).unwrap();
    let mut bytes = fs::read(path_for(&world.rescue())).unwrap();
    let begin = forward_journal::decode(&bytes).unwrap().begin;
    let header = forward_journal::header(&Begin { system: 0, ..begin });
    bytes[..header.len()].copy_from_slice(&header);
    fs::write(path_for(&world.rescue()), bytes).unwrap();
    let recovered = recover(&world.rescue(), &world.dag).unwrap().unwrap();
    assert_eq!((recovered.done, recovered.not_done), (vec![TaskId(1)], vec![]));
}

#[test]
fn a_file_that_is_no_journal_is_refused() {
    let world = World::new(vec![vec![]]);
    let journal = path_for(&world.rescue());
    fs::write(&journal, "PMCFWDJ9 of the future").unwrap();
    let error = recover(&world.rescue(), &world.dag).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!(
            "Unable to read the forward journal {}: ",
            journal.display()
        )),
        "{error}"
    );
    fs::remove_file(&journal).unwrap();
    assert_eq!(recover(&world.rescue(), &world.dag).unwrap(), None);
}

#[test]
fn the_journal_of_a_run_that_goes_on_is_left_alone() {
    let world = World::new(vec![vec![(0, 5)], vec![(0, 7)]]);
    fs::write(world.rescue(), "").unwrap();
    let run = || Forwarding::new(SharedFiles::new(4), Some(world.rescue()));
    let mut first = run();
    first.begin_journal(0).unwrap();
    first.append(b"t0", &world.data(0)).unwrap().unwrap();
    let journal = fs::read(path_for(&world.rescue())).unwrap();
    let error = recover(&world.rescue(), &world.dag).unwrap_err();
    assert!(
        error.to_string().contains("belongs to a run that is not over"),
        "{error}"
    );
    // A run that was begun before there was a journal goes on without one.
    let mut second = run();
    second.begin_journal(0).unwrap();
    assert!(!second.wants_journal());
    second.append(b"t1", &world.data(1)).unwrap().unwrap();
    second.end_journal().unwrap();
    assert_eq!(fs::read(path_for(&world.rescue())).unwrap(), journal);
    // A checkpoint of the first keeps others away, too.
    first.begin_journal(0).unwrap();
    recover(&world.rescue(), &world.dag).unwrap_err();
    drop(first);
    assert!(recover(&world.rescue(), &world.dag).unwrap().is_some());
}
