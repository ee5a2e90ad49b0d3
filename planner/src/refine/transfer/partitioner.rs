//! Deals the files of a level to transfer jobs (section 6.6.3 of the planner's specification).

use rustc_hash::FxHashMap;

use super::super::select::Side;
use super::super::settings::{Refiner, Settings};
use super::super::sites::Sites;
use crate::exec::{JobId, SiteId};

/// Transfer level of outputs of deleted jobs.
pub(super) const DELETED_LEVEL: u32 = 1000;
/// Transfer jobs of the refiner Bundle, when nothing else is set.
const BUNDLES: u32 = 2;
/// Compute jobs per transfer job of a level, when nothing else is set.
const JOBS_PER_TRANSFER: u32 = 10;

/// No more transfer jobs than this are made for a level, whatever is asked for.
const MOST: u32 = 1 << 16;

/// The directions that are dealt; stage-in and stage-out do not share jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flow {
    In,
    Out,
}

/// What files are dealt for: direction, work directory, side on which the transfer runs.
pub(super) type Key = (Flow, SiteId, Side);

/// The jobs of one share, as far as they were needed yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) transfer: Option<JobId>,
    pub(super) registration: Option<JobId>,
}

#[derive(Debug, Default)]
struct Dealer {
    level: u32,
    slots: Vec<Slot>,
    next: usize,
    last_job: Option<JobId>,
}

/// All dealers of a plan.
pub(super) struct Dealers<'a> {
    settings: &'a Settings,
    sites: &'a Sites,
    dealers: FxHashMap<Key, Dealer>,
}

impl<'a> Dealers<'a> {
    pub(super) fn new(settings: &'a Settings, sites: &'a Sites) -> Self {
        Dealers {
            settings,
            sites,
            dealers: FxHashMap::default(),
        }
    }

    /// The slot for the next file: of a compute job, or of nobody. `width` is the number of compute jobs on
    /// the level.
    pub(super) fn deal(&mut self, key: Key, job: Option<JobId>, level: u32, width: u32) -> usize {
        let refiner = self.settings.refiner;
        let bundled = refiner == Refiner::Bundle && key.0 == Flow::In;
        let begins = match self.dealers.get(&key) {
            None => true,
            Some(_) if bundled => false,
            Some(dealer) if refiner == Refiner::Basic && job.is_some() => dealer.last_job != job,
            Some(dealer) => dealer.level != level,
        };
        if begins {
            let count = match (refiner, job) {
                (Refiner::Basic, Some(_)) => 1,
                _ => self.jobs_per_level(key, level, width),
            };
            self.dealers.insert(
                key,
                Dealer {
                    level,
                    slots: vec![Slot::default(); count],
                    next: 0,
                    last_job: job,
                },
            );
            return 0;
        }
        let Some(dealer) = self.dealers.get_mut(&key) else {
            return 0;
        };
        let by_file = matches!(refiner, Refiner::BalancedCluster | Refiner::Bundle);
        if by_file || job.is_none() || dealer.last_job != job {
            dealer.next = (dealer.next + 1) % dealer.slots.len();
        }
        dealer.last_job = job;
        dealer.next
    }

    /// A slot that was dealt.
    pub(super) fn slot(&mut self, key: Key, slot: usize) -> &mut Slot {
        let dealer = self.dealers.get_mut(&key);
        &mut dealer.expect("a slot is asked for only after it was dealt").slots[slot]
    }

    /// How many transfer jobs a level gets: site profile, else property, else by the width of the level.
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
                (Refiner::Bundle, _) => BUNDLES,
                _ => width.div_ceil(JOBS_PER_TRANSFER),
            });
        number.clamp(1, MOST) as usize
    }
}
