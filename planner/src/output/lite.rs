//! Descriptions of jobs with directories of their own or in containers, which `pegasus-lite` reads on the
//! node: one a job, with what the job scripts of Pegasus contain (section 2 of the second part of the
//! specification).

mod container;

use std::path::PathBuf;

use pmc_dag::write;
use pmc_job_files::{Description, Entry, FORMAT, Flag, Number, Place as At, Run, Verified};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::exec::{Exec, ExecJob, FileTransfer, JobId, Place, SiteId, Task};
use crate::ids::Id as _;
use crate::model::{FileId, FileKind, FileUse, Link, Workflow};
use crate::profiles::Namespace;
use crate::refine::settings::{Integrity, LiteCache, Settings};
use crate::refine::sites::{Access, Sites};

use super::Plan;
use super::command::{self, Called, Command, Commands, push_word};
use super::lists::image_type;

pub(super) use container::out_of_reach;

/// Suffix of a description.
pub(crate) const SUFFIX: &str = ".json";

/// Suffix of the metadata file of a job, with checksums.
const META: &str = ".meta";

/// Maximum inputs that the DAG names for a task. One with more gathers what many nodes have.
const MAX_NAMED: usize = 64;

/// Variable with the directory for jobs on a node.
const SCRATCH: &str = "PEGASUS_WN_TMP";

/// Where the checksums of files are found.
#[derive(Debug, Default)]
pub(crate) struct Checksums {
    /// The job whose metadata file has the checksum.
    keepers: FxHashMap<FileId, JobId>,
    /// Checksums of catalogs.
    known: FxHashMap<FileId, Box<str>>,
    /// Files that several jobs of a site fetch over the network.
    shared: FxHashSet<(FileId, SiteId)>,
    /// Images in which several jobs of a site run, and that come over the network.
    images: FxHashSet<(FileId, SiteId)>,
}

impl Checksums {
    /// Finds the checksums of all files that jobs with directories of their own read or write.
    pub(crate) fn new(workflow: &Workflow, exec: &Exec, sites: &Sites, settings: &Settings) -> Self {
        let mut this = Checksums::default();
        if settings.integrity == Integrity::None {
            return this;
        }
        for (id, job) in JobId::first(exec.jobs.len()).zip(&exec.jobs) {
            match job.task {
                Task::Compute(_) | Task::Cluster(..) if keeps_checksums(exec, job) => {
                    let uses = exec.uses(workflow, job.task).iter();
                    let outputs = uses.filter(|u| u.link.writes() && u.link != Link::Checkpoint);
                    this.keepers.extend(outputs.map(|u| (u.file, id)));
                }
                Task::StageIn(n) if sites.is_lite(job.staging) => {
                    for moved in &exec.transfers[n].files {
                        if moved.generate_checksum {
                            this.keepers.insert(moved.file, id);
                        } else if let Some(sha256) = checksum(moved.metadata.as_deref().unwrap_or_default()) {
                            this.known.insert(moved.file, sha256.into());
                        }
                    }
                }
                _ => {}
            }
        }
        if settings.lite_cache != LiteCache::Off {
            this.shared = shared(workflow, exec, sites, is_read);
            this.images = shared(workflow, exec, sites, is_loaded);
        }
        this
    }

    /// Returns the job whose metadata file has the checksum of a file.
    pub(crate) fn keeper(&self, file: FileId) -> Option<JobId> {
        self.keepers.get(&file).copied()
    }
}

/// Finds those inputs of a kind that several jobs of a site fetch over the network.
fn shared(
    workflow: &Workflow,
    exec: &Exec,
    sites: &Sites,
    is_it: fn(&ExecJob, &&FileUse) -> bool,
) -> FxHashSet<(FileId, SiteId)> {
    let (mut once, mut shared) = (FxHashSet::default(), FxHashSet::default());
    for job in exec.jobs.iter().filter(|job| exec.is_lite(job)) {
        let is_staged_far = !is_file(sites.work_url(job.staging, Access::Get));
        for u in exec.uses(workflow, job.task).iter().filter(|u| u.link.reads()) {
            let key = (u.file, job.site);
            let is_far = match exec.bypassed(job, u) {
                Some(bypassed) => bypassed.sources.iter().all(|(url, _)| !is_file(url)),
                None => is_staged_far,
            };
            if is_far && is_it(job, &u) && !once.insert(key) {
                shared.insert(key);
            }
        }
    }
    shared
}

/// Returns whether a file is the image in which a job runs. For a cluster it is a file like others: each of
/// its jobs has a container.
fn is_loaded(job: &ExecJob, u: &&FileUse) -> bool {
    u.kind == FileKind::Image && matches!(job.task, Task::Compute(_))
}

/// Returns whether a file comes into the directory of a job before its program starts.
fn is_read(job: &ExecJob, u: &&FileUse) -> bool {
    u.link.reads() && !is_checkpoint(u) && !is_loaded(job, u)
}

/// Appends the line of the DAG with what the cache of the node may have for a job, so that the executor can
/// start it there.
pub(super) fn push_inputs(plan: &Plan<'_>, id: JobId, text: &mut String) {
    let job = plan.job(id);
    let Checksums { shared, images, .. } = &plan.checksums;
    if (shared.is_empty() && images.is_empty()) || !plan.exec.is_lite(job) {
        return;
    }
    // What is fetched inside a container goes through no cache.
    let is_outside = container::place(plan, job).is_none();
    let is_cached = |u: &&FileUse| {
        let key = (u.file, job.site);
        (is_outside && is_read(job, u) && shared.contains(&key))
            || (is_loaded(job, u) && images.contains(&key))
    };
    let cached = || plan.exec.uses(plan.workflow, job.task).iter().filter(is_cached);
    if cached().nth(MAX_NAMED).is_none() {
        write::inputs(text, cached().map(|u| plan.workflow.files.name(u.file)));
    }
}

fn is_file(url: &str) -> bool {
    url.starts_with("file:") || url.starts_with('/')
}

/// Returns whether the copy that a stage-out job makes is compared with the checksum of the output.
pub(super) fn is_verified(plan: &Plan<'_>, id: JobId, file: &FileTransfer) -> bool {
    let is_staged = |(place, _): &(Place, _)| matches!(place, Place::Scratch(_));
    matches!(plan.job(id).task, Task::StageOut(_))
        && !file.optional
        && file.sources.iter().all(is_staged)
        && plan.checksums.keeper(file.file).is_some()
}

/// Appends the options of a transfer job for checksums: those that it verifies, those that it computes for
/// jobs with directories of their own.
pub(super) fn push_checksum_options(plan: &Plan<'_>, id: JobId, text: &mut String) {
    match plan.job(id).task {
        Task::StageIn(n) => {
            let files = &plan.exec.transfers[n].files;
            if files
                .iter()
                .any(|file| plan.checksums.keeper(file.file) == Some(id))
            {
                push_word(text, " --checksums-to ", &plan.job_file(id, META), "");
            }
        }
        Task::StageOut(n) => {
            let files = plan.exec.transfers[n].files.iter();
            let verified = files.filter(|file| is_verified(plan, id, file));
            let mut keepers: Vec<JobId> = verified
                .filter_map(|file| plan.checksums.keeper(file.file))
                .collect();
            keepers.sort_unstable();
            keepers.dedup();
            if !keepers.is_empty() {
                let files: Vec<String> = keepers
                    .iter()
                    .map(|&keeper| plan.job_file(keeper, META))
                    .collect();
                push_word(text, " --checksums-from ", &files.join(","), "");
            }
        }
        _ => {}
    }
}

/// Returns the SHA-256 among metadata of a file.
fn checksum(metadata: &[(String, String)]) -> Option<&str> {
    let of = |key: &str| {
        metadata
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value.as_str())
    };
    let is_sha256 = of("checksum.type").is_some_and(|kind| kind.eq_ignore_ascii_case("sha256"));
    of("checksum.value").filter(|_| is_sha256)
}

/// Returns whether a job records the checksums of its outputs: kickstart does.
fn keeps_checksums(exec: &Exec, job: &ExecJob) -> bool {
    let gridstart = exec.setups[job.setup].profiles.pegasus("gridstart");
    exec.is_lite(job) && !gridstart.is_some_and(command::is_no_wrapper)
}

/// Appends the description of a job. Jobs without a valid command get none: the DAG reports the problem.
pub(super) fn append(plan: &Plan<'_>, id: JobId, text: &mut String) {
    let mut command = Command::default();
    let Ok(called) = Commands::default().fill_task(plan, id, &mut command) else {
        return;
    };
    let job = plan.job(id);
    let for_planner;
    let uses = match plan.exec.fetches_for_planner(job) {
        true => {
            for_planner = super::nested::read_by_planner(plan, id);
            for_planner.as_slice()
        }
        false => plan.exec.uses(plan.workflow, job.task),
    };
    let mut description = Description {
        format: FORMAT,
        job: job.name.to_string(),
        in_cluster: plan.is_member(id),
        run: run(called, &command),
        ..Description::default()
    };
    places(plan, job, &mut description);
    if let Some(container) = &plan.exec.setups[job.setup].container {
        description.run_key = plan.submit.clone().into();
        description.container = Some(container::describe(plan, id, container));
        if let Run::Program(_) = description.run {
            let required = super::stat::required_outputs(plan, id).into_iter();
            description.required = required.map(str::to_owned).collect();
        }
    }
    if plan.exec.has_own_directory(job) {
        inputs(plan, id, uses, &mut description);
        outputs(plan, id, uses, &mut description);
    } else {
        // That of a cluster is where its jobs start.
        let directory = match plan.exec.is_lite(job) {
            true => ".",
            false => command::work_dir(plan, id),
        };
        description.work_directory = Some(directory.into());
    }
    text.push_str(&description.to_json().expect("texts of a plan are UTF-8"));
}

/// Adds the inputs of a job with a directory of its own.
fn inputs(plan: &Plan<'_>, id: JobId, uses: &[FileUse], description: &mut Description) {
    let job = plan.job(id);
    let names = |uses: &mut dyn Iterator<Item = &FileUse>| -> Vec<String> {
        uses.map(|u| plan.workflow.files.name(u.file).to_owned())
            .collect()
    };
    let reads = |u: &&FileUse| is_read(job, u);
    let is_program = |u: &&FileUse| u.kind == FileKind::Executable && u.link.reads();
    let is_shared = |u: &&FileUse| plan.checksums.shared.contains(&(u.file, job.site));
    description.transfer_arguments = transfer_arguments(plan, job);
    description.stage_in = transfers(plan, job, Direction::In, uses.iter().filter(reads));
    description.checkpoint_in = transfers(plan, job, Direction::In, uses.iter().filter(is_checkpoint));
    let programs = names(&mut uses.iter().filter(is_program));
    description.executables = programs.into_iter().map(PathBuf::from).collect();
    description.verify = verified(plan, job, uses.iter().filter(|u| !is_loaded(job, u)));
    description.shared = names(&mut uses.iter().filter(reads).filter(is_shared));
    if let LiteCache::Bytes(bytes) = plan.settings.lite_cache
        && !description.shared.is_empty()
    {
        description.cache_limit = Some(bytes);
    }
}

/// Adds the outputs of a job with a directory of its own.
fn outputs(plan: &Plan<'_>, id: JobId, uses: &[FileUse], description: &mut Description) {
    let job = plan.job(id);
    let written = || uses.iter().filter(|u| u.link.writes() && !is_checkpoint(u));
    description.checkpoint_out = transfers(plan, job, Direction::Out, uses.iter().filter(is_checkpoint));
    description.stage_out = transfers(plan, job, Direction::Out, written());
    if plan.settings.integrity != Integrity::None
        && keeps_checksums(plan.exec, job)
        && written().next().is_some()
    {
        if let Run::Program(_) = description.run {
            let names = written().map(|u| plan.workflow.files.name(u.file).to_owned());
            description.hashed = names.collect();
        }
        description.checksum_file = Some(plan.job_file(id, META).into());
    }
}

fn is_checkpoint(u: &&FileUse) -> bool {
    u.link == Link::Checkpoint
}

/// Adds where the directory of the job is made, and the script that sets its environment.
fn places(plan: &Plan<'_>, job: &ExecJob, description: &mut Description) {
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
        let mut jobs = std::iter::once(job).chain(&plan.exec.members[members.clone()]);
        jobs.find_map(|job| of(job, namespace, key))
    };
    let scratch = profile(Namespace::Env, SCRATCH)
        .or_else(|| profile(Namespace::Pegasus, "wntmp"))
        .or(plan.sites.get(job.site).local_scratch.as_deref());
    let local = &plan.sites.get(plan.sites.local()).profiles;
    let source = profile(Namespace::Pegasus, "pegasus_lite_env_source")
        .or_else(|| local.pegasus("pegasus_lite_env_source").map(str::trim))
        .or_else(|| profile(Namespace::Env, "PEGASUS_LITE_ENV_SOURCE"));
    description.scratch = scratch.map(PathBuf::from);
    description.env_source = source.map(PathBuf::from);
}

/// Returns what is run.
fn run(called: Called, command: &Command) -> Run {
    let mut program = split(&[&command.program, " ", &*command.arguments].concat());
    match called {
        Called::Kickstart => Run::Kickstart(program.split_off(1.min(program.len()))),
        Called::Program => Run::Program(program),
    }
}

/// Splits a part of a line of a DAG into words.
fn split(line: &str) -> Vec<String> {
    pmc_dag::words::Words::new(line.as_bytes())
        .map(|word| String::from_utf8_lossy(&word).into_owned())
        .collect()
}

/// Returns the options of `pegasus-transfer` for the transfers of a job.
fn transfer_arguments(plan: &Plan<'_>, job: &ExecJob) -> Vec<String> {
    let profiles = &plan.exec.setups[job.setup].profiles;
    let value = |key: &str| {
        profiles
            .pegasus(key)
            .map(str::trim)
            .filter(|text| !text.is_empty())
    };
    let threads = value("transfer.lite.threads").or_else(|| value("transfer.threads"));
    let more = value("transfer.lite.arguments").unwrap_or(plan.settings.mode.transfer_arguments());
    let mut arguments = vec!["--threads".to_owned(), threads.unwrap_or("1").to_owned()];
    arguments.extend(split(more));
    arguments
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Returns the transfers between the staging site and the directory of a job.
fn transfers<'u>(
    plan: &Plan<'_>,
    job: &ExecJob,
    direction: Direction,
    uses: impl Iterator<Item = &'u FileUse>,
) -> Vec<Entry> {
    uses.map(|u| transfer(plan, job, direction, u)).collect()
}

fn transfer(plan: &Plan<'_>, job: &ExecJob, direction: Direction, u: &FileUse) -> Entry {
    let lfn = plan.workflow.files.name(u.file);
    let is_image = u.kind == FileKind::Image;
    let inside = container::place(plan, job).filter(|_| !is_image);
    let bypassed = plan.exec.bypassed(job, u).filter(|_| direction == Direction::In);
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
fn verified<'u>(plan: &Plan<'_>, job: &ExecJob, uses: impl Iterator<Item = &'u FileUse>) -> Vec<Verified> {
    if plan.settings.integrity == Integrity::None {
        return Vec::new();
    }
    let inputs =
        uses.filter(|u| u.link.reads() && u.link != Link::Checkpoint && !plan.exec.may_be_missing(u));
    let known = inputs.filter_map(|u| {
        let file = u.file;
        let bypassed = plan.exec.bypassed(job, u);
        let is_link = match bypassed {
            Some(bypassed) => bypassed.link,
            None => plan.exec.linked.contains(&(file, job.staging)),
        };
        if is_link && plan.settings.integrity == Integrity::NoSymlink {
            return None;
        }
        let image = plan.exec.images.get(&file);
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
            checksum_file: keeper.map(|keeper| plan.job_file(keeper, META).into()),
        })
    });
    known.collect()
}
