//! The code generator PMC: a DAG for pegasus-mpi-cluster, fingerprints of its tasks, and batch scripts.

pub(crate) mod batch;
mod dag;
mod max_jobs;

use std::fs;
use std::path::{Path, PathBuf};

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::request::Request;
use crate::tasks::Plan;

use super::common::fingerprints::{self, FingerprintWriter};
use super::{Code, Generator, Writing};

/// Name of the executor.
const EXECUTOR: &str = "pegasus-mpi-cluster";

/// The code generator.
pub(super) struct Pmc;

impl Generator for Pmc {
    fn braindump(&self, plan: &Plan<'_>) -> Vec<(&'static str, Option<String>)> {
        let file = |suffix: &str| Some(format!("{}/{}{suffix}", plan.submit, plan.base));
        vec![
            ("dag", file(".dag")),
            ("type", Some("pbs".to_owned())),
            ("script", file(".pbs")),
        ]
    }

    fn write(&self, to: &mut Writing<'_>) -> Result<Code, PlanError> {
        let Writing {
            plan,
            request,
            resources,
            dir,
            ..
        } = *to;
        let prints = FingerprintWriter::new(plan);
        let path = fingerprints::write_head(&prints, plan, to)?;
        let file = fs::OpenOptions::new().append(true).open(&path);
        let prints = dag::PrintsFile {
            prints: &prints,
            file: file.map_err(|e| PlanError::io("write", &path, e))?,
            path: &path,
        };
        dag::write(to, prints)?;
        if request.deferred {
            // It joins the run around it, and nothing submits it.
            return Ok(Code::default());
        }
        let tools = &plan.sites.get(to.site).tools;
        let (executor, is_found) = executor(request, tools);
        if !is_found {
            to.warnings.push(Diagnostic::warning(format!(
                "{EXECUTOR} is neither in {tools} nor on PATH; the batch scripts name it there all the same, in case \
                 the compute nodes have it"
            )));
        }
        Ok(Code {
            scripts: batch::write(plan, resources, &executor.display().to_string(), dir)?,
            batch_size: Some(batch::describe(resources)),
            run_files: Some(batch::describe_files(plan, resources)),
            log_options: batch::log_options(plan, resources),
            needs_nodes: resources.needs_nodes(),
            shell: None,
        })
    }
}

/// Returns the path of the executor, in the tools of the site, else on `PATH`, and whether it is there.
pub(crate) fn executor(request: &Request, tools: &str) -> (PathBuf, bool) {
    let first = Path::new(tools).join(EXECUTOR);
    if first.exists() {
        return (first, true);
    }
    let path = request.environment.variables.get("PATH");
    let found = path
        .map_or("", String::as_str)
        .split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join(EXECUTOR))
        .find(|program| program.is_file());
    let is_found = found.is_some();
    (found.unwrap_or(first), is_found)
}
