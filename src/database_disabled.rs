//! Stands in for `database.rs` in builds without the feature `stampede`: there is never a database.

use std::sync::Arc;

use pmc_dag::Dag;

use crate::options::Options;

#[derive(Debug)]
pub(crate) enum Database {}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {}

pub(crate) fn check(_: &Options) -> Result<(), DatabaseError> {
    Ok(())
}

impl Database {
    pub fn start(_: &Options, _: &Arc<Dag>) -> Result<Option<Self>, DatabaseError> {
        Ok(None)
    }

    pub fn finish(self, _: bool) -> Option<String> {
        match self {}
    }
}
