//! Stages inputs of compute jobs.

use pmc_job_files::ContainerKind;

use super::uses::OrderedUse;
use super::*;
use crate::model::Metadata;

impl Builder<'_, '_> {
    /// Returns whether a file is the workflow of a nested sub-workflow that its planner reads where it is.
    pub(super) fn is_workflow_here(&self, job: JobId, file: FileId) -> bool {
        let Task::Compute(n) = self.exec.jobs[job].task else {
            return false;
        };
        let job = &self.workflow.jobs[n];
        let is_here = |nested: &Nested| nested.path.is_some();
        job.file == Some(file) && job.nested.as_deref().is_some_and(is_here)
    }

    /// Notes an input of a nested sub-workflow whose jobs may read it: from a parent, or not for the planner
    /// alone.
    pub(super) fn pass_to_nested(&mut self, current: CurrentJob, graph: &Graph<JobIndex>, input: OrderedUse) {
        let CurrentJob { n, job, site, .. } = current;
        if !self.exec.is_nested(&self.exec.jobs[job]) {
            return;
        }
        let file = input.file;
        let parent = self.producers[file]
            .filter(|&producer| producer != n && graph.parents(n).binary_search(&producer).is_ok());
        let of_parent = parent.and_then(|producer| self.numbers[producer]);
        if of_parent.is_some_and(|parent| self.exec.jobs[parent].staging == site) {
            // As in Pegasus, which has one line for the writer and one for the reader.
            self.exec.cache.push((file, site));
        }
        let file_use = &self.uses_of(job)[input.at as usize];
        if of_parent.is_some() || !file_use.for_planning {
            self.exec.nested_inputs.entry(job).or_default().push(file);
        }
    }

    /// Returns whether an input comes from a parent.
    pub(super) fn comes_from_parent(
        &mut self,
        current: CurrentJob,
        graph: &Graph<JobIndex>,
        file: FileId,
    ) -> bool {
        let CurrentJob { n, job, site, .. } = current;
        if let Some(producer) = self.producers[file]
            && producer != n
            && graph.parents(n).binary_search(&producer).is_ok()
        {
            self.inter_site(job, site, producer, file);
            return true;
        }
        false
    }

    /// Returns whether an input is already staged for another job. The job waits for it then.
    pub(super) fn is_staged(&mut self, CurrentJob { job, site, .. }: CurrentJob, file: FileId) -> bool {
        let Some(&staged) = self.staged.get(&(file, site)) else {
            return false;
        };
        self.exec.cache.push((file, site));
        for before in [staged.transfer, staged.chmod].into_iter().flatten() {
            self.exec.edges.push((before, job));
        }
        true
    }

    /// Stages one input. Returns `false` if the job does without it.
    pub(super) fn stage_input(
        &mut self,
        current: CurrentJob,
        file_use: &FileUse,
        programs: &mut Vec<(FileId, JobId)>,
    ) -> bool {
        let CurrentJob { n, job, site, .. } = current;
        let file = file_use.file;
        let is_program = file_use.kind == FileKind::Executable;
        let is_optional = file_use.optional || file_use.link == Link::Checkpoint;
        let locations = match self.locations(file) {
            Some(locations) => locations,
            // A checkpoint is written later, so the job keeps it.
            None if is_optional => return file_use.link == Link::Checkpoint,
            None => {
                self.miss(file, n, None);
                return true;
            }
        };
        let setup = &self.exec.setups[self.exec.jobs[job].setup];
        let (profiles, in_container) = (&setup.profiles, setup.container.is_some());
        // Nothing here makes links on a staging site behind a server.
        let is_here = !self.mapper.sites.is_lite(site)
            || self
                .mapper
                .sites
                .work_url(site, Access::Put)
                .starts_with("file://");
        let linkable = !is_program
            && is_here
            // What a link leads to is not in the container.
            && (!(self.has_shared_containers || in_container) || file_use.kind == FileKind::Image)
            && profiles.pegasus("nosymlink").and_then(parse_bool) != Some(true);
        // Jobs with directories of their own prefer what is near them, not near the staging site.
        let this = &self.exec.jobs[job];
        let preferred = if self.exec.is_lite(this) { this.site } else { site };
        let Some(selected) = select(
            self.mapper.settings,
            self.mapper.sites,
            (site, preferred),
            &locations.replicas,
            linkable,
            &mut self.left_out,
        ) else {
            if is_optional {
                return file_use.link == Link::Checkpoint;
            }
            self.miss(file, n, Some(&locations));
            return true;
        };
        self.exec.cache.push((file, site));
        if is_optional {
            self.exec.files.change(file).is_found = true;
        }
        let destination = self.work_url(site, file, Access::Put);
        if selected
            .sources
            .iter()
            .any(|(url, _, _)| same_place(url, &destination))
        {
            self.exec.files.change_at(file, site).is_in_place = true;
            self.staged.insert((file, site), Staged::default());
            return true;
        }
        if selected.link {
            self.exec.files.change_at(file, site).is_link = true;
        }
        let share = self.assign((Flow::In, site, selected.side), current);
        let transfer = self.transfer_job(share);
        self.add_file((transfer, site), file_use, selected, &locations);
        self.exec.edges.push((transfer, job));
        // Perhaps another job bypasses the staging site.
        if self.exec.files.at(file, site).is_in_place {
            self.exec.files.change_at(file, site).is_in_place = false;
        }
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

    /// Lets a job with a directory of its own fetch an input from its own locations, if the input or a
    /// property asks for that. Returns whether there is a location that the site of the job can reach.
    pub(super) fn bypass(&mut self, job: JobId, input: OrderedUse) -> bool {
        let file = input.file;
        let (this, file_use) = (&self.exec.jobs[job], &self.uses_of(job)[input.at as usize]);
        let asks = self.mapper.settings.bypass || file_use.bypass;
        if !asks || file_use.link == Link::Checkpoint || !self.exec.is_lite(this) {
            return false;
        }
        let Some(locations) = self.locations(file) else {
            return false;
        };
        let (site, staging) = (this.site, this.staging);
        let profiles = &self.exec.setups[this.setup].profiles;
        let may_link = self.mapper.settings.links
            && !self.staged_programs.entries.contains_key(&file)
            && profiles.pegasus("nosymlink").and_then(parse_bool) != Some(true);
        let in_container = self.exec.setups[this.setup].container.is_some();
        let place = self.mapper.sites.get(site);
        let mut sources: Vec<(Box<str>, u32, &str)> = Vec::new();
        for replica in &locations.replicas {
            let at = replica.site.as_deref().unwrap_or_default();
            let is_path = replica.pfn.starts_with('/');
            let is_here = at == place.name || (at == "local" && place.visible);
            if (is_path || replica.pfn.starts_with("file://")) && !is_here {
                continue;
            }
            let selector = &self.mapper.settings.replica_selector;
            let Some(priority) = selector.priority(&place.name, at, &replica.pfn) else {
                continue;
            };
            let url = match is_path && may_link && at == self.mapper.sites.get(staging).name {
                true => format!("file://{}", replica.pfn),
                false => replica.pfn.clone(),
            };
            sources.push((url.into(), priority, at));
        }
        sources.sort_by_key(|(_, priority, _)| std::cmp::Reverse(*priority));
        self.mapper
            .settings
            .replica_selector
            .settle(&mut sources, |(_, _, at)| *at == place.name);
        let Some((url, _, at)) = sources.first() else {
            return false;
        };
        if file_use.optional {
            self.exec.files.change(file).is_found = true;
        }
        self.exec.bypassing.push((file, url.clone(), (*at).into()));
        // All of them must be files, since a link has one kind of source.
        let is_link = |(url, _, at): &(Box<str>, u32, &str)| url.starts_with("file://") && *at == place.name;
        let link = may_link && !in_container && sources.last().is_some_and(is_link);
        let checksum = |key: &str| locations.metadata.get(key).map(String::as_str);
        let sha256 = checksum("checksum.value").filter(|_| checksum("checksum.type") == Some("sha256"));
        let ranked = self.mapper.settings.replica_selector.ranks();
        let sources = sources.into_iter();
        let sources = sources.map(|(url, priority, _)| (url, ranked.then_some(priority)));
        self.exec.files.change_at(file, site).bypassed = Some(Box::new(Bypassed {
            sources: sources.collect(),
            link,
            by_all: self.mapper.settings.bypass,
            sha256: sha256.map(Into::into),
        }));
        if !self.staged.contains_key(&(file, staging)) {
            // It never comes to the staging site.
            self.exec.files.change_at(file, staging).is_in_place = true;
        }
        true
    }

    /// Returns the locations of a file: from the transformation catalog for staged programs and images, else
    /// from the replica catalogs.
    pub(super) fn locations(&self, file: FileId) -> Option<Locations> {
        let at = |pfn: &str, site: &str, metadata| {
            let (pfn, site) = (pfn.to_owned(), Some(site.to_owned()));
            let replicas = vec![crate::catalog::replica::Replica { pfn, site }];
            Some(Locations { replicas, metadata })
        };
        if let Some(container) = self.exec.files.image(file) {
            let mut metadata = Metadata::default();
            // As in Pegasus, the job verifies images of other kinds, and their stage-in does not.
            if let (ContainerKind::Singularity, Some(sha256)) = (container.kind, &container.sha256) {
                metadata.insert("checksum.type".into(), "sha256".into());
                metadata.insert("checksum.value".into(), sha256.clone());
            }
            return at(&container.image, &container.image_site, metadata);
        }
        match self.staged_programs.entries.get(&file) {
            Some(&entry) => {
                let entry = self.mapper.programs.entry(entry);
                let checksum = entry
                    .metadata
                    .iter()
                    .filter(|(key, _)| key.starts_with("checksum."));
                at(&entry.pfn, &entry.site, checksum.cloned().collect())
            }
            None => self
                .replicas
                .lookup(self.workflow.files.name(file))
                .filter(|found| !found.replicas.is_empty()),
        }
    }

    pub(super) fn miss(&mut self, file: FileId, n: JobIndex, found: Option<&Locations>) {
        if let Some(&at) = self.missing_files.get(&file) {
            let missing = &mut self.missing[at];
            missing.others += 1;
            missing.job = missing.job.min(n);
            return;
        }
        let hint = match (found, self.producers[file]) {
            (Some(found), _) => {
                let known: Vec<String> = found
                    .replicas
                    .iter()
                    .map(|r| format!("{} at {}", r.pfn, r.site.as_deref().unwrap_or("no site")))
                    .collect();
                Some(format!(
                    "known, but not to be reached from the site of the job: {}; {}",
                    known.join(", "),
                    self.mapper.settings.replica_selector.reason().unwrap_or(
                        "give the location the site of the job or set the profile pegasus::auxillary.local there"
                    )
                ))
            }
            (None, Some(producer)) => Some(format!(
                "the job {} writes it, but there is no dependency on that job",
                self.name_of(producer)
            )),
            (None, None) if self.missing.len() < ADVISED => {
                let name = self.workflow.files.name(file);
                self.replicas.advice(name, self.missing.len())
            }
            (None, None) => None,
        };
        self.missing_files.insert(file, self.missing.len());
        self.missing.push(Missing {
            file,
            job: n,
            others: 0,
            hint,
        });
    }

    /// Adds a file to a stage-in job, which brings it to a site.
    pub(super) fn add_file(
        &mut self,
        (transfer, site): (JobId, SiteId),
        file_use: &FileUse,
        selected: Selected,
        locations: &Locations,
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
        let own: FxHashSet<&str> = file_use.metadata.iter().map(|(key, _)| &**key).collect();
        let others = locations.metadata.iter();
        let others = others.filter(|(key, _)| !own.contains(key.as_str()));
        metadata.extend(others.map(|(key, value)| (key.clone(), value.clone())));
        let ranked = self.mapper.settings.replica_selector.ranks();
        let set = self.set_of(transfer);
        set.files.push(FileTransfer {
            file: file_use.file,
            sources: selected
                .sources
                .into_iter()
                .map(|(url, at, priority)| (Place::Url(url.into(), at.into()), ranked.then_some(priority)))
                .collect(),
            destination: if selected.link {
                Place::ScratchLink(site)
            } else {
                Place::Scratch(site)
            },
            generate_checksum,
            optional: false,
            metadata: (!metadata.is_empty()).then(|| metadata.into_boxed_slice()),
        });
    }

    /// Adds one chmod job for the programs first staged for a job. Returns whether there is one.
    pub(super) fn add_chmod(
        &mut self,
        CurrentJob { job, site, .. }: CurrentJob,
        programs: &[(FileId, JobId)],
    ) -> bool {
        if programs.is_empty()
            // Its own directory is the place to do that.
            || self.exec.is_lite(&self.exec.jobs[job])
            || self
                .mapper
                .settings
                .no_chmod_sites
                .iter()
                .any(|s| s == self.site_name(site))
        {
            return false;
        }
        let task = Task::Chmod(ListId::new(self.exec.chmods.len()));
        self.exec
            .chmods
            .push(programs.iter().map(|(file, _)| *file).collect());
        let runs_on = if self.mapper.sites.get(site).visible {
            self.mapper.sites.local()
        } else {
            site
        };
        let name = format!("chmod_{}_0", self.exec.jobs[job].name);
        let chmod = self.add_job(name, task, runs_on, site);
        for &(file, transfer) in programs {
            self.exec.edges.push((transfer, chmod));
            if let Some(staged) = self.staged.get_mut(&(file, site)) {
                staged.chmod = Some(chmod);
            }
        }
        self.exec.edges.push((chmod, job));
        true
    }
}
