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
        let one = &history.attempts[slot.attempt];
        let end = if one.end == NEVER { now } else { one.end };
        let class = history.plan.class(one.task);
        let request = history.plan.request(one.task);
        let ended = one.end != NEVER;
        let event = json!({
            "ph": "X",
            "pid": slot.host + 1,
            "tid": slot.slot + 1,
            "ts": one.start,
            "dur": (end - one.start).max(0),
            "name": history.plan.text_name(one.task),
            "cat": class.transformation,
            "cname": (ended && !one.succeeded()).then_some("terrible"),
            "args": {
                "transformation": class.transformation,
                "kind": class.kind.key(),
                "status": ended.then_some(one.status),
                "cpus": request.cpus,
                "memory_mb": request.memory_mb,
                "waited_us": (one.start - one.queued).max(0),
            },
        });
        writeln!(out, "{event},")?;
    }
    let name =
        json!({"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": history.dir.label}});
    writeln!(out, "{name}]}}")
}
