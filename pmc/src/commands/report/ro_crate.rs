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
    /// Its sub-workflows, each with what the names of its tasks begin with.
    nested: Vec<(String, History)>,
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
            nested: history.all_nested(),
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
        let mut named = Named {
            actions: vec![run.id()],
            users: BTreeSet::from([run.user.clone()]),
            programs: BTreeMap::new(),
        };
        self.executions(&mut graph, &mut named, "", self.history)?;
        for (around, run) in &self.nested {
            self.executions(&mut graph, &mut named, around, run)?;
        }
        for (id, name) in &named.programs {
            graph.add(&entities::program(id, name))?;
        }
        for user in &named.users {
            graph.add(&entities::person(user))?;
        }
        graph.add(&run.root(&self.files, &named.actions))?;
        graph.finish()
    }

    /// Adds the executions of programs in the run, or in a sub-workflow whose tasks have names that begin
    /// with `around`. The workflow has the jobs of the run only; those of a sub-workflow can have the same
    /// names.
    fn executions(
        &self,
        graph: &mut Graph<impl Write>,
        named: &mut Named,
        around: &str,
        history: &History,
    ) -> io::Result<()> {
        let jobs = self.workflow.jobs.iter().filter(|_| around.is_empty());
        let jobs: BTreeMap<&str, &[FileUse]> = jobs.map(|job| (job.id.as_str(), &job.uses[..])).collect();
        let mut place = TaskOutput::new(&history.dir.dir);
        let plan = &history.plan;
        for task in (0..).take(plan.len()) {
            if plan.class(task).kind != Kind::Compute {
                continue;
            }
            let name = plan.text_name(task);
            let (_, output, _) = read_output(&mut place, &name, false);
            let name = encode(&format!("{around}{name}"));
            for (number, record) in JobOutput::read(&output).invocations.iter().enumerate() {
                let job = record.derivation.as_deref();
                let uses = job.and_then(|id| jobs.get(id)).copied();
                let id = format!("#execution-{name}-{number}");
                let program = entities::program_id(record);
                let objects = self.ids(uses, |link| link.reads());
                let results = self.ids(uses, |link| link.writes());
                graph.add(&entities::execution(&id, record, &program, (objects, results)))?;
                let known = named.programs.entry(program);
                known.or_insert_with(|| record.transformation.clone().unwrap_or_default());
                named.actions.push(id);
                named.users.extend(record.user.clone());
            }
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

/// What the entities of a crate name, and others say more of.
struct Named {
    /// Executions of the workflow and of programs.
    actions: Vec<String>,
    users: BTreeSet<String>,
    /// Names of programs, by their identifiers.
    programs: BTreeMap<String, String>,
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
