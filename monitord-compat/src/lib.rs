//! See the package description.

pub mod cluster_record;
pub mod dagman_out;
pub mod invocation_record;
pub mod jobstate_log;
pub mod resource_log;
pub mod yaml;
pub mod braindump;
pub mod static_bp;
