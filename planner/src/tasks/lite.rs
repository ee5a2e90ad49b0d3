//! Jobs with directories of their own or in containers, which `pegasus-lite` runs on the node. It reads a
//! description of the job, with what the job scripts of Pegasus contain.

mod container;

use std::path::{Path, PathBuf};

use pmc_job_files::{Description, Entry, FORMAT, Flag, Number, Place as At, Run, Text, Verified};

use crate::data_mode::DataMode;
use crate::exec::{ExecJob, JobId, Place, Task};
use crate::model::{FileId, FileKind, FileUse, Link};
use crate::profiles::Namespace;
use crate::refine::settings::{Integrity, LiteCache};
use crate::refine::sites::Access;

use super::checksums::{Checksums, META, is_loaded, is_read, keeps_checksums};
use super::file_lists::required_outputs;
use super::plan::{Plan, PlannedJob};
use super::words::split;
use super::work_lists::WorkLists;
use super::{Invocation, Invocations, nested};

pub(super) use container::out_of_reach;

/// Maximum inputs that the DAG names for a task. One with more gathers what many nodes have.
const MAX_NAMED: usize = 64;

/// Profile with a script that sets the environment of jobs.
const ENV_SOURCE: &str = "pegasus_lite_env_source";

/// Variable with the directory for jobs on a node.
const SCRATCH: &str = "PEGASUS_WN_TMP";

/// Replaces the command of a job by that of `pegasus-lite`, which reads its description.
pub(super) fn wrap(job: PlannedJob<'_>, lists: &WorkLists, invocation: &mut Invocation) {
    let plan = job.plan;
    (invocation.stdin, invocation.is_kickstart) = (None, false);
    invocation.program = format!("{}/pegasus-lite", plan.own_tools);
    let words = &mut invocation.arguments;
    words.clear();
    if job.cluster().is_some() {
        words.word("--cluster").blanks(" ");
    }
    if let Some(part) = lists.part(job.id) {
        words.option("--part", &part.to_string());
    }
    words.word(&lists.file(job));
}

/// Returns the inputs of a job that the cache of the node may have, so that the executor can start it there.
/// One with too many has none.
pub(crate) fn cached_inputs<'p>(job: PlannedJob<'p>) -> impl Iterator<Item = &'p str> {
    let plan = job.plan;
    let Checksums { shared, images, .. } = &plan.checksums;
    let may_have = !(shared.is_empty() && images.is_empty()) && job.is_lite();
    // What is fetched inside a container goes through no cache.
    let is_outside = may_have && container::place(job).is_none();
    let uses = if may_have { job.uses() } else { &[] };
    let is_cached = move |u: &&FileUse| {
        let key = (u.file, job.site);
        (is_outside && is_read(&job, u) && shared.contains(&key))
            || (is_loaded(&job, u) && images.contains(&key))
    };
    let cached = uses.iter().filter(is_cached);
    let is_small = cached.clone().nth(MAX_NAMED).is_none();
    cached
        .filter(move |_| is_small)
        .map(|u| plan.workflow.files.name(u.file))
}

/// Returns the type of a file that is an image.
pub(crate) fn image_type(plan: &Plan<'_>, file: FileId) -> Option<Text> {
    let container = plan.exec.files.image(file)?;
    Some(container.kind.image_type().into())
}

/// Returns the description of a job, `None` without a valid command: the code generator reports the problem.
pub(crate) fn describe(invocations: &mut Invocations<'_>, id: JobId) -> Option<Description> {
    let mut invocation = Invocation::default();
    invocations.fill_inside(id, &mut invocation).ok()?;
    let job = invocations.plan.at(id);
    let for_planner;
    let uses = match job.plan.exec.fetches_for_planner(&job) {
        true => {
            for_planner = nested::read_by_planner(job);
            for_planner.as_slice()
        }
        false => job.uses(),
    };
    let mut description = Description {
        format: FORMAT,
        job: job.name.to_string(),
        in_cluster: job.is_member(),
        run: run(&invocation),
        ..Description::default()
    };
    places(job, &mut description);
    if let Some(container) = &job.setup.container {
        description.run_key = job.plan.submit.clone().into();
        description.container = Some(container::describe(job, container));
        if let Run::Program(_) = description.run {
            let required = required_outputs(job).into_iter();
            description.required = required.map(str::to_owned).collect();
        }
    }
    if job.plan.exec.has_own_directory(&job) {
        inputs(job, uses, &mut description);
        outputs(job, uses, &mut description);
    } else {
        // That of a cluster is where its jobs start.
        let directory = if job.is_lite() { "." } else { job.work_dir() };
        description.work_directory = Some(directory.into());
    }
    Some(description)
}

/// Adds the inputs of a job with a directory of its own.
fn inputs(job: PlannedJob<'_>, uses: &[FileUse], description: &mut Description) {
    let plan = job.plan;
    let names = |uses: &mut dyn Iterator<Item = &FileUse>| -> Vec<String> {
        uses.map(|u| plan.workflow.files.name(u.file).to_owned())
            .collect()
    };
    let reads = |u: &&FileUse| is_read(&job, u);
    let is_program = |u: &&FileUse| u.kind == FileKind::Executable && u.link.reads();
    let is_shared = |u: &&FileUse| plan.checksums.shared.contains(&(u.file, job.site));
    description.transfer_arguments = transfer_arguments(job);
    description.stage_in = transfers(job, Direction::In, uses.iter().filter(reads));
    description.checkpoint_in = transfers(job, Direction::In, uses.iter().filter(is_checkpoint));
    let programs = names(&mut uses.iter().filter(is_program));
    description.executables = programs.into_iter().map(PathBuf::from).collect();
    description.verify = verified(job, uses.iter().filter(|u| !is_loaded(&job, u)));
    description.shared = names(&mut uses.iter().filter(reads).filter(is_shared));
    if let LiteCache::Bytes(bytes) = plan.settings.lite_cache
        && !description.shared.is_empty()
    {
        description.cache_limit = Some(bytes);
    }
}

/// Adds the outputs of a job with a directory of its own.
fn outputs(job: PlannedJob<'_>, uses: &[FileUse], description: &mut Description) {
    let plan = job.plan;
    let written = || uses.iter().filter(|u| u.link.writes() && !is_checkpoint(u));
    description.checkpoint_out = transfers(job, Direction::Out, uses.iter().filter(is_checkpoint));
    description.stage_out = transfers(job, Direction::Out, written());
    // The record of kickstart has them.
    if !job.ships_files()
        && plan.settings.integrity != Integrity::None
        && keeps_checksums(plan.exec, &job)
        && written().next().is_some()
    {
        if let Run::Program(_) = description.run {
            let names = written().map(|u| plan.workflow.files.name(u.file).to_owned());
            description.hashed = names.collect();
        }
        description.checksum_file = Some(plan.job_file(job.id, META).into());
    }
}

fn is_checkpoint(u: &&FileUse) -> bool {
    u.link == Link::Checkpoint
}

/// Adds where the directory of the job is made, and the script that sets its environment.
fn places(job: PlannedJob<'_>, description: &mut Description) {
    let plan = job.plan;
    let of = |job: &ExecJob, namespace, key| {
        let profiles = &plan.exec.setups[job.setup].profiles;
        let value = profiles.get(namespace, key).map(str::trim);
        value.filter(|path| !path.is_empty())
    };
    // Variables are those of each job of a cluster.
    let members = match job.task {
        Task::Cluster(n, _) => plan.exec.clusters[n].members.clone(),
        _ => 0..0,
    };
    let profile = |namespace, key| {
        let mut jobs = std::iter::once(&*job).chain(&plan.exec.members[members.clone()]);
        jobs.find_map(|job| of(job, namespace, key))
    };
    let scratch = profile(Namespace::Env, SCRATCH)
        .or_else(|| profile(Namespace::Pegasus, "wntmp"))
        .or(plan.sites.get(job.site).local_scratch.as_deref());
    let local = &plan.sites.get(plan.sites.local()).profiles;
    let source = profile(Namespace::Pegasus, ENV_SOURCE)
        .or_else(|| local.pegasus(ENV_SOURCE).map(str::trim))
        .or_else(|| profile(Namespace::Env, "PEGASUS_LITE_ENV_SOURCE"));
    description.scratch = scratch.map(PathBuf::from);
    description.env_source = source.map(PathBuf::from);
    if job.ships_files() && !job.is_nested() {
        description.in_start_directory = description.scratch.is_none() || is_moved(job);
        if let Some(shipped) = env_source(job) {
            description.env_source = Path::new(shipped).file_name().map(PathBuf::from);
        }
    }
}

/// Returns the script that sets the environment of a job, if it must be brought to it.
pub(crate) fn env_source(job: PlannedJob<'_>) -> Option<&str> {
    let plan = job.plan;
    let local = &plan.sites.get(plan.sites.local()).profiles;
    let own = job.pegasus(ENV_SOURCE);
    own.or_else(|| local.pegasus(ENV_SOURCE).map(str::trim))
}

/// Returns whether HTCondor brings the data of a job.
fn is_moved(job: PlannedJob<'_>) -> bool {
    job.ships_files() && job.setup.mode == DataMode::CondorIo
}

/// Returns what is run.
fn run(invocation: &Invocation) -> Run {
    let owned = |word: std::borrow::Cow<'_, str>| word.into_owned();
    match invocation.is_kickstart {
        true => Run::Kickstart(invocation.arguments.iter().map(owned).collect()),
        false => Run::Program(invocation.command().map(owned).collect()),
    }
}

/// Returns the options of `pegasus-transfer` for the transfers of a job.
fn transfer_arguments(job: PlannedJob<'_>) -> Vec<String> {
    let threads = job.pegasus("transfer.lite.threads");
    let threads = threads.or_else(|| job.pegasus("transfer.threads"));
    let more = job.pegasus("transfer.lite.arguments");
    let more = more.unwrap_or(job.plan.settings.mode.transfer_arguments());
    let mut arguments = vec!["--threads".to_owned(), threads.unwrap_or("1").to_owned()];
    arguments.extend(split(more).map(std::borrow::Cow::into_owned));
    arguments
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Returns the transfers between the staging site and the directory of a job.
fn transfers<'u>(
    job: PlannedJob<'_>,
    direction: Direction,
    uses: impl Iterator<Item = &'u FileUse>,
) -> Vec<Entry> {
    if is_moved(job) {
        return uses.filter_map(|u| moved(job, direction, u)).collect();
    }
    uses.map(|u| transfer(job, direction, u)).collect()
}

/// Returns how an input that HTCondor has brought gets its name: one with directories comes without them.
fn moved(job: PlannedJob<'_>, direction: Direction, u: &FileUse) -> Option<Entry> {
    let name = job.plan.workflow.files.name(u.file);
    let (_, last) = name.rsplit_once('/').filter(|_| direction == Direction::In)?;
    let site = &job.plan.sites.get(job.site).name;
    let mut source = At::new(site, ["file://$pegasus_lite_work_dir/", last].concat());
    source.checkpoint = Some("false");
    let destination = At::new(site, ["moveto://$PWD/", name].concat());
    Some(Entry::transfer(name, "input", vec![source], destination))
}

fn transfer(job: PlannedJob<'_>, direction: Direction, u: &FileUse) -> Entry {
    let plan = job.plan;
    let lfn = plan.workflow.files.name(u.file);
    let is_image = u.kind == FileKind::Image;
    let inside = container::place(job).filter(|_| !is_image);
    let bypassed = plan.exec.bypassed(&job, u).filter(|_| direction == Direction::In);
    let site = &plan.sites.get(job.site).name;
    let scheme = if bypassed.is_some_and(|bypassed| bypassed.link) {
        "symlink://"
    } else {
        "file://"
    };
    let own = At::new(site, [scheme, container::directory(inside), "/", lfn].concat());
    let staged = |access| {
        let staging = Place::Scratch(job.staging);
        let (site, url) = plan.url_parts(&staging, u.file, access);
        At::new(site, container::seen(inside, &url))
    };
    let (linkage, mut sources, mut destination) = match (direction, bypassed) {
        (Direction::In, Some(bypassed)) => {
            let sources = bypassed.sources.iter().map(|(url, priority)| At {
                priority: priority.map(|priority| Number(priority.into())),
                ..At::new(site, container::seen(inside, &[url]))
            });
            ("input", sources.collect(), own)
        }
        (Direction::In, None) => ("input", vec![staged(Access::Get)], own),
        (Direction::Out, _) => ("output", vec![own], staged(Access::Put)),
    };
    let is_checkpoint = is_checkpoint(&u);
    for source in &mut sources {
        source.checkpoint = Some(if is_checkpoint { "true" } else { "false" });
    }
    if is_image {
        destination.image = image_type(plan, u.file);
    }
    let may_be_missing = match direction {
        Direction::In => plan.exec.may_be_missing(u),
        Direction::Out => u.may_be_missing(),
    };
    Entry {
        // A missing checkpoint file is no failure anyway.
        optional: (may_be_missing && !is_checkpoint).then_some(Flag(true)),
        ..Entry::transfer(lfn, linkage, sources, destination)
    }
}

/// Returns those of some inputs that have a known checksum.
fn verified<'u>(job: PlannedJob<'_>, uses: impl Iterator<Item = &'u FileUse>) -> Vec<Verified> {
    let plan = job.plan;
    if plan.settings.integrity == Integrity::None {
        return Vec::new();
    }
    let inputs =
        uses.filter(|u| u.link.reads() && u.link != Link::Checkpoint && !plan.exec.may_be_missing(u));
    let known = inputs.filter_map(|u| {
        let file = u.file;
        let bypassed = plan.exec.bypassed(&job, u);
        let is_link = match bypassed {
            Some(bypassed) => bypassed.link,
            None => plan.exec.files.at(file, job.staging).is_link,
        };
        if is_link && plan.settings.integrity == Integrity::NoSymlink {
            return None;
        }
        let image = plan.exec.files.image(file);
        let of_image = image.and_then(|container| container.sha256.as_deref());
        let known = match bypassed {
            Some(bypassed) => bypassed.sha256.as_deref(),
            None => plan.checksums.known.get(&file).map(|sha256| &**sha256),
        };
        let keeper = plan.checksums.keeper(file);
        let keeper = keeper.filter(|_| bypassed.is_none() && of_image.is_none());
        let sha256 = of_image.or(known.filter(|_| keeper.is_none()));
        (keeper.is_some() || sha256.is_some()).then(|| Verified {
            lfn: plan.workflow.files.name(file).to_owned(),
            sha256: sha256.map(str::to_owned),
            checksum_file: keeper.map(|keeper| match job.ships_files() {
                true => format!("{}{META}", plan.job(keeper).name).into(),
                false => plan.job_file(keeper, META).into(),
            }),
        })
    });
    known.collect()
}
