//! Cuts a failing plan down.

use std::path::Path;

use crate::plan::Plan;
use crate::round::run;

/// Removes faults and tasks, and what they have, as long as the plan still fails. Returns the smallest plan
/// that was found.
#[must_use]
pub fn shrink(plan: &Plan, folder: &Path) -> Plan {
    let mut best = plan.clone();
    let fails = |plan: &Plan| !plan.tasks.is_empty() && run(plan, folder).finding.is_some();
    loop {
        let mut smaller = None;
        for at in (0..best.faults.len()).rev() {
            let candidate = best.without_fault(at);
            if fails(&candidate) {
                smaller = Some(candidate);
                break;
            }
        }
        for at in (0..best.tasks.len()).rev() {
            if smaller.is_some() || best.tasks.len() == 1 {
                break;
            }
            let candidate = best.without_task(at);
            if fails(&candidate) {
                smaller = Some(candidate);
            }
        }
        if smaller.is_none() {
            smaller = best.simpler().into_iter().find(&fails);
        }
        match smaller {
            Some(plan) => best = plan,
            None => return best,
        }
    }
}
