//! Descriptions of jobs with directories of their own or in containers, which `pegasus-lite` reads on the
//! node: one JSON object a job, with what the job scripts of Pegasus contain (section 2 of the second part of
//! the specification).

mod container;

use std::fmt::Write as _;

use pmc_dag::write;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::transformation::Container;
use crate::exec::{Exec, ExecJob, FileTransfer, JobId, Place, SiteId, Task};
use crate::ids::Id as _;
use crate::model::{FileId, FileKind, FileUse, Link, Workflow};
use crate::profiles::Namespace;
use crate::refine::settings::{Integrity, LiteCache, Settings};
use crate::refine::sites::{Access, Sites};

use super::Plan;
use super::command::{self, Called, Command, Commands, push_word};
use super::lists::{at_site, push_image_type, push_json};

pub(super) use container::out_of_reach;

/// Suffix of a description.
pub(crate) const SUFFIX: &str = ".json";

/// Suffix of the metadata file of a job, with checksums.
const META: &str = ".meta";

/// Version of the format.
const FORMAT: u32 = 1;

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
    let _ = write!(text, "{{\n  \"format\": {FORMAT},\n  \"job\": ");
    push_json(&[&job.name], text);
    places(plan, job, text);
    let is_own = plan.exec.has_own_directory(job);
    if !is_own {
        text.push_str(",\n  \"work_directory\": ");
        // That of a cluster is where its jobs start.
        let directory = match plan.exec.is_lite(job) {
            true => ".",
            false => command::work_dir(plan, id),
        };
        push_json(&[directory], text);
    }
    if plan.is_member(id) {
        text.push_str(",\n  \"in_cluster\": true");
    }
    if let Some(container) = &plan.exec.setups[job.setup].container {
        text.push_str(",\n  \"run_key\": ");
        push_json(&[&plan.submit], text);
        container::push(plan, id, container, text);
    }
    if is_own {
        inputs(plan, id, uses, text);
    }
    let kind = push_run(called, &command, text);
    if kind == "program" && plan.exec.setups[job.setup].container.is_some() {
        container::push_required(plan, id, text);
    }
    if is_own {
        outputs(plan, id, uses, kind, text);
    }
    text.push_str("\n}\n");
}

/// Appends the inputs of a job with a directory of its own.
fn inputs(plan: &Plan<'_>, id: JobId, uses: &[FileUse], text: &mut String) {
    let job = plan.job(id);
    text.push_str(",\n  \"transfer_arguments\": ");
    words(&transfer_arguments(plan, job), text);
    let reads = |u: &&FileUse| is_read(job, u);
    files(
        plan,
        id,
        "stage_in",
        Direction::In,
        uses.iter().filter(reads),
        text,
    );
    let checkpoints = uses.iter().filter(is_checkpoint);
    files(plan, id, "checkpoint_in", Direction::In, checkpoints, text);
    executables(plan, uses, text);
    verified(plan, job, uses.iter().filter(|u| !is_loaded(job, u)), text);
    let is_shared = |u: &&FileUse| plan.checksums.shared.contains(&(u.file, job.site));
    let shared = uses.iter().filter(reads).filter(is_shared);
    let shared: Vec<&str> = shared.map(|u| plan.workflow.files.name(u.file)).collect();
    if !shared.is_empty() {
        text.push_str(",\n  \"shared\": ");
        words(&shared, text);
        if let LiteCache::Bytes(bytes) = plan.settings.lite_cache {
            let _ = write!(text, ",\n  \"cache_limit\": {bytes}");
        }
    }
}

/// Appends the outputs of a job with a directory of its own. `kind` is that of what is run.
fn outputs(plan: &Plan<'_>, id: JobId, uses: &[FileUse], kind: &str, text: &mut String) {
    let writes = |u: &&FileUse| u.link.writes() && !is_checkpoint(u);
    let checkpoints = uses.iter().filter(is_checkpoint);
    files(plan, id, "checkpoint_out", Direction::Out, checkpoints, text);
    files(
        plan,
        id,
        "stage_out",
        Direction::Out,
        uses.iter().filter(writes),
        text,
    );
    if plan.settings.integrity != Integrity::None
        && keeps_checksums(plan.exec, plan.job(id))
        && uses.iter().any(|u| writes(&u))
    {
        if kind == "program" {
            let hashed: Vec<&str> = uses
                .iter()
                .filter(writes)
                .map(|u| plan.workflow.files.name(u.file))
                .collect();
            text.push_str(",\n  \"hashed\": ");
            words(&hashed, text);
        }
        text.push_str(",\n  \"checksum_file\": ");
        push_json(&[&plan.job_file(id, META)], text);
    }
}

fn is_checkpoint(u: &&FileUse) -> bool {
    u.link == Link::Checkpoint
}

/// Appends where the directory of the job is made, and the script that sets its environment.
fn places(plan: &Plan<'_>, job: &ExecJob, text: &mut String) {
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
    for (key, path) in [("scratch", scratch), ("env_source", source)] {
        if let Some(path) = path {
            let _ = write!(text, ",\n  \"{key}\": ");
            push_json(&[path], text);
        }
    }
}

/// Appends what is run. Returns its kind.
fn push_run(called: Called, command: &Command, text: &mut String) -> &'static str {
    let program = split(&[&command.program, " ", &*command.arguments].concat());
    let (kind, program) = match called {
        Called::Kickstart => ("kickstart", program.get(1..).unwrap_or_default()),
        Called::Program => ("program", &program[..]),
    };
    let _ = write!(text, ",\n  \"run\": {{ \"{kind}\": ");
    words(program, text);
    text.push_str(" }");
    kind
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

/// Appends a list of words.
fn words<W: AsRef<str>>(words: &[W], text: &mut String) {
    text.push('[');
    for (n, word) in words.iter().enumerate() {
        if n > 0 {
            text.push_str(", ");
        }
        push_json(&[word.as_ref()], text);
    }
    text.push(']');
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Appends a list of transfers between the staging site and the directory of the job.
fn files<'u>(
    plan: &Plan<'_>,
    id: JobId,
    key: &str,
    direction: Direction,
    uses: impl Iterator<Item = &'u FileUse>,
    text: &mut String,
) {
    let job = plan.job(id);
    let place = container::place(plan, job);
    let mut any = false;
    for (n, u) in uses.enumerate() {
        let place = if u.kind == FileKind::Image { None } else { place };
        if any {
            text.push_str(" ,\n");
        } else {
            let _ = write!(text, ",\n  \"{key}\": [\n");
        }
        any = true;
        let lfn = plan.workflow.files.name(u.file);
        let linkage = if direction == Direction::In {
            "input"
        } else {
            "output"
        };
        let _ = write!(
            text,
            " {{ \"type\": \"transfer\",\n   \"linkage\": \"{linkage}\",\n   \"lfn\": "
        );
        push_json(&[lfn], text);
        let _ = write!(text, ",\n   \"id\": {},\n", n + 1);
        let may_be_missing = match direction {
            Direction::In => plan.exec.may_be_missing(u),
            Direction::Out => u.may_be_missing(),
        };
        // A missing checkpoint file is no failure anyway.
        if may_be_missing && u.link != Link::Checkpoint {
            text.push_str("   \"optional\": true,\n");
        }
        text.push_str("   \"src_urls\": [\n");
        let bypassed = plan.exec.bypassed(job, u);
        match bypassed.filter(|_| direction == Direction::In) {
            Some(bypassed) => {
                let site = &plan.sites.get(job.site).name;
                for (n, (url, priority)) in bypassed.sources.iter().enumerate() {
                    text.push_str(if n > 0 { " },\n" } else { "" });
                    let url = container::seen(place, &[url]);
                    at_site((site, ["", &url, "", "", "", ""]), text);
                    if let Some(priority) = priority {
                        let _ = write!(text, ", \"priority\": {priority}");
                    }
                    text.push_str(", \"checkpoint\": \"false\"");
                }
                text.push_str(" }\n   ],\n   \"dest_urls\": [\n");
                let scheme = if bypassed.link { "symlink://" } else { "file://" };
                at_site(
                    (site, [scheme, container::directory(place), "/", lfn, "", ""]),
                    text,
                );
            }
            None => {
                location(plan, job, u.file, (direction, Direction::In), place, text);
                let is_checkpoint = u.link == Link::Checkpoint;
                let _ = write!(
                    text,
                    ", \"checkpoint\": \"{is_checkpoint}\" }}\n   ],\n   \"dest_urls\": [\n"
                );
                location(plan, job, u.file, (direction, Direction::Out), place, text);
            }
        }
        if u.kind == FileKind::Image {
            push_image_type(plan, u.file, text);
        }
        text.push_str(" }\n   ] }\n");
    }
    if any {
        text.push_str("  ]");
    }
}

/// Appends the beginning of a source (`side` is In) or of a destination.
fn location(
    plan: &Plan<'_>,
    job: &ExecJob,
    file: FileId,
    (direction, side): (Direction, Direction),
    place: Option<&Container>,
    text: &mut String,
) {
    let site = |id: SiteId| plan.sites.get(id).name.as_str();
    if direction == side {
        let access = match direction {
            Direction::In => Access::Get,
            Direction::Out => Access::Put,
        };
        let staging = Place::Scratch(job.staging);
        let (site, url) = plan.url_parts(&staging, file, access);
        match place {
            None => at_site((site, url), text),
            Some(_) => {
                let url = container::seen(place, &url);
                at_site((site, [&url, "", "", "", "", ""]), text);
            }
        }
    } else {
        let lfn = plan.workflow.files.name(file);
        let directory = container::directory(place);
        at_site((site(job.site), ["file://", directory, "/", lfn, "", ""]), text);
    }
}

/// Appends the fetched programs, which have to be made executable.
fn executables(plan: &Plan<'_>, uses: &[FileUse], text: &mut String) {
    let programs = uses
        .iter()
        .filter(|u| u.kind == FileKind::Executable && u.link.reads());
    let names: Vec<&str> = programs.map(|u| plan.workflow.files.name(u.file)).collect();
    if !names.is_empty() {
        text.push_str(",\n  \"executables\": ");
        words(&names, text);
    }
}

/// Appends those of some inputs that have a known checksum.
fn verified<'u>(plan: &Plan<'_>, job: &ExecJob, uses: impl Iterator<Item = &'u FileUse>, text: &mut String) {
    if plan.settings.integrity == Integrity::None {
        return;
    }
    let mut any = false;
    let inputs =
        uses.filter(|u| u.link.reads() && u.link != Link::Checkpoint && !plan.exec.may_be_missing(u));
    for u in inputs {
        let file = u.file;
        let bypassed = plan.exec.bypassed(job, u);
        let is_link = match bypassed {
            Some(bypassed) => bypassed.link,
            None => plan.exec.linked.contains(&(file, job.staging)),
        };
        if is_link && plan.settings.integrity == Integrity::NoSymlink {
            continue;
        }
        let known = match bypassed {
            Some(bypassed) => bypassed.sha256.as_deref(),
            None => plan.checksums.known.get(&file).map(|sha256| &**sha256),
        };
        let of_catalog = plan.exec.images.get(&file);
        let of_catalog = of_catalog.and_then(|container| container.sha256.as_deref());
        let keeper = plan.checksums.keeper(file).filter(|_| bypassed.is_none());
        let (key, value) = match (keeper, known) {
            _ if of_catalog.is_some() => ("sha256", of_catalog.unwrap_or_default().to_owned()),
            (Some(keeper), _) => ("checksum_file", plan.job_file(keeper, META)),
            (None, Some(sha256)) => ("sha256", sha256.to_owned()),
            (None, None) => continue,
        };
        text.push_str(if any {
            ",\n    { \"lfn\": "
        } else {
            ",\n  \"verify\": [\n    { \"lfn\": "
        });
        any = true;
        push_json(&[plan.workflow.files.name(file)], text);
        let _ = write!(text, ", \"{key}\": ");
        push_json(&[&value], text);
        text.push_str(" }");
    }
    if any {
        text.push_str("\n  ]");
    }
}
