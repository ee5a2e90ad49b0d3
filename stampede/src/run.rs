//! Finds the files of a workflow and reads its `braindump.yml`.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use chrono::DateTime;
use monitord_compat::braindump_reader::Braindump;
use monitord_compat::properties::Properties;
use nix::unistd::{User, getuid};
use pmc_files::{Folder, Owner};

use crate::destination::{self, DatabaseUrls, Destination};
use crate::error::{LoadError, Notice};
use crate::rows::WorkflowRow;
use crate::store::Sqlite;

/// Maximum size in bytes of a braindump or of properties, and of the part of a DAG that shows its kind.
const MAX_SMALL_FILE: u64 = 16 << 20;
const LOG_SUFFIX: &str = ".dag.dagman.out";

/// A submit directory.
#[derive(Clone, Debug)]
pub struct Run {
    /// The directory.
    pub dir: PathBuf,
    /// Name of the DAG without `.dag`.
    pub name: String,
    /// The log to read.
    pub log: PathBuf,
    /// The DAG.
    pub dag: PathBuf,
    /// The events of the planner about jobs and tasks.
    pub static_events: PathBuf,
    /// The database.
    pub database: PathBuf,
    /// Columns of the workflow.
    pub workflow: WorkflowRow,
    /// Index of the workflow, which follows its label in the variables of notifications.
    pub index: Option<String>,
    /// File of notifications.
    pub notify: Option<String>,
    /// Properties of the plan.
    pub properties: Option<PathBuf>,
    /// True if the planner made it. Otherwise only the DAG is known.
    pub planned: bool,
}

impl Run {
    /// Finds a run as [`Run::locate`] does, or, without `braindump.yml`, the run of a DAG that was not
    /// planned.
    ///
    /// # Errors
    /// As [`Run::locate`], or the DAG is missing, too.
    pub fn find(log: &Path) -> Result<Self, LoadError> {
        match Self::locate(log) {
            Err(LoadError::Read { path, source }) if source.kind() == ErrorKind::NotFound => {
                let unplanned = log.to_str().and_then(Self::unplanned);
                unplanned.ok_or(LoadError::Read { path, source })
            }
            found => found,
        }
    }

    fn unplanned(log: &str) -> Option<Self> {
        let dag =
            pmc_files::real_path(Path::new(log.strip_suffix(LOG_SUFFIX.strip_prefix(".dag")?)?)).ok()?;
        let data = dag.metadata().ok()?;
        let time = data.modified().ok()?;
        let name = dag.file_stem()?.to_str()?.to_owned();
        let dir = dag.parent()?.to_owned();
        let beside = |end: &str| dir.join(format!("{name}{end}"));
        let database = beside(".stampede.db");
        // Later runs of a DAG belong to the same workflow.
        let existing = Sqlite::workflow_of(&database);
        let text = |path: &Path| Some(path.display().to_string());
        Some(Self {
            workflow: WorkflowRow {
                wf_uuid: existing.unwrap_or_else(|| uuid_of_dag(&dag, &data)),
                dag_file_name: dag.file_name()?.to_str().map(str::to_owned),
                timestamp: DateTime::<chrono::Utc>::from(time).timestamp(),
                submit_hostname: gethostname::gethostname().into_string().ok(),
                submit_dir: text(&dir),
                user: User::from_uid(getuid()).ok().flatten().map(|user| user.name),
                dax_label: Some(name.clone()),
                ..WorkflowRow::default()
            },
            static_events: beside(".static.bp"),
            log: beside(LOG_SUFFIX),
            database,
            index: None,
            notify: None,
            properties: None,
            planned: false,
            name,
            dag,
            dir,
        })
    }

    /// Finds the files of the run that `log` belongs to. Files beside the log are preferred to those that
    /// `braindump.yml` names, so that a copied directory is complete.
    ///
    /// # Errors
    /// `log` has no name of a log, or `braindump.yml` is missing, damaged or incomplete.
    pub fn locate(log: &Path) -> Result<Self, LoadError> {
        let not_a_log = || LoadError::LogName { path: log.to_owned() };
        let name = log.file_name().and_then(OsStr::to_str).ok_or_else(not_a_log)?;
        let name = name
            .strip_suffix(LOG_SUFFIX)
            .filter(|name| !name.is_empty())
            .ok_or_else(not_a_log)?;
        let parent = log
            .parent()
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let dir = pmc_files::real_path(parent).map_err(|source| LoadError::Read {
            path: parent.to_owned(),
            source,
        })?;
        let path = dir.join("braindump.yml");
        let braindump = read_braindump(&path)?;
        let need = |key: &'static str| {
            let missing = || LoadError::BraindumpKey {
                path: path.clone(),
                key,
            };
            braindump.get(key).map(str::to_owned).ok_or_else(missing)
        };
        let (uuid, planned_dag) = (need("wf_uuid")?, need("dag")?);
        let named = dir.join(&planned_dag);
        let beside = |end: &str| dir.join(format!("{name}{end}"));
        let choose = |end: &str| {
            let here = beside(end);
            if here.exists() {
                here
            } else {
                named.with_extension(&end[1..])
            }
        };
        let get = |key: &str| braindump.get(key).map(str::to_owned);
        let workflow = workflow_row(&braindump, uuid, planned_dag);
        let dag = choose(".dag");
        if is_for_htcondor(&dag) {
            return Err(LoadError::HtCondor { path: dag });
        }
        Ok(Self {
            dag,
            static_events: choose(".static.bp"),
            database: beside(".stampede.db"),
            log: dir.join(format!("{name}{LOG_SUFFIX}")),
            index: get("dax_index"),
            notify: get("notify"),
            properties: get("properties").map(|name| {
                let here = dir.join(Path::new(&name).file_name().unwrap_or_default());
                if here.exists() {
                    here
                } else {
                    Path::new(workflow.submit_dir.as_deref().unwrap_or(".")).join(name)
                }
            }),
            planned: true,
            name: name.to_owned(),
            workflow,
            dir,
        })
    }
}

impl Run {
    /// Reads the properties of the run, or those in `conf`.
    fn read_properties(&self, conf: Option<&Path>) -> Result<PropertiesFile, LoadError> {
        let Some(path) = conf.or(self.properties.as_deref()) else {
            return Ok(PropertiesFile::default());
        };
        let read = || {
            let (file, owner) = pmc_files::open_with_owner(path)?;
            let folder = Folder::open(&self.dir)?.owner()?;
            Ok::<_, std::io::Error>((pmc_files::read_rest(&file, MAX_SMALL_FILE)?, owner.max(folder)))
        };
        let (bytes, owner) = match read() {
            Ok(read) => read,
            // A copied directory may lack its properties, but an explicit file must exist.
            // Those with secrets are readable by their owner only.
            Err(source)
                if conf.is_none()
                    && matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                (Vec::new(), Owner::Other)
            }
            Err(source) => {
                let path = path.to_owned();
                return Err(LoadError::Read { path, source });
            }
        };
        Ok(PropertiesFile {
            path: path.to_owned(),
            text: String::from_utf8_lossy(&bytes).into_owned(),
            is_trusted: conf.is_some() || owner != Owner::Other,
        })
    }

    /// Replaces [`Destination::AsPlanned`] by the destination in the properties.
    ///
    /// # Errors
    /// The properties cannot be read, their URL is not supported, or they are those of another user.
    pub fn destination(
        &self,
        requested: &Destination,
        conf: Option<&Path>,
    ) -> Result<Destination, LoadError> {
        if *requested != Destination::AsPlanned {
            return Ok(requested.clone());
        }
        let file = self.read_properties(conf)?;
        let path = file.path;
        match DatabaseUrls::read(&file.text).workflow {
            None => Ok(Destination::BesideLog),
            Some((key, _)) if !file.is_trusted => Err(LoadError::OthersProperties { path, key }),
            Some((key, url)) => {
                destination::read_url(&url).map_err(|source| LoadError::Url { path, key, source })
            }
        }
    }

    /// Returns the properties of the run, or those in `conf`; none if they cannot be read.
    pub(crate) fn properties(&self, conf: Option<&Path>) -> Properties {
        Properties::parse(&self.read_properties(conf).unwrap_or_default().text)
    }

    /// Returns the list of all workflows: `default` unless the properties name another. Those of another user
    /// do not count.
    #[must_use]
    pub fn dashboard(
        &self,
        default: &Path,
        conf: Option<&Path>,
        notice: &mut dyn FnMut(Notice),
    ) -> Option<PathBuf> {
        let file = self.read_properties(conf).unwrap_or_default();
        let url = DatabaseUrls::read(&file.text).dashboard;
        let Some((key, url)) = url.filter(|_| file.is_trusted) else {
            return Some(default.to_owned());
        };
        let reason = match destination::read_url(&url) {
            Ok(Destination::File(path)) => return Some(path),
            Ok(_) => format!("{key}: the list is written to sqlite:///PATH only"),
            Err(error) => format!("{key}: {error}"),
        };
        notice(Notice::Dashboard { reason });
        None
    }
}

/// A file of properties.
#[derive(Default)]
struct PropertiesFile {
    path: PathBuf,
    text: String,
    /// It may choose what is written where.
    is_trusted: bool,
}

/// Reads `braindump.yml`.
fn read_braindump(path: &Path) -> Result<Braindump, LoadError> {
    let bytes = pmc_files::read(path, MAX_SMALL_FILE).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })?;
    Braindump::read(&String::from_utf8_lossy(&bytes)).map_err(|source| LoadError::Braindump {
        path: path.to_owned(),
        source,
    })
}

fn workflow_row(braindump: &Braindump, uuid: String, dag: String) -> WorkflowRow {
    let get = |key: &str| braindump.get(key).map(str::to_owned);
    WorkflowRow {
        wf_uuid: uuid,
        dag_file_name: Some(dag),
        timestamp: get("timestamp")
            .and_then(|text| parse_timestamp(&text))
            .unwrap_or(0),
        submit_hostname: get("submit_hostname"),
        submit_dir: get("submit_dir"),
        // The planner adds quotes.
        planner_arguments: get("planner_arguments").map(|text| text.trim_matches([' ', '"']).to_owned()),
        user: get("user"),
        grid_dn: get("grid_dn"),
        planner_version: get("planner_version").or_else(|| get("pegasus_version")),
        dax_label: get("dax_label").or_else(|| get("label")),
        dax_version: get("dax_version"),
        dax_file: get("dax"),
        around: None,
    }
}

/// Returns a UUID for a DAG that was not planned. It is the same each time, so that a database on a server
/// has the workflow once.
fn uuid_of_dag(dag: &Path, data: &fs::Metadata) -> String {
    let half = |part: &str| {
        let mut hasher = DefaultHasher::new();
        let host = gethostname::gethostname();
        (part, dag, host, data.dev(), data.ino()).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    let bytes = half("first half") << 64 | half("second half");
    uuid::Builder::from_custom_bytes(bytes.to_be_bytes())
        .into_uuid()
        .to_string()
}

/// Returns whether the first job of a DAG is one of HTCondor. False for a DAG that cannot be read.
fn is_for_htcondor(dag: &Path) -> bool {
    let Ok(file) = pmc_files::open(dag) else {
        return false;
    };
    let lines = BufReader::new(file.take(MAX_SMALL_FILE))
        .split(b'\n')
        .map_while(Result::ok);
    for line in lines {
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let mut next = || words.next().unwrap_or_default().to_ascii_uppercase();
        match &next()[..] {
            b"TASK" => return false,
            b"JOB" => return true,
            // Only DAGs for this project's executor have planned ones.
            b"SUBDAG" => return next() != b"PLANNED",
            _ => {}
        }
    }
    false
}

/// Converts `20261121T072841+0000` to seconds since the epoch.
fn parse_timestamp(text: &str) -> Option<i64> {
    let time = DateTime::parse_from_str(text, "%Y%m%dT%H%M%S%z");
    time.or_else(|_| DateTime::parse_from_rfc3339(text))
        .ok()
        .map(|time| time.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beside_the_log_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let text = "wf_uuid: \"u\"\ndag: \"/elsewhere/x-0.dag\"\ntimestamp: \"20261121T072841+0100\"\n\
                    planner_arguments: \"\\\"--conf p \\\"\"\nnotify: null\n";
        fs::write(dir.join("braindump.yml"), text).unwrap();
        fs::write(dir.join("x-0.dag"), "").unwrap();
        let run = Run::locate(&dir.join("x-0.dag.dagman.out")).unwrap();
        assert_eq!(run.dag, dir.join("x-0.dag"));
        assert_eq!(run.static_events, Path::new("/elsewhere/x-0.static.bp"));
        assert_eq!(run.database, dir.join("x-0.stampede.db"));
        assert_eq!(run.workflow.timestamp, 1_795_242_521);
        assert_eq!(run.workflow.planner_arguments.as_deref(), Some("--conf p"));
        assert_eq!(run.notify, None);
    }

    #[test]
    fn a_dag_without_braindump_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.dag.dagman.out");
        assert!(Run::find(&log).unwrap_err().to_string().contains("braindump.yml"));
        fs::write(dir.path().join("x.dag"), "").unwrap();
        let run = Run::find(&log).unwrap();
        assert!(!run.planned && run.dag.ends_with("x.dag") && run.log.ends_with("x.dag.dagman.out"));
        assert_eq!(run.workflow.dax_label.as_deref(), Some("x"));
        assert_eq!(run.workflow.wf_uuid.len(), 36);
        fs::write(dir.path().join("braindump.yml"), "dag: x.dag\n").unwrap();
        assert!(Run::find(&log).unwrap_err().to_string().contains("no wf_uuid"));
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = |name: &str| Run::locate(&dir.path().join(name)).unwrap_err().to_string();
        assert!(
            error("x.dag").ends_with("/x.dag: not the log of a workflow; its name ends in .dag.dagman.out")
        );
        assert!(error("x.dag.dagman.out").contains("braindump.yml: No such file"));
        fs::write(dir.path().join("braindump.yml"), "dag: x\n").unwrap();
        assert!(error("x.dag.dagman.out").contains("no wf_uuid"));
        fs::write(dir.path().join("braindump.yml"), "wf_uuid: u\ndag: x.dag\n").unwrap();
        fs::write(dir.path().join("x.dag"), "# JOB\n\n JOB a a.sub\n").unwrap();
        assert!(
            error("x.dag.dagman.out").ends_with("x.dag: a DAG for HTCondor; pegasus-monitord loads its runs")
        );
        fs::write(
            dir.path().join("x.dag"),
            "SUBDAG PLANNED a a/a.dag DIR a\nJOB a a.sub\n",
        )
        .unwrap();
        assert!(Run::locate(&dir.path().join("x.dag.dagman.out")).is_ok());
        fs::write(dir.path().join("braindump.yml"), "dag: [\n").unwrap();
        assert!(error("x.dag.dagman.out").contains("braindump.yml: line "));
    }
}
