//! What the tasks of a chain have in common.

use pmc_dag::{CategoryId, GangId, OptionSet, Request};

use crate::scheduler::shares::ShareId;

/// Share, gang, request, category and priority.
pub(super) type ChainKey = (ShareId, Option<GangId>, Request, Option<CategoryId>, i64);

/// Returns what the tasks of a share with these options have in common.
pub(super) fn key(share: ShareId, set: &OptionSet) -> ChainKey {
    (share, set.gang, set.request, set.category, set.priority)
}
