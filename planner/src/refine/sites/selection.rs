//! Site selection: where the jobs go whose site no profile fixes. One selector a module; all are
//! deterministic.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::programs::Programs;
use super::super::settings::Settings;
use super::{Sites, callout, group, heft, random, round_robin};
use crate::diagnostic::Diagnostic;
use crate::exec::{EntryId, ListId, SiteId};
use crate::graph::Graph;
use crate::ids::Id as _;
use crate::model::{Job, JobIndex, TransformationName, Workflow};
use crate::profiles::Namespace;
use crate::request::ChosenSites;

/// Which selector, from `pegasus.selector.site`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SiteSelector {
    /// One site for all jobs if there is one, else the first that can run a job: then the fewest files move
    /// between sites. This is what is done when the property is not set.
    #[default]
    First,
    /// Evenly at random.
    Random,
    /// In turn, level by level.
    RoundRobin,
    /// Jobs with the same profile `group` on one site.
    Group,
    /// The earliest estimated end.
    Heft,
    /// What another program says.
    Callout(callout::Callout),
    /// What it said when the plan was made that is looked at.
    Chosen(Arc<ChosenSites>),
}

impl SiteSelector {
    /// The name that the property has.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            SiteSelector::First => "First",
            SiteSelector::Random => "Random",
            SiteSelector::RoundRobin => "RoundRobin",
            SiteSelector::Group => "Group",
            SiteSelector::Heft => "Heft",
            SiteSelector::Callout(_) | SiteSelector::Chosen(_) => "NonJavaCallout",
        }
    }
}

/// Where jobs that run the same may go.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// What they run; `None` for jobs whose profile `selector::pfn` names the program.
    pub(super) name: Option<Arc<TransformationName>>,
    /// Sites in the order of the candidates, each with the catalog entry to use there.
    pub(super) options: Vec<(SiteId, Option<EntryId>)>,
}

impl Class {
    /// The entry to use on a site.
    pub(super) fn entry(&self, site: SiteId) -> Option<Option<EntryId>> {
        let mut options = self.options.iter();
        options.find(|(s, _)| *s == site).map(|(_, entry)| *entry)
    }
    fn can_run_on(&self, site: SiteId) -> bool {
        self.entry(site).is_some()
    }
}

/// What the selectors choose among.
pub(super) struct Placing<'a> {
    pub(super) workflow: &'a Workflow,
    pub(super) sites: &'a Sites,
    pub(super) programs: &'a Programs<'a>,
    pub(super) settings: &'a Settings,
    /// Edges between the jobs that are kept.
    edges: &'a [(JobIndex, JobIndex)],
    classes: Vec<Class>,
    /// Class of each job that is to be placed.
    class_of: Vec<Option<ListId>>,
    /// Jobs whose profile fixes the site.
    pub(super) fixed: FxHashMap<JobIndex, SiteId>,
}

impl Placing<'_> {
    /// Jobs to be placed, in document order.
    pub(super) fn free(&self) -> impl Iterator<Item = (JobIndex, &Class)> {
        let jobs = JobIndex::first(self.class_of.len()).zip(&self.class_of);
        jobs.filter_map(|(n, &class)| Some((n, &self.classes[class?])))
    }
    /// Where a job may go; `None` if it is not to be placed.
    pub(super) fn class(&self, job: JobIndex) -> Option<&Class> {
        self.class_of[job].map(|class| &self.classes[class])
    }
    /// A job.
    pub(super) fn job(&self, n: JobIndex) -> &Job {
        &self.workflow.jobs[n]
    }
    /// Parents and children of the jobs that are kept.
    pub(super) fn graph(&self) -> Graph<JobIndex> {
        Graph::new(self.workflow.jobs.len(), self.edges)
    }
}

/// Where the jobs go.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    /// Site and catalog entry of each job that was to be placed; the entry is absent if a profile names the
    /// program.
    pub(crate) sites: Vec<Option<(SiteId, Option<EntryId>)>>,
    /// What was decided, for `-v`.
    pub(crate) notes: Vec<String>,
}

/// Whether a profile fixes the site of a job.
pub(crate) fn fixed_site(job: &Job) -> Option<&str> {
    job.profiles.get(Namespace::Selector, "execution.site")
}

/// Whether a profile names the program of a job.
pub(crate) fn named_program(job: &Job) -> Option<&str> {
    job.profiles.get(Namespace::Selector, "pfn")
}

/// Chooses a site for every kept job that no profile fixes to one.
///
/// # Errors
/// All jobs for which there is no site, or why the selector cannot work.
pub(crate) fn select(
    workflow: &Workflow,
    kept: &[bool],
    edges: &[(JobIndex, JobIndex)],
    sites: &Sites,
    programs: &Programs<'_>,
    settings: &Settings,
) -> Result<Placed, Vec<Diagnostic>> {
    let mut placing = Placing {
        workflow,
        sites,
        programs,
        settings,
        edges,
        classes: Vec::new(),
        class_of: vec![None; workflow.jobs.len()],
        fixed: FxHashMap::default(),
    };
    classify(&mut placing, kept)?;
    let mut placed = Placed::default();
    let chosen = match &settings.site_selector {
        SiteSelector::First => first(&placing, &mut placed),
        SiteSelector::Random => random::choose(&placing),
        SiteSelector::RoundRobin => round_robin::choose(&placing),
        SiteSelector::Group => group::choose(&placing)?,
        SiteSelector::Heft => heft::choose(&placing, &mut placed)?,
        SiteSelector::Callout(callout) => callout::choose(&placing, callout)?,
        SiteSelector::Chosen(sites) => callout::chosen(&placing, sites)?,
    };
    placed.sites = vec![None; workflow.jobs.len()];
    let mut counts = vec![0usize; sites.len()];
    for (n, class) in placing.free() {
        let site = chosen[n];
        placed.sites[n] = class.entry(site).map(|entry| (site, entry));
        counts[site] += 1;
    }
    if sites.candidates.len() > 1 && settings.site_selector != SiteSelector::First {
        let shares: Vec<String> = sites
            .candidates
            .iter()
            .map(|&site| format!("{} on {}", counts[site], sites.get(site).name))
            .collect();
        let seed = match settings.site_selector {
            SiteSelector::Random | SiteSelector::Group => format!(", seed {}", settings.seed),
            _ => String::new(),
        };
        placed.notes.push(format!(
            "site selection {}{seed}: jobs {}",
            settings.site_selector.name(),
            shares.join(", ")
        ));
    }
    Ok(placed)
}

/// Finds out where each job may go; jobs that run the same are looked up once.
fn classify(placing: &mut Placing<'_>, kept: &[bool]) -> Result<(), Vec<Diagnostic>> {
    let candidates = &placing.sites.candidates;
    let mut problems = Vec::new();
    let mut known: FxHashMap<Option<Arc<TransformationName>>, ListId> = FxHashMap::default();
    let jobs = &placing.workflow.jobs;
    for (n, job) in JobIndex::first(jobs.len()).zip(jobs) {
        if !kept[n] {
            continue;
        }
        if job.nested.is_some() {
            placing.fixed.insert(n, placing.sites.local());
            continue;
        }
        if let Some(name) = fixed_site(job) {
            if let Some(site) = placing.sites.find(name) {
                placing.fixed.insert(n, site);
            }
            continue;
        }
        let name = named_program(job)
            .is_none()
            .then(|| Arc::clone(&job.transformation));
        let number = *known.entry(name).or_insert_with_key(|name| {
            let options: Vec<(SiteId, Option<EntryId>)> = match name {
                None => candidates.iter().map(|&site| (site, None)).collect(),
                Some(name) => candidates
                    .iter()
                    .filter_map(|&site| {
                        let entry = placing.programs.usable(name, placing.sites.get(site))?;
                        Some((site, Some(entry)))
                    })
                    .collect(),
            };
            if let (true, Some(name)) = (options.is_empty(), name) {
                let names = placing.sites.names(candidates);
                problems.push(Diagnostic::error(placing.programs.missing(name, &names)));
            }
            placing.classes.push(Class {
                name: name.clone(),
                options,
            });
            ListId::new(placing.classes.len() - 1)
        });
        placing.class_of[n] = Some(number);
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

/// The selector without a name of its own: see [`SiteSelector::First`].
fn first(placing: &Placing<'_>, placed: &mut Placed) -> Vec<SiteId> {
    let candidates = &placing.sites.candidates;
    let common = candidates
        .iter()
        .copied()
        .find(|&site| placing.classes.iter().all(|class| class.can_run_on(site)));
    if candidates.len() > 1 && !placing.classes.is_empty() {
        placed.notes.push(match common {
            Some(site) => format!(
                "all jobs run on the site {}, the first that can run each of them",
                placing.sites.get(site).name
            ),
            None => "no site can run all jobs: each job runs on the first that has its program".into(),
        });
    }
    let local = placing.sites.local();
    let mut chosen = vec![local; placing.workflow.jobs.len()];
    for (n, class) in placing.free() {
        let first = class.options.first().map_or(local, |(site, _)| *site);
        chosen[n] = common.unwrap_or(first);
    }
    chosen
}

/// How the problem of one job begins.
pub(super) fn of_job(placing: &Placing<'_>, n: JobIndex) -> String {
    let job = placing.job(n);
    format!("the job {} ({})", job.id, job.transformation)
}

/// Level of each kept job: the length of the longest path from a root.
pub(super) fn levels(graph: &Graph<JobIndex>) -> Vec<u32> {
    graph.depths(&graph.topological().unwrap_or_default())
}
