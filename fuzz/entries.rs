//! The fuzzed functions. Each entry takes arbitrary bytes and checks properties of the result. The targets of
//! `cargo fuzz` and the test `fuzz_corpus` share this file.

use std::path::Path;

use pegasus_mpi_cluster::internals::{ToMaster, ToWorker, forward_journal};
use pmc_dag::rescue;
use pmc_dag::{Dag, words};
use pmc_plan::catalog::{replica, site, transformation};
use pmc_plan::input::{ParsedWorkflow, ReadOptions, read_text};
use pmc_plan::model::FileId;
use pmc_plan::properties::Properties;

/// Text of a DAG. Tasks are found by name, and words can be quoted again.
pub fn dag(data: &[u8]) {
    let Ok(dag) = Dag::parse(data.to_vec()) else {
        return;
    };
    let mut edges = vec![0; dag.len()];
    for task in dag.ids() {
        let line = dag.task(task);
        assert_eq!(dag.find(line.name), Some(task), "a task is found by its name");
        for word in words::split(line.command) {
            assert_eq!(
                words::split(&words::quote(&word)),
                [word],
                "a quoted word is one word"
            );
        }
        for child in dag.children(task) {
            edges[child.index()] += 1;
        }
    }
    for task in dag.ids() {
        assert_eq!(
            dag.parent_count(task),
            edges[task.index()],
            "parents and children agree"
        );
    }
    let _ = pmc_dag::cycle::find(&dag);
}

/// Text of a DAG, a zero byte, text of a rescue file.
pub fn rescue(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let (Some(dag), Some(text)) = (parts.next(), parts.next()) else {
        return;
    };
    let Ok(dag) = Dag::parse(dag.to_vec()) else { return };
    let Ok(done) = rescue::parse(text, &dag) else {
        return;
    };
    assert_eq!(done.ids().count(), done.len(), "each task once");
    assert!(
        done.ids().all(|task| task.index() < dag.len()),
        "tasks of the DAG"
    );
    // A file stays readable when a record is added, unless its end is torn, which the writer removes first.
    if let Some(task) = dag.ids().next().filter(|_| !done.is_torn()) {
        let mut more = text.to_vec();
        more.extend_from_slice(b"\nDONE ");
        more.extend_from_slice(dag.name(task));
        more.extend_from_slice(b"\n");
        let more = rescue::parse(&more, &dag).expect("a record was added");
        assert!(more.contains(task) && done.ids().all(|task| more.contains(task)));
    }
}

/// A message of a worker. A decoded message round-trips.
pub fn to_master(data: &[u8]) {
    if let Ok(message) = ToMaster::decode(data) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(bytes.len(), message.encoded_len());
        assert_eq!(ToMaster::decode(&bytes), Ok(message));
    }
}

/// A message of the master. A decoded message round-trips.
pub fn to_worker(data: &[u8]) {
    if let Ok(message) = ToWorker::decode(data) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(bytes.len(), message.encoded_len());
        assert_eq!(ToWorker::decode(&bytes), Ok(message));
    }
}

/// A forward journal. Decoded records round-trip.
pub fn journal(data: &[u8]) {
    if let Ok(content) = forward_journal::decode(data) {
        let mut bytes = forward_journal::header(&content.begin).to_vec();
        for record in &content.records {
            forward_journal::encode(&mut bytes, record.task, &record.pieces);
        }
        assert_eq!(forward_journal::decode(&bytes), Ok(content));
        assert!(bytes.len() <= data.len());
    }
}

/// A site catalog, as YAML and as XML. Each site is found by its name.
pub fn sites(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for kind in ["YAML", "XML"] {
        if let Ok(catalog) = site::parse(Path::new("sites"), &text, Some(kind)) {
            for (name, site) in &catalog.sites {
                assert_eq!(*name, site.name);
            }
        }
    }
}

/// A transformation catalog, as YAML and as text. Each entry is found by its name.
pub fn transformations(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for kind in ["YAML", "Text"] {
        if let Ok(catalog) = transformation::parse(Path::new("tc"), &text, Some(kind)) {
            for entry in &catalog.entries {
                assert!(!entry.name.name.is_empty() && !entry.pfn.is_empty());
                assert!(catalog.entries(&entry.name).any(|found| found == entry));
            }
        }
    }
}

/// A replica catalog of each kind. A file is known if it has a location.
pub fn replicas(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for kind in ["YAML", "File", "SimpleFile", "Meta"] {
        if let Ok(catalog) = replica::parse(Path::new("rc"), &text, Some(kind)) {
            for entry in catalog.entries() {
                let found = catalog.lookup(&entry.lfn);
                let has_locations = found.as_ref().is_some_and(|found| !found.replicas.is_empty());
                assert_eq!(catalog.knows(&entry.lfn), has_locations);
                assert!(entry.regex || found.is_some());
            }
        }
    }
}

/// A properties file. Each key has its value.
pub fn properties(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(properties) = Properties::parse(Path::new("properties"), &text) {
        for (key, value) in properties.iter() {
            assert_eq!(properties.get(key), Some(value));
        }
        let _ = properties.profiles();
    }
}

/// A workflow in YAML or DAX XML. The parsed workflow is consistent.
pub fn workflow(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(ParsedWorkflow { workflow, .. }) = read_text(Path::new("workflow"), text, &ReadOptions::default())
    else {
        return;
    };
    assert!(!workflow.jobs.is_empty() && !workflow.label.is_empty());
    let mut read = vec![0_usize; workflow.files.len()];
    for job in &workflow.jobs {
        assert!(!job.id.is_empty());
        for file_use in &job.uses {
            read[file_use.file.index()] += 1;
        }
        for file in [job.stdin, job.stdout, job.stderr].into_iter().flatten() {
            assert!(!workflow.files.name(file).is_empty());
        }
    }
    for (file, _) in read.iter().enumerate() {
        let name = workflow.files.name(FileId::new(file));
        assert!(
            !name.is_empty() && name.split('/').all(|part| part != ".."),
            "{name:?}"
        );
        assert!(
            !name.starts_with('/') && !name.contains(char::is_control),
            "{name:?}"
        );
    }
    assert!(workflow.edges.is_sorted(), "edges are sorted");
    for &(parent, child) in &workflow.edges {
        assert!(parent != child && parent.max(child).index() < workflow.jobs.len());
    }
}
