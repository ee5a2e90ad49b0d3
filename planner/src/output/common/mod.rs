//! Files that all plans have, whatever runs them.

pub(crate) mod clusters;
pub(crate) mod events;
pub(crate) mod fingerprints;
pub(crate) mod in_order;
pub(crate) mod job_problems;
pub(crate) mod lists;
pub(crate) mod nested;
pub(crate) mod private_files;
pub(crate) mod records;
pub(crate) mod submit_dir;
pub(crate) mod task_line;
