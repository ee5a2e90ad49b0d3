//! Delivers outputs of compute jobs and of deleted jobs.

use super::super::output_mapper::Target;
use super::*;

impl Builder<'_, '_> {
    /// Delivers one output of a job to one output site.
    pub(super) fn stage_output(&mut self, job: CurrentJob, file_use: &FileUse, output: u16) {
        let file = file_use.file;
        let registers = file_use.register && self.mapper.settings.register;
        let transfers = file_use.transfer != TransferFlag::Not;
        if !transfers && !registers {
            return;
        }
        if !transfers {
            // It is registered where it is, so it needs no location on an output site.
            let place = Place::Storage(output);
            self.store(job, file_use, false, (place.clone(), place));
            return;
        }
        let name = self.workflow.files.name(file);
        let sites = self.mapper.sites;
        match self.storage.targets(file, name, output) {
            None => {
                let storage = &sites.outputs[usize::from(output)];
                // Both have the file under its name.
                let base = sites.work_url(job.site, Access::Put);
                let is_same =
                    directory_of(self.exec, sites, job.site, file) == "." && same_place(base, &storage.put);
                let moves = !is_same;
                let place = Place::Storage(output);
                self.store(job, file_use, moves, (place.clone(), place));
            }
            Some(targets) => {
                if targets.is_empty() {
                    self.exec.files.change(file).stays = true;
                }
                let source = self.work_url(job.site, file, Access::Get);
                for target in targets {
                    let moves = !same_place(&source, &target.url);
                    self.store(job, file_use, moves, (target.put, target.get));
                }
            }
        }
    }

    /// Delivers one output of a job to one place: `put` to write to, `get` to read from.
    fn store(&mut self, current: CurrentJob, file_use: &FileUse, moves: bool, (put, get): (Place, Place)) {
        let CurrentJob { job, site, .. } = current;
        let file = file_use.file;
        let registers = file_use.register && self.mapper.settings.register;
        if !moves && file_use.transfer != TransferFlag::Not {
            // It is already in place.
            self.exec.files.change(file).stays = true;
        }
        if !moves && !registers {
            return;
        }
        let runs = side(self.mapper.settings, self.mapper.sites, site, Direction::Out);
        let share = self.assign((Flow::Out, site, runs), current);
        let metadata = attributes(file_use);
        let mut before = None;
        if moves {
            let transfer = self.transfer_job(share);
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
            let registration = self.registration_job(share);
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
        let share = *self.partitioner.jobs_of(share);
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
        let key = (Flow::Out, local, Side::Local);
        let share = self.partitioner.assign(key, None, DELETED_LEVEL, 0);
        let metadata = attributes(file_use);
        let transfer = self.transfer_job(share);
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
            let registration = self.registration_job(share);
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
