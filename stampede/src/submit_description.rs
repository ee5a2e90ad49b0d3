//! The submit description of a nested sub-workflow, which the planner writes for monitoring.

use std::io;
use std::path::{Path, PathBuf};

/// Maximum size in bytes of a description.
const MAX_SIZE: u64 = 1 << 20;
/// Variable with the log of the sub-workflow.
const LOG: &str = "_CONDOR_DAGMAN_LOG=";

/// What a submit description says about a nested sub-workflow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmitDescription {
    /// Log of the sub-workflow, below a directory whose name lacks its number.
    pub log: PathBuf,
    /// Site.
    pub site: Option<String>,
    /// Program that runs the sub-workflow.
    pub executable: Option<String>,
    /// Name of this program as a transformation.
    pub transformation: Option<String>,
    /// Id of its task.
    pub task: Option<String>,
}

impl SubmitDescription {
    /// Reads a description. `None` if it is not that of a nested sub-workflow.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let bytes = pmc_files::read(path, MAX_SIZE)?;
        Ok(Self::read(&String::from_utf8_lossy(&bytes)))
    }

    fn read(text: &str) -> Option<Self> {
        let mut found = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let value = value.trim().trim_matches('"');
            let set = || Some(value.to_owned()).filter(|value| !value.is_empty());
            match key.trim() {
                "environment" => {
                    let mut words = value.split([' ', ';', '\'']);
                    found.log = words.find_map(|word| word.strip_prefix(LOG))?.into();
                }
                "executable" => found.executable = set(),
                "+pegasus_site" => found.site = set(),
                "+pegasus_wf_xformation" => found.transformation = set(),
                "+pegasus_wf_dax_job_id" => found.task = set(),
                _ => {}
            }
        }
        let is_log = found.log.file_name().is_some() && found.log.parent()?.file_name().is_some();
        is_log.then_some(found)
    }

    /// Returns the log of the attempt with this number, counted from 0. `planned` is the submit directory of
    /// the workflow around it as it was planned, `dir` where it is now. `None` if there is no directory of
    /// the sub-workflow.
    #[must_use]
    pub fn log_of(&self, number: u32, planned: Option<&str>, dir: &Path) -> Option<PathBuf> {
        let inside = planned.and_then(|planned| self.log.strip_prefix(planned).ok());
        let log = inside.map_or_else(|| self.log.clone(), |inside| dir.join(inside));
        let (place, name) = (log.parent()?, log.file_name()?);
        // The same rule as that of Pegasus' monitoring: one directory for each new plan, else the first one.
        let numbered = |number: u32| {
            let path = pmc_files::with_suffix(place, format!(".{number:03}"));
            Some(path).filter(|path| path.is_dir())
        };
        Some(numbered(number).or_else(|| numbered(0))?.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# x\nenvironment = \"_CONDOR_DAGMAN_LOG=/run/00/00/made/made.dag.dagman.out\"\n\
        executable = /bin/pegasus-mpi-cluster\n+pegasus_wf_xformation = \"condor::dagman\"\n\
        +pegasus_wf_dax_job_id = \"S\"\n+pegasus_site = \"local\"\nqueue\n";

    #[test]
    fn a_description_of_the_planner_is_read() {
        let found = SubmitDescription::read(TEXT).unwrap();
        assert_eq!(found.log, Path::new("/run/00/00/made/made.dag.dagman.out"));
        assert_eq!(found.site.as_deref(), Some("local"));
        assert_eq!(found.executable.as_deref(), Some("/bin/pegasus-mpi-cluster"));
        assert_eq!(found.transformation.as_deref(), Some("condor::dagman"));
        assert_eq!(found.task.as_deref(), Some("S"));
        for other in [
            "",
            "executable = /bin/true\n",
            "environment = \"A=b\"\n",
            "environment = _CONDOR_DAGMAN_LOG=/\n",
        ] {
            assert_eq!(SubmitDescription::read(other), None, "{other}");
        }
    }

    #[test]
    fn the_log_is_in_the_directory_of_the_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let found = SubmitDescription::read(TEXT).unwrap();
        let log = |number| found.log_of(number, Some("/run"), dir.path());
        assert_eq!(log(0), None);
        for name in ["made.000", "made.001"] {
            std::fs::create_dir_all(dir.path().join("00/00").join(name)).unwrap();
        }
        let expected = |name: &str| Some(dir.path().join("00/00").join(name).join("made.dag.dagman.out"));
        assert_eq!(log(0), expected("made.000"));
        assert_eq!(log(1), expected("made.001"));
        // Without a new plan, the second attempt goes on in the directory of the first one.
        assert_eq!(log(2), expected("made.000"));
        assert_eq!(found.log_of(0, Some("/elsewhere"), dir.path()), None);
    }
}
