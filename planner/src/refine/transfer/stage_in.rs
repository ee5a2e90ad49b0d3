//! Stages inputs of compute jobs.

use super::super::select::ranking::ReplicaSelector;
use super::uses::OrderedUse;
use super::*;

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
    pub(super) fn pass_to_nested(
        &mut self,
        n: JobIndex,
        job: JobId,
        site: SiteId,
        graph: &Graph<JobIndex>,
        input: OrderedUse,
    ) {
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

    /// Returns whether an input comes from a parent or is already staged for another job. The job waits for
    /// it then.
    pub(super) fn is_coming(
        &mut self,
        n: JobIndex,
        job: JobId,
        site: SiteId,
        graph: &Graph<JobIndex>,
        file: FileId,
    ) -> bool {
        if let Some(producer) = self.producers[file]
            && producer != n
            && graph.parents(n).binary_search(&producer).is_ok()
        {
            self.inter_site(job, site, producer, file);
            return true;
        }
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
    #[expect(
        clippy::too_many_arguments,
        reason = "one job's circumstances, all used together"
    )]
    pub(super) fn stage_input(
        &mut self,
        n: JobIndex,
        job: JobId,
        site: SiteId,
        level: u32,
        width: u32,
        file_use: &FileUse,
        programs: &mut Vec<(FileId, JobId)>,
    ) -> bool {
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
        if (file_use.bypass || self.mapper.settings.bypass)
            && file_use.link != Link::Checkpoint
            && self.bypass(job, file, &locations)
        {
            return true;
        }
        let profiles = &self.exec.setups[self.exec.jobs[job].setup].profiles;
        let linkable = !is_program
            // What a link leads to is not in the container.
            && (!self.has_shared_containers || file_use.kind == FileKind::Image)
            && !self.mapper.sites.is_lite(site)
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
        let destination = self.work_url(site, file, Access::Put);
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
        if selected.link {
            self.exec.linked.insert((file, site));
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

    /// Lets a job with a directory of its own fetch a file from its own locations. Returns whether there is
    /// one that its site can reach.
    fn bypass(&mut self, job: JobId, file: FileId, locations: &Locations) -> bool {
        let this = &self.exec.jobs[job];
        if !self.exec.is_lite(this) {
            return false;
        }
        let (key, staging) = ((file, this.site), this.staging);
        let profiles = &self.exec.setups[this.setup].profiles;
        let may_link = self.mapper.settings.links
            && self.exec.setups[this.setup].container.is_none()
            && profiles.pegasus("nosymlink").and_then(parse_bool) != Some(true);
        let site = &self.mapper.sites.get(this.site).name;
        let mut sources: Vec<(Box<str>, u32, &str)> = Vec::new();
        let mut is_here = false;
        for replica in &locations.replicas {
            let at = replica.site.as_deref().unwrap_or_default();
            let is_file = replica.pfn.starts_with("file://");
            if is_file && at != site {
                continue;
            }
            let selector = &self.mapper.settings.replica_selector;
            let Some(priority) = selector.priority(site, at, &replica.pfn) else {
                continue;
            };
            is_here |= is_file;
            sources.push((replica.pfn.as_str().into(), priority, at));
        }
        sources.sort_by_key(|(_, priority, _)| std::cmp::Reverse(*priority));
        let Some((url, _, at)) = sources.first() else {
            return false;
        };
        self.exec.bypassing.push((file, url.clone(), (*at).into()));
        let is_program = self.staged_programs.entries.contains_key(&file);
        let link = may_link && is_here && !is_program && sources[0].0.starts_with("file://");
        let checksum = |key: &str| locations.metadata.get(key).map(String::as_str);
        let sha256 = checksum("checksum.value").filter(|_| checksum("checksum.type") == Some("sha256"));
        self.exec.bypassed.insert(
            key,
            Bypassed {
                sources: sources
                    .into_iter()
                    .map(|(url, priority, _)| (url, priority))
                    .collect(),
                link,
                sha256: sha256.map(Into::into),
            },
        );
        // It never comes to the staging site.
        self.exec.in_place.insert((file, staging));
        true
    }

    /// Returns the locations of a file: from the transformation catalog for staged programs and images, else
    /// from the replica catalogs.
    pub(super) fn locations(&self, file: FileId) -> Option<Locations> {
        if let Some(container) = self.exec.images.get(&file) {
            return Some(Locations {
                replicas: vec![crate::catalog::replica::Replica {
                    pfn: container.image.clone(),
                    site: Some(container.image_site.clone()),
                }],
                metadata: Default::default(),
            });
        }
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

    /// Adds a file to a stage-in job.
    #[expect(clippy::too_many_arguments, reason = "one file and its transfer")]
    pub(super) fn add_file(
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
        // Among those of one site the selector Local makes no difference.
        let ranked = !matches!(self.mapper.settings.replica_selector, ReplicaSelector::Local);
        let set = self.set_of(transfer);
        set.files.push(FileTransfer {
            file,
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

    /// Returns the stage-in job for the next file of a compute job.
    pub(super) fn stage_in_job(
        &mut self,
        job: JobId,
        site: SiteId,
        side: Side,
        level: u32,
        width: u32,
    ) -> JobId {
        let slot = self
            .partitioner
            .assign((Flow::In, site, side), Some(job), level, width);
        let key = (Flow::In, site, side);
        if let Some(transfer) = self.partitioner.slot(key, slot).transfer {
            return transfer;
        }
        let name = match self.mapper.settings.refiner {
            Refiner::Basic => format!("stage_in_{}_{}_0", side.as_str(), self.exec.jobs[job].name),
            Refiner::Bundle => format!(
                "stage_in_{}_{}{}_{slot}",
                side.as_str(),
                self.mapper.prefix,
                self.site_name(site)
            ),
            _ => format!(
                "stage_in_{}_{}{}_{level}_{slot}",
                side.as_str(),
                self.mapper.prefix,
                self.site_name(site)
            ),
        };
        let task = Task::StageIn(ListId::new(self.exec.transfers.len()));
        self.exec.transfers.push(TransferSet::default());
        let transfer = self.add_job(name, task, self.site_of(side, site), site);
        self.partitioner.slot(key, slot).transfer = Some(transfer);
        transfer
    }

    /// Adds one chmod job for the programs first staged for a job. Returns whether there is one.
    pub(super) fn add_chmod(&mut self, job: JobId, site: SiteId, programs: &[(FileId, JobId)]) -> bool {
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
