//! The description of a job with a directory of its own or in a container: one JSON object.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pmc_calls::kickstart;
use serde::{Deserialize, Serialize};

use crate::is_default;
use crate::list::Entry;

/// Version of the format.
pub const FORMAT: u32 = 1;

/// A job. Lists of transfers are those of `pegasus-transfer`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Version of the format, [`FORMAT`].
    pub format: u32,
    /// Name of the job in the plan.
    pub job: String,
    /// Directory of the node in which the job's directory is made, before all others.
    #[serde(skip_serializing_if = "is_default")]
    pub scratch: Option<PathBuf>,
    /// Script of `sh` that sets the environment of the job and of its transfers.
    #[serde(skip_serializing_if = "is_default")]
    pub env_source: Option<PathBuf>,
    /// Options of `pegasus-transfer`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub transfer_arguments: Vec<String>,
    /// What the program runs in.
    #[serde(skip_serializing_if = "is_default")]
    pub container: Option<Container>,
    /// Directory in which the program works, instead of one of its own: other jobs share it, or it is that of
    /// a job outside of the container. A relative path starts at the working directory: `.` is the directory
    /// of the cluster that the job belongs to.
    #[serde(skip_serializing_if = "is_default")]
    pub work_directory: Option<PathBuf>,
    /// The job works in the directory in which it is started, which is its own already.
    #[serde(default, skip_serializing_if = "is_default")]
    pub in_start_directory: bool,
    /// What all jobs of a run have in common and no other run has.
    #[serde(default, skip_serializing_if = "is_default")]
    pub run_key: PathBuf,
    /// The job belongs to a cluster. The end of the cluster counts for monitoring, which takes the first end
    /// that it finds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub in_cluster: bool,
    /// Variables to set.
    #[serde(default, skip_serializing_if = "is_default")]
    pub environment: BTreeMap<String, String>,
    /// Variables to remove.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unset: Vec<String>,
    /// Inputs to fetch.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stage_in: Vec<Entry>,
    /// Inputs that other jobs of the site fetch too: they come through the cache of the node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shared: Vec<String>,
    /// Maximum bytes in the cache of the node. Without it, the limit is a share of the file system.
    #[serde(skip_serializing_if = "is_default")]
    pub cache_limit: Option<u64>,
    /// Checkpoint files to fetch, if they are there.
    #[serde(default, skip_serializing_if = "is_default")]
    pub checkpoint_in: Vec<Entry>,
    /// Fetched files that are made executable.
    #[serde(default, skip_serializing_if = "is_default")]
    pub executables: Vec<PathBuf>,
    /// Inputs whose checksums are verified.
    #[serde(default, skip_serializing_if = "is_default")]
    pub verify: Vec<Verified>,
    /// What is run.
    pub run: Run,
    /// Files that the program must write.
    #[serde(default, skip_serializing_if = "is_default")]
    pub required: Vec<String>,
    /// Outputs to deliver.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stage_out: Vec<Entry>,
    /// Checkpoint files to deliver, if they are there, also after a failure.
    #[serde(default, skip_serializing_if = "is_default")]
    pub checkpoint_out: Vec<Entry>,
    /// Outputs whose checksums this program computes, since the record of kickstart is out of its reach.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hashed: Vec<String>,
    /// The metadata file that gets the checksums of the outputs.
    #[serde(skip_serializing_if = "is_default")]
    pub checksum_file: Option<PathBuf>,
}

/// A file with a known checksum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Logical name, which is the file's path in the directory of the job.
    pub lfn: String,
    /// SHA-256 in hexadecimal, from a catalog.
    #[serde(skip_serializing_if = "is_default")]
    pub sha256: Option<String>,
    /// The metadata file with the checksum, if it is in no catalog.
    #[serde(skip_serializing_if = "is_default")]
    pub checksum_file: Option<PathBuf>,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    /// Arguments of kickstart, which this process stands in for.
    Kickstart(Vec<String>),
    /// A program with its arguments.
    Program(Vec<String>),
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// What runs it.
    pub kind: ContainerKind,
    /// Name of the image, relative to the directory of the job if it is a file.
    pub image: String,
    /// Where the directory of the job is in the container.
    pub directory: String,
    /// Further directories of the node, `HERE:THERE[:OPTIONS]`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mounts: Vec<String>,
    /// Options of the user.
    #[serde(default, skip_serializing_if = "is_default")]
    pub arguments: Vec<String>,
    /// Command before that of the container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub launcher: Vec<String>,
    /// The job has GPUs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gpus: bool,
    /// Variables of the program.
    #[serde(default, skip_serializing_if = "is_default")]
    pub environment: BTreeMap<String, String>,
    /// Variables of this process that are for the program.
    #[serde(default, skip_serializing_if = "is_default")]
    pub secrets: Vec<String>,
    /// Transfer of the image.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fetch: Vec<Entry>,
    /// Checksum of the image.
    #[serde(default, skip_serializing_if = "is_default")]
    pub verify: Vec<Verified>,
    /// Files are fetched and delivered in the container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub transfers_inside: bool,
}

/// What runs a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerKind {
    /// docker, else podman.
    #[default]
    Docker,
    /// podman.
    Podman,
    /// apptainer, else singularity.
    Singularity,
    /// shifter, which knows images by name.
    Shifter,
}

impl ContainerKind {
    /// Names in catalogs.
    pub const NAMES: &str = "docker, podman, singularity, apptainer, shifter";

    /// Parses its name in catalogs.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "docker" => ContainerKind::Docker,
            "podman" => ContainerKind::Podman,
            "singularity" | "apptainer" => ContainerKind::Singularity,
            "shifter" => ContainerKind::Shifter,
            _ => return None,
        })
    }

    /// Returns its name in descriptions of jobs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ContainerKind::Docker => "docker",
            ContainerKind::Podman => "podman",
            ContainerKind::Singularity => "singularity",
            ContainerKind::Shifter => "shifter",
        }
    }

    /// Returns the type of an image in lists of transfers, which says how it is fetched.
    #[must_use]
    pub fn image_type(self) -> &'static str {
        match self {
            ContainerKind::Docker | ContainerKind::Podman => "docker",
            ContainerKind::Singularity => "singularity",
            ContainerKind::Shifter => "shifter",
        }
    }

    /// Returns where the directory of a job is in the container, as the original has it.
    #[must_use]
    pub fn directory(self) -> &'static str {
        match self {
            ContainerKind::Singularity => "/srv",
            _ => "/scratch",
        }
    }
}

impl Default for Run {
    fn default() -> Self {
        Run::Program(Vec::new())
    }
}

/// What becomes of a file of the submit directory on a host that does not see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// Lists of files for kickstart, and checksums of inputs, which other jobs have written.
    Read,
    /// A script on the host of the master that sets variables.
    Script,
    /// Checksums of outputs, which the job writes.
    Written,
}

/// How the names of the planner's lists for kickstart end.
const LISTS: [&str; 2] = [".in.lof", ".out.lof"];

/// A description that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
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
    pub fn parse(text: &[u8]) -> Result<Self, DescriptionError> {
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

    /// Returns the text of the description.
    ///
    /// # Errors
    /// A path or a name is not UTF-8.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// Calls `take` with all files of the submit directory. It may change their paths.
    pub fn each_file(&mut self, take: &mut dyn FnMut(FileUse, &mut PathBuf)) {
        if let Some(script) = &mut self.env_source {
            take(FileUse::Script, script);
        }
        let of_image = self
            .container
            .iter_mut()
            .flat_map(|container| &mut container.verify);
        for file in self.verify.iter_mut().chain(of_image) {
            if let Some(checksums) = &mut file.checksum_file {
                take(FileUse::Read, checksums);
            }
        }
        if let Some(checksums) = &mut self.checksum_file {
            take(FileUse::Written, checksums);
        }
        let Run::Kickstart(words) = &mut self.run else {
            return;
        };
        let lists: Vec<_> = kickstart::lists(words)
            .filter(|(list, _)| LISTS.iter().any(|suffix| list.ends_with(suffix)))
            .map(|(list, place)| (PathBuf::from(list), place))
            .collect();
        for (mut list, place) in lists {
            take(FileUse::Read, &mut list);
            kickstart::set_list(words, place, &list.to_string_lossy());
        }
    }
}
