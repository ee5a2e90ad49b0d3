//! See the package description.

pub mod braindump;
pub mod braindump_reader;
pub mod cluster_record;
pub mod cluster_record_reader;
pub mod dagman_out;
pub mod dagman_out_reader;
pub mod invocation_record;
pub mod job_output_reader;
pub mod jobstate_log;
pub mod record_reader;
pub mod resource_log;
pub mod static_bp;
pub mod static_bp_reader;
pub mod yaml;
mod yaml_reader;
