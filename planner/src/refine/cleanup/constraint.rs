//! Clean-up within a bound on space: files are removed while the workflow runs, and jobs that would make too
//! many files wait for that. No clean-up job is made that the bound does not need.
//!
//! Why the bound holds, however the jobs are scheduled: the jobs are put in one order, parents first. Where
//! the files made up to a job would exceed the room of a site, the job waits for clean-up jobs that remove
//! files used only by jobs before it, of at least the size of the excess. Take any moment, and among the jobs
//! that have begun and make files on the site the one that is last in the order. All files that were ever
//! made there are of jobs up to this one, and what it waited for is gone; so what is left fits. The clean-up
//! jobs of a site form a chain, so that waiting for one is waiting for those before it, and a job needs one
//! edge. All edges go forward in the order, so there is no cycle.
//!
//! The order decides how much room is needed at least. The best one is hard to find; two good ones are
//! tried.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use crate::model::{FileId, Workflow};
use crate::plan::PlanError;
use crate::refine::exec::{Exec, ExecJob, JobId, SiteId, Task};
use crate::refine::files;
use crate::refine::graph::{Adjacency, Graph};
use crate::refine::mapping::Mapper;
use crate::refine::reduce::{Depth, Reduction};

use super::space::{Sizes, bytes, short_bytes};

/// Never, or nowhere.
const NONE: u32 = u32::MAX;
/// A clean-up job removes at least this part of a site's room, where that is possible without waiting for
/// jobs that come later: fewer clean-up jobs.
const LEAST_PART: u64 = 16;

/// Files in work directories, and who uses them.
struct Items {
    file: Vec<FileId>,
    /// Position in the list of sites.
    site: Vec<u16>,
    size: Vec<u64>,
    /// Clean-up may remove it.
    removable: Vec<bool>,
    /// Items of each job, and whether the job writes them.
    start: Vec<u32>,
    of_job: Vec<(u32, bool)>,
}

impl Items {
    fn new(workflow: &Workflow, exec: &Exec, sites: &[SiteId], staying: &[bool], sizes: &Sizes) -> Self {
        let mut this = Items {
            file: Vec::new(),
            site: Vec::new(),
            size: Vec::new(),
            removable: Vec::new(),
            start: vec![0],
            of_job: Vec::new(),
        };
        let mut numbers: FxHashMap<(FileId, u16), u32> = FxHashMap::default();
        let mut own: Vec<(u32, bool)> = Vec::new();
        for job in 0..exec.jobs.len() as u32 {
            own.clear();
            files::of_job(workflow, exec, job, |access| {
                let Some(site) = sites.iter().position(|&s| s == access.site) else {
                    return;
                };
                let site = site as u16;
                let number = *numbers.entry((access.file, site)).or_insert_with(|| {
                    let place = (access.file, access.site);
                    let there_before = exec.in_place.contains(&place);
                    let takes_room = !there_before && !exec.linked.contains(&place);
                    this.file.push(access.file);
                    this.site.push(site);
                    this.size.push(if takes_room { sizes.of(access.file) } else { 0 });
                    this.removable
                        .push(!there_before && !staying[access.file.0 as usize]);
                    (this.file.len() - 1) as u32
                });
                own.push((number, access.writes));
            });
            own.sort_unstable_by_key(|&(item, writes)| (item, !writes));
            own.dedup_by_key(|&mut (item, _)| item);
            this.of_job.extend_from_slice(&own);
            this.start.push(this.of_job.len() as u32);
        }
        this
    }

    fn of(&self, job: JobId) -> &[(u32, bool)] {
        let job = job as usize;
        &self.of_job[self.start[job] as usize..self.start[job + 1] as usize]
    }

    fn users(&self) -> Adjacency {
        let jobs = self.start.len() as u32 - 1;
        let pairs = (0..jobs).flat_map(|job| self.of(job).iter().map(move |&(item, _)| (item, job)));
        Adjacency::new(self.file.len(), pairs)
    }
}

/// An order of the jobs, and what it means for the files.
struct Walk {
    order: Vec<JobId>,
    /// Position of the job that makes each item, and of the one that uses it last.
    birth: Vec<u32>,
    death: Vec<u32>,
    /// Room that each site needs at least, and the job that needs it.
    peaks: Vec<(u64, JobId)>,
}

impl Walk {
    fn new(items: &Items, sites: usize, order: Vec<JobId>) -> Self {
        let mut birth = vec![NONE; items.file.len()];
        let mut death = vec![NONE; items.file.len()];
        for (at, &job) in order.iter().enumerate() {
            for &(item, writes) in items.of(job) {
                let born = &mut birth[item as usize];
                if writes && *born == NONE {
                    *born = at as u32;
                }
                death[item as usize] = at as u32;
            }
        }
        let mut held = vec![0u64; sites];
        let mut peaks = vec![(0, 0); sites];
        for (at, &job) in order.iter().enumerate() {
            let at = at as u32;
            for &(item, _) in items.of(job) {
                let item = item as usize;
                if birth[item] == at {
                    let site = usize::from(items.site[item]);
                    held[site] = held[site].saturating_add(items.size[item]);
                    if held[site] > peaks[site].0 {
                        peaks[site] = (held[site], job);
                    }
                }
            }
            for &(item, _) in items.of(job) {
                let item = item as usize;
                if death[item] == at && birth[item] != NONE && items.removable[item] {
                    let site = usize::from(items.site[item]);
                    held[site] = held[site].saturating_sub(items.size[item]);
                }
            }
        }
        Walk {
            order,
            birth,
            death,
            peaks,
        }
    }

    /// How far the worst site is beyond its room; less is better, 1 is the limit.
    fn strain(&self, rooms: &[u64]) -> f64 {
        let ratios = self.peaks.iter().zip(rooms);
        ratios
            .map(|(&(peak, _), &room)| peak as f64 / room.max(1) as f64)
            .fold(0.0, f64::max)
    }
}

/// Jobs parents first, each as late as what comes after it allows: what leads to one result is done before
/// the next one is begun.
fn result_by_result(graph: &Graph) -> Vec<JobId> {
    let count = graph.len() as u32;
    let mut order = Vec::with_capacity(graph.len());
    // 0: not seen, else 1 + parents looked at.
    let mut seen = vec![0u32; graph.len()];
    let mut path: Vec<u32> = Vec::new();
    for result in (0..count).filter(|&job| graph.children(job).is_empty()) {
        path.push(result);
        seen[result as usize] = 1;
        while let Some(&job) = path.last() {
            let looked_at = seen[job as usize] - 1;
            match graph.parents(job).get(looked_at as usize) {
                Some(&parent) => {
                    seen[job as usize] += 1;
                    if seen[parent as usize] == 0 {
                        seen[parent as usize] = 1;
                        path.push(parent);
                    }
                }
                None => {
                    order.push(job);
                    path.pop();
                }
            }
        }
    }
    order
}

/// Jobs parents first; of those that may come next, the one after which the least is left.
fn least_growth(graph: &Graph, items: &Items) -> Vec<JobId> {
    let jobs = graph.len();
    let mut order = Vec::with_capacity(jobs);
    let mut waiting: Vec<u32> = (0..jobs as u32)
        .map(|job| graph.parents(job).len() as u32)
        .collect();
    // Users left of each item: how many, and all of them combined, so that the last one is known.
    let mut left = vec![(0u32, 0u32); items.file.len()];
    let mut born = vec![false; items.file.len()];
    let mut growth = vec![0i128; jobs];
    for job in 0..jobs as u32 {
        for &(item, writes) in items.of(job) {
            let (count, all) = &mut left[item as usize];
            *count += 1;
            *all ^= job;
            if writes && !born[item as usize] {
                born[item as usize] = true;
                growth[job as usize] += i128::from(items.size[item as usize]);
            }
        }
    }
    let shrinks = |item: u32| items.removable[item as usize] && born[item as usize];
    for (item, &(count, last)) in left.iter().enumerate() {
        if count == 1 && shrinks(item as u32) {
            growth[last as usize] -= i128::from(items.size[item]);
        }
    }
    // Of equals the one that could come next last: it goes on with what has been begun.
    let mut clock = 0u64;
    let mut ready: BinaryHeap<(Reverse<i128>, u64, Reverse<JobId>)> = BinaryHeap::new();
    let mut done = vec![false; jobs];
    for job in (0..jobs as u32).rev().filter(|&job| waiting[job as usize] == 0) {
        ready.push((Reverse(growth[job as usize]), clock, Reverse(job)));
    }
    while let Some((Reverse(grows), _, Reverse(job))) = ready.pop() {
        if done[job as usize] || grows != growth[job as usize] {
            continue;
        }
        done[job as usize] = true;
        order.push(job);
        clock += 1;
        for &(item, _) in items.of(job) {
            let (count, all) = &mut left[item as usize];
            *count -= 1;
            *all ^= job;
            if *count == 1 && shrinks(item) {
                let last = *all;
                growth[last as usize] -= i128::from(items.size[item as usize]);
                if waiting[last as usize] == 0 {
                    ready.push((Reverse(growth[last as usize]), clock, Reverse(last)));
                }
            }
        }
        for &child in graph.children(job) {
            waiting[child as usize] -= 1;
            if waiting[child as usize] == 0 {
                ready.push((Reverse(growth[child as usize]), clock, Reverse(child)));
            }
        }
    }
    order
}

/// Adds the clean-up jobs. `rest`: files that the bound does not need removed are removed in the end.
///
/// # Errors
/// Sites without enough room, with the room they need; a list of sizes that cannot be read.
pub(crate) fn add(
    workflow: &Workflow,
    exec: &mut Exec,
    mapper: &mut Mapper<'_>,
    sites: &[SiteId],
    (staying, graph): (&[bool], &Graph),
    rest: bool,
    notes: &mut Vec<String>,
) -> Result<(), PlanError> {
    let sizes = Sizes::new(workflow, exec, &mapper.settings.space)?;
    let items = Items::new(workflow, exec, sites, staying, &sizes);
    let names: Vec<&str> = sites
        .iter()
        .map(|&site| mapper.sites.get(site).name.as_str())
        .collect();
    let rooms: Vec<u64> = names
        .iter()
        .map(|name| mapper.settings.space.room(name))
        .collect();
    let first = Walk::new(&items, sites.len(), result_by_result(graph));
    let second = Walk::new(&items, sites.len(), least_growth(graph, &items));
    let walk = if second.strain(&rooms) < first.strain(&rooms) {
        second
    } else {
        first
    };
    check(workflow, exec, &items, &walk, &names, &rooms, &sizes)?;
    let (chunks, gates) = share_out(&items, &walk, &rooms);
    let depths = graph.depths(&walk.order);
    let users = items.users();
    let mut reduction = Reduction::new(graph, &depths, Depth::Every);
    for (at, &site) in sites.iter().enumerate() {
        let mut chain = Chain {
            site,
            last: None,
            covered: vec![false; graph.len()],
        };
        let mut jobs = Vec::new();
        for chunk in &chunks[at] {
            let name = format!("clean_up_{}_space_{}", names[at], jobs.len());
            jobs.push(chain.add(name, exec, mapper, &items, &users, &mut reduction, chunk));
        }
        hold_back(exec, graph, &walk.order, &gates[at], &jobs);
        if !jobs.is_empty() {
            notes.push(format!(
                "{} clean-up jobs keep the work directory of the site {} within {}; others wait for them",
                jobs.len(),
                names[at],
                short_bytes(rooms[at])
            ));
        }
        if rest {
            let taken: rustc_hash::FxHashSet<u32> = chunks[at].iter().flatten().copied().collect();
            let left: Vec<u32> = (0..items.file.len() as u32)
                .filter(|&item| usize::from(items.site[item as usize]) == at)
                .filter(|item| items.removable[*item as usize] && !taken.contains(item))
                .collect();
            if !left.is_empty() {
                let name = format!("clean_up_{}_rest_0", names[at]);
                chain.add(name, exec, mapper, &items, &users, &mut reduction, &left);
            }
        }
    }
    Ok(())
}

/// Refuses a plan that cannot be kept within the room.
fn check(
    workflow: &Workflow,
    exec: &Exec,
    items: &Items,
    walk: &Walk,
    names: &[&str],
    rooms: &[u64],
    sizes: &Sizes,
) -> Result<(), PlanError> {
    let mut problems = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let ((peak, job), room) = (walk.peaks[at], rooms[at]);
        if peak <= room {
            continue;
        }
        let own: u64 = items
            .of(job)
            .iter()
            .filter(|(item, _)| usize::from(items.site[*item as usize]) == at)
            .map(|(item, _)| items.size[*item as usize])
            .fold(0, u64::saturating_add);
        let guessed = (0..items.file.len())
            .filter(|&item| usize::from(items.site[item]) == at && sizes.known(items.file[item]).is_none())
            .count();
        let mut text = format!(
            "the work directory of the site {name} may hold {}, but needs {} when the job {} runs, which has files \
             of {} itself: set pegasus.file.cleanup.constraint.{name}.maxspace to at least {peak}",
            bytes(room),
            bytes(peak),
            exec.jobs[job as usize].name,
            bytes(own),
        );
        if guessed > 0 {
            text.push_str(&format!(
                "\n  hint: the size of {guessed} files there is not known, such as {}; each counts as {}: give sizes \
                 in the workflow, or in a file named by pegasus.file.cleanup.constraint.csv",
                items
                    .file
                    .iter()
                    .find(|file| sizes.known(**file).is_none())
                    .map_or("", |file| workflow.files.name(*file)),
                short_bytes(sizes.of(FileId(u32::MAX))),
            ));
        }
        if matches!(exec.jobs[job as usize].task, Task::StageIn(_)) {
            text.push_str(
                "\n  hint: with pegasus.transfer.refiner set to Basic, inputs come job by job and need less room",
            );
        }
        problems.push(text);
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(PlanError::Refinement(problems))
    }
}

/// Per site: what each clean-up job of the chain removes; and the jobs that wait, in order, with the number of
/// the clean-up job.
type Shares = (Vec<Vec<Vec<u32>>>, Vec<Vec<(JobId, u32)>>);

fn share_out(items: &Items, walk: &Walk, rooms: &[u64]) -> Shares {
    let sites = rooms.len();
    let mut chunks: Vec<Vec<Vec<u32>>> = vec![Vec::new(); sites];
    let mut gates: Vec<Vec<(JobId, u32)>> = vec![Vec::new(); sites];
    // Bytes made so far, bytes whose removal is planned, items that are of no use any more.
    let mut made = vec![0u64; sites];
    let mut removed = vec![0u64; sites];
    let mut free: Vec<std::collections::VecDeque<u32>> = vec![Default::default(); sites];
    let mut grown: Vec<usize> = Vec::new();
    for (at, &job) in walk.order.iter().enumerate() {
        let at = at as u32;
        grown.clear();
        for &(item, _) in items.of(job) {
            let item = item as usize;
            if walk.birth[item] == at && items.size[item] > 0 {
                let site = usize::from(items.site[item]);
                made[site] = made[site].saturating_add(items.size[item]);
                grown.push(site);
            }
        }
        grown.sort_unstable();
        grown.dedup();
        for &site in &grown {
            let excess = made[site].saturating_sub(rooms[site]);
            if excess == 0 {
                continue;
            }
            if excess > removed[site] {
                let wanted = (excess - removed[site]).max(rooms[site] / LEAST_PART);
                let mut got = 0u64;
                let mut chunk = Vec::new();
                while got < wanted
                    && let Some(item) = free[site].pop_front()
                {
                    got = got.saturating_add(items.size[item as usize]);
                    chunk.push(item);
                }
                removed[site] = removed[site].saturating_add(got);
                chunks[site].push(chunk);
            }
            gates[site].push((job, (chunks[site].len() - 1) as u32));
        }
        for &(item, _) in items.of(job) {
            let n = item as usize;
            if walk.death[n] == at && walk.birth[n] != NONE && items.removable[n] && items.size[n] > 0 {
                free[usize::from(items.site[n])].push_back(item);
            }
        }
    }
    (chunks, gates)
}

/// Lets jobs wait for clean-up jobs, unless a job above does already.
fn hold_back(exec: &mut Exec, graph: &Graph, order: &[JobId], gates: &[(JobId, u32)], cleanups: &[JobId]) {
    if gates.is_empty() {
        return;
    }
    // Clean-up jobs that are over when a job begins.
    let mut over = vec![0u32; graph.len()];
    let mut gates = gates.iter().peekable();
    for &job in order {
        let above = graph.parents(job).iter().map(|&p| over[p as usize]).max();
        let mut count = above.unwrap_or_default();
        if let Some(&(_, number)) = gates.next_if(|(gated, _)| *gated == job)
            && number >= count
        {
            exec.edges.push((cleanups[number as usize], job));
            count = number + 1;
        }
        over[job as usize] = count;
    }
}

/// The clean-up jobs of a site, each after the one before.
struct Chain {
    site: SiteId,
    last: Option<JobId>,
    /// Jobs that the chain comes after.
    covered: Vec<bool>,
}

impl Chain {
    #[expect(
        clippy::too_many_arguments,
        reason = "one job's circumstances, all used together"
    )]
    fn add(
        &mut self,
        name: String,
        exec: &mut Exec,
        mapper: &mut Mapper<'_>,
        items: &Items,
        users: &Adjacency,
        reduction: &mut Reduction<'_>,
        chunk: &[u32],
    ) -> JobId {
        let mut parents: Vec<JobId> = Vec::new();
        for &item in chunk {
            for &job in users.of(item) {
                if !std::mem::replace(&mut self.covered[job as usize], true) {
                    parents.push(job);
                }
            }
        }
        parents.sort_unstable();
        let task = Task::CleanUp(exec.removals.len() as u32);
        exec.removals
            .push(chunk.iter().map(|&item| items.file[item as usize]).collect());
        let runs_on = super::runs_on(mapper, self.site);
        let setup = mapper.auxiliary_setup(task, runs_on, exec);
        let job = exec.add(ExecJob {
            name: name.into(),
            task,
            site: runs_on,
            staging: self.site,
            setup,
        });
        for parent in reduction.needed(&parents) {
            exec.edges.push((parent, job));
        }
        if let Some(last) = self.last.replace(job) {
            exec.edges.push((last, job));
        }
        job
    }
}
