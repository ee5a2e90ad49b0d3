//! Random workflows and the expected content of each file.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use proptest::prelude::*;

/// Two sites with a work directory each; one of them takes the outputs.
pub const SITES: &str = r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: @DIR@/scratch, fileServers: [{url: "file://@DIR@/scratch", operation: all}]}
  - {type: localStorage, path: @DIR@/out, fileServers: [{url: "file://@DIR@/out", operation: all}]}
- name: far
  directories:
  - {type: sharedScratch, path: @DIR@/far, fileServers: [{url: "file://@DIR@/far", operation: all}]}
"#;

/// One program, installed on both sites.
pub const PROGRAMS: &str = r#"pegasus: "5.0"
transformations:
- name: work
  sites:
  - {name: local, type: installed, pfn: /bin/work}
  - {name: far, type: installed, pfn: /bin/work}
"#;

/// Number of raw input files.
const RAW_FILES: u8 = 4;

/// An output of a job.
#[derive(Clone, Debug)]
pub struct Output {
    pub wanted: bool,
    pub registered: bool,
    /// A replica exists.
    pub known: bool,
    pub size: u64,
}

/// A job with the files that it reads and its outputs.
#[derive(Clone, Debug)]
pub struct Job {
    pub far: bool,
    /// Cluster label.
    pub label: Option<u8>,
    pub runtime: u8,
    /// Allows reuse with the scope `partial`.
    pub reusable: bool,
    pub reads: BTreeSet<String>,
    pub outputs: Vec<Output>,
}

/// A workflow.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub jobs: Vec<Job>,
    pub raw_sizes: Vec<u64>,
}

/// Whether the job runs on the far site; label, run time and whether it is reusable; numbers of raw files;
/// numbers of files made before; outputs.
type Draft = (
    bool,
    (Option<u8>, u8, bool),
    Vec<u8>,
    Vec<u8>,
    Vec<(bool, bool, bool, u64)>,
);

fn draft() -> impl Strategy<Value = Draft> {
    (
        prop::bool::weighted(0.3),
        (prop::option::weighted(0.7, 0u8..3), 1u8..40, any::<bool>()),
        prop::collection::vec(0..RAW_FILES, 0..3),
        prop::collection::vec(any::<u8>(), 0..4),
        prop::collection::vec(
            (
                any::<bool>(),
                any::<bool>(),
                prop::bool::weighted(0.3),
                0u64..1000,
            ),
            0..3,
        ),
    )
}

pub fn recipe() -> impl Strategy<Value = Recipe> {
    (
        prop::collection::vec(draft(), 1..14),
        prop::collection::vec(1u64..1000, usize::from(RAW_FILES)),
        any::<bool>(),
    )
        .prop_map(|(drafts, raw_sizes, two_sites)| {
            let mut made: Vec<String> = Vec::new();
            let mut jobs = Vec::new();
            for (n, (far, (label, runtime, reusable), raw, before, outputs)) in drafts.into_iter().enumerate()
            {
                let mut reads: BTreeSet<String> = raw.iter().map(|k| format!("raw{k}")).collect();
                if !made.is_empty() {
                    reads.extend(before.iter().map(|&k| made[usize::from(k) % made.len()].clone()));
                }
                made.extend((0..outputs.len()).map(|k| format!("f{n}_{k}")));
                jobs.push(Job {
                    far: far && two_sites,
                    label,
                    runtime,
                    reusable,
                    reads,
                    outputs: outputs
                        .into_iter()
                        .map(|(wanted, registered, known, size)| Output {
                            wanted,
                            registered,
                            known,
                            size,
                        })
                        .collect(),
                });
            }
            Recipe { jobs, raw_sizes }
        })
}

impl Recipe {
    pub fn yaml(&self) -> String {
        let sizes = self.sizes();
        let mut text = String::from("pegasus: \"5.0\"\nname: random\njobs:\n");
        for (n, job) in self.jobs.iter().enumerate() {
            let site = if job.far { "far" } else { "local" };
            // A cluster runs on one site.
            let label = job.label.map_or(String::new(), |l| format!(", label: {site}{l}"));
            text.push_str(&format!(
                "- type: job\n  id: J{n}\n  name: work\n  profiles:\n    selector: {{execution.site: {site}}}\n    \
                 pegasus: {{runtime: {}, enable_for_data_reuse: {}{label}}}\n",
                job.runtime, job.reusable
            ));
            if job.reads.is_empty() && job.outputs.is_empty() {
                continue;
            }
            text.push_str("  uses:\n");
            for file in &job.reads {
                text.push_str(&format!(
                    "  - {{lfn: {file}, type: input, size: {}}}\n",
                    sizes[file]
                ));
            }
            for (k, output) in job.outputs.iter().enumerate() {
                text.push_str(&format!(
                    "  - {{lfn: f{n}_{k}, type: output, stageOut: {}, registerReplica: {}, size: {}}}\n",
                    output.wanted, output.registered, output.size
                ));
            }
        }
        text
    }

    pub fn replicas(&self) -> String {
        let mut text = String::from("pegasus: \"5.0\"\nreplicas:\n");
        for k in 0..RAW_FILES {
            text.push_str(&format!(
                "- lfn: raw{k}\n  pfns: [{{site: local, pfn: /data/raw{k}}}]\n"
            ));
        }
        for name in self.known() {
            text.push_str(&format!(
                "- lfn: {name}\n  pfns: [{{site: local, pfn: /store/{name}}}]\n"
            ));
        }
        text
    }

    /// Names of outputs with a replica.
    pub fn known(&self) -> Vec<String> {
        self.outputs()
            .filter(|(_, output)| output.known)
            .map(|(name, _)| name)
            .collect()
    }

    pub fn outputs(&self) -> impl Iterator<Item = (String, &Output)> {
        self.jobs.iter().enumerate().flat_map(|(n, job)| {
            job.outputs
                .iter()
                .enumerate()
                .map(move |(k, output)| (format!("f{n}_{k}"), output))
        })
    }

    pub fn sizes(&self) -> BTreeMap<String, u64> {
        let raw = self
            .raw_sizes
            .iter()
            .enumerate()
            .map(|(k, &size)| (format!("raw{k}"), size));
        raw.chain(self.outputs().map(|(name, output)| (name, output.size)))
            .collect()
    }

    /// Returns whether all jobs run on one site.
    pub fn is_on_one_site(&self) -> bool {
        self.jobs.iter().all(|job| job.far) || !self.jobs.iter().any(|job| job.far)
    }

    /// Size of all files in bytes.
    pub fn total(&self) -> u64 {
        self.sizes().values().sum()
    }

    /// Content of an output, computed from the inputs of its job.
    pub fn made(job: usize, output: usize, read: &BTreeMap<String, u64>) -> u64 {
        let mut hasher = DefaultHasher::new();
        (job, output, read).hash(&mut hasher);
        hasher.finish()
    }

    /// Content of every file, by direct execution of the abstract workflow.
    pub fn contents(&self) -> BTreeMap<String, u64> {
        let mut contents: BTreeMap<String, u64> = (0..RAW_FILES)
            .map(|k| (format!("raw{k}"), u64::from(k)))
            .collect();
        for (n, job) in self.jobs.iter().enumerate() {
            let read = job.reads.iter().map(|f| (f.clone(), contents[f])).collect();
            for k in 0..job.outputs.len() {
                contents.insert(format!("f{n}_{k}"), Self::made(n, k, &read));
            }
        }
        contents
    }
}
