//! The disk of a node, with agents of this process.

use std::io::Write as _;
use std::net::TcpListener;

use pmc_checkpoint::{BlockSums, Prefix};
use pmc_link::{Endpoint, RunKey, Timing};

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef";

/// An agent without a master, whose disk is below this directory.
fn agent(base: &Path) -> Arc<Checkpoints> {
    let endpoint = Endpoint {
        addresses: vec!["127.0.0.1:1".to_owned()],
        epoch: 1,
        lease: Duration::from_secs(30),
        key: RunKey::generate().unwrap(),
    };
    let link = Link::new(Timing::default());
    let peers = Peers::start(&link, &endpoint).unwrap();
    let environment = [("TMPDIR".into(), base.into())];
    let chosen = (&Settings::default(), &environment[..]);
    Checkpoints::new(chosen, Rank(1), (Path::new("/none/a.dag"), false), &link, &peers)
}

/// Saves a file of a task.
fn save(agent: &Checkpoints, series: u64) -> SavedFile {
    let task = agent.store(ID).unwrap().task(b"a").unwrap();
    let prefix = Prefix::try_from("p").unwrap();
    let mut sums = BlockSums::default();
    sums.add(b"state");
    task.create(series, &prefix, 0)
        .unwrap()
        .write_all(b"state")
        .unwrap();
    let mut sidecar = task.sidecar(prefix);
    (sidecar.series, sidecar.bytes, sidecar.crc32) = (series, sums.bytes(), sums.finish());
    task.publish_on_node(&sidecar).unwrap();
    SavedFile::of(&sidecar)
}

fn removal(below: u64) -> MasterSays {
    let (run, task) = (ID.to_owned(), "a".to_owned());
    MasterSays::Drop { run, task, below }
}

#[test]
fn an_agent_that_ends_carries_out_first_what_was_ordered() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(dir.path());
    (1..20).for_each(|series| drop(save(&agent, series)));
    (2..20).for_each(|below| agent.hear(removal(below)));
    agent.hear(removal(u64::MAX));
    agent.tidy();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_agent_that_ends_does_not_wait_for_ever_for_a_file_that_does_not_come() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(dir.path());
    let file = SavedFile {
        series: 2,
        ..save(&agent, 1)
    };
    // It takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let sources = vec![vec![silent.local_addr().unwrap().to_string()]];
    agent.hear(MasterSays::Copy { file, sources });
    assert!(!agent.end_orders(Duration::from_millis(50)));
    drop(silent);
    assert!(agent.end_orders(Duration::from_secs(600)));
    // What it has stays for the next run.
    agent.tidy();
    assert_eq!(Store::ids_on_node(&agent.folder), [ID]);
}

#[test]
fn an_agent_that_ends_takes_no_directory_from_another_one_of_its_host() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (agent(dir.path()), agent(dir.path()));
    let task = first.store(ID).unwrap().task(b"a").unwrap();
    let prefix = Prefix::try_from("p").unwrap();
    drop(task.create(1, &prefix, 0).unwrap());
    task.discard(1, &prefix, 0);
    // All that it finds is empty.
    second.tidy();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    drop(task.create(1, &prefix, 0).unwrap());
    save(&first, 1);
    second.tidy();
    assert!(task.is_whole(1, &prefix, 0).unwrap());
}

#[test]
fn settings_that_cannot_be_read_count_as_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tcsiod.conf");
    let found = |text: &str| {
        std::fs::write(&file, text).unwrap();
        settings(&[("PMC_CHECKPOINT_CONF".into(), file.clone().into())])
    };
    assert_eq!(found("TCS_NODES_XOR 4\n").nodes_xor, 4);
    for text in [
        "TCS_NODES_XOR many\n",
        "TCS_LOCALCHKDIR here\n",
        "TCS_PLAN A1\n",
        "\0",
    ] {
        assert_eq!(found(text), Settings::default(), "{text}");
    }
    std::fs::remove_file(&file).unwrap();
    let named = [("PMC_CHECKPOINT_CONF".into(), file.into())];
    assert_eq!(settings(&named), Settings::default());
}
