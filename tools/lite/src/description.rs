//! The description of a job, as the planner writes it: one JSON object.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

/// Version of the format.
pub(crate) const FORMAT: u32 = 1;

/// A job. Lists of transfers are those of `pegasus-transfer`.
#[derive(Debug, Deserialize)]
pub(crate) struct Description {
    /// Version of the format, [`FORMAT`].
    pub(crate) format: u32,
    /// Name of the job in the plan.
    pub(crate) job: String,
    /// Directory of the node in which the job's directory is made, before all others.
    pub(crate) scratch: Option<PathBuf>,
    /// Script of `sh` that sets the environment of the job and of its transfers.
    pub(crate) env_source: Option<PathBuf>,
    /// Options of `pegasus-transfer`.
    #[serde(default)]
    pub(crate) transfer_arguments: Vec<String>,
    /// What the program runs in.
    pub(crate) container: Option<Container>,
    /// Directory in which the program works, instead of one of its own: other jobs share it, or it is that of
    /// a job outside of the container. A relative path starts at the working directory: `.` is the directory
    /// of the cluster that the job belongs to.
    pub(crate) work_directory: Option<PathBuf>,
    /// What all jobs of a run have in common and no other run has.
    #[serde(default)]
    pub(crate) run_key: PathBuf,
    /// The job belongs to a cluster. The end of the cluster counts for monitoring, which takes the first end
    /// that it finds.
    #[serde(default)]
    pub(crate) in_cluster: bool,
    /// Variables to set.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// Variables to remove.
    #[serde(default)]
    pub(crate) unset: Vec<String>,
    /// Inputs to fetch.
    #[serde(default)]
    pub(crate) stage_in: Vec<Value>,
    /// Inputs that other jobs of the site fetch too: they come through the cache of the node.
    #[serde(default)]
    pub(crate) shared: Vec<String>,
    /// How many bytes the cache of the node may have; unless it is said, a part of the space.
    pub(crate) cache_limit: Option<u64>,
    /// Checkpoint files to fetch, if they are there.
    #[serde(default)]
    pub(crate) checkpoint_in: Vec<Value>,
    /// Fetched files that are made executable.
    #[serde(default)]
    pub(crate) executables: Vec<PathBuf>,
    /// Inputs whose checksums are verified.
    #[serde(default)]
    pub(crate) verify: Vec<Verified>,
    /// What is run.
    pub(crate) run: Run,
    /// Files that the program must write.
    #[serde(default)]
    pub(crate) required: Vec<String>,
    /// Outputs to deliver.
    #[serde(default)]
    pub(crate) stage_out: Vec<Value>,
    /// Checkpoint files to deliver, if they are there, also after a failure.
    #[serde(default)]
    pub(crate) checkpoint_out: Vec<Value>,
    /// Outputs whose checksums this program computes, since the record of kickstart is out of its reach.
    #[serde(default)]
    pub(crate) hashed: Vec<String>,
    /// The metadata file that gets the checksums of the outputs.
    pub(crate) checksum_file: Option<PathBuf>,
}

/// A file with a known checksum.
#[derive(Debug, Deserialize)]
pub(crate) struct Verified {
    /// Logical name, which is the file's path in the directory of the job.
    pub(crate) lfn: String,
    /// SHA-256 in hexadecimal, from a catalog.
    pub(crate) sha256: Option<String>,
    /// The metadata file with the checksum, if it is in no catalog.
    pub(crate) checksum_file: Option<PathBuf>,
}

/// What is run.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Run {
    /// Arguments of kickstart, which this process stands in for.
    Kickstart(Vec<String>),
    /// A program with its arguments.
    Program(Vec<String>),
}

/// A container.
#[derive(Debug, Deserialize)]
pub(crate) struct Container {
    /// What runs it.
    pub(crate) kind: ContainerKind,
    /// Name of the image, relative to the directory of the job if it is a file.
    pub(crate) image: String,
    /// Where the directory of the job is in the container.
    pub(crate) directory: String,
    /// Further directories of the node, `HERE:THERE[:OPTIONS]`.
    #[serde(default)]
    pub(crate) mounts: Vec<String>,
    /// Options of the user.
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    /// Command before that of the container.
    #[serde(default)]
    pub(crate) launcher: Vec<String>,
    /// The job has GPUs.
    #[serde(default)]
    pub(crate) gpus: bool,
    /// Variables of the program.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// Variables of this process that are for the program.
    #[serde(default)]
    pub(crate) secrets: Vec<String>,
    /// Transfer of the image.
    #[serde(default)]
    pub(crate) fetch: Vec<Value>,
    /// Checksum of the image.
    #[serde(default)]
    pub(crate) verify: Vec<Verified>,
    /// Files are fetched and delivered in the container.
    #[serde(default)]
    pub(crate) transfers_inside: bool,
}

/// What runs a container.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContainerKind {
    /// docker, else podman.
    Docker,
    /// podman.
    Podman,
    /// apptainer, else singularity.
    Singularity,
    /// shifter.
    Shifter,
}

/// A description that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DescriptionError {
    /// Not JSON, or not of the expected shape.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Written by another version of the planner.
    #[error(
        "its format is {0}, but this program reads {FORMAT}: plan again with the planner of this installation"
    )]
    Format(u32),
    /// Nothing to run.
    #[error("it names no program")]
    NoProgram,
}

impl Description {
    /// Parses a description.
    ///
    /// # Errors
    /// It cannot be used.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, DescriptionError> {
        let this: Self = serde_json::from_slice(text)?;
        if this.format != FORMAT {
            return Err(DescriptionError::Format(this.format));
        }
        match &this.run {
            Run::Kickstart(words) | Run::Program(words) if words.is_empty() => {
                Err(DescriptionError::NoProgram)
            }
            _ => Ok(this),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_other_versions_and_without_a_program_are_refused() {
        let parse = |text: &str| Description::parse(text.as_bytes()).map_err(|error| error.to_string());
        assert!(parse(r#"{"format": 1, "job": "a", "run": {"program": ["/bin/true"]}}"#).is_ok());
        let error = parse(r#"{"format": 9, "job": "a", "run": {"program": ["/bin/true"]}}"#).unwrap_err();
        assert!(error.contains("its format is 9"), "{error}");
        let error = parse(r#"{"format": 1, "job": "a", "run": {"kickstart": []}}"#).unwrap_err();
        assert_eq!(error, "it names no program");
        assert!(parse("{").is_err());
        assert!(parse("").is_err());
    }
}
