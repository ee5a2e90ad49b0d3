//! Explanations of jobs: sites, resources, sources of inputs, destinations of outputs.

use std::fmt::Write as _;

use crate::catalog::replica::Replica;
use crate::catalog::transformation::TransformationKind;
use crate::error::near_spelling;
use crate::exec::{EntryId, JobId, Place, SiteId, Task};
use crate::graph::Graph;
use crate::model::{FileId, JobIndex, TransferFlag, Workflow};
use crate::profiles::{Namespace, Profiles};
use crate::refine::files;
use crate::refine::mapping::Mapper;
use crate::refine::replicas::Replicas;
use crate::refine::settings::ReuseScope;
use crate::refine::sites::Access;
use crate::task_request::{self, ProfileKey};
use crate::tasks::Plan;

/// Maximum entries of a list that are shown.
const MAX_SHOWN: usize = 12;

/// A name that neither the workflow nor the plan has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no job {name} in the workflow or the plan{hint}")]
pub(crate) struct UnknownJob {
    name: String,
    /// Suggestion, or empty.
    hint: String,
}

/// A plan and the data it was made from.
pub(crate) struct View<'a, 'm> {
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) mapper: &'a Mapper<'m>,
    pub(crate) replicas: &'a Replicas,
}

/// A text in two columns.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, name: &str, what: &str) {
        // Writing into a String cannot fail.
        let _ = writeln!(self.text, "  {name:<12}{what}");
    }
    /// Adds several lines under one name. Entries above the limit are only counted.
    fn lines(&mut self, name: &str, entries: impl Iterator<Item = String>) {
        let mut hidden = 0;
        for (k, entry) in entries.enumerate() {
            match k {
                0 => self.line(name, &entry),
                _ if k < MAX_SHOWN => self.line("", &entry),
                _ => hidden += 1,
            }
        }
        if hidden > 0 {
            self.line("", &format!("… and {hidden} more"));
        }
    }
}

/// Explains jobs of one plan.
pub(crate) struct Explainer<'a, 'm> {
    view: View<'a, 'm>,
    graph: Graph<JobId>,
}

impl<'a, 'm> Explainer<'a, 'm> {
    pub(crate) fn new(view: View<'a, 'm>) -> Self {
        let exec = view.plan.exec;
        let graph = Graph::new(exec.jobs.len(), &exec.edges);
        Explainer { view, graph }
    }

    fn workflow(&self) -> &'a Workflow {
        self.view.plan.workflow
    }
    fn site(&self, site: SiteId) -> &str {
        &self.view.plan.sites.get(site).name
    }
    fn name(&self, job: JobId) -> String {
        self.view.plan.job(job).name.to_string()
    }
    /// Returns the job of the DAG that runs a job: itself, or its cluster.
    fn runs_as(&self, id: JobId) -> JobId {
        let plan = self.view.plan;
        if !plan.is_member(id) {
            return id;
        }
        let mut clusters = plan.exec.clusters.iter();
        clusters
            .find(|cluster| cluster.members.clone().any(|member| plan.member(member) == id))
            .map_or(id, |cluster| cluster.job)
    }
    fn file(&self, file: FileId) -> &str {
        self.workflow().files.name(file)
    }

    /// Explains a job, given its name in the plan or its id in the workflow.
    ///
    /// # Errors
    /// An unknown job. The message suggests a similar name.
    pub(crate) fn explain(&self, name: &str) -> Result<String, UnknownJob> {
        let exec = self.view.plan.exec;
        let is_id = |n: JobIndex| self.workflow().jobs[n].id == name;
        let found = exec.jobs.iter().position(|job| match job.task {
            Task::Compute(n) => &*job.name == name || is_id(n),
            _ => &*job.name == name,
        });
        if let Some(found) = found {
            return Ok(self.job(JobId::new(found)));
        }
        let clustered = exec.members.iter().position(|job| match job.task {
            Task::Compute(n) => &*job.name == name || is_id(n),
            _ => false,
        });
        if let Some(found) = clustered {
            return Ok(self.job(self.view.plan.member(found)));
        }
        let prefix = self.view.mapper.prefix.as_str();
        let pruned = self.workflow().jobs.iter().position(|job| {
            job.id == name
                || *crate::refine::names::job_name(prefix, &job.transformation.name, &job.id) == *name
        });
        if let Some(n) = pruned {
            return Ok(self.pruned(n));
        }
        let ids = self.workflow().jobs.iter().map(|job| job.id.as_str());
        let all = ids.chain(exec.jobs.iter().map(|job| &*job.name));
        Err(UnknownJob {
            name: name.to_owned(),
            hint: near_spelling(name, all).map_or(String::new(), |near| format!("; did you mean {near}?")),
        })
    }

    fn job(&self, id: JobId) -> String {
        let plan = self.view.plan;
        let job = plan.job(id);
        let mut page = Page::default();
        let what = match job.task {
            Task::Compute(n) => {
                let abstract_job = &self.workflow().jobs[n];
                let file = plan.workflow.path.file_name().unwrap_or_default();
                format!(
                    "runs {} (job {}, {}:{})",
                    abstract_job.transformation,
                    abstract_job.id,
                    file.to_string_lossy(),
                    abstract_job.position.line
                )
            }
            Task::Cluster(n, aggregator) => format!(
                "runs {} jobs of the workflow with {}",
                plan.exec.clusters[n].members.len(),
                aggregator.transformation()
            ),
            Task::StageIn(_) => "stages inputs into a work directory".into(),
            Task::StageOut(_) => "stages outputs to the output site".into(),
            Task::InterSite(_) => "copies files between work directories".into(),
            Task::Register(_) => "registers outputs in the replica catalog".into(),
            Task::CreateDir => "creates the work directory".into(),
            Task::CleanUp(_) => "removes files that are no longer needed".into(),
            Task::RemoveDir => "removes the work directory".into(),
            Task::Chmod(_) => "makes staged programs executable".into(),
            Task::NoOp => "does nothing".into(),
        };
        let _ = writeln!(page.text, "{}: {what}", job.name);
        match job.task {
            Task::Compute(n) => self.compute(id, n, &mut page),
            _ => self.auxiliary(id, &mut page),
        }
        let cluster = plan.cluster_job(id);
        if let Some(cluster) = cluster {
            page.line("cluster", &self.name(cluster));
        }
        let id = cluster.unwrap_or(id);
        let names = |jobs: &[JobId]| jobs.iter().map(|&j| self.name(j)).collect::<Vec<_>>().into_iter();
        let runner = self.runs_as(id);
        if runner != id {
            page.line("runs in", &self.name(runner));
        }
        page.lines("after", names(self.graph.parents(runner)));
        page.lines("before", names(self.graph.children(runner)));
        page.text
    }

    fn compute(&self, id: JobId, n: JobIndex, page: &mut Page) {
        let plan = self.view.plan;
        let job = plan.job(id);
        let setup = &plan.exec.setups[job.setup];
        page.line("site", &self.explain_site(job.site, n));
        if job.staging != job.site {
            page.line(
                "",
                &format!("with the work directory of {}", self.site(job.staging)),
            );
        }
        let program = match setup.entry {
            None => format!("{}, set by the job's profile selector::pfn", setup.executable),
            Some(entry) => {
                let entry = self.view.mapper.programs.entry(entry);
                match entry.kind {
                    TransformationKind::Stageable => format!(
                        "{}, staged from {} on {}",
                        setup.executable, entry.pfn, entry.site
                    ),
                    TransformationKind::Installed => format!("{}, installed on {}", entry.pfn, entry.site),
                }
            }
        };
        page.line("program", &program);
        if let Some(container) = &setup.container {
            let of = format!("{} ({})", container.name, container.kind.name());
            page.line(
                "container",
                &format!("{of}, image {} on {}", container.image, container.image_site),
            );
        }
        for (name, keys, unit) in [
            ("memory", task_request::MEMORY, " MiB"),
            ("cores", task_request::CPUS, ""),
            ("priority", task_request::PRIORITY, ""),
            ("run time", &[(Namespace::Pegasus, "runtime")], " s expected"),
        ] {
            if let Some((key, value)) = task_request::find(&setup.profiles, keys) {
                let from = self.source(job.site, n, setup.entry, key);
                page.line(name, &format!("{}{unit}, {from}", value.text()));
            }
        }
        page.lines("reads", self.inputs(id, n).into_iter());
        page.lines("writes", self.outputs(id, n).into_iter());
    }

    /// Explains the choice of a job's site.
    fn explain_site(&self, site: SiteId, n: JobIndex) -> String {
        let abstract_job = &self.workflow().jobs[n];
        let mapper = self.view.mapper;
        let name = self.site(site);
        if abstract_job
            .profiles
            .get(Namespace::Selector, "execution.site")
            .is_some()
        {
            return format!("{name}, set by the job's profile selector::execution.site");
        }
        let candidates = &mapper.sites.candidates;
        let usable = |site: SiteId| {
            mapper
                .programs
                .usable(&abstract_job.transformation, mapper.sites.get(site))
                .is_some()
        };
        let (able, unable): (Vec<SiteId>, Vec<SiteId>) = candidates.iter().partition(|&&site| usable(site));
        let list = |sites: &[SiteId]| sites.iter().map(|&s| self.site(s)).collect::<Vec<_>>().join(", ");
        let mut text = match (candidates.len(), able.len()) {
            (1, _) => format!("{name}, the only candidate (--sites)"),
            (_, 1) => format!("{name}, the only candidate with the program"),
            _ => format!(
                "{name}, chosen by the site selector {} among {}",
                mapper.settings.site_selector.name(),
                list(&able)
            ),
        };
        if !unable.is_empty() && candidates.len() > 1 {
            let _ = write!(
                text,
                "; {} not usable on {}",
                abstract_job.transformation,
                list(&unable)
            );
        }
        text
    }

    /// Returns the source of a profile: the strongest one that has it.
    fn source(&self, site: SiteId, n: JobIndex, entry: Option<EntryId>, key: ProfileKey) -> String {
        let (namespace, key) = key;
        let has = |profiles: &Profiles| profiles.get(namespace, key).is_some();
        let mapper = self.view.mapper;
        let namespace = namespace.as_str();
        let profile = format!("profile {namespace}::{key}");
        if let Some(entry) = entry.map(|e| mapper.programs.entry(e))
            && has(&entry.profiles)
        {
            return format!(
                "from the {profile} of the transformation {} on {}",
                entry.name, entry.site
            );
        }
        let container = entry.and_then(|e| mapper.programs.entry(e).container.as_deref());
        if let Some(container) = container.and_then(|name| mapper.programs.container(name))
            && has(&container.profiles)
        {
            return format!("from the {profile} of the container {}", container.name);
        }
        if has(&mapper.sites.get(site).profiles) {
            return format!("from the {profile} of the site {}", self.site(site));
        }
        if has(&self.workflow().jobs[n].profiles) {
            return format!("from the {profile} of the job");
        }
        if has(&mapper.settings.profiles) {
            return format!("from the property {namespace}.{key}");
        }
        "the default".into()
    }

    fn inputs(&self, id: JobId, n: JobIndex) -> Vec<String> {
        let plan = self.view.plan;
        let here = plan.job(id).staging;
        let mut lines = Vec::new();
        for u in &self.workflow().jobs[n].uses {
            if !u.link.reads() {
                continue;
            }
            let lfn = self.file(u.file);
            if plan.exec.files.at(u.file, here).is_in_place {
                lines.push(format!("{lfn}: is in the work directory already"));
                continue;
            }
            let mut found = false;
            for &parent in self.graph.parents(self.runs_as(id)) {
                let mut writes = false;
                files::of_job(plan.workflow, plan.exec, parent, |a| {
                    writes |= a.writes && a.file == u.file && a.site == here;
                });
                if writes {
                    found = true;
                    let from = self.sources(parent, u.file).unwrap_or_default();
                    lines.push(format!("{lfn}: from {}{from}", self.name(parent)));
                }
            }
            if !found {
                let writer = self.view.plan.exec.jobs.iter().enumerate().find_map(|(k, _)| {
                    let mut writes = false;
                    files::of_job(plan.workflow, plan.exec, JobId::new(k), |a| {
                        writes |= a.writes && a.file == u.file && a.site == here;
                    });
                    (writes && JobId::new(k) != id).then_some(JobId::new(k))
                });
                lines.push(match writer {
                    Some(writer) => {
                        let from = self.sources(writer, u.file).unwrap_or_default();
                        format!("{lfn}: from {}{from}", self.name(writer))
                    }
                    None => format!("{lfn}: no source"),
                });
            }
        }
        lines
    }

    /// Lists the locations of a file that a transfer job uses, and unused ones with reasons.
    fn sources(&self, job: JobId, file: FileId) -> Option<String> {
        let (Task::StageIn(n) | Task::InterSite(n)) = self.view.plan.job(job).task else {
            return None;
        };
        let set = &self.view.plan.exec.transfers[n];
        let moved = set.files.iter().find(|moved| moved.file == file)?;
        let lfn = self.file(file);
        let mut text = String::new();
        for (k, (place, priority)) in moved.sources.iter().enumerate() {
            let (site, url) = self.view.plan.url(place, file, Access::Get);
            text.push_str(match k {
                0 => ", copied from ",
                _ => ", else from ",
            });
            let _ = write!(text, "{url} at {site}");
            if let Some(priority) = priority
                && moved.sources.len() > 1
            {
                let _ = write!(text, " (priority {priority})");
            }
        }
        if matches!(moved.destination, Place::ScratchLink(_)) {
            text = text.replacen("copied from", "linked to", 1);
        }
        let used = |r: &&Replica| {
            !moved.sources.iter().any(|(place, _)| match place {
                Place::Url(url, _) => {
                    url.trim_start_matches("file://") == r.pfn.trim_start_matches("file://")
                }
                _ => false,
            })
        };
        let known = self.view.replicas.lookup(lfn).unwrap_or_default();
        for unused in known.replicas.iter().filter(used).take(3) {
            let at = unused.site.as_deref().unwrap_or("no site");
            let why = match (&unused.site, self.view.mapper.settings.replica_selector.reason()) {
                (None, _) => "it names no site",
                (_, Some(reason)) => reason,
                _ => "a better location exists, or the site cannot access it",
            };
            let _ = write!(text, "; not used: {} at {at}: {why}", unused.pfn);
        }
        Some(text)
    }

    fn outputs(&self, id: JobId, n: JobIndex) -> Vec<String> {
        let plan = self.view.plan;
        let here = plan.job(id).staging;
        let mut lines = Vec::new();
        for u in &self.workflow().jobs[n].uses {
            if !u.link.writes() {
                continue;
            }
            let lfn = self.file(u.file);
            let mut destinations = Vec::new();
            for (k, job) in plan.exec.jobs.iter().enumerate() {
                let destination = match job.task {
                    Task::StageOut(t) => plan.exec.transfers[t]
                        .files
                        .iter()
                        .find(|moved| {
                            moved.file == u.file
                                && self.graph.parents(JobId::new(k)).contains(&self.runs_as(id))
                        })
                        .map(|moved| {
                            format!(
                                "staged out to {} by",
                                plan.url(&moved.destination, moved.file, Access::Put).1
                            )
                        }),
                    Task::Register(r) => plan.exec.registrations[r]
                        .entries
                        .iter()
                        .any(|(file, ..)| *file == u.file)
                        .then(|| "registered by".to_owned()),
                    Task::CleanUp(c) if job.staging == here => plan.exec.removals[c]
                        .contains(&u.file)
                        .then(|| "removed by".to_owned()),
                    _ => None,
                };
                if let Some(destination) = destination {
                    destinations.push(format!("{destination} {}", job.name));
                }
            }
            if destinations.is_empty() {
                destinations.push(match u.transfer {
                    TransferFlag::Not => "for other jobs only".into(),
                    _ if plan.sites.outputs.is_empty() => {
                        "stays in the work directory, without an output site".into()
                    }
                    _ => "stays in the work directory".into(),
                });
            }
            lines.push(format!("{lfn}: {}", destinations.join(", ")));
        }
        lines
    }

    fn auxiliary(&self, id: JobId, page: &mut Page) {
        let plan = self.view.plan;
        let job = plan.job(id);
        let site = match self.site(job.site) {
            site if job.site == job.staging => site.to_owned(),
            site => format!("{site}, for the work directory of {}", self.site(job.staging)),
        };
        page.line("site", &site);
        match job.task {
            Task::StageIn(n) | Task::InterSite(n) | Task::StageOut(n) => {
                let moved = plan.exec.transfers[n].files.iter();
                page.lines(
                    "files",
                    moved.map(|moved| {
                        let lfn = self.file(moved.file);
                        let sources: Vec<String> = moved
                            .sources
                            .iter()
                            .map(|(place, _)| plan.url(place, moved.file, Access::Get).1)
                            .collect();
                        format!(
                            "{lfn}: {} → {}",
                            sources.join(", else "),
                            plan.url(&moved.destination, moved.file, Access::Put).1
                        )
                    }),
                );
                let refiner = self.view.mapper.settings.refiner;
                page.line("grouping", &format!("by the transfer refiner {refiner:?}"));
            }
            Task::Register(n) => page.lines(
                "files",
                plan.exec.registrations[n].entries.iter().map(|(file, place, _)| {
                    let lfn = self.file(*file);
                    format!("{lfn}: {}", plan.url(place, *file, Access::Get).1)
                }),
            ),
            Task::CleanUp(n) => {
                page.lines(
                    "files",
                    plan.exec.removals[n]
                        .iter()
                        .map(|&file| self.file(file).to_owned()),
                );
                let strategy = self.view.mapper.settings.cleanup;
                page.line(
                    "reason",
                    &format!("clean-up strategy {strategy:?}, after the last jobs that use the files"),
                );
            }
            Task::Chmod(n) => page.lines(
                "files",
                plan.exec.chmods[n].iter().map(|&file| self.file(file).to_owned()),
            ),
            Task::CreateDir | Task::RemoveDir => {
                if let Some(scratch) = &plan.sites.get(job.staging).scratch {
                    page.line("directory", &scratch.path);
                }
            }
            Task::Cluster(n, _) => {
                let members = plan.exec.clusters[n].members.clone();
                page.lines("jobs", members.map(|member| self.name(plan.member(member))));
            }
            Task::Compute(_) | Task::NoOp => {}
        }
    }

    /// Explains why data reuse removed a job.
    fn pruned(&self, n: usize) -> String {
        let abstract_job = &self.workflow().jobs[n];
        let mut page = Page::default();
        let _ = writeln!(
            page.text,
            "{} ({}): does not run, since its outputs exist or are not needed (data reuse; --force runs it)",
            abstract_job.id, abstract_job.transformation
        );
        let partial = self.view.mapper.settings.reuse == ReuseScope::Partial;
        let mut running: Vec<JobIndex> = self.view.plan.exec.computing().map(|(_, n)| n).collect();
        running.sort_unstable();
        let runs = |n: JobIndex| running.binary_search(&n).is_ok();
        page.lines(
            "makes",
            abstract_job.uses.iter().filter(|u| u.link.writes()).map(|u| {
                let lfn = self.file(u.file);
                match self
                    .view
                    .replicas
                    .lookup(lfn)
                    .and_then(|found| found.replicas.into_iter().next())
                {
                    Some(r) => format!(
                        "{lfn}: exists at {} on {}",
                        r.pfn,
                        r.site.as_deref().unwrap_or("no site")
                    ),
                    None => format!("{lfn}: does not exist and is not needed"),
                }
            }),
        );
        let children: Vec<JobIndex> = self
            .workflow()
            .edges
            .iter()
            .filter(|(p, _)| p.index() == n)
            .map(|&(_, c)| c)
            .collect();
        page.lines(
            "used by",
            children.iter().map(|&c| {
                let child = &self.workflow().jobs[c];
                let state = if runs(c) {
                    "runs with the existing replica"
                } else {
                    "does not run either"
                };
                format!("{}: {state}", child.id)
            }),
        );
        if partial {
            page.line(
                "scope",
                "partial: reuse starts at jobs with the profile enable_for_data_reuse",
            );
        }
        page.text
    }
}
