//! How jobs get their files: the data configuration of each.

use crate::data_mode::{self, DataMode};
use crate::diagnostic::Diagnostic;
use crate::exec::{EntryId, Exec, ExecJob, SiteId};
use crate::model::{Job, JobKind, Workflow};
use crate::profiles::Profiles;

use super::{Mapper, Program};

impl<'a> Mapper<'a> {
    /// Returns the profiles that a site has for a job: its own ones, and those of the tag of the job, which
    /// win. The tag is a profile of the job itself: those of programs have none.
    pub(super) fn site_profiles(&self, job: &Job, site: SiteId) -> [&'a Profiles; 2] {
        static NONE: Profiles = Profiles::EMPTY;
        let site = self.sites.get(site);
        let tag = job.profiles.pegasus("tag").map(str::trim);
        let of_tag = tag.and_then(|tag| site.tags.get(tag));
        [&site.profiles, of_tag.unwrap_or(&NONE)]
    }

    /// Returns how a job gets its files: from its profiles, else from what holds for its site.
    pub(super) fn mode(
        &self,
        job: &Job,
        site: SiteId,
        entry: Option<EntryId>,
    ) -> Result<DataMode, Diagnostic> {
        let Some(name) = self.named_mode(job, site, entry) else {
            return Ok(self.modes[site]);
        };
        DataMode::parse(name).ok_or_else(|| {
            Diagnostic::error(format!(
                "the profile pegasus::{} of the job {} must be sharedfs, nonsharedfs or condorio, not {name}",
                data_mode::KEY,
                job.id
            ))
        })
    }

    /// Returns the data configuration that the profiles of a job name, with those of its site and program.
    fn named_mode<'j>(&'j self, job: &'j Job, site: SiteId, entry: Option<EntryId>) -> Option<&'j str> {
        let entry = entry.map(|number| self.programs.entry(number));
        let container = entry.and_then(|entry| self.programs.container(entry.container.as_deref()?));
        let [of_site, of_tag] = self.site_profiles(job, site);
        let by_precedence = [
            entry.map(|entry| &entry.profiles),
            container.map(|container| &container.profiles),
            Some(of_tag),
            Some(of_site),
            Some(&job.profiles),
        ];
        let mut profiles = by_precedence.into_iter().flatten();
        let named = profiles.find_map(|profiles| profiles.pegasus(data_mode::KEY));
        named.filter(|name| !name.trim().is_empty())
    }

    /// Returns the data configuration of jobs whose profiles say none, for each site. That is the one of the
    /// properties. Without one, jobs of a site without work directory run as with Pegasus' default.
    ///
    /// A site whose work directory jobs of other sites exchange files through has files for jobs with
    /// directories of their own only, so its own jobs are such jobs.
    pub(super) fn modes_of_sites(
        &self,
        workflow: &Workflow,
        chosen: &[Option<(SiteId, Program)>],
    ) -> Vec<DataMode> {
        let mut modes = vec![self.settings.data; self.sites.len()];
        if self.settings.data.is_lite() {
            return modes;
        }
        if !self.settings.data_is_named {
            for (mode, _) in modes
                .iter_mut()
                .zip(self.sites.all())
                .filter(|(_, site)| site.scratch.is_none())
            {
                *mode = DataMode::CondorIo;
            }
        }
        // Whether jobs with directories of their own run on a site, and the configuration of those whose
        // staging site it is.
        let mut runs_lite = vec![false; self.sites.len()];
        let mut serves = vec![None; self.sites.len()];
        for (job, choice) in workflow.jobs.iter().zip(chosen) {
            let Some((site, program)) = choice else { continue };
            let named = self.named_mode(job, *site, program.entry());
            let mode = named.map_or(Some(modes[site.index()]), DataMode::parse);
            let Some(mode) = mode.filter(|mode| mode.is_lite()) else {
                continue;
            };
            runs_lite[site.index()] = true;
            if let Ok(staging) = self.sites.staging_of(*site, mode) {
                serves[staging.index()].get_or_insert(mode);
            }
        }
        for (n, mode) in modes.iter_mut().enumerate().filter(|(n, _)| !runs_lite[*n]) {
            let mut staging = self.sites.possible_staging(SiteId::new(n));
            if let Some(served) = staging.find_map(|site| serves[site.index()]) {
                *mode = served;
            }
        }
        modes
    }

    /// Warns of sites without work directory whose jobs therefore run as with Pegasus' default.
    pub(super) fn describe_modes(&self, exec: &Exec) -> impl Iterator<Item = String> {
        let is_guessed = |job: &&ExecJob| {
            let setup = &exec.setups[job.setup];
            setup.kind == JobKind::Compute
                && setup.mode == DataMode::CondorIo
                && !self.settings.data_is_named
                && setup.profiles.pegasus(data_mode::KEY).is_none()
                && self.sites.get(job.site).scratch.is_none()
        };
        let mut sites: Vec<SiteId> = exec.jobs.iter().filter(is_guessed).map(|job| job.site).collect();
        sites.sort_unstable();
        sites.dedup();
        sites.into_iter().map(|site| {
            format!(
                "the site {} has no directory of type sharedScratch, and no pegasus.data.configuration is given: its \
                 jobs run as with condorio, Pegasus' default",
                self.sites.get(site).name
            )
        })
    }
}
