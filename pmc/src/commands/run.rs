//! `pmc run`: plans a workflow for this machine and runs it. The request is a command line of `pmc-plan`,
//! which the submit directory records, so that the plan can be made again.

mod arguments;

use std::borrow::Cow;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use pmc_plan::cli::Invocation;
use pmc_plan::diagnostic::Diagnostic;
use pmc_plan::error::PlanError;
use pmc_plan::input::name_of;
use pmc_plan::plan::{Facts, Planned, facts, plan, preview, properties};
use pmc_plan::request::{Environment, Request};
use pmc_plan::warnings::in_brief;
use pmc_terminal::message;

use crate::cli::{self, Cleanup};
use crate::commands::execute;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout::{self, NewRun};
use crate::programs;
use crate::submit::Submit;
use crate::wfformat::{self, Instance, StandIn};

/// Directory of the files of stand-ins, beside their commands.
const FILES: &str = "files";
/// Variable with the directory of an installation, which has the programs in `bin`.
const HOME_VARIABLE: &str = "PEGASUS_HOME";

/// Properties of a cluster that have only one valid value on one machine.
const ONE_MACHINE: [(&str, &str); 1] = [("pegasus.code.generator", "PMC")];
/// Default memory of tasks, which is 0 unless the user sets it: the planner's default would idle CPUs of a
/// machine with little memory. Requests of jobs, programs and sites override it.
const MEMORY: &str = "pegasus.memory";

/// Plans and runs a workflow. Returns the exit code.
pub fn run(arguments: &cli::Run) -> Result<u8, Failure> {
    let start = Instant::now();
    let environment = Environment::read()
        .context("cannot determine the working directory")
        .or_code(exit::NOT_RUN)?;
    let cwd = environment.working_dir.clone();
    let runs = cwd.join(&arguments.dir);
    let source = Source::new(arguments, &runs, &cwd)?;
    check_workflow(&source.workflow, &cwd)?;
    let mut line = PlanLine::new(arguments, &source, environment)?;
    line.complete(arguments.output)?;
    let request = line.parse()?;
    let facts = facts(&request).or_code(exit::NOT_PLANNED)?;
    if !facts.has_scratch
        && !request.environment.variables.contains_key(HOME_VARIABLE)
        && let Some(bin) = &request.environment.own_bin
    {
        programs::check_beside(bin).map_err(execute::missing_programs)?;
    }

    if arguments.dry_run {
        let run_dir = layout::next_run(&runs, &facts.label).or_code(exit::NOT_RUN)?;
        line.place(arguments, &run_dir, &facts)?;
        return dry_run(&line.request(arguments)?, &run_dir, arguments.output);
    }
    let new_run = match source.run {
        Some(run) => run,
        None => UnplannedRun::new(&runs, &facts.label)?,
    };
    let run_dir = new_run.dir.clone();
    line.place(arguments, &run_dir, &facts)?;
    let planned = plan(&line.request(arguments)?).map_err(not_planned)?;
    layout::mark_latest(&run_dir);
    new_run.keep();
    print_plan(&planned, arguments.output);
    execute::execute(&execute::Request {
        submit: Submit {
            dir: planned.submit_dir,
            dag: planned.dag,
            label: planned.label,
            condor: planned.condor,
        },
        name: arguments
            .dir
            .join(run_dir.strip_prefix(&runs).unwrap_or(&run_dir)),
        here: false,
        accept_incomplete: false,
        execution: execution(arguments, &facts),
        limits: execute::LIMITS,
        output: arguments.output,
        start,
    })
}

/// Returns how to execute a plan. The output of commands goes into packs, unless the user says otherwise.
fn execution(arguments: &cli::Run, facts: &Facts) -> cli::Execution {
    let mut execution = arguments.execution.clone();
    if facts.are_commands && execution.packed_output == cli::PackedOutput::Auto {
        execution.packed_output = cli::PackedOutput::Always;
    }
    execution
}

/// The directory of a run that has no plan yet. It is removed unless it gets one.
struct UnplannedRun {
    dir: PathBuf,
    run: Option<NewRun>,
}

impl UnplannedRun {
    fn new(runs: &Path, label: &str) -> Result<Self, Failure> {
        let run = layout::new_run(runs, label).or_code(exit::NOT_RUN)?;
        Ok(UnplannedRun {
            dir: run.dir.clone(),
            run: Some(run),
        })
    }

    /// Keeps the directory, since it has a plan now.
    fn keep(mut self) {
        self.run = None;
    }
}

impl Drop for UnplannedRun {
    fn drop(&mut self) {
        if self.run.take().is_some() {
            layout::discard(&self.dir);
        }
    }
}

/// What is to be planned.
struct Source<'a> {
    workflow: Cow<'a, Path>,
    /// Directory of the run, if the workflow is made in it.
    run: Option<UnplannedRun>,
    /// Directory of the workflow of a plan that is only shown. It is removed with this value.
    temporary: Option<tempfile::TempDir>,
    /// Where the commands run, if they are made here.
    directory: Option<PathBuf>,
}

impl<'a> Source<'a> {
    /// Returns the workflow that the command line names, or makes one of the command on it.
    fn new(arguments: &'a cli::Run, runs: &Path, cwd: &'a Path) -> Result<Self, Failure> {
        let mut source = Source {
            workflow: Cow::Borrowed(arguments.workflow.as_deref().unwrap_or(Path::new(""))),
            run: None,
            temporary: None,
            directory: None,
        };
        let (name, commands, own_files) = if arguments.command.is_empty() {
            match instance_commands(&cwd.join(&source.workflow), arguments)? {
                Some((name, commands)) => (name, commands, true),
                None => return Ok(source),
            }
        } else {
            let commands = arguments::commands(&arguments.command).or_code(exit::NOT_PLANNED)?;
            let program = arguments.command.first().map_or("", String::as_str);
            (name_of(program).to_owned(), commands, false)
        };
        let directory = if arguments.dry_run {
            let temporary = tempfile::tempdir()
                .context("cannot make a temporary directory")
                .or_code(exit::NOT_RUN)?;
            source.temporary.insert(temporary).path().to_owned()
        } else {
            let run = UnplannedRun::new(runs, &name)?;
            let directory = source.run.insert(run).dir.join(layout::COMMANDS);
            create_dir(&directory)?;
            directory
        };
        let path = directory.join(format!("{name}.txt"));
        pmc_files::create_anew(&path)
            .and_then(|mut file| file.write_all(commands.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))
            .or_code(exit::NOT_RUN)?;
        source.workflow = Cow::Owned(path);
        source.directory = Some(if own_files {
            let files = directory.join(FILES);
            create_dir(&files)?;
            files
        } else {
            cwd.to_owned()
        });
        Ok(source)
    }
}

/// Returns the name and the commands of a workflow that is an instance of WfFormat.
fn instance_commands(path: &Path, arguments: &cli::Run) -> Result<Option<(String, String)>, Failure> {
    let instance = Instance::read(path).or_code(exit::NOT_PLANNED)?;
    let Some(instance) = instance else {
        if arguments.sleep.is_some() {
            let error = anyhow!(
                "--sleep is for instances of WfFormat, and {} is none",
                path.display()
            );
            return Err(Failure::new(exit::USAGE, error));
        }
        return Ok(None);
    };
    let own = std::env::current_exe()
        .context("cannot tell where this program is")
        .or_code(exit::NOT_RUN)?;
    let own = text(&own)?;
    let stand_in = match arguments.sleep {
        Some(factor) => StandIn::Sleep(factor),
        None => StandIn::Work(&own),
    };
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = wfformat::Names::default().make(&name);
    Ok(Some((name, wfformat::commands(&instance, stand_in))))
}

fn create_dir(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir(path)
        .with_context(|| format!("cannot create {}", path.display()))
        .or_code(exit::NOT_RUN)
}

/// Refuses a workflow that is not a file.
fn check_workflow(named: &Path, cwd: &Path) -> Result<(), Failure> {
    let workflow = cwd.join(named);
    if workflow.is_file() {
        return Ok(());
    }
    let error = if workflow.is_dir() {
        let default = named.join("workflow.yml");
        let hint = match default.is_file() {
            true => format!("\n  hint: pmc run {}", default.display()),
            false => String::new(),
        };
        anyhow!("{}: a directory, not a workflow file{hint}", named.display())
    } else if workflow.exists() {
        anyhow!("{}: not a regular file", named.display())
    } else {
        anyhow!("{}: no such workflow file", named.display())
    };
    Err(Failure::new(exit::NOT_PLANNED, error))
}

/// A command line of `pmc-plan`.
struct PlanLine {
    options: Vec<String>,
    workflow: String,
    environment: Environment,
}

impl PlanLine {
    /// Translates the command line of `pmc run`.
    fn new(arguments: &cli::Run, source: &Source<'_>, environment: Environment) -> Result<Self, Failure> {
        let mut line = PlanLine {
            options: Vec::new(),
            workflow: text(&source.workflow)?,
            environment,
        };
        if let Some(directory) = &source.directory {
            line.add("-D", &format!("pmc.dag.directory={}", text(directory)?));
        }
        line.add("--sites", &arguments.site);
        line.add("--output-sites", "local");
        let cleanup = match arguments.cleanup {
            Cleanup::None => "none",
            Cleanup::Leaf => "leaf",
            Cleanup::Inplace => "inplace",
        };
        line.add("--cleanup", cleanup);
        for define in &arguments.define {
            line.add("-D", define);
        }
        let paths = [
            ("--conf", &arguments.conf),
            ("--transformations-dir", &arguments.transformations_dir),
        ];
        for (option, path) in paths {
            if let Some(path) = path {
                line.add(option, &text(path)?);
            }
        }
        if let Some(dir) = &arguments.output_dir {
            line.add("--output-dir", &text(&line.environment.working_dir.join(dir))?);
        }
        for dir in &arguments.input_dir {
            line.add("--input-dir", &text(dir)?);
        }
        Ok(line)
    }

    fn add(&mut self, option: &str, value: &str) {
        self.options.push(option.to_owned());
        self.options.push(value.to_owned());
    }

    /// Adds properties for one machine.
    fn complete(&mut self, output: cli::Output) -> Result<(), Failure> {
        let properties = properties(&self.parse()?).or_code(exit::NOT_PLANNED)?;
        for (key, value) in ONE_MACHINE {
            match properties.get(key) {
                Some(other) if !other.eq_ignore_ascii_case(value) => {
                    self.add("-D", &format!("{key}={value}"));
                    if !output.quiet {
                        message(format_args!(
                            "pmc: {key}={other} is ignored: it is {value} on one machine"
                        ));
                    }
                }
                _ => {}
            }
        }
        if properties.get(MEMORY).is_none() {
            self.add("-D", &format!("{MEMORY}=0"));
        }
        Ok(())
    }

    /// Puts all files of the run into its directory. Directories of a site catalog stay; a generated name
    /// separates the runs there.
    fn place(&mut self, arguments: &cli::Run, run_dir: &Path, facts: &Facts) -> Result<(), Failure> {
        self.add("--dir", &text(run_dir)?);
        self.add("--relative-submit-dir", layout::SUBMIT);
        // For `pegasus.dir.storage.deep`: separates the runs below a storage directory of the catalog.
        if let (Some(run), Some(workflow)) = (run_dir.file_name(), run_dir.parent().and_then(Path::file_name))
        {
            self.add("--relative-dir", &text(&Path::new(workflow).join(run))?);
        }
        if facts.has_scratch {
            self.options.push("--randomdir".into());
            if facts.lacks_scratch {
                self.add("-D", &format!("pmc.local.directory={}", run_dir.display()));
            }
        } else {
            self.add("-D", &format!("pegasus.dir.exec={}", run_dir.display()));
            self.options.push(format!("--randomdir={}", layout::SCRATCH));
        }
        if !facts.has_storage && arguments.output_dir.is_none() {
            self.add("--output-dir", &text(&run_dir.join(layout::OUTPUT))?);
        }
        Ok(())
    }

    /// Returns the request to plan with.
    fn request(&self, arguments: &cli::Run) -> Result<Request, Failure> {
        let mut request = self.parse()?;
        request.check_files = !arguments.no_check;
        request.runs_here = true;
        let words: Vec<String> = std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        request.arguments = pmc_plan::cli::shown_arguments(&words, &self.environment);
        Ok(request)
    }

    fn parse(&self) -> Result<Request, Failure> {
        let mut words = vec!["pmc-plan".to_owned()];
        words.extend_from_slice(&self.options);
        words.extend(["--".to_owned(), self.workflow.clone()]);
        match pmc_plan::cli::parse(&words, self.environment.clone()) {
            Ok(Invocation::Plan(request, _)) => Ok(*request),
            Ok(_) => Err(Failure::new(
                exit::USAGE,
                anyhow!("not a planning request: {}", words.join(" ")),
            )),
            Err(error) => Err(Failure::new(exit::USAGE, error)),
        }
    }
}

/// Returns a path as text.
fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        let error = anyhow!("the name {} is not UTF-8", path.display());
        Failure::new(exit::NOT_PLANNED, error)
    })
}

fn not_planned(error: PlanError) -> Failure {
    let code = match error {
        PlanError::Io { .. } => exit::NOT_RUN,
        _ => exit::NOT_PLANNED,
    };
    Failure::new(code, error)
}

/// Plans in memory and prints the figures of the plan.
fn dry_run(request: &Request, run_dir: &Path, output: cli::Output) -> Result<u8, Failure> {
    let submit: PathBuf = run_dir.join(layout::SUBMIT);
    let preview = preview(request, Some(&submit), &[]).map_err(not_planned)?;
    if !output.quiet {
        for warning in shown(&preview.warnings, output) {
            message(format_args!("pmc: warning: {warning}"));
        }
    }
    let text = pmc_plan::cli::preview_text(&preview, output.json);
    // A closed standard output is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(exit::SUCCESS)
}

/// Returns the warnings of the planner that are printed.
fn shown(warnings: &[Diagnostic], output: cli::Output) -> Vec<Diagnostic> {
    match output.verbose > 0 {
        true => warnings.to_vec(),
        false => in_brief(warnings, false),
    }
}

fn print_plan(planned: &Planned, output: cli::Output) {
    if !output.quiet {
        for warning in shown(&planned.warnings, output) {
            message(format_args!("pmc: warning: {warning}"));
        }
    }
    if output.verbose > 0 {
        let counts = &planned.counts;
        message(format_args!(
            "pmc: planned {} jobs and {} edges in {}",
            counts.total,
            counts.edges,
            planned.submit_dir.display()
        ));
    }
    if output.verbose > 1 {
        for note in &planned.notes {
            message(format_args!("pmc: {note}"));
        }
    }
}
