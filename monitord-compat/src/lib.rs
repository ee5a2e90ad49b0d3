//! The file formats that Pegasus' monitoring reads and writes: one module per writer (`dagman_out`,
//! `jobstate_log`, …) and one per reader (`…_reader`).
//!
//! These modules turn text into values and back, without files or a clock. Two more modules serve all who
//! watch a run: [`run_lock`] and [`log_clock`].

pub mod batch_jobs;
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
pub mod lite_data;
pub mod lite_log;
pub mod log_clock;
pub mod properties;
pub mod reason;
pub mod record_reader;
pub mod replacement;
pub mod resource_log;
pub mod run_end;
pub mod run_lock;
pub mod sequence_record;
pub mod static_bp;
pub mod static_bp_reader;
pub mod yaml;
mod yaml_reader;
