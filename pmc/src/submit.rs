//! Facts from a submit directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pmc_job_files::{Place, read_list};

use crate::kinds::{self, Kind};

/// Maximum size in bytes of a braindump.
pub const MAX_BRAINDUMP: u64 = 16 << 20;
/// Maximum size in bytes of the list of a transfer task.
const MAX_LIST: u64 = 256 << 20;
/// Maximum size in bytes of the events of the planner.
const MAX_EVENTS: u64 = 4 << 30;

/// A planned workflow on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// The directory, absolute.
    pub dir: PathBuf,
    /// Path of the DAG.
    pub dag: PathBuf,
    /// Name of the workflow.
    pub label: String,
    /// Submit description of the run of DAGMan, if HTCondor runs the plan.
    pub condor: Option<PathBuf>,
}

impl Submit {
    /// Reads the braindump of a submit directory. Uses only the file name of the DAG, since the directory may
    /// have been moved.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("braindump.yml");
        let text = pmc_files::read_to_string(&path, MAX_BRAINDUMP)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let values: BTreeMap<String, serde_json::Value> =
            serde_saphyr::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
        let value = |key: &str| values.get(key).and_then(serde_json::Value::as_str);
        let Some(dag) = value("dag").and_then(|dag| Path::new(dag).file_name()) else {
            bail!(
                "{} names no DAG: not a plan for pegasus-mpi-cluster",
                path.display()
            );
        };
        Ok(Submit {
            dir: dir.to_owned(),
            dag: dir.join(dag),
            label: value("dax_label").unwrap_or("workflow").to_owned(),
            condor: value("condor_log").map(|_| dir.join(format!("{}.condor.sub", dag.display()))),
        })
    }

    /// Reads the jobs of the plan; none without the planner's event file.
    pub fn jobs(&self) -> BTreeMap<String, kinds::Job> {
        let text = pmc_files::read(&self.dag.with_extension("static.bp"), MAX_EVENTS).unwrap_or_default();
        kinds::read(&String::from_utf8_lossy(&text))
    }

    /// Returns the paths to which stage-out tasks copy.
    pub fn destinations(&self, jobs: &BTreeMap<String, kinds::Job>) -> Vec<PathBuf> {
        let files = self.transferred(jobs, Kind::StageOut).into_iter();
        let urls = files.flat_map(|file| file.destinations);
        urls.filter_map(|url| local_path(&url)).collect()
    }

    /// Returns what the tasks of a kind transfer.
    pub fn transferred(&self, jobs: &BTreeMap<String, kinds::Job>, kind: Kind) -> Vec<TransferredFile> {
        let mut files = Vec::new();
        for (name, job) in jobs.iter().filter(|(_, job)| job.kind == kind) {
            let file = self.dir.join(&job.directory).join(format!("{name}.in"));
            let Ok(text) = pmc_files::read(&file, MAX_LIST) else {
                continue;
            };
            let urls = |places: Option<Vec<Place>>| {
                let urls = places.into_iter().flatten().filter_map(|place| place.url);
                urls.map(|url| url.lossy()).collect()
            };
            let entries = read_list(&text).unwrap_or_default().into_iter();
            files.extend(entries.map(|entry| TransferredFile {
                lfn: entry.lfn.unwrap_or_default().lossy(),
                sources: urls(entry.src_urls),
                destinations: urls(entry.dest_urls),
            }));
        }
        files
    }
}

/// A file that a task of the plan transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferredFile {
    /// Logical name.
    pub lfn: String,
    /// URLs or paths of copies, the preferred one first.
    pub sources: Vec<String>,
    /// URLs or paths that it is copied to.
    pub destinations: Vec<String>,
}

/// Returns the path of a `file` URL or of a plain path.
pub fn local_path(url: &str) -> Option<PathBuf> {
    let path = match url.split_once("://") {
        None => url,
        Some(("file", rest)) => rest.strip_prefix("localhost").unwrap_or(rest),
        Some(_) => return None,
    };
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// Returns the existing files of these paths with their sizes, and their common directory.
pub fn outputs(paths: &[PathBuf]) -> Option<crate::summary::Outputs> {
    let mut directory = paths.first()?.parent()?.to_owned();
    for path in paths {
        while !path.starts_with(&directory) {
            directory = directory.parent()?.to_owned();
        }
    }
    let mut files = Vec::new();
    for path in paths {
        let (Ok(metadata), Ok(name)) = (std::fs::metadata(path), path.strip_prefix(&directory)) else {
            continue;
        };
        let name: PathBuf = name.components().collect();
        files.push((name.display().to_string(), metadata.len()));
    }
    files.sort();
    files.dedup();
    Some(crate::summary::Outputs {
        directory: directory.components().collect(),
        files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dag_and_outputs_are_read() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path();
        assert!(Submit::open(path).is_err());
        std::fs::write(
            path.join("braindump.yml"),
            "user: me\ndag: \"/elsewhere/w-0.dag\"\ndax_label: \"w\"\n",
        )
        .expect("file");
        std::fs::write(
            path.join("w-0.static.bp"),
            "ts=1 event=job.info xwf.id=u job.id=\"out_0\" submit_file=\"00/01/out_0.sub\" \
             type_desc=\"stage-out-tx\" \n",
        )
        .expect("file");
        std::fs::create_dir_all(path.join("00/01")).expect("directory");
        let here = path.display();
        let transfers = format!(
            r#"[ {{ "type": "transfer", "lfn": "a", "dest_urls": [ {{ "site_label": "local", "url": "file://{here}/o/./a" }} ] }}
             , {{ "type": "transfer", "lfn": "b/c", "dest_urls": [ {{ "site_label": "local", "url": "file://{here}/o/b/c" }} ] }}
             , {{ "type": "transfer", "lfn": "d", "dest_urls": [ {{ "site_label": "far", "url": "gsiftp://far/d" }} ] }} ]"#
        );
        std::fs::write(path.join("00/01/out_0.in"), transfers).expect("file");
        let submit = Submit::open(path).expect("a plan");
        assert_eq!(
            (submit.label.as_str(), submit.dag.clone()),
            ("w", path.join("w-0.dag"))
        );
        let paths = submit.destinations(&submit.jobs());
        assert_eq!(paths, [path.join("o/./a"), path.join("o/b/c")]);

        std::fs::create_dir_all(path.join("o/b")).expect("directory");
        std::fs::write(path.join("o/b/c"), "four").expect("file");
        let outputs = outputs(&paths).expect("there are paths");
        assert_eq!(outputs.directory, path.join("o"));
        assert_eq!(outputs.files, [("b/c".to_owned(), 4)]);
    }

    #[test]
    fn no_paths_give_no_outputs() {
        assert_eq!(outputs(&[]), None);
    }
}
