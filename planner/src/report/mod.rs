//! Reports about a plan: summary, explanations of jobs, pictures.

pub(crate) mod explain;
pub(crate) mod picture;
pub mod summary;
