//! Small workflows and catalogs for the tests of the steps.

use crate::catalog::replica::{Replica, ReplicaCatalog, ReplicaEntry};
use crate::model::{FileKind, FileUse, Files, Job, Link, TransferFlag, TransformationName, Workflow};
use crate::profiles::Namespace;

/// Reads a line for each job: `ID: INPUT... > OUTPUT...`. An output is delivered unless `-` precedes it; a
/// file after `=` is read and written, one after `?` is an input that may be missing, one after `*` a
/// checkpoint. `@` after the id enables the job for data reuse.
pub(super) fn workflow(text: &str) -> Workflow {
    let mut files = Files::default();
    let mut jobs = Vec::new();
    for line in text.lines() {
        let (id, uses) = line.split_once(':').expect("a job");
        let mut job = Job {
            id: id.trim_end_matches('@').to_owned(),
            transformation: TransformationName::parse("work").into(),
            ..Job::default()
        };
        if id.ends_with('@') {
            job.profiles
                .set(Namespace::Pegasus, "enable_for_data_reuse", "true");
        }
        let mut link = Link::Input;
        for word in uses.split_whitespace() {
            if word == ">" {
                link = Link::Output;
                continue;
            }
            let name = word.trim_start_matches(['-', '=', '?', '*']);
            job.uses.push(FileUse {
                file: files.intern(name),
                link: match word.as_bytes()[0] {
                    b'=' => Link::InOut,
                    b'*' => Link::Checkpoint,
                    _ => link,
                },
                kind: FileKind::Data,
                transfer: if word.starts_with('-') {
                    TransferFlag::Not
                } else {
                    TransferFlag::Mandatory
                },
                register: true,
                optional: word.starts_with('?'),
                bypass: false,
                for_planning: false,
                size: None,
                metadata: Vec::new(),
            });
        }
        jobs.push(job);
    }
    Workflow {
        jobs,
        files,
        ..Workflow::default()
    }
}

/// A catalog with a location on the site `local` for each file: `file:///NAME`, or what follows `NAME=`.
pub(super) fn catalog(files: &[&str]) -> ReplicaCatalog {
    let mut catalog = ReplicaCatalog::default();
    for file in files {
        let (lfn, pfn) = file.split_once('=').map_or_else(
            || (*file, format!("file:///{file}")),
            |(lfn, pfn)| (lfn, pfn.to_owned()),
        );
        let entry = ReplicaEntry {
            lfn: lfn.to_owned(),
            replicas: vec![Replica {
                pfn,
                site: Some("local".to_owned()),
            }],
            ..ReplicaEntry::default()
        };
        catalog.push(entry).expect("no pattern");
    }
    catalog
}
