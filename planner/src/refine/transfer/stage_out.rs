//! Delivers outputs of compute jobs and of deleted jobs.

use super::super::output_mapper::Target;
use super::*;

impl Builder<'_, '_> {
    /// Delivers one output of a job to one output site.
    #[expect(clippy::too_many_arguments, reason = "one output and its destination")]
    pub(super) fn stage_output(
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
        if !transfers {
            // It is registered where it is, so it needs no location on an output site.
            let place = Place::Storage(output);
            self.store(job, site, level, width, file_use, false, place.clone(), place);
            return;
        }
        let name = self.workflow.files.name(file);
        let sites = self.mapper.sites;
        match self.storage.targets(file, name, output) {
            None => {
                let storage = &sites.outputs[usize::from(output)];
                // Both have the file under its name.
                let base = sites.work_url(site, Access::Put);
                let is_same =
                    directory_of(self.exec, sites, site, file) == "." && same_place(base, &storage.put);
                let moves = !is_same;
                let place = Place::Storage(output);
                self.store(job, site, level, width, file_use, moves, place.clone(), place);
            }
            Some(targets) => {
                if targets.is_empty() {
                    self.exec.staying.insert(file);
                }
                let source = self.work_url(site, file, Access::Get);
                for target in targets {
                    let moves = !same_place(&source, &target.url);
                    self.store(job, site, level, width, file_use, moves, target.put, target.get);
                }
            }
        }
    }

    /// Delivers one output of a job to one place: `put` to write to, `get` to read from.
    #[expect(
        clippy::too_many_arguments,
        reason = "one file's circumstances, all used together"
    )]
    fn store(
        &mut self,
        job: JobId,
        site: SiteId,
        level: u32,
        width: u32,
        file_use: &FileUse,
        moves: bool,
        put: Place,
        get: Place,
    ) {
        let file = file_use.file;
        let registers = file_use.register && self.mapper.settings.register;
        if !moves && file_use.transfer != TransferFlag::Not {
            // It is already in place.
            self.exec.staying.insert(file);
        }
        if !moves && !registers {
            return;
        }
        let runs = side(self.mapper.settings, self.mapper.sites, site, Direction::Out);
        let slot = self
            .partitioner
            .assign((Flow::Out, site, runs), Some(job), level, width);
        let metadata = attributes(file_use);
        let mut before = None;
        if moves {
            let transfer = self.stage_out_job(Some(job), slot, site, runs, level);
            self.set_of(transfer).files.push(FileTransfer {
                file,
                sources: vec![(Place::Scratch(site), None)],
                destination: put,
                generate_checksum: false,
                optional: file_use.may_be_missing(),
                metadata: metadata.clone(),
            });
            self.exec.edges.push((job, transfer));
            self.delivers = true;
            before = Some(transfer);
        }
        if registers {
            let place = if moves { get } else { Place::Scratch(site) };
            let registration = self.registration_job(Some(job), slot, site, runs, level);
            match before {
                Some(transfer) => self.exec.edges.push((transfer, registration)),
                None => self.registered.push(registration),
            }
            let set = self.registration_of(registration);
            set.entries.push((
                file,
                place,
                if file_use.may_be_missing() {
                    optional(metadata)
                } else {
                    metadata
                },
            ));
            if set.producers.last() != Some(&job) {
                set.producers.push(job);
            }
        }
        // Registration comes after the transfers of its share, whichever files these are.
        let share = *self.partitioner.slot((Flow::Out, site, runs), slot);
        if moves != registers
            && let (Some(transfer), Some(registration)) = (share.transfer, share.registration)
        {
            self.exec.edges.push((transfer, registration));
        }
    }

    /// Edges to jobs that register what stays in the work directory. With the refiners that deal whole jobs,
    /// one that also delivers is above the transfer that is above the registration.
    pub(super) fn finish_outputs(&mut self, job: JobId) {
        let by_job = matches!(self.mapper.settings.refiner, Refiner::Basic | Refiner::Cluster);
        let is_above = self.delivers && by_job;
        for registration in self.registered.drain(..) {
            if !is_above {
                self.exec.edges.push((job, registration));
            }
        }
        self.delivers = false;
    }

    pub(super) fn stage_out_job(
        &mut self,
        job: Option<JobId>,
        slot: usize,
        site: SiteId,
        side: Side,
        level: u32,
    ) -> JobId {
        let key = (Flow::Out, site, side);
        if let Some(transfer) = self.partitioner.slot(key, slot).transfer {
            return transfer;
        }
        let name = match (self.mapper.settings.refiner, job) {
            (Refiner::Basic, Some(job)) => {
                format!("stage_out_{}_{}_0", side.as_str(), self.exec.jobs[job].name)
            }
            _ => format!(
                "stage_out_{}_{}{}_{level}_{slot}",
                side.as_str(),
                self.mapper.prefix,
                self.site_name(site)
            ),
        };
        let task = Task::StageOut(ListId::new(self.exec.transfers.len()));
        self.exec.transfers.push(TransferSet::default());
        let transfer = self.add_job(name, task, self.site_of(side, site), site);
        self.partitioner.slot(key, slot).transfer = Some(transfer);
        transfer
    }

    pub(super) fn registration_job(
        &mut self,
        job: Option<JobId>,
        slot: usize,
        site: SiteId,
        side: Side,
        level: u32,
    ) -> JobId {
        let key = (Flow::Out, site, side);
        if let Some(registration) = self.partitioner.slot(key, slot).registration {
            return registration;
        }
        let name = match (self.mapper.settings.refiner, job) {
            (Refiner::Basic, Some(job)) => format!("register_{}", self.exec.jobs[job].name),
            _ => format!(
                "register_{}{}_{level}_{slot}",
                self.mapper.prefix,
                self.site_name(site)
            ),
        };
        let task = Task::Register(ListId::new(self.exec.registrations.len()));
        self.exec.registrations.push(Registration::default());
        let local = self.mapper.sites.local();
        let registration = self.add_job(name, task, local, site);
        self.partitioner.slot(key, slot).registration = Some(registration);
        registration
    }

    pub(super) fn registration_of(&mut self, registration: JobId) -> &mut Registration {
        let number = match self.exec.jobs[registration].task {
            Task::Register(n) => n,
            _ => ListId::new(0),
        };
        &mut self.exec.registrations[number]
    }

    /// Delivers outputs of deleted jobs from their locations to the output sites.
    pub(super) fn deliver(&mut self, owed: &[(JobIndex, u32)]) {
        for of_job in owed.chunk_by(|(one, _), (other, _)| one == other) {
            for output in 0..self.mapper.sites.outputs.len() as u16 {
                for &(n, k) in of_job {
                    self.deliver_one(&self.workflow.jobs[n].uses[k as usize], output);
                }
            }
        }
    }

    /// Delivers one existing file to one output site.
    fn deliver_one(&mut self, file_use: &FileUse, output: u16) {
        let Some(locations) = self.locations(file_use.file) else {
            return;
        };
        let name = self.workflow.files.name(file_use.file);
        let targets = self.storage.targets(file_use.file, name, output);
        let targets = targets.unwrap_or_else(|| {
            let put = &self.mapper.sites.outputs[usize::from(output)].put;
            vec![Target {
                url: format!("{put}/{name}"),
                put: Place::Storage(output),
                get: Place::Storage(output),
            }]
        });
        for target in targets {
            self.deliver_to(file_use, &locations, output, target);
        }
    }

    /// Delivers one existing file to one place.
    fn deliver_to(&mut self, file_use: &FileUse, locations: &Locations, output: u16, target: Target) {
        let local = self.mapper.sites.local();
        let storage = &self.mapper.sites.outputs[usize::from(output)];
        if locations.replicas.iter().any(|r| same_place(&r.pfn, &target.url)) {
            return;
        }
        // A copy on the destination's site or on this host is the cheapest.
        let best = [storage.name.as_str(), "local"]
            .iter()
            .find_map(|at| locations.replicas.iter().find(|r| r.site.as_deref() == Some(at)))
            .or_else(|| locations.replicas.first());
        let Some(best) = best else { return };
        let source = Place::Url(
            best.pfn.as_str().into(),
            best.site.as_deref().unwrap_or("local").into(),
        );
        let slot = self
            .partitioner
            .assign((Flow::Out, local, Side::Local), None, DELETED_LEVEL, 0);
        let metadata = attributes(file_use);
        let transfer = self.stage_out_job(None, slot, local, Side::Local, DELETED_LEVEL);
        self.set_of(transfer).files.push(FileTransfer {
            file: file_use.file,
            sources: vec![(source, None)],
            destination: target.put,
            generate_checksum: false,
            optional: false,
            metadata: metadata.clone(),
        });
        // As in Pegasus, whether or not its job was to register it: it is registered already.
        if self.mapper.settings.register {
            let registration = self.registration_job(None, slot, local, Side::Local, DELETED_LEVEL);
            self.exec.edges.push((transfer, registration));
            self.registration_of(registration)
                .entries
                .push((file_use.file, target.get, metadata));
        }
    }
}

/// Marks the registration of a file that may be missing, which `pegasus-rc-client` then ignores.
fn optional(metadata: Attributes) -> Attributes {
    let mut all = metadata.unwrap_or_default().into_vec();
    all.push(("optional".into(), "true".into()));
    Some(all.into_boxed_slice())
}
