//! Forwarded data is in its files exactly once, whenever a run is killed.

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

/// Forwards of a task: indices of targets and lengths of data.
type Pieces = Vec<(usize, usize)>;

/// A directory with a DAG whose tasks forward data.
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
        // Content from before all runs is kept.
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
            data: piece(task, number, *len).into(),
        });
        data.collect()
    }

    /// Runs all tasks that are not done, in this order, with a checkpoint after `checkpoint` tasks, and ends
    /// orderly or not. Returns the number of tasks since the last checkpoint.
    fn run(&self, max_open: usize, checkpoint: usize, orderly: bool) -> usize {
        let recovered = recover(&self.rescue(), &self.dag).unwrap();
        let mut done = rescue::read(&self.rescue(), &self.dag).unwrap();
        for task in recovered.iter().flat_map(|recovered| &recovered.done) {
            done.insert_unrecorded(*task);
        }
        let mut writer = Writer::open_append(&self.rescue(), &done).unwrap();
        writer.record_missing(&self.dag, &done).unwrap();
        if let Some(recovered) = recovered {
            recovered.remove_journal().unwrap();
        }
        let mut forwarding = Forwarding::new(SharedFiles::new(max_open), Some(self.rescue()));
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

    /// Returns the lengths of the files before the first write and after each write since the last checkpoint
    /// of the last run, which did not end orderly.
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

    /// Checks that each file contains its old content and each piece exactly once.
    fn check(&self) {
        assert!(!path_for(&self.rescue()).exists());
        let done = rescue::read(&self.rescue(), &self.dag).unwrap();
        assert_eq!(done.len(), self.tasks.len());
        for (name, same) in [("a", vec![0]), ("sub/b", vec![1]), ("c", vec![2, 3])] {
            let content = fs::read(self.path(name)).unwrap_or_default();
            let content = content.strip_prefix(if name == "a" { &b"before\n"[..] } else { b"" });
            let mut found: Vec<&[u8]> = content.unwrap().split_inclusive(|b| *b == b'\n').collect();
            let mut expected: Vec<Vec<u8>> = Vec::new();
            for (task, pieces) in self.tasks.iter().enumerate() {
                let pieces = pieces.iter().enumerate();
                let here = pieces.filter(|(_, (target, _))| same.contains(target));
                expected.extend(here.map(|(number, (_, len))| piece(task, number, *len)));
            }
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{name}");
        }
    }
}

/// Creates a line that names its task and piece.
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

    /// The process is killed after some writes and a part of the next one.
    #[test]
    fn data_is_forwarded_once_if_the_process_is_killed(
        tasks in tasks(),
        kills in vec((any::<Index>(), any::<Index>()), 1..4),
        max_open in 1..4_usize,
        checkpoint in 1..9_usize,
    ) {
        let world = World::new(tasks);
        for (moment, byte) in kills {
            let ran = world.run(max_open, checkpoint, false);
            let history = world.history(ran);
            let before = moment.index(history.len());
            let after = (before + 1).min(history.len() - 1);
            for (path, end) in &history[after] {
                let begin = history[before].get(path).copied().unwrap_or(0);
                let part = byte.index((end - begin) as usize + 1) as u64;
                // Only the current write is torn; later ones have not begun.
                cut(path, begin + part);
            }
        }
        world.run(max_open, checkpoint, true);
        world.check();
    }

    /// The machine fails: any part of journal and rescue file is left, and any part of the journal's data in
    /// the targets, with lost blocks.
    #[test]
    fn data_is_forwarded_once_if_the_machine_fails(tasks in tasks(), left in vec(any::<Index>(), 5), holes: bool, checkpoint in 1..9_usize) {
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
            // As if the machine had been rebooted since the journal was begun.
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
        // Other tests cover a rescue file that ends within a name.
        let text = fs::read_to_string(world.rescue()).unwrap();
        let (begin, len) = part(&world.rescue(), text.len() as u64);
        let whole = text[..len as usize].rfind("\nDONE ").filter(|at| *at >= begin);
        cut(&world.rescue(), whole.unwrap_or(begin) as u64);
        world.run(4, checkpoint, true);
        world.check();
    }
}

#[test]
fn a_file_that_others_write_is_skipped() {
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
    // A part of the last task's other file is missing.
    cut(&world.path("c"), 3);
    let recovered = recover(&world.rescue(), &world.dag).unwrap().unwrap();
    assert_eq!(recovered.done, [TaskId(0), TaskId(1)]);
    assert_eq!(fs::read(world.path("a")).unwrap(), content);
    assert_eq!(fs::read(world.path("c")).unwrap(), piece(1, 1, 5));
}

#[test]
fn a_file_that_was_changed_since_is_skipped() {
    for change in ["", "before\nt0.0 another program wrote this\n", "before\nT"] {
        let world = World::new(vec![vec![(0, 5)]]);
        world.run(4, 100, false);
        fs::write(world.path("a"), change).unwrap();
        let recovered = recover(&world.rescue(), &world.dag).unwrap().unwrap();
        assert_eq!(recovered.done, [TaskId(0)]);
        assert_eq!(fs::read_to_string(world.path("a")).unwrap(), change);
    }
}

#[test]
fn a_failed_write_leaves_no_data_of_the_task() {
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
fn without_a_rescue_file_all_tasks_run_again() {
    let world = World::new(vec![vec![(0, 5)]]);
    fs::write(world.rescue(), "\n# a long history").unwrap();
    world.run(4, 100, false);
    fs::write(world.rescue(), "").unwrap();
    assert_eq!(recover(&world.rescue(), &world.dag).unwrap().unwrap().done, []);
    fs::remove_file(world.rescue()).unwrap();
    assert_eq!(recover(&world.rescue(), &world.dag).unwrap().unwrap().done, []);
}

#[test]
fn an_edited_rescue_file_is_trusted() {
    let world = World::new(vec![vec![(0, 5)], vec![]]);
    fs::write(world.rescue(), "\n# a long history").unwrap();
    world.run(4, 1, false);
    // The second task is in the journal; the first one was before the checkpoint.
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
fn an_invalid_journal_is_refused() {
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
fn the_journal_of_a_live_run_is_not_touched() {
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
    // A run that began before there was a journal continues without one.
    let mut second = run();
    second.begin_journal(0).unwrap();
    assert!(!second.wants_journal());
    second.append(b"t1", &world.data(1)).unwrap().unwrap();
    second.end_journal().unwrap();
    assert_eq!(fs::read(path_for(&world.rescue())).unwrap(), journal);
    // The first run's journal stays locked after a checkpoint.
    first.begin_journal(0).unwrap();
    recover(&world.rescue(), &world.dag).unwrap_err();
    drop(first);
    assert!(recover(&world.rescue(), &world.dag).unwrap().is_some());
}

/// Changes the header of the journal as if the machine had been rebooted since.
fn reboot(journal: &Path) {
    let mut bytes = fs::read(journal).unwrap();
    let begin = forward_journal::decode(&bytes).unwrap().begin;
    let header = forward_journal::header(&Begin {
        system: begin.system ^ 1,
        ..begin
    });
    bytes[..header.len()].copy_from_slice(&header);
    fs::write(journal, bytes).unwrap();
}

#[test]
fn only_tasks_whose_data_may_be_lost_run_again_after_a_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let rescue = folder.path().canonicalize().unwrap().join("x.rescue");
    let forwards = |n| format!("TASK t{n} -F x=y /bin/true\n");
    let text = [0, 1, 2].map(forwards).concat() + "TASK plain /bin/true\n";
    let dag = Dag::parse(text.into_bytes()).unwrap();
    // t0 was done before the journal was begun, and is recorded once more, as the original does.
    fs::write(&rescue, "\nDONE t0").unwrap();
    let mut forwarding = Forwarding::new(SharedFiles::new(4), Some(rescue.clone()));
    forwarding.begin_journal(8).unwrap();
    let target = folder.path().join("y");
    let data = ForwardedData {
        target: target.as_os_str().as_bytes().to_vec(),
        data: b"data of t1".to_vec().into(),
    };
    forwarding.append(b"t1", &[data]).unwrap().unwrap();
    drop(forwarding);
    fs::write(
        &rescue,
        "\nDONE t0\nDONE t0\nDONE t1\n# comment\nDONE t2\nDONE plain",
    )
    .unwrap();
    let recovered = recover(&rescue, &dag).unwrap().unwrap();
    assert_eq!(
        (recovered.done, recovered.not_done),
        (vec![TaskId(1)], vec![]),
        "nothing was lost while the machine ran"
    );
    reboot(&path_for(&rescue));
    let recovered = recover(&rescue, &dag).unwrap().unwrap();
    assert_eq!(
        (recovered.done, recovered.not_done),
        (vec![TaskId(1)], vec![TaskId(2)])
    );
    assert_eq!(
        fs::read_to_string(&rescue).unwrap(),
        "\nDONE t0\nDONE t0\nDONE t1\n# comment\nDONE plain"
    );
}

#[test]
fn a_target_that_is_missing_is_made_again_if_all_of_it_is_known() {
    let world = World::new(vec![vec![(0, 5), (1, 5)]]);
    world.run(4, 100, false);
    fs::remove_file(world.path("a")).unwrap();
    fs::remove_dir_all(world.path("sub")).unwrap();
    recover(&world.rescue(), &world.dag).unwrap().unwrap();
    assert_eq!(fs::read(world.path("sub/b")).unwrap(), piece(0, 1, 5));
    assert!(!world.path("a").exists(), "its first line is not in the journal");
}

#[test]
fn lost_blocks_are_written_again_unless_the_file_has_grown() {
    const LEN: usize = 3 * 4096;
    let world = World::new(vec![vec![(2, LEN)]]);
    world.run(4, 100, false);
    let expected = fs::read(world.path("c")).unwrap();
    let mut lost = expected.clone();
    lost[4096..8192].fill(0);
    let grown = [&lost[..], b"more"].concat();
    fs::write(world.path("c"), &grown).unwrap();
    recover(&world.rescue(), &world.dag).unwrap().unwrap();
    assert_eq!(fs::read(world.path("c")).unwrap(), grown);
    for found in [&lost[..], &lost[..5000], b""] {
        fs::write(world.path("c"), found).unwrap();
        recover(&world.rescue(), &world.dag).unwrap().unwrap();
        assert_eq!(fs::read(world.path("c")).unwrap(), expected);
    }
}
