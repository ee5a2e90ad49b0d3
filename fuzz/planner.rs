//! What the planner reads: workflows, catalogs and properties.

use std::path::Path;

use monitord_compat::properties as java;
use pmc_plan::catalog::{replica, site, transformation};
use pmc_plan::input::{ParsedWorkflow, ReadOptions, read_text};
use pmc_plan::model::{FileId, Files};
use pmc_plan::properties::Properties;

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
    let files = Files::default();
    let any = replica::Wanted::any(&files);
    for kind in ["YAML", "File", "SimpleFile", "Meta"] {
        if let Ok(catalog) = replica::parse(Path::new("rc"), &text, Some(kind), any) {
            for entry in catalog.entries() {
                let found = catalog.lookup(&entry.lfn);
                let has_locations = found.as_ref().is_some_and(|found| !found.replicas.is_empty());
                assert_eq!(catalog.knows(&entry.lfn), has_locations);
                assert!(entry.regex || found.is_some());
            }
        }
    }
}

/// A properties file. Each key has its value. Values do not grow beyond bounds.
pub fn properties(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut simple = java::Properties::parse(&text);
    for setting in java::settings(&text).into_iter().flatten() {
        let value = simple.get(&setting.key).unwrap_or_default();
        assert!(
            value.len() <= (1 << 20) + data.len(),
            "{} has {} bytes",
            setting.key,
            value.len()
        );
    }
    simple.set("one", "1");
    assert_eq!(simple.get("one"), Some("1"));
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
