//! `pmc serve`: a run that takes tasks while it goes on.
//!
//! Its directory is a submit directory whose DAG file begins empty and grows: [`pmc_dag::growth`].

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use monitord_compat::braindump;
use monitord_compat::run_end::{EndOfRun, RunEnd};
use pegasus_mpi_cluster::{RunEvent, Serve};
use pmc_batch::launch::Launch;
use pmc_control::Request;
use pmc_dag::{Dag, growth, rescue};
use pmc_files::with_suffix;
use pmc_plan::COMPATIBLE_VERSION;
use pmc_terminal::message;

use super::control;
use crate::cli;
use crate::executor;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::submit::Submit;
use crate::text;

/// Name of the DAG file.
const DAG: &str = "tasks.dag";
const BRAINDUMP: &str = "braindump.yml";

/// Runs the tasks that are added, until the run is to end. Returns the exit code.
pub fn serve(arguments: &cli::Serve) -> Result<u8, Failure> {
    if arguments.stop {
        return control::show(&arguments.dir, &Request::Stop, false);
    }
    if arguments.execution.stampede {
        let error = anyhow!("the database is made from a plan: run `pmc-monitord` on it after the end");
        return Err(Failure::new(exit::USAGE, error).hint("leave out --stampede"));
    }
    let dag = directory(&arguments.dir)?;
    let launch = match arguments.agents {
        None => None,
        Some(agents) => Some(Launch::parse(&arguments.launch, agents, &[]).or_code(exit::USAGE)?),
    };
    let target = executor::Target {
        serve: Some(Serve {
            idle_limit: arguments.idle_limit,
        }),
        launch: launch.zip(arguments.agents),
        master_timeout: arguments.master_timeout,
        // There may be any number of tasks.
        ..executor::Target::new(&dag, usize::MAX)
    };
    let shown = arguments.dir.display();
    let is_quiet = arguments.quiet;
    let environment = std::env::vars_os().collect();
    let ended = executor::run(&target, &arguments.execution, environment, false, &mut |event| {
        match event {
            RunEvent::Begun { tasks, done_before } if !is_quiet => {
                let left = text::count(tasks - done_before, "task");
                pmc_terminal::print(&format!(
                    "pmc: {shown} takes tasks: pmc add {shown} ({left} left)\n"
                ));
                // Who has started this process may wait for the line. Lost output is reported at the end.
                let _ = io::stdout().flush();
            }
            RunEvent::Notice(notice) => message(format_args!("pmc: warning: {notice}")),
            _ => {}
        }
    })?;
    let (all, done) = counts(&dag)?;
    if !is_quiet {
        let failed = ended.failures.len();
        let failed = match failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        message(format_args!(
            "pmc: {done} of {} done{failed}",
            text::count(all, "task")
        ));
        if done < all {
            message(format_args!("pmc: to go on: pmc serve {shown}"));
        }
    }
    let is_drained = EndOfRun::of(&dag).is_some_and(|end| matches!(end.end, RunEnd::Drained { .. }));
    Ok(match ended.signal {
        Some(signal) => exit::SIGNAL_BASE.saturating_add(signal),
        None if ended.success && !is_drained => exit::SUCCESS,
        None if done == all => exit::SUCCESS,
        None => exit::TASKS_FAILED,
    })
}

/// Returns the number of tasks, and of those that are done.
fn counts(dag_file: &Path) -> Result<(usize, usize), Failure> {
    let dag = Dag::open(dag_file).or_code(exit::NOT_RUN)?;
    let done = rescue::read(&with_suffix(dag_file, ".rescue"), &dag).or_code(exit::NOT_RUN)?;
    Ok((dag.len(), done.len()))
}

/// Makes the directory of a run, unless there is one already. Returns its DAG file.
fn directory(dir: &Path) -> Result<PathBuf, Failure> {
    let cannot = || format!("cannot make the directory {}", dir.display());
    std::fs::create_dir_all(dir)
        .with_context(cannot)
        .or_code(exit::NOT_RUN)?;
    let dir = pmc_files::real_path(dir)
        .with_context(cannot)
        .or_code(exit::NOT_RUN)?;
    let dag = dir.join(DAG);
    if dir.join(BRAINDUMP).exists() {
        let submit = Submit::open(&dir).or_code(exit::NOT_RUN)?;
        if submit.dag != dag {
            let error = anyhow!("{} is the directory of another run", dir.display());
            return Err(Failure::new(exit::USAGE, error).hint("name a new directory"));
        }
        return Ok(dag);
    }
    // The braindump is last: with it, the directory is whole.
    write_whole(&dag, growth::FIRST_LINE)
        .and_then(|()| write_whole(&dir.join(BRAINDUMP), &records(&dir, &dag)))
        .with_context(cannot)
        .or_code(exit::NOT_RUN)?;
    Ok(dag)
}

/// Writes a file that is there as a whole or not at all.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let beside = with_suffix(path, ".new");
    pmc_files::create_anew(&beside)?.write_all(text.as_bytes())?;
    pmc_files::rename(&beside, path.file_name().unwrap_or_default())
}

/// Returns what the views look up about a plan.
fn records(dir: &Path, dag: &Path) -> String {
    let text = |value: &str| Some(value.to_owned());
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let host = nix::unistd::gethostname().unwrap_or_default();
    let entries = [
        ("submit_hostname", text(&host.to_string_lossy())),
        ("dax_label", text(&name)),
        ("dax_index", text("0")),
        ("pegasus_wf_name", Some(format!("{name}-0"))),
        ("submit_dir", text(&dir.display().to_string())),
        ("planner_version", text(COMPATIBLE_VERSION)),
        ("jsd", text("jobstate.log")),
        ("uses_pmc", text("true")),
        ("dag", text(&dag.display().to_string())),
        ("type", text("dag")),
    ];
    braindump::write(&entries.map(|(key, value)| (key.to_owned(), value)))
}
