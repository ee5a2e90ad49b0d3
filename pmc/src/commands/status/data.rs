//! `pmc status --data`: what lite jobs have moved so far, and where their time went.

use std::fmt::Write as _;
use std::time::Duration;

use pmc_monitor::lite_data::DataOfRun;
use serde_json::Value;

use crate::commands::statistics::data::object;
use crate::text;

/// Returns the figures as an object.
pub fn json(data: &DataOfRun) -> Value {
    let mut value = object(&data.sum);
    value["tries"] = data.attempts.into();
    value
}

/// Writes the figures as text.
pub fn human(out: &mut String, data: &DataOfRun) {
    out.push_str("Data of jobs without a shared file system\n");
    if data.attempts == 0 {
        out.push_str("  No such job has ended, or their output is not kept by task (--per-task-stdio).\n");
        return;
    }
    let sum = &data.sum;
    let bytes = [
        ("fetched", sum.fetched),
        ("from caches of nodes", sum.cached),
        ("from other nodes", sum.from_peers),
        ("delivered", sum.delivered),
    ];
    for (name, bytes) in bytes {
        let _ = writeln!(out, "  {name:<22} {}", text::bytes(bytes));
    }
    let span = |seconds: f64| text::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let _ = writeln!(
        out,
        "  {}: {} of stage-in ({} of it waiting for other jobs of the node), {} of programs, {} of stage-out",
        text::count(data.attempts, "attempt"),
        span(sum.stage_in),
        span(sum.waited),
        span(sum.run),
        span(sum.stage_out),
    );
}
