//! Runs the entries of the fuzz targets on the saved corpus and on random mutations of it.
//!
//! `PMC_FUZZ_ROUNDS` is the number of mutated inputs for each entry (20,000), `PMC_FUZZ_SEED` the seed (1). A
//! failing input is printed, to be saved in `fuzz/corpus`.

#![expect(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

#[path = "../fuzz/entries.rs"]
mod entries;

use testutils::Random;

fn random_byte(random: &mut Random) -> u8 {
    const SPECIAL: &[u8] = b"\0\n\r\t \"'\\#@-=\x01\x7f\xff";
    match random.index(2) {
        0 => random.pick(SPECIAL),
        _ => random.index(256) as u8,
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(!corpus.is_empty(), "no corpus for {name}");
    corpus
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.index(input.len() + 1);
    match random.index(7) {
        0 => input.truncate(at),
        1 => input.insert(at, random_byte(random)),
        2 if at < input.len() => {
            input.remove(at);
        }
        3 if at < input.len() => input[at] ^= 1 << random.index(8),
        4 => {
            // A number at its limits.
            let value = [0, 1, 0x7f, 0xff][random.index(4)];
            let end = (at + [1, 2, 4, 8][random.index(4)]).min(input.len());
            input[at..end].fill(value);
        }
        5 => {
            let other = &corpus[random.index(corpus.len())];
            let from = random.index(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        _ => {
            let from = random.index(at + 1);
            let piece = input[from..at].to_vec();
            input.splice(at..at, piece);
        }
    }
    input.truncate(1 << 16);
}

fn check(name: &str, input: &[u8], entry: fn(&[u8])) {
    if let Err(cause) = catch_unwind(AssertUnwindSafe(|| entry(input))) {
        eprintln!("{name} fails with \"{}\"", input.escape_ascii());
        resume_unwind(cause);
    }
}

fn fuzz(name: &str, entry: fn(&[u8])) {
    fuzz_some(name, entry, 1);
}

/// Like [`fuzz`], with the number of mutated inputs divided by `divisor`, for slow entries.
fn fuzz_some(name: &str, entry: fn(&[u8]), divisor: u64) {
    let corpus = corpus(name);
    for input in &corpus {
        check(name, input, entry);
        for len in 0..input.len() {
            check(name, &input[..len], entry);
        }
    }
    let mut random = Random(setting("PMC_FUZZ_SEED", 1));
    for _ in 0..setting("PMC_FUZZ_ROUNDS", 20_000) / divisor {
        let mut input = corpus[random.index(corpus.len())].clone();
        for _ in 0..=random.index(5) {
            mutate(&mut input, &corpus, &mut random);
        }
        check(name, &input, entry);
    }
}

#[test]
fn dag() {
    fuzz("dag", entries::dag);
}

#[test]
fn rescue() {
    fuzz("rescue", entries::rescue);
}

#[test]
fn to_master() {
    fuzz("to_master", entries::to_master);
}

#[test]
fn to_worker() {
    fuzz("to_worker", entries::to_worker);
}

#[test]
fn journal() {
    fuzz("journal", entries::journal);
}

#[test]
fn sites() {
    fuzz_some("sites", entries::sites, 10);
}

#[test]
fn transformations() {
    fuzz_some("transformations", entries::transformations, 10);
}

#[test]
fn replicas() {
    fuzz_some("replicas", entries::replicas, 10);
}

#[test]
fn workflow_yaml() {
    fuzz_some("workflow_yaml", entries::workflow, 10);
}

#[test]
fn workflow_dax() {
    fuzz_some("workflow_dax", entries::workflow, 10);
}

/// The corpus consists of valid workflows, except those that contain the word "refused".
#[test]
fn workflows_of_the_corpus_can_be_read() {
    use pmc_plan::input::{ReadOptions, read_text};
    for name in ["workflow_yaml", "workflow_dax"] {
        for input in corpus(name) {
            let text = String::from_utf8(input).unwrap();
            let read = read_text(Path::new("workflow"), &text, &ReadOptions::default());
            assert_eq!(
                read.is_err(),
                text.contains("refused"),
                "{text}\n{:?}",
                read.err()
            );
        }
    }
}

#[test]
fn properties() {
    fuzz_some("properties", entries::properties, 4);
}

/// The corpus contains valid catalogs.
#[test]
fn catalogs_of_the_corpus_can_be_read() {
    use pmc_plan::catalog::{replica, site, transformation};
    let text = |name: &str, n: usize| String::from_utf8(corpus(name)[n].clone()).unwrap();
    let path = Path::new("corpus");
    for n in 0..3 {
        assert!(
            !site::parse(path, &text("sites", n), None)
                .unwrap()
                .sites
                .is_empty()
        );
    }
    for n in 0..2 {
        let catalog = transformation::parse(path, &text("transformations", n), None).unwrap();
        assert!(!catalog.entries.is_empty());
        assert!(
            !replica::parse(path, &text("replicas", n), None)
                .unwrap()
                .is_empty()
        );
    }
    let properties = pmc_plan::properties::Properties::parse(path, &text("properties", 0)).unwrap();
    assert_eq!(
        properties.get("pegasus.catalog.site.file"),
        Some("/data/sites.yml")
    );
}

/// When an encoding changes, the corpus must be replaced.
#[test]
fn corpora_are_in_the_current_encoding() {
    use pegasus_mpi_cluster::internals::{ToMaster, ToWorker, forward_journal};
    for message in corpus("to_master") {
        assert!(ToMaster::decode(&message).is_ok(), "{}", message.escape_ascii());
    }
    for message in corpus("to_worker") {
        assert!(ToWorker::decode(&message).is_ok(), "{}", message.escape_ascii());
    }
    for journal in corpus("journal") {
        let content = forward_journal::decode(&journal);
        assert!(content.is_ok_and(|content| !content.records.is_empty()));
    }
}
