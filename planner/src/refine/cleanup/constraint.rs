//! Clean-up within a bound on space: removes files while the workflow runs. Jobs that would exceed the bound
//! wait for removals. Only clean-up jobs that the bound needs are added.
//!
//! Why the bound holds, however the jobs are scheduled: the jobs are put in one order, parents first. Where
//! the files made up to a job would exceed the room of a site, the job waits for clean-up jobs that remove
//! files used only by jobs before it, of at least the size of the excess. Take any moment, and among the jobs
//! that have begun and make files on the site the one that is last in the order. All files that were ever
//! made there are of jobs up to this one, and what it waited for is gone; so what is left fits. The clean-up
//! jobs of a site form a chain, so that waiting for one is waiting for those before it, and a job needs one
//! edge. All edges go forward in the order, so there is no cycle.
//!
//! The order decides how much room is needed at least. The best order is hard to find, so the better of two
//! heuristics is used.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::{Exec, ExecJob, JobId, ListId, SiteId, Task};
use crate::graph::{Graph, Lists};
use crate::ids::{Id as _, ItemId};
use crate::model::{FileId, Workflow};
use crate::refine::mapping::Mapper;
use crate::refine::reduce::{Depth, Reduction};
use crate::refine::{Refinement, files};

use super::space::{Sizes, bytes, short_bytes};

/// A clean-up job removes at least this part of a site's room, where that is possible without waiting for
/// jobs that come later: fewer clean-up jobs.
const LEAST_PART: u64 = 16;

/// A file in a work directory.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// Room that it takes, in bytes.
    size: u64,
    file: FileId,
    /// Position in the list of sites.
    site: u16,
    /// Clean-up may remove it.
    removable: bool,
}

/// Files in work directories and the jobs that use them.
struct Items {
    all: Vec<Item>,
    /// Items of each job, and whether the job writes them.
    of_job: Lists<JobId, (ItemId, bool)>,
}

impl Items {
    fn new(workflow: &Workflow, exec: &Exec, sites: &[SiteId], staying: &[bool], sizes: &Sizes) -> Self {
        let mut this = Items {
            all: Vec::with_capacity(workflow.files.len()),
            of_job: Lists::with_capacity(exec.jobs.len(), workflow.files.len()),
        };
        let mut positions: Vec<Option<u16>> = Vec::new();
        for (at, site) in sites.iter().enumerate() {
            positions.resize(positions.len().max(site.index() + 1), None);
            positions[*site] = Some(at as u16);
        }
        // Number of the item that a file became first, and of those that it became on other sites.
        let mut first: Vec<Option<ItemId>> = vec![None; workflow.files.len()];
        let mut others: FxHashMap<(FileId, u16), ItemId> = FxHashMap::default();
        let mut own: Vec<(ItemId, bool)> = Vec::new();
        for job in JobId::first(exec.jobs.len()) {
            own.clear();
            files::of_job(workflow, exec, job, |access| {
                let Some(Some(site)) = positions.get(access.site.index()).copied() else {
                    return;
                };
                let first = &mut first[access.file];
                let known = match *first {
                    Some(number) if this.all[number].site == site => Some(number),
                    None => None,
                    Some(_) => others.get(&(access.file, site)).copied(),
                };
                let number = known.unwrap_or_else(|| {
                    let state = exec.files.at(access.file, access.site);
                    let there_before = state.is_in_place;
                    let takes_room = !there_before && !state.is_link;
                    let number = ItemId::new(this.all.len());
                    this.all.push(Item {
                        size: if takes_room { sizes.of(access.file) } else { 0 },
                        file: access.file,
                        site,
                        removable: !there_before && !staying[access.file],
                    });
                    match first {
                        None => *first = Some(number),
                        Some(_) => drop(others.insert((access.file, site), number)),
                    }
                    number
                });
                own.push((number, access.writes));
            });
            own.sort_unstable_by_key(|&(item, writes)| (item, !writes));
            own.dedup_by_key(|&mut (item, _)| item);
            own.iter().for_each(|&item| this.of_job.push(item));
            this.of_job.end();
        }
        this
    }

    fn of(&self, job: JobId) -> &[(ItemId, bool)] {
        self.of_job.of(job)
    }

    fn users(&self) -> Lists<ItemId, JobId> {
        let of_job = |job| self.of(job).iter().map(move |&(item, _)| (item, job));
        Lists::grouped(self.all.len(), JobId::first(self.of_job.len()).flat_map(of_job))
    }
}

/// Positions, in an order of the jobs, of the one that makes an item and of the one that uses it last.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    birth: Option<Position>,
    death: Option<Position>,
}

/// Number of a job in an order of the jobs.
type Position = JobId;

/// An order of the jobs, and what it means for the files.
struct Walk {
    order: Vec<JobId>,
    lives: Vec<Life>,
    /// Room that each site needs at least, and the job that needs it.
    peaks: Vec<(u64, Option<JobId>)>,
}

impl Walk {
    fn new(items: &Items, sites: usize, order: Vec<JobId>) -> Self {
        let mut lives = vec![Life::default(); items.all.len()];
        for (at, &job) in Position::first(order.len()).zip(&order) {
            for &(item, writes) in items.of(job) {
                let life = &mut lives[item];
                if writes {
                    life.birth.get_or_insert(at);
                }
                life.death = Some(at);
            }
        }
        let mut held = vec![0u64; sites];
        let mut peaks = vec![(0, None); sites];
        for (at, &job) in Position::first(order.len()).zip(&order) {
            for &(item, _) in items.of(job) {
                if lives[item].birth == Some(at) {
                    let item = &items.all[item];
                    let site = usize::from(item.site);
                    held[site] = held[site].saturating_add(item.size);
                    if held[site] > peaks[site].0 {
                        peaks[site] = (held[site], Some(job));
                    }
                }
            }
            for &(item, _) in items.of(job) {
                let life = lives[item];
                let item = &items.all[item];
                if life.death == Some(at) && life.birth.is_some() && item.removable {
                    let site = usize::from(item.site);
                    held[site] = held[site].saturating_sub(item.size);
                }
            }
        }
        Walk { order, lives, peaks }
    }

    /// Largest ratio of needed room to available room over all sites. Lower is better, 1 is the limit.
    fn strain(&self, rooms: &[u64]) -> f64 {
        let ratios = self.peaks.iter().zip(rooms);
        ratios
            .map(|(&(peak, _), &room)| peak as f64 / room.max(1) as f64)
            .fold(0.0, f64::max)
    }
}

/// Returns the jobs, parents first, each as late as possible: the jobs of one result come before those of the
/// next.
fn result_by_result(graph: &Graph<JobId>) -> Vec<JobId> {
    let mut order = Vec::with_capacity(graph.len());
    // 0: not seen, else 1 + visited parents.
    let mut seen = vec![0u32; graph.len()];
    let mut path: Vec<JobId> = Vec::new();
    for result in graph.nodes().filter(|&job| graph.children(job).is_empty()) {
        path.push(result);
        seen[result] = 1;
        while let Some(&job) = path.last() {
            let looked_at = seen[job] - 1;
            match graph.parents(job).get(looked_at as usize) {
                Some(&parent) => {
                    seen[job] += 1;
                    if seen[parent] == 0 {
                        seen[parent] = 1;
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

/// Returns the jobs, parents first. Of the possible next jobs, the one that leaves the fewest bytes comes
/// first.
fn least_growth(graph: &Graph<JobId>, items: &Items) -> Vec<JobId> {
    let mut order = Vec::with_capacity(graph.len());
    let mut jobs: Vec<Waiting> = graph
        .nodes()
        .map(|job| Waiting {
            growth: 0,
            parents: graph.parents(job).len() as u32,
            done: false,
        })
        .collect();
    let mut left: Vec<Left> = items
        .all
        .iter()
        .map(|item| Left {
            size: i64::try_from(item.size).unwrap_or(i64::MAX),
            count: 0,
            combined: 0,
            shrinks: false,
        })
        .collect();
    for job in graph.nodes() {
        for &(item, writes) in items.of(job) {
            let left = &mut left[item];
            left.count += 1;
            left.combined ^= job.index();
            if writes && !left.shrinks {
                // So far: a job makes it.
                left.shrinks = true;
                let growth = &mut jobs[job].growth;
                *growth = growth.saturating_add(left.size);
            }
        }
    }
    for (left, item) in left.iter_mut().zip(&items.all) {
        left.shrinks &= item.removable;
        if left.count == 1 && left.shrinks {
            let growth = &mut jobs[JobId::new(left.combined)].growth;
            *growth = growth.saturating_sub(left.size);
        }
    }
    // Of equal jobs, the latest: it continues started work.
    let mut clock = 0u32;
    let mut ready: BinaryHeap<(Reverse<i64>, u32, Reverse<JobId>)> = graph
        .nodes()
        .zip(&jobs)
        .filter(|(_, this)| this.parents == 0)
        .map(|(job, this)| (Reverse(this.growth), 0, Reverse(job)))
        .collect();
    while let Some((Reverse(grows), _, Reverse(job))) = ready.pop() {
        let this = &mut jobs[job];
        if this.done || grows != this.growth {
            continue;
        }
        this.done = true;
        order.push(job);
        clock += 1;
        for &(item, _) in items.of(job) {
            let left = &mut left[item];
            left.count -= 1;
            left.combined ^= job.index();
            if left.count == 1 && left.shrinks {
                let last = &mut jobs[JobId::new(left.combined)];
                last.growth = last.growth.saturating_sub(left.size);
                if last.parents == 0 {
                    ready.push((Reverse(last.growth), clock, Reverse(JobId::new(left.combined))));
                }
            }
        }
        for &child in graph.children(job) {
            let this = &mut jobs[child];
            this.parents -= 1;
            if this.parents == 0 {
                ready.push((Reverse(this.growth), clock, Reverse(child)));
            }
        }
    }
    order
}

/// State of a job in [`least_growth`].
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Growth in bytes by this job.
    growth: i64,
    /// Remaining parents.
    parents: u32,
    done: bool,
}

/// State of an item in [`least_growth`].
#[derive(Clone, Copy, Debug)]
struct Left {
    /// Size in bytes.
    size: i64,
    /// Remaining users.
    count: u32,
    /// XOR of their numbers, so that the last remaining user can be found.
    combined: usize,
    /// A job makes it, and it can be removed after its last use.
    shrinks: bool,
}

/// Adds the clean-up jobs that keep a bound. If the work directories stay, further jobs remove the other
/// files at the end.
///
/// # Errors
/// Sites without enough room, with the room they need; a list of sizes that cannot be read.
pub(super) fn add(
    refinement: &mut Refinement<'_, '_>,
    staying: &[bool],
    graph: &Graph<JobId>,
) -> Result<(), PlanError> {
    let Refinement {
        workflow,
        exec,
        mapper,
        work_sites: sites,
        notes,
        ..
    } = refinement;
    let workflow: &Workflow = workflow;
    let rest = !refinement.removes_directories;
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
    let named_rooms = names.iter().copied().zip(rooms.iter().copied());
    check(workflow, exec, &items, &walk, named_rooms, &sizes)?;
    let (chunks, gates) = share_out(&items, &walk, &rooms);
    let depths = graph.depths(&walk.order);
    let users = items.users();
    let mut reduction = Reduction::new(graph, &depths, Depth::Every);
    for (at, &site) in sites.iter().enumerate() {
        let mut chain = Chain {
            items: &items,
            users: &users,
            site,
            last: None,
            covered: vec![false; graph.len()],
        };
        let mut jobs = Vec::new();
        for chunk in &chunks[at] {
            let name = format!("clean_up_{}_space_{}", names[at], jobs.len());
            jobs.push(chain.add(name, exec, mapper, &mut reduction, chunk));
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
            let mut taken = vec![false; items.all.len()];
            for &item in chunks[at].iter().flatten() {
                taken[item] = true;
            }
            let stays = |item: &Item, taken: bool| usize::from(item.site) != at || !item.removable || taken;
            let left: Vec<ItemId> = ItemId::first(items.all.len())
                .zip(items.all.iter().zip(taken))
                .filter(|(_, (item, taken))| !stays(item, *taken))
                .map(|(number, _)| number)
                .collect();
            if !left.is_empty() {
                let name = format!("clean_up_{}_rest_0", names[at]);
                chain.add(name, exec, mapper, &mut reduction, &left);
            }
        }
    }
    Ok(())
}

/// Refuses a plan that cannot stay within the room.
fn check<'n>(
    workflow: &Workflow,
    exec: &Exec,
    items: &Items,
    walk: &Walk,
    rooms: impl Iterator<Item = (&'n str, u64)>,
    sizes: &Sizes,
) -> Result<(), PlanError> {
    let mut problems = Vec::new();
    for (at, (name, room)) in rooms.enumerate() {
        let (peak, Some(job)) = walk.peaks[at] else {
            continue;
        };
        if peak <= room {
            continue;
        }
        let own: u64 = items
            .of(job)
            .iter()
            .map(|(item, _)| &items.all[*item])
            .filter(|item| usize::from(item.site) == at)
            .map(|item| item.size)
            .fold(0, u64::saturating_add);
        let is_guessed = |item: &&Item| usize::from(item.site) == at && sizes.known(item.file).is_none();
        let guessed = items.all.iter().filter(is_guessed).count();
        let mut text = format!(
            "the work directory of the site {name} may hold {}, but needs {} when the job {} runs, which has files \
             of {} itself: set pegasus.file.cleanup.constraint.{name}.maxspace to at least {peak}",
            bytes(room),
            bytes(peak),
            exec.jobs[job].name,
            bytes(own),
        );
        if guessed > 0 {
            text.push_str(&format!(
                "\n  hint: the size of {guessed} files there is not known, such as {}; each counts as {}: give sizes \
                 in the workflow, or in a file named by pegasus.file.cleanup.constraint.csv",
                items
                    .all
                    .iter()
                    .find(is_guessed)
                    .map_or("", |item| workflow.files.name(item.file)),
                short_bytes(sizes.default_size),
            ));
        }
        if matches!(exec.jobs[job].task, Task::StageIn(_)) {
            text.push_str(
                "\n  hint: with pegasus.transfer.refiner set to Basic, inputs come job by job and need less room",
            );
        }
        problems.push(Diagnostic::error(text));
    }
    PlanError::check(problems)
}

/// Per site: what each clean-up job of the chain removes; and the jobs that wait, in order, with the number
/// of the clean-up job.
type Shares = (Vec<Vec<Vec<ItemId>>>, Vec<Vec<(JobId, usize)>>);

fn share_out(items: &Items, walk: &Walk, rooms: &[u64]) -> Shares {
    let sites = rooms.len();
    let mut chunks: Vec<Vec<Vec<ItemId>>> = vec![Vec::new(); sites];
    let mut gates: Vec<Vec<(JobId, usize)>> = vec![Vec::new(); sites];
    // Bytes made so far, bytes with planned removal, items without remaining users.
    let mut made = vec![0u64; sites];
    let mut removed = vec![0u64; sites];
    let mut free: Vec<VecDeque<ItemId>> = vec![VecDeque::new(); sites];
    let mut grown: Vec<usize> = Vec::new();
    for (at, &job) in Position::first(walk.order.len()).zip(&walk.order) {
        grown.clear();
        for &(item, _) in items.of(job) {
            if walk.lives[item].birth == Some(at) {
                let item = &items.all[item];
                if item.size > 0 {
                    let site = usize::from(item.site);
                    made[site] = made[site].saturating_add(item.size);
                    grown.push(site);
                }
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
                    got = got.saturating_add(items.all[item].size);
                    chunk.push(item);
                }
                removed[site] = removed[site].saturating_add(got);
                chunks[site].push(chunk);
            }
            gates[site].push((job, chunks[site].len() - 1));
        }
        for &(item, _) in items.of(job) {
            let life = walk.lives[item];
            if life.death == Some(at) && life.birth.is_some() {
                let this = &items.all[item];
                if this.removable && this.size > 0 {
                    free[usize::from(this.site)].push_back(item);
                }
            }
        }
    }
    (chunks, gates)
}

/// Makes jobs wait for clean-up jobs, unless an ancestor already waits.
fn hold_back(
    exec: &mut Exec,
    graph: &Graph<JobId>,
    order: &[JobId],
    gates: &[(JobId, usize)],
    cleanups: &[JobId],
) {
    if gates.is_empty() {
        return;
    }
    // Clean-up jobs that have ended when a job starts.
    let mut over = vec![0usize; graph.len()];
    let mut gates = gates.iter().peekable();
    for &job in order {
        let above = graph.parents(job).iter().map(|&p| over[p]).max();
        let mut count = above.unwrap_or_default();
        if let Some(&(_, number)) = gates.next_if(|(gated, _)| *gated == job)
            && number >= count
        {
            exec.edges.push((cleanups[number], job));
            count = number + 1;
        }
        over[job] = count;
    }
}

/// Chain of the clean-up jobs of a site.
struct Chain<'a> {
    items: &'a Items,
    users: &'a Lists<ItemId, JobId>,
    site: SiteId,
    last: Option<JobId>,
    /// Jobs that the chain comes after.
    covered: Vec<bool>,
}

impl Chain<'_> {
    fn add(
        &mut self,
        name: String,
        exec: &mut Exec,
        mapper: &mut Mapper<'_>,
        reduction: &mut Reduction<'_, JobId>,
        chunk: &[ItemId],
    ) -> JobId {
        let mut parents: Vec<JobId> = Vec::new();
        for &item in chunk {
            for &job in self.users.of(item) {
                if !std::mem::replace(&mut self.covered[job], true) {
                    parents.push(job);
                }
            }
        }
        parents.sort_unstable();
        let task = Task::CleanUp(ListId::new(exec.removals.len()));
        exec.removals
            .push(chunk.iter().map(|&item| self.items.all[item].file).collect());
        let runs_on = super::runs_on(mapper, self.site);
        let setup = mapper.auxiliary_setup(task, runs_on, exec);
        let job = exec.add(ExecJob {
            name: name.into(),
            task,
            site: runs_on,
            staging: self.site,
            setup,
        });
        for &parent in reduction.needed(&parents) {
            exec.edges.push((parent, job));
        }
        if let Some(last) = self.last.replace(job) {
            exec.edges.push((last, job));
        }
        job
    }
}
