//! `pmc init`: writes a small workflow with catalogs, programs and inputs.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};

use crate::cli::{self, Template};
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use pmc_calls::shell::shell_quote;
use pmc_terminal::print;

/// Names and contents of files.
type Files = &'static [(&'static str, &'static str)];

macro_rules! template {
    ($name:literal) => {
        concat!("../../templates/init/", $name)
    };
}

macro_rules! diamond {
    ($name:literal) => {
        concat!("../../../examples/diamond/", $name)
    };
}

const SINGLE: Files = &[
    ("workflow.yml", include_str!(template!("single/workflow.yml"))),
    (
        "transformations.yml",
        include_str!(template!("single/transformations.yml")),
    ),
    ("replicas.yml", include_str!(template!("single/replicas.yml"))),
    ("bin/count", include_str!(template!("bin/count"))),
    ("inputs/text-1.txt", include_str!(template!("inputs/text-1.txt"))),
];

const PIPELINE: Files = &[
    ("workflow.yml", include_str!(diamond!("workflow.yml"))),
    (
        "transformations.yml",
        include_str!(diamond!("transformations.yml")),
    ),
    ("replicas.yml", include_str!(diamond!("replicas.yml"))),
    ("bin/preprocess", include_str!(diamond!("bin/preprocess"))),
    ("bin/findrange", include_str!(diamond!("bin/findrange"))),
    ("bin/analyze", include_str!(diamond!("bin/analyze"))),
    ("inputs/f.a", include_str!(diamond!("inputs/f.a"))),
];

const FAN_OUT: Files = &[
    ("workflow.yml", include_str!(template!("fan-out/workflow.yml"))),
    (
        "transformations.yml",
        include_str!(template!("fan-out/transformations.yml")),
    ),
    ("replicas.yml", include_str!(template!("fan-out/replicas.yml"))),
    ("bin/count", include_str!(template!("bin/count"))),
    ("bin/merge", include_str!(template!("bin/merge"))),
    ("inputs/text-1.txt", include_str!(template!("inputs/text-1.txt"))),
    ("inputs/text-2.txt", include_str!(template!("inputs/text-2.txt"))),
    ("inputs/text-3.txt", include_str!(template!("inputs/text-3.txt"))),
];

/// Name of the script for Pegasus.api.
const SCRIPT: &str = "workflow.py";

/// Writes a workflow. Returns the exit code.
pub fn init(arguments: &cli::Init) -> Result<u8, Failure> {
    let (files, script) = match arguments.template {
        Template::Single => (SINGLE, include_str!(template!("single/workflow.py"))),
        Template::Pipeline => (PIPELINE, include_str!(template!("pipeline/workflow.py"))),
        Template::FanOut => (FAN_OUT, include_str!(template!("fan-out/workflow.py"))),
    };
    let script = arguments.python.then_some((SCRIPT, script));
    let files = || files.iter().copied().chain(script);
    let dir = &arguments.dir;
    // Before anything is written.
    if let Some((name, _)) = files().find(|(name, _)| dir.join(name).symlink_metadata().is_ok()) {
        let error = anyhow!("{} exists already; nothing was written", dir.join(name).display());
        return Err(Failure::new(exit::USAGE, error).hint("name another directory: pmc init DIR"));
    }
    for (name, content) in files() {
        let path = dir.join(name);
        write(&path, content)
            .with_context(|| format!("cannot write {}", path.display()))
            .or_code(exit::NOT_RUN)?;
    }
    print(&message(dir, files().map(|(name, _)| name)));
    Ok(exit::SUCCESS)
}

/// Writes a new file. Programs and scripts are executable.
fn write(path: &Path, content: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mode = if content.starts_with("#!") { 0o755 } else { 0o644 };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content.as_bytes())
}

fn message(dir: &Path, names: impl Iterator<Item = &'static str>) -> String {
    let shown = |name: &str| dir.join(name).components().collect::<std::path::PathBuf>();
    let mut text = String::new();
    for name in names {
        text.push_str(&format!("{}\n", shown(name).display()));
    }
    let workflow = shown("workflow.yml");
    let workflow = workflow.strip_prefix("./").unwrap_or(&workflow);
    let command = workflow.display().to_string();
    let command = shell_quote(&command);
    text.push_str(&format!("\nto run it: pmc run {command}\n"));
    text
}
