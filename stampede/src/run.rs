//! Where the files of a planned workflow are, and what `braindump.yml` says about it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use chrono::DateTime;
use monitord_compat::braindump_reader::Braindump;
use nix::unistd::{User, getuid};

use crate::destination::{self, Destination, Planned};
use crate::error::{LoadError, Notice};
use crate::rows::WorkflowRow;
use crate::store::Sqlite;

const LOG_END: &str = ".dag.dagman.out";

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
    /// What the planner wrote about jobs and tasks.
    pub static_events: PathBuf,
    /// The database.
    pub database: PathBuf,
    /// Columns of the workflow.
    pub workflow: WorkflowRow,
    /// A file with commands to run at events; nobody does.
    pub notify: Option<String>,
    /// The settings that it was planned with.
    pub properties: Option<PathBuf>,
    /// Whether the planner made it. Of a DAG from elsewhere, only the DAG itself is known.
    pub planned: bool,
}

impl Run {
    /// As [`Run::locate`]; where there is no `braindump.yml`, the run is that of a DAG that was not
    /// planned.
    ///
    /// # Errors
    /// As [`Run::locate`], or there is no DAG either.
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
        let dag = fs::canonicalize(log.strip_suffix(LOG_END.strip_prefix(".dag")?)?).ok()?;
        let data = dag.metadata().ok()?;
        let time = data.modified().ok()?;
        let name = dag.file_stem()?.to_str()?.to_owned();
        let dir = dag.parent()?.to_owned();
        let beside = |end: &str| dir.join(format!("{name}{end}"));
        let database = beside(".stampede.db");
        // Later runs of the same DAG are those of the same workflow.
        let known = Sqlite::workflow_of(&database);
        let text = |path: &Path| Some(path.display().to_string());
        Some(Self {
            workflow: WorkflowRow {
                wf_uuid: known.unwrap_or_else(|| of_dag(&dag, &data)),
                dag_file_name: dag.file_name()?.to_str().map(str::to_owned),
                timestamp: DateTime::<chrono::Utc>::from(time).timestamp(),
                submit_hostname: gethostname::gethostname().into_string().ok(),
                submit_dir: text(&dir),
                user: User::from_uid(getuid()).ok().flatten().map(|user| user.name),
                dax_label: Some(name.clone()),
                ..WorkflowRow::default()
            },
            static_events: beside(".static.bp"),
            log: beside(LOG_END),
            database,
            notify: None,
            properties: None,
            planned: false,
            name,
            dag,
            dir,
        })
    }

    /// Finds the files of the run that `log` belongs to. The files beside the log are taken; only
    /// where there are none, those that `braindump.yml` names. So a copied directory is complete.
    ///
    /// # Errors
    /// It is not the name of a log, or `braindump.yml` is missing, damaged or not complete.
    pub fn locate(log: &Path) -> Result<Self, LoadError> {
        let not_a_log = || LoadError::LogName { path: log.to_owned() };
        let name = log.file_name().and_then(OsStr::to_str).ok_or_else(not_a_log)?;
        let name = name
            .strip_suffix(LOG_END)
            .filter(|name| !name.is_empty())
            .ok_or_else(not_a_log)?;
        let parent = log
            .parent()
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let dir = fs::canonicalize(parent).map_err(|source| LoadError::Read {
            path: parent.to_owned(),
            source,
        })?;
        let path = dir.join("braindump.yml");
        let bytes = fs::read(&path).map_err(|source| LoadError::Read {
            path: path.clone(),
            source,
        })?;
        let braindump =
            Braindump::read(&String::from_utf8_lossy(&bytes)).map_err(|source| LoadError::Braindump {
                path: path.clone(),
                source,
            })?;
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
        let workflow = WorkflowRow {
            wf_uuid: uuid,
            dag_file_name: Some(planned_dag),
            timestamp: get("timestamp").and_then(|text| planned_at(&text)).unwrap_or(0),
            submit_hostname: get("submit_hostname"),
            submit_dir: get("submit_dir"),
            // They stand in quotes of their own.
            planner_arguments: get("planner_arguments").map(|text| text.trim_matches([' ', '"']).to_owned()),
            user: get("user"),
            grid_dn: get("grid_dn"),
            planner_version: get("planner_version").or_else(|| get("pegasus_version")),
            dax_label: get("dax_label").or_else(|| get("label")),
            dax_version: get("dax_version"),
            dax_file: get("dax"),
        };
        let dag = choose(".dag");
        if is_for_htcondor(&dag) {
            return Err(LoadError::HtCondor { path: dag });
        }
        Ok(Self {
            dag,
            static_events: choose(".static.bp"),
            database: beside(".stampede.db"),
            log: dir.join(format!("{name}{LOG_END}")),
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
    /// What the settings of the run say, or those of `conf`.
    fn settings(&self, conf: Option<&Path>) -> Result<(PathBuf, Planned), LoadError> {
        match conf.or(self.properties.as_deref()) {
            None => Ok((PathBuf::new(), Planned::default())),
            Some(path) => match fs::read(path) {
                Ok(bytes) => Ok((path.to_owned(), Planned::read(&String::from_utf8_lossy(&bytes)))),
                // A directory that was copied without them; but a file that was asked for must be there.
                Err(source) if source.kind() == ErrorKind::NotFound && conf.is_none() => {
                    Ok((path.to_owned(), Planned::default()))
                }
                Err(source) => Err(LoadError::Read {
                    path: path.to_owned(),
                    source,
                }),
            },
        }
    }

    /// Where the rows go if `wanted` leaves it to the settings.
    ///
    /// # Errors
    /// The settings cannot be read, or name what cannot be written.
    pub fn destination(&self, wanted: &Destination, conf: Option<&Path>) -> Result<Destination, LoadError> {
        if *wanted != Destination::AsPlanned {
            return Ok(wanted.clone());
        }
        let (path, planned) = self.settings(conf)?;
        match planned.workflow {
            None => Ok(Destination::BesideLog),
            Some((key, url)) => {
                destination::read_url(&url).map_err(|source| LoadError::Url { path, key, source })
            }
        }
    }

    /// The list of all workflows: the `usual` one unless the settings name another.
    #[must_use]
    pub fn dashboard(
        &self,
        usual: &Path,
        conf: Option<&Path>,
        notice: &mut dyn FnMut(Notice),
    ) -> Option<PathBuf> {
        let planned = self
            .settings(conf)
            .map(|(_, planned)| planned)
            .unwrap_or_default();
        let Some((key, url)) = planned.dashboard else {
            return Some(usual.to_owned());
        };
        match destination::read_url(&url) {
            Ok(Destination::File(path)) => Some(path),
            Ok(_) => {
                let reason = format!("{key}: the list is written to sqlite:///PATH only");
                notice(Notice::Dashboard { reason });
                None
            }
            Err(error) => {
                let reason = format!("{key}: {error}");
                notice(Notice::Dashboard { reason });
                None
            }
        }
    }
}

/// An identifier for the workflow of a DAG that was not planned: the same each time, so that a database
/// on a server has it once.
fn of_dag(dag: &Path, data: &fs::Metadata) -> String {
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

/// Whether the first job of a DAG is one of HTCondor. A DAG that cannot be read is not needed either.
fn is_for_htcondor(dag: &Path) -> bool {
    let Ok(file) = File::open(dag) else {
        return false;
    };
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    let mut first_words = lines.map(|line| {
        let word = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty());
        word.unwrap_or_default().to_ascii_uppercase()
    });
    let first = first_words.find(|word| matches!(&word[..], b"TASK" | b"JOB" | b"SUBDAG"));
    first.is_some_and(|word| word != b"TASK")
}

/// `20261121T072841+0000` to seconds since the epoch.
fn planned_at(text: &str) -> Option<i64> {
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
    fn a_dag_that_was_not_planned() {
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
    fn what_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let said = |name: &str| Run::locate(&dir.path().join(name)).unwrap_err().to_string();
        assert!(
            said("x.dag").ends_with("/x.dag: not the log of a workflow; its name ends in .dag.dagman.out")
        );
        assert!(said("x.dag.dagman.out").contains("braindump.yml: No such file"));
        fs::write(dir.path().join("braindump.yml"), "dag: x\n").unwrap();
        assert!(said("x.dag.dagman.out").contains("no wf_uuid"));
        fs::write(dir.path().join("braindump.yml"), "wf_uuid: u\ndag: x.dag\n").unwrap();
        fs::write(dir.path().join("x.dag"), "# JOB\n\n JOB a a.sub\n").unwrap();
        assert!(
            said("x.dag.dagman.out").ends_with("x.dag: a DAG for HTCondor; pegasus-monitord loads its runs")
        );
        fs::write(dir.path().join("braindump.yml"), "dag: [\n").unwrap();
        assert!(said("x.dag.dagman.out").contains("braindump.yml: line "));
    }
}
