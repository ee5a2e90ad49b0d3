//! A run in the trace event format of chrome://tracing and Perfetto. Hosts are processes, slots are threads.

use std::io::{self, Write};

use pmc_monitor::events::Micros;
use pmc_monitor::history::{History, NEVER};
use pmc_monitor::timeline::slots;
use serde_json::json;

/// Writes all attempts.
pub fn write(history: &History, now: Micros, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    let (slots, hosts) = slots(history, now);
    for (number, host) in (1..).zip(&hosts) {
        let event =
            json!({"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": host}});
        writeln!(out, "{event},")?;
    }
    for slot in &slots {
        let attempt = &history.attempts[slot.attempt];
        let end = if attempt.end == NEVER { now } else { attempt.end };
        let class = history.plan.class(attempt.task);
        let request = history.plan.request(attempt.task);
        let ended = attempt.end != NEVER;
        let event = json!({
            "ph": "X",
            "pid": slot.host + 1,
            "tid": slot.slot + 1,
            "ts": attempt.start,
            "dur": (end - attempt.start).max(0),
            "name": history.plan.text_name(attempt.task),
            "cat": class.transformation,
            "cname": attempt.failed().then_some("terrible"),
            "args": {
                "transformation": class.transformation,
                "kind": class.kind.key(),
                "status": ended.then_some(attempt.status),
                "cpus": request.cpus,
                "memory_mb": request.memory_mb,
                "waited_us": (attempt.start - attempt.queued).max(0),
            },
        });
        writeln!(out, "{event},")?;
    }
    let name =
        json!({"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": history.dir.label}});
    writeln!(out, "{name}]}}")
}
