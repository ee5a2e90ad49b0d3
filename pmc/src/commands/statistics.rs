//! `pmc statistics`: counts and times of a run.

mod accounting;
pub mod checkpoints;
mod csv;
pub mod data;
mod human;
mod json;
mod table;

use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context as _;
use pmc_checkpoint::{FileRecord, Usage};
use pmc_files::Folder;
use pmc_monitor::statistics::{Statistics, StatisticsError, Step, source};
use pmc_terminal::{message, print};

use crate::cli::{self, Section, TimeStep};
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::text;

use super::report::replace;

use accounting::Costs;

/// Context of a failure.
const STDOUT: &str = "cannot write standard output";

/// Statistics and their source.
struct Figures<'a> {
    statistics: Statistics,
    /// What tasks have saved.
    checkpoints: Usage,
    /// The database.
    database: &'a Path,
    step: Step,
    /// What the jobs have cost; empty unless the section is asked for.
    costs: Costs,
}

const ALL: [Section; 9] = [
    Section::Summary,
    Section::Workflow,
    Section::Jobs,
    Section::Breakdown,
    Section::Time,
    Section::Integrity,
    Section::Hosts,
    Section::Data,
    Section::Accounting,
];

/// Maximum warnings about files of the run. There can be one for each line and attempt.
const MAX_WARNINGS: usize = 10;

/// Prints statistics of a run. Returns the exit code.
pub fn statistics(arguments: &cli::Statistics) -> Result<u8, Failure> {
    let named = layout::given_or_latest(arguments.dir.as_deref(), arguments.json || arguments.csv);
    let dir = layout::find_run(&named)?;
    let scratch = tempfile::tempdir()
        .context("cannot create a temporary directory")
        .or_code(exit::NOT_RUN)?;
    let sections: Vec<Section> = if arguments.sections.contains(&Section::All) {
        let saves = FileRecord::path(&dir.dag).exists();
        let checkpoints = saves.then_some(Section::Checkpoints);
        ALL.into_iter().chain(checkpoints).collect()
    } else {
        arguments.sections.clone()
    };
    let with_output = sections.contains(&Section::Data);
    let mut warnings = 0;
    let found = source::find(&dir, scratch.path(), with_output, &mut |notice| {
        warnings += 1;
        if warnings <= MAX_WARNINGS {
            message(format_args!("pmc: warning: {notice}"));
        }
    });
    if let Some(more) = warnings.checked_sub(MAX_WARNINGS).filter(|more| *more > 0) {
        message(format_args!(
            "pmc: warning: {} more of this kind: pmc-monitord -r shows all",
            text::count(more, "problem")
        ));
    }
    let source = found.or_code(exit::NOT_RUN).map_err(|failure| {
        failure
            .hint("statistics need a log of the run (`--monitord-hack` or `--jobstate-log`), or its database")
    })?;
    let step = match arguments.time {
        TimeStep::Day => Step::Day,
        TimeStep::Hour => Step::Hour,
    };
    let statistics = Statistics::read(&source.path, step, &dir).map_err(read_failure)?;
    let checkpoints = Usage::read(&dir.dag)
        .context("cannot read the statistics of checkpoints")
        .or_code(exit::NOT_RUN)?;
    let costs = match sections.contains(&Section::Accounting) {
        true => Costs::read(&dir)?,
        false => Costs::default(),
    };
    let figures = Figures {
        statistics,
        checkpoints,
        database: &source.path,
        step,
        costs,
    };
    if arguments.json {
        print(&format!("{:#}\n", json::value(&figures, &sections)?));
        return Ok(exit::SUCCESS);
    }
    match &arguments.output {
        Some(output) => write_files(&figures, &sections, output, arguments.csv)?,
        None => {
            let mut out = BufWriter::with_capacity(1 << 16, pmc_terminal::output());
            for (number, section) in sections.iter().enumerate() {
                let written = separate(&mut out, number)
                    .and_then(|()| write(&figures, *section, &mut out, arguments.csv));
                check(written, || STDOUT.to_owned())?;
            }
            check(out.flush().map_err(Problem::Write), || STDOUT.to_owned())?;
        }
    }
    Ok(exit::SUCCESS)
}

fn separate(out: &mut impl Write, number: usize) -> Result<(), Problem> {
    if number > 0 {
        out.write_all(b"\n").map_err(Problem::Write)?;
    }
    Ok(())
}

/// Why a section is incomplete.
enum Problem {
    Write(io::Error),
    Read(StatisticsError),
}

/// Turns a problem into a failure. `context` is for problems of writing. A closed standard output is no
/// error.
fn check(result: Result<(), Problem>, context: impl FnOnce() -> String) -> Result<(), Failure> {
    match result {
        Err(Problem::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(Problem::Write(error)) => Err(error).with_context(context).or_code(exit::NOT_RUN),
        Err(Problem::Read(error)) => Err(read_failure(error)),
        Ok(()) => Ok(()),
    }
}

fn read_failure(error: StatisticsError) -> Failure {
    let damaged = matches!(error, StatisticsError::Database { .. });
    let failure = Failure::new(exit::NOT_RUN, error);
    if damaged {
        failure.hint("remove that file to use the log of the run instead")
    } else {
        failure
    }
}

fn write(figures: &Figures<'_>, section: Section, out: &mut impl Write, csv: bool) -> Result<(), Problem> {
    if csv {
        csv::write(figures, section, out)
    } else {
        human::write(figures, section, out)
    }
}

/// Writes one file per section; each appears when it is complete.
fn write_files(figures: &Figures<'_>, sections: &[Section], dir: &Path, csv: bool) -> Result<(), Failure> {
    Folder::make(dir)
        .with_context(|| format!("cannot create the directory {}", dir.display()))
        .or_code(exit::NOT_RUN)?;
    for section in sections {
        let name = match section {
            Section::Summary | Section::All => "summary",
            Section::Workflow => "workflow",
            Section::Jobs => "jobs",
            Section::Breakdown => "breakdown",
            Section::Time => "time",
            Section::Integrity => "integrity",
            Section::Hosts => "hosts",
            Section::Data => "data",
            Section::Checkpoints => "checkpoints",
            Section::Accounting => "accounting",
        };
        let path = dir.join(format!("{name}.{}", if csv { "csv" } else { "txt" }));
        let failed = || format!("cannot write {}", path.display());
        let mut unread = Ok(());
        let written = replace(&path, |mut out| match write(figures, *section, &mut out, csv) {
            Err(Problem::Write(error)) => Err(error),
            Err(problem) => {
                unread = Err(problem);
                Err(io::ErrorKind::Other.into())
            }
            Ok(()) => Ok(()),
        });
        check(unread, failed)?;
        written.with_context(failed).or_code(exit::NOT_RUN)?;
    }
    Ok(())
}
