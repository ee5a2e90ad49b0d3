//! Transfer and registration jobs (section 6.6 of the planner's specification). Linear in jobs, edges and
//! file uses: each file has one producer, found by its number.

use rustc_hash::FxHashMap;

use crate::model::{FileId, FileKind, FileUse, JobIndex, Link, TransferFlag, Workflow};
use crate::plan::PlanError;
use crate::profiles::parse_bool;

use super::exec::{
    Attributes, Exec, ExecJob, FileTransfer, JobId, Place, Registration, SiteId, Task, TransferSet,
};
use super::graph::Graph;
use super::mapping::{Mapper, StagedPrograms};
use super::replicas::{Locations, Replicas};
use super::reuse::Reduced;
use super::select::{Direction, Selected, Side, select, side};
use super::settings::{Clusters, Integrity, Refiner};

/// Transfer level of outputs of deleted jobs.
const DELETED_LEVEL: u32 = 1000;
/// Compute jobs per transfer job of a level, when nothing else is set.
const JOBS_PER_TRANSFER: u32 = 10;

/// Deals files of one level, site and side to transfer jobs.
#[derive(Debug, Default)]
struct Dealer {
    level: Option<u32>,
    slots: Vec<Slot>,
    next: usize,
    last_job: Option<JobId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    transfer: Option<JobId>,
    registration: Option<JobId>,
}

/// How a file came into a work directory.
#[derive(Clone, Copy, Debug)]
struct Staged {
    /// Its transfer job; `None` if it was there already.
    transfer: Option<JobId>,
    /// Makes it executable.
    chmod: Option<JobId>,
}

/// Builds the transfer jobs.
struct Builder<'a, 'm> {
    workflow: &'a mut Workflow,
    exec: &'a mut Exec,
    mapper: &'a mut Mapper<'m>,
    replicas: &'a Replicas,
    staged_programs: &'a StagedPrograms,
    /// Number of each abstract job in the executable workflow.
    numbers: &'a [u32],
    /// Job that writes each file, if it is kept.
    producers: Vec<u32>,
    staged: FxHashMap<(FileId, SiteId), Staged>,
    dealers: FxHashMap<(Direction2, SiteId, Side), Dealer>,
    missing: Vec<Missing>,
    missing_files: FxHashMap<FileId, usize>,
    notes: &'a mut Vec<String>,
}

/// The directions that are dealt; stage-in and stage-out do not share jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction2 {
    In,
    Out,
}

/// A file that is nowhere.
struct Missing {
    text: String,
    others: usize,
    hint: Option<String>,
}

/// Adds stage-in, inter-site, stage-out, registration and chmod jobs.
///
/// # Errors
/// All files that have no usable location, at once.
pub(crate) fn add(
    workflow: &mut Workflow,
    exec: &mut Exec,
    mapper: &mut Mapper<'_>,
    replicas: &Replicas,
    staged_programs: &StagedPrograms,
    numbers: &[u32],
    reduced: &Reduced,
    notes: &mut Vec<String>,
) -> Result<(), PlanError> {
    let graph = Graph::new(workflow.jobs.len(), &reduced.edges);
    let order = graph
        .topological()
        .ok_or_else(|| PlanError::refinement("Abstract Workflow has cycles"))?;
    let depths = graph.depths(&order);
    let mut levels = super::graph::by_depth(&depths);
    for level in &mut levels {
        level.retain(|&n| reduced.kept[n as usize]);
    }
    for &(p, c) in &reduced.edges {
        exec.edges.push((numbers[p as usize], numbers[c as usize]));
    }
    let mut producers = vec![u32::MAX; workflow.files.len()];
    for (n, job) in workflow.jobs.iter().enumerate().filter(|(n, _)| reduced.kept[*n]) {
        for file_use in job.uses.iter().filter(|u| u.link.writes()) {
            producers[file_use.file.0 as usize] = n as u32;
        }
    }
    let mut builder = Builder {
        workflow,
        exec,
        mapper,
        replicas,
        staged_programs,
        numbers,
        producers,
        staged: FxHashMap::default(),
        dealers: FxHashMap::default(),
        missing: Vec::new(),
        missing_files: FxHashMap::default(),
        notes,
    };
    for (level, jobs) in levels.iter().enumerate() {
        for &n in jobs {
            builder.stage_job(n, level as u32, jobs.len() as u32, &graph);
        }
    }
    builder.deliver(&reduced.owed);
    builder.finish()
}

impl Builder<'_, '_> {
    fn finish(self) -> Result<(), PlanError> {
        if self.missing.is_empty() {
            return Ok(());
        }
        Err(PlanError::Refinement(
            self.missing
                .into_iter()
                .map(|missing| {
                    let mut text = missing.text;
                    if missing.others > 0 {
                        text.push_str(&format!(" and {} more jobs", missing.others));
                    }
                    if let Some(hint) = missing.hint {
                        text.push_str(&format!("\n  hint: {hint}"));
                    }
                    text
                })
                .collect(),
        ))
    }

    /// All transfers of one compute job.
    fn stage_job(&mut self, n: u32, level: u32, width: u32, graph: &Graph) {
        let job = self.numbers[n as usize];
        let site = self.exec.jobs[job as usize].staging;
        let mut uses = std::mem::take(&mut self.workflow.jobs[n as usize].uses);
        let mut programs = Vec::new();
        uses.retain(|file_use| {
            !file_use.link.reads()
                || self.stage_input(n, job, site, level, width, graph, file_use, &mut programs)
        });
        self.add_chmod(job, site, &programs);
        for file_use in uses.iter().filter(|u| u.link.writes()) {
            self.exec.cache.push((file_use.file, site));
            for output in 0..self.mapper.sites.outputs.len() {
                self.stage_output(job, site, level, width, file_use, output as u16);
            }
        }
        self.workflow.jobs[n as usize].uses = uses;
    }

    /// Brings one input to the job; `false` if the job is to forget it.
    #[expect(
        clippy::too_many_arguments,
        reason = "one job's circumstances, all used together"
    )]
    fn stage_input(
        &mut self,
        n: u32,
        job: JobId,
        site: SiteId,
        level: u32,
        width: u32,
        graph: &Graph,
        file_use: &FileUse,
        programs: &mut Vec<(FileId, JobId)>,
    ) -> bool {
        let file = file_use.file;
        let producer = self.producers[file.0 as usize];
        if producer != u32::MAX && producer != n && graph.parents(n).binary_search(&producer).is_ok() {
            self.inter_site(n, job, site, producer, file);
            return true;
        }
        let is_program = file_use.kind == FileKind::Executable;
        if let Some(&staged) = self.staged.get(&(file, site)) {
            self.exec.cache.push((file, site));
            for before in [staged.transfer, staged.chmod].into_iter().flatten() {
                self.exec.edges.push((before, job));
            }
            return true;
        }
        let is_optional = file_use.optional || file_use.link == Link::Checkpoint;
        let locations = match self.locations(file) {
            Some(locations) => locations,
            // A checkpoint is written later; the job goes on mentioning it.
            None if is_optional => return file_use.link == Link::Checkpoint,
            None => {
                self.miss(file, n, None);
                return true;
            }
        };
        let profiles = &self.exec.setups[self.exec.jobs[job as usize].setup as usize].profiles;
        let linkable = !is_program && profiles.pegasus("nosymlink").and_then(parse_bool) != Some(true);
        let Some(selected) = select(
            self.mapper.settings,
            self.mapper.sites,
            site,
            &locations.replicas,
            linkable,
        ) else {
            if is_optional {
                return file_use.link == Link::Checkpoint;
            }
            self.miss(file, n, Some(&locations));
            return true;
        };
        self.exec.cache.push((file, site));
        let name = self.workflow.files.name(file);
        let destination = self.mapper.sites.scratch_url(site, name);
        if selected
            .sources
            .iter()
            .any(|(url, _, _)| same_place(url, &destination))
        {
            self.exec.in_place.insert((file, site));
            self.staged.insert(
                (file, site),
                Staged {
                    transfer: None,
                    chmod: None,
                },
            );
            return true;
        }
        let transfer = self.stage_in_job(job, site, selected.side, level, width);
        self.add_file(transfer, file, file_use, selected, &locations, site);
        self.exec.edges.push((transfer, job));
        self.staged.insert(
            (file, site),
            Staged {
                transfer: Some(transfer),
                chmod: None,
            },
        );
        if is_program {
            programs.push((file, transfer));
        }
        true
    }

    /// Where a file is: a staged program in the transformation catalog, else what the replica catalogs say.
    fn locations(&self, file: FileId) -> Option<Locations> {
        match self.staged_programs.entries.get(&file) {
            Some(&entry) => {
                let entry = self.mapper.programs.entry(entry);
                Some(Locations {
                    replicas: vec![crate::catalog::replica::Replica {
                        pfn: entry.pfn.clone(),
                        site: Some(entry.site.clone()),
                    }],
                    metadata: Default::default(),
                })
            }
            None => self
                .replicas
                .lookup(self.workflow.files.name(file))
                .filter(|found| !found.replicas.is_empty()),
        }
    }

    fn miss(&mut self, file: FileId, n: u32, found: Option<&Locations>) {
        if let Some(&at) = self.missing_files.get(&file) {
            self.missing[at].others += 1;
            return;
        }
        let lfn = self.workflow.files.name(file);
        let job = &self.exec.jobs[self.numbers[n as usize] as usize].name;
        let hint = match found {
            Some(found) => {
                let known: Vec<String> = found
                    .replicas
                    .iter()
                    .map(|r| format!("{} at {}", r.pfn, r.site.as_deref().unwrap_or("no site")))
                    .collect();
                Some(format!(
                    "known, but not to be reached from the site of the job: {}; give the location the site of the \
                     job or set the profile pegasus::auxillary.local there",
                    known.join(", ")
                ))
            }
            None if self.producers[file.0 as usize] != u32::MAX => {
                let producer = &self.workflow.jobs[self.producers[file.0 as usize] as usize].id;
                Some(format!(
                    "the job {producer} writes it, but there is no dependency on that job"
                ))
            }
            None => None,
        };
        self.missing_files.insert(file, self.missing.len());
        self.missing.push(Missing {
            text: format!("Can't determine a location to transfer input file for lfn {lfn} for job {job}"),
            others: 0,
            hint,
        });
    }

    /// Enters a file into a stage-in job.
    fn add_file(
        &mut self,
        transfer: JobId,
        file: FileId,
        file_use: &FileUse,
        selected: Selected,
        locations: &Locations,
        site: SiteId,
    ) {
        let has_checksum = locations.metadata.contains_key("checksum.type");
        let generate_checksum = match self.mapper.settings.integrity {
            Integrity::Full => !has_checksum,
            Integrity::NoSymlink => !has_checksum && !selected.link,
            Integrity::None => false,
        };
        let mut metadata: Vec<(String, String)> = file_use
            .metadata
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        for (key, value) in &locations.metadata {
            if !metadata.iter().any(|(k, _)| k == key) {
                metadata.push((key.clone(), value.clone()));
            }
        }
        let set = self.set_of(transfer);
        set.files.push(FileTransfer {
            file,
            sources: selected
                .sources
                .into_iter()
                .map(|(url, at, priority)| (Place::Url(url.into(), at.into()), Some(priority)))
                .collect(),
            destination: if selected.link {
                Place::ScratchLink(site)
            } else {
                Place::Scratch(site)
            },
            generate_checksum,
            metadata: (!metadata.is_empty()).then(|| metadata.into_boxed_slice()),
        });
    }

    fn set_of(&mut self, transfer: JobId) -> &mut TransferSet {
        let number = match self.exec.jobs[transfer as usize].task {
            Task::StageIn(n) | Task::StageOut(n) | Task::InterSite(n) => n,
            _ => 0,
        };
        &mut self.exec.transfers[number as usize]
    }

    /// A file of a parent on another site comes over in a job of its own.
    fn inter_site(&mut self, n: u32, job: JobId, site: SiteId, producer: u32, file: FileId) {
        let from = self.exec.jobs[self.numbers[producer as usize] as usize].staging;
        if from == site {
            return;
        }
        let source = self.numbers[producer as usize];
        if let Some(&Staged {
            transfer: Some(transfer),
            ..
        }) = self.staged.get(&(file, site))
        {
            self.exec.edges.push((transfer, job));
            return;
        }
        let name = self.workflow.files.name(file);
        if self.mapper.sites.scratch_url(from, name) == self.mapper.sites.scratch_url(site, name) {
            return;
        }
        let runs = side(self.mapper.settings, self.mapper.sites, site, Direction::Inter);
        let transfer = {
            let base = format!(
                "stage_inter_{}_{}_0",
                runs.as_str(),
                self.exec.jobs[job as usize].name
            );
            // One job for all files of the compute job: it is the last one made, if it is there.
            let last = self
                .exec
                .jobs
                .len()
                .checked_sub(1)
                .filter(|&last| *self.exec.jobs[last].name == *base);
            match last {
                Some(last) => last as JobId,
                None => {
                    let task = Task::InterSite(self.exec.transfers.len() as u32);
                    self.exec.transfers.push(TransferSet::default());
                    self.add_job(base, task, self.site_of(runs, site), site)
                }
            }
        };
        self.set_of(transfer).files.push(FileTransfer {
            file,
            sources: vec![(Place::Scratch(from), None)],
            destination: Place::Scratch(site),
            generate_checksum: false,
            metadata: None,
        });
        self.exec.edges.push((source, transfer));
        self.exec.edges.push((transfer, job));
        self.exec.cache.push((file, site));
        self.staged.insert(
            (file, site),
            Staged {
                transfer: Some(transfer),
                chmod: None,
            },
        );
        if n == 0 || self.exec.transfers.len() == 1 {
            self.notes
                .push("jobs run on several sites; files between them are copied inside the plan".into());
        }
    }

    fn site_of(&self, side: Side, site: SiteId) -> SiteId {
        match side {
            Side::Local => self.mapper.sites.local(),
            Side::Remote => site,
        }
    }

    fn add_job(&mut self, name: String, task: Task, site: SiteId, staging: SiteId) -> JobId {
        let setup = self.mapper.auxiliary_setup(task, site, self.exec);
        self.exec.add(ExecJob {
            name: name.into(),
            task,
            site,
            staging,
            setup,
        })
    }

    /// How many transfer jobs a level gets: site profile, else property, else by the width of the level.
    fn jobs_per_level(
        &self,
        direction: Direction2,
        site: SiteId,
        side: Side,
        level: u32,
        width: u32,
    ) -> usize {
        let profiles = &self.mapper.sites.get(site).profiles;
        let (name, clusters): (&str, &Clusters) = match direction {
            Direction2::In => ("stagein", &self.mapper.settings.stage_in),
            Direction2::Out => ("stageout", &self.mapper.settings.stage_out),
        };
        let profile = |key: String| profiles.pegasus(&key).and_then(|v| v.trim().parse::<u32>().ok());
        let property = match side {
            Side::Local => clusters.local,
            Side::Remote => clusters.remote,
        };
        let number = profile(format!("{name}.{}.clusters", side.as_str()))
            .or_else(|| profile(format!("{name}.clusters")))
            .or(property)
            .unwrap_or(if level == DELETED_LEVEL {
                JOBS_PER_TRANSFER
            } else {
                width.div_ceil(JOBS_PER_TRANSFER)
            });
        number.max(1) as usize
    }

    /// The slot for the next file.
    fn deal(
        &mut self,
        direction: Direction2,
        job: Option<JobId>,
        site: SiteId,
        side: Side,
        level: u32,
        width: u32,
    ) -> usize {
        let refiner = self.mapper.settings.refiner;
        let count = match (refiner, job) {
            (Refiner::Basic, Some(_)) => 1,
            _ => self.jobs_per_level(direction, site, side, level, width),
        };
        let dealer = self.dealers.entry((direction, site, side)).or_default();
        let same_job = job.is_some() && dealer.last_job == job;
        if dealer.level != Some(level) || (refiner == Refiner::Basic && !same_job) {
            dealer.level = Some(level);
            dealer.slots.clear();
            dealer.slots.resize(count, Slot::default());
            dealer.next = 0;
        } else if refiner == Refiner::BalancedCluster || !same_job {
            dealer.next = (dealer.next + 1) % dealer.slots.len();
        }
        dealer.last_job = job;
        dealer.next
    }

    /// The stage-in job for the next file of a compute job.
    fn stage_in_job(&mut self, job: JobId, site: SiteId, side: Side, level: u32, width: u32) -> JobId {
        let slot = self.deal(Direction2::In, Some(job), site, side, level, width);
        let key = (Direction2::In, site, side);
        if let Some(transfer) = self.dealers[&key].slots[slot].transfer {
            return transfer;
        }
        let name = match self.mapper.settings.refiner {
            Refiner::Basic => format!(
                "stage_in_{}_{}_0",
                side.as_str(),
                self.exec.jobs[job as usize].name
            ),
            _ => format!(
                "stage_in_{}_{}{}_{level}_{slot}",
                side.as_str(),
                self.mapper.prefix,
                self.site_name(site)
            ),
        };
        let task = Task::StageIn(self.exec.transfers.len() as u32);
        self.exec.transfers.push(TransferSet::default());
        let transfer = self.add_job(name, task, self.site_of(side, site), site);
        self.slot(key, slot).transfer = Some(transfer);
        transfer
    }

    fn slot(&mut self, key: (Direction2, SiteId, Side), slot: usize) -> &mut Slot {
        &mut self
            .dealers
            .get_mut(&key)
            .expect("the dealer was made when the slot was dealt")
            .slots[slot]
    }

    fn site_name(&self, site: SiteId) -> &str {
        &self.mapper.sites.get(site).name
    }

    /// One chmod job for the programs that were staged for a job first.
    fn add_chmod(&mut self, job: JobId, site: SiteId, programs: &[(FileId, JobId)]) {
        if programs.is_empty()
            || self
                .mapper
                .settings
                .no_chmod_sites
                .iter()
                .any(|s| s == self.site_name(site))
        {
            return;
        }
        let task = Task::Chmod(self.exec.chmods.len() as u32);
        self.exec
            .chmods
            .push(programs.iter().map(|(file, _)| *file).collect());
        let runs_on = if self.mapper.sites.get(site).visible {
            self.mapper.sites.local()
        } else {
            site
        };
        let name = format!("chmod_{}_0", self.exec.jobs[job as usize].name);
        let chmod = self.add_job(name, task, runs_on, site);
        for &(file, transfer) in programs {
            self.exec.edges.push((transfer, chmod));
            if let Some(staged) = self.staged.get_mut(&(file, site)) {
                staged.chmod = Some(chmod);
            }
        }
        self.exec.edges.push((chmod, job));
    }

    /// One output of a job to one output site.
    fn stage_output(
        &mut self,
        job: JobId,
        site: SiteId,
        level: u32,
        width: u32,
        file_use: &FileUse,
        output: u16,
    ) {
        let file = file_use.file;
        let registers = file_use.register && self.mapper.settings.register;
        let transfers = file_use.transfer != TransferFlag::Not;
        if !transfers && !registers {
            return;
        }
        let name = self.workflow.files.name(file);
        let sites = self.mapper.sites;
        let source = sites.scratch_url(site, name);
        let storage = &sites.outputs[usize::from(output)];
        let moves = transfers && !same_place(&source, &format!("{}/{name}", storage.put));
        if !moves && !registers {
            return;
        }
        let runs = side(self.mapper.settings, sites, site, Direction::Out);
        let slot = self.deal(Direction2::Out, Some(job), site, runs, level, width);
        let metadata = attributes(file_use);
        let mut before = job;
        if moves {
            let transfer = self.stage_out_job(Some(job), slot, site, runs, level);
            self.set_of(transfer).files.push(FileTransfer {
                file,
                sources: vec![(Place::Scratch(site), None)],
                destination: Place::Storage(output),
                generate_checksum: false,
                metadata: metadata.clone(),
            });
            self.exec.edges.push((job, transfer));
            before = transfer;
        }
        if registers {
            let place = if moves {
                Place::Storage(output)
            } else {
                Place::Scratch(site)
            };
            let registration = self.registration_job(Some(job), slot, site, runs, level);
            self.exec.edges.push((before, registration));
            let set = self.registration_of(registration);
            set.entries.push((file, place, metadata));
            if set.producers.last() != Some(&job) {
                set.producers.push(job);
            }
        }
    }

    fn stage_out_job(
        &mut self,
        job: Option<JobId>,
        slot: usize,
        site: SiteId,
        side: Side,
        level: u32,
    ) -> JobId {
        let key = (Direction2::Out, site, side);
        if let Some(transfer) = self.dealers[&key].slots[slot].transfer {
            return transfer;
        }
        let name = match (self.mapper.settings.refiner, job) {
            (Refiner::Basic, Some(job)) => {
                format!(
                    "stage_out_{}_{}_0",
                    side.as_str(),
                    self.exec.jobs[job as usize].name
                )
            }
            _ => format!(
                "stage_out_{}_{}{}_{level}_{slot}",
                side.as_str(),
                self.mapper.prefix,
                self.site_name(site)
            ),
        };
        let task = Task::StageOut(self.exec.transfers.len() as u32);
        self.exec.transfers.push(TransferSet::default());
        let transfer = self.add_job(name, task, self.site_of(side, site), site);
        self.slot(key, slot).transfer = Some(transfer);
        transfer
    }

    fn registration_job(
        &mut self,
        job: Option<JobId>,
        slot: usize,
        site: SiteId,
        side: Side,
        level: u32,
    ) -> JobId {
        let key = (Direction2::Out, site, side);
        if let Some(registration) = self.dealers[&key].slots[slot].registration {
            return registration;
        }
        let name = match (self.mapper.settings.refiner, job) {
            (Refiner::Basic, Some(job)) => format!("register_{}", self.exec.jobs[job as usize].name),
            _ => format!(
                "register_{}{}_{level}_{slot}",
                self.mapper.prefix,
                self.site_name(site)
            ),
        };
        let task = Task::Register(self.exec.registrations.len() as u32);
        self.exec.registrations.push(Registration::default());
        let local = self.mapper.sites.local();
        let registration = self.add_job(name, task, local, site);
        self.slot(key, slot).registration = Some(registration);
        registration
    }

    fn registration_of(&mut self, registration: JobId) -> &mut Registration {
        let number = match self.exec.jobs[registration as usize].task {
            Task::Register(n) => n,
            _ => 0,
        };
        &mut self.exec.registrations[number as usize]
    }

    /// Outputs of deleted jobs go to the output sites from where they are.
    fn deliver(&mut self, owed: &[(JobIndex, u32)]) {
        let local = self.mapper.sites.local();
        for &(n, k) in owed {
            let file_use = self.workflow.jobs[n.0 as usize].uses[k as usize].clone();
            let Some(locations) = self.locations(file_use.file) else {
                continue;
            };
            let name = self.workflow.files.name(file_use.file).to_owned();
            for output in 0..self.mapper.sites.outputs.len() {
                let storage = &self.mapper.sites.outputs[output];
                let destination = format!("{}/{name}", storage.put);
                if locations
                    .replicas
                    .iter()
                    .any(|r| same_place(&r.pfn, &destination))
                {
                    continue;
                }
                let output = output as u16;
                // A copy beside the destination or on this host is the cheapest.
                let best = [storage.name.as_str(), "local"]
                    .iter()
                    .find_map(|at| locations.replicas.iter().find(|r| r.site.as_deref() == Some(at)))
                    .or_else(|| locations.replicas.first());
                let Some(best) = best else { continue };
                let source = Place::Url(
                    best.pfn.as_str().into(),
                    best.site.as_deref().unwrap_or("local").into(),
                );
                let slot = self.deal(Direction2::Out, None, local, Side::Local, DELETED_LEVEL, 0);
                let metadata = attributes(&file_use);
                let transfer = self.stage_out_job(None, slot, local, Side::Local, DELETED_LEVEL);
                self.set_of(transfer).files.push(FileTransfer {
                    file: file_use.file,
                    sources: vec![(source, None)],
                    destination: Place::Storage(output),
                    generate_checksum: false,
                    metadata: metadata.clone(),
                });
                if file_use.register && self.mapper.settings.register {
                    let registration = self.registration_job(None, slot, local, Side::Local, DELETED_LEVEL);
                    self.exec.edges.push((transfer, registration));
                    let place = Place::Storage(output);
                    self.registration_of(registration)
                        .entries
                        .push((file_use.file, place, metadata));
                }
            }
        }
    }
}

/// Metadata of a file as its user or producer gives it.
fn attributes(file_use: &FileUse) -> Attributes {
    let all: Vec<(String, String)> = file_use
        .metadata
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    (!all.is_empty()).then(|| all.into_boxed_slice())
}

/// Whether two URLs or paths name one file on a file system.
fn same_place(a: &str, b: &str) -> bool {
    fn parts(url: &str) -> impl Iterator<Item = &str> {
        url.strip_prefix("file://")
            .unwrap_or(url)
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
    }
    parts(a).eq(parts(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_compared_by_path() {
        assert!(same_place("file:///a/./b", "/a/b"));
        assert!(!same_place("file:///a/b", "/a/c"));
        assert!(!same_place("http://h/a", "https://h/a"));
    }
}
