//! Distributes the files of a level over transfer jobs.

use rustc_hash::FxHashMap;

use super::super::select::Side;
use super::super::settings::{Refiner, Settings};
use super::super::sites::Sites;
use crate::exec::{JobId, SiteId};

/// Transfer level of outputs of deleted jobs.
pub(super) const DELETED_LEVEL: u32 = 1000;
/// Default number of transfer jobs of the refiner Bundle.
const DEFAULT_BUNDLES: u32 = 2;
/// Default number of compute jobs per transfer job of a level.
const JOBS_PER_TRANSFER: u32 = 10;

/// Maximum transfer jobs per level.
const MAX_JOBS_PER_LEVEL: u32 = 1 << 16;

/// Direction of files; stage-in and stage-out do not share jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flow {
    In,
    Out,
}

/// Files with the same key share jobs: direction, work directory, side on which the transfer runs.
pub(super) type Key = (Flow, SiteId, Side);

/// Jobs of one share, as far as they exist.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShareJobs {
    pub(super) transfer: Option<JobId>,
    pub(super) registration: Option<JobId>,
}

/// Share of the files of a level that a file belongs to. One job transfers it, one registers it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) key: Key,
    pub(super) level: u32,
    /// Its number on the level.
    pub(super) number: usize,
    /// The compute job whose file it is; `None` for files of deleted jobs.
    pub(super) job: Option<JobId>,
}

#[derive(Debug, Default)]
struct LevelState {
    level: u32,
    /// Shares that have a file: there may be many more.
    shares: Vec<ShareJobs>,
    count: usize,
    next: usize,
    last_job: Option<JobId>,
}

/// Assigns files to shares, for all keys of a plan.
pub(super) struct JobPartitioner<'a> {
    settings: &'a Settings,
    sites: &'a Sites,
    levels: FxHashMap<Key, LevelState>,
}

impl<'a> JobPartitioner<'a> {
    pub(super) fn new(settings: &'a Settings, sites: &'a Sites) -> Self {
        JobPartitioner {
            settings,
            sites,
            levels: FxHashMap::default(),
        }
    }

    /// Returns the share of the next file of `job`; `None` for files of deleted jobs. `width` is the number
    /// of compute jobs on the level.
    pub(super) fn assign(&mut self, key: Key, job: Option<JobId>, level: u32, width: u32) -> Share {
        let number = self.next_number(key, job, level, width);
        Share {
            key,
            level,
            number,
            job,
        }
    }

    fn next_number(&mut self, key: Key, job: Option<JobId>, level: u32, width: u32) -> usize {
        let refiner = self.settings.refiner;
        let bundled = refiner == Refiner::Bundle && key.0 == Flow::In;
        let starts_level = match self.levels.get(&key) {
            None => true,
            Some(_) if bundled => false,
            Some(state) if refiner == Refiner::Basic && job.is_some() => state.last_job != job,
            Some(state) => state.level != level,
        };
        if starts_level {
            let count = match (refiner, job) {
                (Refiner::Basic, Some(_)) => 1,
                _ => self.jobs_per_level(key, level, width),
            };
            self.levels.insert(
                key,
                LevelState {
                    level,
                    shares: vec![ShareJobs::default()],
                    count,
                    next: 0,
                    last_job: job,
                },
            );
            return 0;
        }
        let Some(state) = self.levels.get_mut(&key) else {
            return 0;
        };
        let by_file = matches!(refiner, Refiner::BalancedCluster | Refiner::Bundle);
        if by_file || job.is_none() || state.last_job != job {
            state.next = (state.next + 1) % state.count;
            if state.next == state.shares.len() {
                state.shares.push(ShareJobs::default());
            }
        }
        state.last_job = job;
        state.next
    }

    /// Returns the jobs of a share from [`JobPartitioner::assign`].
    pub(super) fn jobs_of(&mut self, share: Share) -> &mut ShareJobs {
        let state = self.levels.get_mut(&share.key);
        &mut state
            .expect("shares are used only after they were assigned")
            .shares[share.number]
    }

    /// Returns the number of transfer jobs of a level: from the site profile, else the property, else the
    /// width.
    fn jobs_per_level(&self, (flow, site, side): Key, level: u32, width: u32) -> usize {
        let profiles = &self.sites.get(site).profiles;
        let (name, clusters) = match flow {
            Flow::In => ("stagein", &self.settings.stage_in),
            Flow::Out => ("stageout", &self.settings.stage_out),
        };
        let profile = |key: String| profiles.pegasus(&key).and_then(|v| v.trim().parse::<u32>().ok());
        let property = match side {
            Side::Local => clusters.local,
            Side::Remote => clusters.remote,
        };
        let number = profile(format!("{name}.{}.clusters", side.as_str()))
            .or_else(|| profile(format!("{name}.clusters")))
            .or(property)
            .unwrap_or(match (self.settings.refiner, level) {
                (_, DELETED_LEVEL) => JOBS_PER_TRANSFER,
                (Refiner::Bundle, _) => DEFAULT_BUNDLES,
                _ => width.div_ceil(JOBS_PER_TRANSFER),
            });
        number.clamp(1, MAX_JOBS_PER_LEVEL) as usize
    }
}
