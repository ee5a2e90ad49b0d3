//! The file formats that Pegasus' monitoring reads and writes, one module a format: what our programs
//! write (`dagman_out`, `jobstate_log`, …) and how it is read again (`…_reader`). Text in, text out; no
//! files, no clock.

pub mod braindump;
pub mod braindump_reader;
pub mod cluster_record;
pub mod cluster_record_reader;
pub mod dagman_out;
pub mod dagman_out_reader;
pub mod database;
pub mod invocation_record;
pub mod job_output_reader;
pub mod jobstate_log;
pub mod properties;
pub mod record_reader;
pub mod resource_log;
pub mod sequence_record;
pub mod static_bp;
pub mod static_bp_reader;
pub mod yaml;
mod yaml_reader;
