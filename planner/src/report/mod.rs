//! What people see of a plan: figures, explanations of jobs, pictures.

pub(crate) mod explain;
pub(crate) mod picture;
pub mod summary;
