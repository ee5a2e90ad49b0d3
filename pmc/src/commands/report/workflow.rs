//! The abstract workflow of a run, read as the user whose run it is may read it.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use pmc_files::Folder;
use pmc_monitor::history::History;
use pmc_plan::expand::ExpandEnv;
use pmc_plan::input::{ReadOptions, read_workflow};
use pmc_plan::model::Workflow;

use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Returns the user whose run it is.
pub fn owner(history: &History) -> Result<u32, Failure> {
    let user = Folder::open(&history.dir.dir).and_then(|folder| folder.user());
    user.context("cannot open the directory of the run")
        .or_code(exit::NOT_RUN)
}

/// Returns the name of the workflow and opens it: the planner's copy, or the file that it was planned from.
pub fn open(history: &History, user: u32) -> Result<(String, File), Failure> {
    let planned = history.dir.braindump.get("dax").map(PathBuf::from);
    let copy = planned
        .as_deref()
        .and_then(Path::file_name)
        .map(|name| history.dir.dir.join(name));
    let opened = copy.into_iter().chain(planned).find_map(|path| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((name, pmc_files::open_for(&path, user).ok()?))
    });
    opened
        .ok_or_else(|| anyhow!("the workflow file is gone, or the user whose run it is may not read it"))
        .or_code(exit::NOT_RUN)
}

/// Reads a copy of a workflow that lies in a temporary directory, which no message names.
pub fn read(copy: &Path) -> Result<Workflow, Failure> {
    // A name may have the variables of the viewer: none is replaced by its value.
    let read = read_workflow(copy, &ExpandEnv::off(), &ReadOptions::default());
    let dir = copy.parent().unwrap_or(Path::new("")).display();
    read.map(|read| read.workflow)
        .map_err(|error| anyhow!("{}", error.to_string().replace(&format!("{dir}/"), "")))
        .or_code(exit::NOT_RUN)
}
