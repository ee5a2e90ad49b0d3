//! Runs the entries of the fuzz targets on the saved corpus and on random changes of it.
//!
//! `PMC_FUZZ_SECONDS` is the time for each entry; without it, each gets the same number of changed inputs,
//! divided by its cost. `PMC_FUZZ_SEED` is the seed (1). A failing input is printed, to be saved in
//! `fuzz/corpus`. `just fuzz` finds more, as it looks at what code an input reaches.

#![expect(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::path::Path;
use std::time::Duration;

#[path = "../fuzz/entries.rs"]
mod entries;

use testutils::fuzz::{self, Length};

/// Changed inputs for an entry of cost 1.
const INPUTS: u64 = 5_000;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    fuzz::corpus(&folder)
}

fn run(name: &str, entry: fn(&[u8]), cost: u64) {
    let seed = setting("PMC_FUZZ_SEED").unwrap_or(1);
    let length = match setting("PMC_FUZZ_SECONDS") {
        Some(seconds) => Length::Time(Duration::from_secs(seconds)),
        None => Length::Inputs(INPUTS / cost),
    };
    let calls = fuzz::run(name, &corpus(name), entry, seed, length);
    println!("fuzz {name}: {calls} inputs, seed {seed}");
}

macro_rules! tests {
    ($($name:ident $entry:ident $cost:literal,)*) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name), entries::$entry, $cost);
            }
        )*

        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

for_each_entry!(tests);

#[test]
fn each_corpus_has_an_entry() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(NAMES.iter().any(|known| name == *known), "{}", name.display());
    }
}

/// Inputs that are built are read, but for those whose choices do not go together.
#[test]
fn most_built_inputs_are_read() {
    let mut random = testutils::Random(7);
    let mut inputs = std::iter::repeat_with(|| (0..300).map(|_| random.below(256) as u8).collect::<Vec<_>>());
    let mut share =
        |is_read: fn(&[u8]) -> bool| inputs.by_ref().take(200).filter(|data| is_read(data)).count();
    let dagman = share(|data| entries::read_dagman(&entries::dagman_files_of(data)).is_some());
    let lite = share(|data| pmc_job_files::Description::parse(&entries::description_of(data)).is_ok());
    assert!(dagman > 140 && lite > 130, "{dagman} and {lite} of 200");
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
    let files = pmc_plan::model::Files::default();
    let any = replica::Wanted::any(&files);
    for n in 0..2 {
        let catalog = transformation::parse(path, &text("transformations", n), None).unwrap();
        assert!(!catalog.entries.is_empty());
        assert!(
            !replica::parse(path, &text("replicas", n), None, any)
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
        let decoded = ToMaster::decode(&entries::versioned(&message));
        assert!(decoded.is_ok(), "{}: {decoded:?}", message.escape_ascii());
    }
    for message in corpus("to_worker") {
        let decoded = ToWorker::decode(&entries::versioned(&message));
        assert!(decoded.is_ok(), "{}: {decoded:?}", message.escape_ascii());
    }
    for journal in corpus("journal") {
        let content = forward_journal::decode(&journal);
        assert!(content.is_ok_and(|content| !content.records.is_empty()));
    }
}
