//! Provenance of a run as a Workflow Run RO-Crate 0.5 (<https://w3id.org/ro/wfrun/workflow/0.5>): the
//! workflow, its inputs and outputs, its execution, and the execution of each program.
//!
//! The crate is a directory with copies of the workflow, the inputs and the outputs. A file that is large, or
//! not on this machine, is named by its URL only.

mod entities;
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use monitord_compat::job_output_reader::JobOutput;
use pmc_files::Folder;
use pmc_monitor::failure::read_output;
use pmc_monitor::history::History;
use pmc_monitor::kinds::Kind;
use pmc_packed::TaskOutput;
use pmc_plan::model::{FileUse, Link, Workflow};
use serde_json::Value;

use self::entities::Run;
use self::files::{DataFile, Files};
use super::workflow;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::submit::Submit;

/// Name of the file that describes a crate.
const METADATA: &str = "ro-crate-metadata.json";

/// Writes a crate. Its directory must be new or empty, and appears when it is complete.
pub fn write(history: &History, dir: &Path) -> Result<(), Failure> {
    if dir
        .read_dir()
        .map_or(dir.exists(), |mut entries| entries.next().is_some())
    {
        let error = anyhow!("{} exists already: a crate needs a new directory", dir.display());
        return Err(Failure::new(exit::USAGE, error));
    }
    let submit = Submit::open(&history.dir.dir).or_code(exit::NOT_RUN)?;
    let failed = || format!("cannot write the crate {}", dir.display());
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let user = workflow::owner(history)?;
    let (name, original) = workflow::open(history, user)?;
    let prepare = || {
        let parent = Folder::make(parent)?;
        let temporary = tempfile::Builder::new()
            .prefix(".ro-crate-")
            .tempdir_in(parent.path())?;
        super::copy(&original, &temporary.path().join(&name))?;
        Ok::<_, io::Error>((parent, temporary))
    };
    let (parent, temporary) = prepare().with_context(failed).or_code(exit::NOT_RUN)?;
    let workflow = workflow::read(&temporary.path().join(&name))?;
    let build = || {
        let crate_ = Crate::new(history, &submit, &workflow, (&name, user), temporary.path())?;
        crate_.write_metadata(temporary.path())?;
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755))?;
        // Replaces an empty directory.
        fs::rename(
            temporary.path(),
            parent.path().join(dir.file_name().unwrap_or_default()),
        )?;
        let _ = temporary.keep();
        Ok::<(), io::Error>(())
    };
    build().with_context(failed).or_code(exit::NOT_RUN)
}

/// A crate whose files are copied.
struct Crate<'a> {
    history: &'a History,
    workflow: &'a Workflow,
    /// The workflow file.
    main: DataFile,
    files: Files,
}

impl<'a> Crate<'a> {
    fn new(
        history: &'a History,
        submit: &Submit,
        workflow: &'a Workflow,
        (name, user): (&str, u32),
        dir: &Path,
    ) -> io::Result<Self> {
        let main = DataFile {
            id: encode(name),
            size: dir.join(name).metadata()?.len(),
            name: name.to_owned(),
        };
        Ok(Self {
            history,
            workflow,
            main,
            files: Files::copy(submit, workflow, dir, user)?,
        })
    }

    fn write_metadata(&self, dir: &Path) -> io::Result<()> {
        let mut graph = Graph::start(BufWriter::with_capacity(
            1 << 16,
            fs::File::create(dir.join(METADATA))?,
        ))?;
        let run = Run::new(self.history, &self.main);
        graph.add(&entities::descriptor(METADATA))?;
        for entity in entities::profiles() {
            graph.add(&entity)?;
        }
        graph.add(&entities::license())?;
        graph.add(&entities::language(&self.main.name))?;
        graph.add(&run.workflow(&self.files))?;
        for (file, parameter) in self.files.parameters() {
            graph.add(&entities::parameter(file, &parameter))?;
            graph.add(&entities::file(file, Some(&parameter)))?;
        }
        for (lfn, id) in self.files.intermediate() {
            graph.add(&entities::intermediate(lfn, id))?;
        }
        graph.add(&run.action(&self.files))?;
        let mut actions = vec![run.id()];
        let mut users = BTreeSet::from([run.user.clone()]);
        self.executions(&mut graph, &mut actions, &mut users)?;
        for user in users {
            graph.add(&entities::person(&user))?;
        }
        graph.add(&run.root(&self.files, &actions))?;
        graph.finish()
    }

    /// Adds the executions of programs, and the programs. Collects executions and users.
    fn executions(
        &self,
        graph: &mut Graph<impl Write>,
        actions: &mut Vec<String>,
        users: &mut BTreeSet<String>,
    ) -> io::Result<()> {
        let jobs: BTreeMap<&str, usize> = self
            .workflow
            .jobs
            .iter()
            .enumerate()
            .map(|(number, job)| (job.id.as_str(), number))
            .collect();
        let mut programs = BTreeMap::new();
        let mut place = TaskOutput::new(&self.history.dir.dir);
        let plan = &self.history.plan;
        for task in (0..).take(plan.len()) {
            if plan.class(task).kind != Kind::Compute {
                continue;
            }
            let name = plan.text_name(task);
            let (_, output, _) = read_output(&mut place, &name, false);
            for (number, record) in JobOutput::read(&output).invocations.iter().enumerate() {
                let job = record.derivation.as_deref().and_then(|id| jobs.get(id));
                let uses = job.map(|number| &self.workflow.jobs[*number].uses[..]);
                let id = format!("#execution-{}-{number}", encode(&name));
                let program = entities::program_id(record);
                let objects = self.ids(uses, |link| link.reads());
                let results = self.ids(uses, |link| link.writes());
                graph.add(&entities::execution(&id, record, &program, (objects, results)))?;
                let known = programs.entry(program);
                known.or_insert_with(|| record.transformation.clone().unwrap_or_default());
                actions.push(id);
                users.extend(record.user.clone());
            }
        }
        for (id, name) in programs {
            graph.add(&entities::program(&id, &name))?;
        }
        Ok(())
    }

    /// Returns references to the files of a job that go in one direction.
    fn ids(&self, uses: Option<&[FileUse]>, goes: impl Fn(Link) -> bool) -> Value {
        let uses = uses.unwrap_or_default().iter();
        let names = uses
            .filter(|usage| goes(usage.link))
            .map(|usage| self.workflow.files.name(usage.file));
        entities::references(names.filter_map(|name| self.files.id(name)))
    }
}

/// Writes entities one by one: a run may have millions.
struct Graph<W> {
    out: W,
    is_empty: bool,
}

impl<W: Write> Graph<W> {
    fn start(mut out: W) -> io::Result<Self> {
        write!(out, "{{\"@context\": {},\n\"@graph\": [", entities::context())?;
        Ok(Self { out, is_empty: true })
    }

    fn add(&mut self, entity: &Value) -> io::Result<()> {
        let separator = if self.is_empty { "\n" } else { ",\n" };
        self.is_empty = false;
        write!(self.out, "{separator}{entity}")
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

/// Encodes a name for use in an identifier: all bytes but letters, digits and `-._~/` in percent notation.
fn encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}
