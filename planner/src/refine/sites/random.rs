//! The selector Random. A job's site follows from the seed and its identifier alone: the same request gives
//! the same plan, and a job that is added moves no other.

use super::selection::{Class, Placing};
use crate::exec::SiteId;

/// Chooses for all jobs.
pub(super) fn choose(placing: &Placing<'_>) -> Vec<SiteId> {
    let mut chosen = vec![placing.sites.local(); placing.workflow.jobs.len()];
    for (n, class) in placing.free() {
        if let Some(site) = one(class, placing.settings.seed, &placing.job(n).id) {
            chosen[n] = site;
        }
    }
    chosen
}

/// One of the sites of a class.
pub(super) fn one(class: &Class, seed: u64, name: &str) -> Option<SiteId> {
    let number = below(seed, name, class.options.len());
    class.options.get(number).map(|(site, _)| *site)
}

/// A number below a limit that looks random.
pub(super) fn below(seed: u64, name: &str, limit: usize) -> usize {
    // The steps of splitmix64, once for the seed and once for each byte.
    let mix = |state: u64| {
        let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let state = name
        .bytes()
        .fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
    ((u128::from(state) * limit as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_drawn_about_as_often() {
        let mut counts = [0u32; 3];
        for n in 0..3000 {
            counts[below(1, &format!("ID{n:07}"), 3)] += 1;
        }
        assert!(counts.iter().all(|c| (900..1100).contains(c)), "{counts:?}");
        let draws = |seed| -> Vec<usize> { (0..20).map(|n| below(seed, &n.to_string(), 10)).collect() };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
        assert_eq!(below(1, "a", 1), 0);
    }
}
