//! `pmc run`: plans a workflow for this machine and runs it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use pmc_plan::catalog::site::{self, DirectoryKind};
use pmc_plan::error::InputErrors;
use pmc_plan::error::PlanError;
use pmc_plan::expand::ExpandEnv;
use pmc_plan::input::{ParsedWorkflow, ReadOptions, read_workflow};
use pmc_plan::plan::{Planned, plan};
use pmc_plan::properties::{Properties, PropertySources};
use pmc_plan::request::{BatchOptions, CleanupStrategy, Environment, Request};

use crate::cli::{self, Cleanup};
use crate::commands::execute;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::programs;
use crate::submit::Submit;

/// Variable with the directory of the workflow file, for `${…}` in workflow and catalogs.
const WORKFLOW_DIR: &str = "PMC_WORKFLOW_DIR";
/// Variable with the directory of an installation, which has the programs in `bin`.
const HOME_VARIABLE: &str = "PEGASUS_HOME";
/// Default file names of the catalogs.
const CATALOGS: [(&str, [&str; 2]); 3] = [
    ("site", ["sites.yml", "sites.xml"]),
    ("transformation", ["transformations.yml", "tc.txt"]),
    ("replica", ["replicas.yml", "rc.txt"]),
];

/// Properties of a cluster that have only one valid value on one machine.
const ONE_MACHINE: [(&str, &str); 2] = [
    ("pegasus.code.generator", "PMC"),
    ("pegasus.data.configuration", "sharedfs"),
];
/// Default memory of tasks, which is 0 unless the user sets it: the planner's default would idle CPUs of a
/// machine with little memory. Requests of jobs, programs and sites override it.
const MEMORY: &str = "pegasus.memory";

/// Plans and runs a workflow. Returns the exit code.
pub fn run(arguments: &cli::Run) -> Result<u8, Failure> {
    let start = Instant::now();
    let cwd = std::env::current_dir()
        .context("cannot determine the working directory")
        .or_code(exit::NOT_RUN)?;
    let workflow = cwd.join(&arguments.workflow);
    if !workflow.is_file() {
        let named = arguments.workflow.display();
        let error = if workflow.is_dir() {
            let default = arguments.workflow.join("workflow.yml");
            let hint = match default.is_file() {
                true => format!("\n  hint: pmc run {}", default.display()),
                false => String::new(),
            };
            anyhow!("{named}: a directory, not a workflow file{hint}")
        } else if workflow.exists() {
            anyhow!("{named}: not a regular file")
        } else {
            anyhow!("{named}: no such workflow file")
        };
        return Err(Failure::new(exit::NOT_PLANNED, error));
    }
    let environment = environment(&workflow)?;
    let mut request = request(arguments, workflow, environment);
    complete(&mut request, arguments.output)?;
    let facts = Facts::read(&request).or_code(exit::NOT_PLANNED)?;
    if !facts.has_scratch
        && !request.environment.variables.contains_key(HOME_VARIABLE)
        && let Some(bin) = &request.environment.own_bin
    {
        programs::check_beside(bin).map_err(execute::missing_programs)?;
    }

    let runs = cwd.join(&arguments.dir);
    let run_dir = layout::new_run(&runs, &facts.label).or_code(exit::NOT_RUN)?;
    place(&mut request, &run_dir, &facts);
    let planned = match plan(&request) {
        Ok(planned) => planned,
        Err(error) => {
            // Nothing has run: the directory has only an incomplete plan.
            layout::discard(&run_dir);
            let code = match error {
                PlanError::Io { .. } => exit::NOT_RUN,
                _ => exit::NOT_PLANNED,
            };
            return Err(Failure::new(code, error));
        }
    };
    layout::mark_latest(&run_dir);
    print_plan(&planned, arguments.output);
    execute::execute(&execute::Request {
        submit: Submit {
            dir: planned.submit_dir,
            dag: planned.dag,
            label: planned.label,
        },
        name: arguments
            .dir
            .join(run_dir.strip_prefix(&runs).unwrap_or(&run_dir)),
        here: false,
        execution: arguments.execution.clone(),
        output: arguments.output,
        start,
    })
}

/// Reads the environment, and adds the directory of the workflow.
fn environment(workflow: &Path) -> Result<Environment, Failure> {
    let mut environment = Environment::read()
        .context("cannot determine the working directory")
        .or_code(exit::NOT_RUN)?;
    if let Some(dir) = workflow.parent().and_then(|dir| dir.canonicalize().ok()) {
        let dir = dir.to_str().ok_or_else(|| {
            let error = anyhow!("the name of the directory {} is not UTF-8", dir.display());
            Failure::new(exit::NOT_PLANNED, error)
        })?;
        environment
            .variables
            .entry(WORKFLOW_DIR.into())
            .or_insert_with(|| dir.to_owned());
    }
    Ok(environment)
}

/// Translates the command line to a request.
fn request(arguments: &cli::Run, workflow: PathBuf, environment: Environment) -> Request {
    let cwd = environment.working_dir.clone();
    let absolute = |path: &PathBuf| cwd.join(path);
    Request {
        workflow,
        conf: arguments.conf.as_ref().map(absolute),
        defines: arguments.define.clone(),
        seed: None,
        sites: vec![arguments.site.clone()],
        staging_sites: BTreeMap::new(),
        output_sites: vec!["local".into()],
        output_dir: arguments
            .output_dir
            .as_ref()
            .map(|dir| absolute(dir).display().to_string()),
        input_dirs: arguments.input_dir.iter().map(absolute).collect(),
        transformations_dir: arguments.transformations_dir.as_ref().map(absolute),
        cache_files: Vec::new(),
        inherited_files: Vec::new(),
        // Each run has a new scratch directory with nothing to reuse.
        reuse_dirs: Vec::new(),
        force: false,
        cleanup: Some(match arguments.cleanup {
            Cleanup::None => CleanupStrategy::None,
            Cleanup::Leaf => CleanupStrategy::Leaf,
            Cleanup::Inplace => CleanupStrategy::InPlace,
        }),
        dir: cwd,
        dir_given: true,
        relative_dir: None,
        relative_submit_dir: None,
        random_dir: None,
        basename: None,
        job_prefix: None,
        cluster: Vec::new(),
        batch: BatchOptions::default(),
        runs_here: true,
        line: Vec::new(),
        pictures: Vec::new(),
        warnings: Vec::new(),
        parse_options: pmc_plan::cli::parse_subworkflow_options,
        arguments: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        environment,
    }
}

/// Adds catalogs beside the workflow, and properties for one machine.
fn complete(request: &mut Request, output: cli::Output) -> Result<(), Failure> {
    let properties = Properties::load(&sources(request)).or_code(exit::NOT_PLANNED)?;
    for (key, value) in ONE_MACHINE {
        match properties.get(key) {
            Some(other) if !other.eq_ignore_ascii_case(value) => {
                request.defines.push(format!("{key}={value}"));
                if !output.quiet {
                    eprintln!("pmc: {key}={other} is ignored: it is {value} on one machine");
                }
            }
            _ => {}
        }
    }
    if properties.get(MEMORY).is_none() {
        request.defines.push(format!("{MEMORY}=0"));
    }
    let beside = request.workflow.parent().map(Path::to_owned).unwrap_or_default();
    for (catalog, names) in CATALOGS {
        let kind = format!("pegasus.catalog.{catalog}");
        let file = format!("{kind}.file");
        if properties.get(&file).is_some() || properties.get(&kind).is_some() {
            continue;
        }
        if let Some(path) = names
            .iter()
            .map(|name| beside.join(name))
            .find(|path| path.is_file())
        {
            request.defines.push(format!("{file}={}", path.display()));
        }
    }
    Ok(())
}

/// Returns the sources of the properties.
fn sources(request: &Request) -> PropertySources {
    let environment = &request.environment.variables;
    let file = |variable: &str, name: &str| environment.get(variable).map(|dir| Path::new(dir).join(name));
    PropertySources {
        system_file: file(HOME_VARIABLE, "etc/pegasus.properties"),
        user_file: file("HOME", ".pegasusrc"),
        working_file: Some(request.environment.working_dir.join("pegasus.properties")),
        conf_file: request.conf.clone(),
        environment: environment.clone().into_iter().collect(),
        command_line: request.defines.clone(),
    }
}

/// Facts that decide where the files of a run go.
struct Facts {
    /// Name of the workflow.
    label: String,
    /// A catalog or a property gives the scratch directory of the site `local`.
    has_scratch: bool,
    /// The catalog also gives the storage directory.
    has_storage: bool,
}

impl Facts {
    fn read(request: &Request) -> Result<Self, InputErrors> {
        let properties = Properties::load(&sources(request))?;
        let environment =
            ExpandEnv::new(&request.environment.variables).with_variables(properties.with_prefix("env."));
        let ParsedWorkflow { workflow, embedded } = read_workflow(
            &request.workflow,
            &environment,
            &ReadOptions::from_properties(&properties)?,
        )?;
        let mut sites =
            site::load_from_properties(&properties, &request.environment.working_dir, &environment)?.catalog;
        if let Some(embedded) = embedded.sites {
            sites.replace_with(embedded);
        }
        let local = sites.get("local");
        let storage = [DirectoryKind::LocalStorage, DirectoryKind::SharedStorage];
        Ok(Facts {
            label: workflow.label,
            has_scratch: local.is_some() || properties.get("pegasus.dir.exec").is_some(),
            has_storage: local
                .is_some_and(|site| storage.iter().any(|kind| site.directories.contains_key(kind))),
        })
    }
}

/// Puts all files of the run into its directory. Directories of a site catalog stay; a generated name
/// separates the runs there.
fn place(request: &mut Request, run_dir: &Path, facts: &Facts) {
    request.dir = run_dir.to_owned();
    request.relative_submit_dir = Some(layout::SUBMIT.into());
    if facts.has_scratch {
        request.random_dir = Some(None);
    } else {
        request
            .defines
            .push(format!("pegasus.dir.exec={}", run_dir.display()));
        request.random_dir = Some(Some(layout::SCRATCH.into()));
    }
    if !facts.has_storage && request.output_dir.is_none() {
        request.output_dir = Some(run_dir.join(layout::OUTPUT).display().to_string());
    }
}

fn print_plan(planned: &Planned, output: cli::Output) {
    if !output.quiet {
        for warning in &planned.warnings {
            eprintln!("pmc: warning: {warning}");
        }
    }
    if output.verbose > 0 {
        let counts = &planned.counts;
        eprintln!(
            "pmc: planned {} jobs and {} edges in {}",
            counts.total,
            counts.edges,
            planned.submit_dir.display()
        );
    }
    if output.verbose > 1 {
        for note in &planned.notes {
            eprintln!("pmc: {note}");
        }
    }
}
