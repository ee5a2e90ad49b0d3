//! The section `data`: where the time of lite jobs goes, and how many bytes they move.

use std::io::Write;

use monitord_compat::lite_data::LiteData;
use pmc_monitor::statistics::DataAttempt;
use serde_json::{Value, json};

use super::table::{line, number, quoted};
use super::{Figures, Problem};
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::text;

/// What the section says of a run without lite jobs.
const NONE: &str =
    "  No job of this run had a directory of its own, or the database does not keep the output of jobs.\n";

/// Writes a line for each attempt, and the sum.
pub(super) fn human(figures: &Figures<'_>, out: &mut impl Write) -> Result<(), Problem> {
    let head = format!(
        "Data of jobs without a shared file system\n\n  {:<40} {:>3} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10}\n",
        "", "try", "in s", "run s", "out s", "waited s", "fetched", "cached", "from peers", "delivered"
    );
    let mut sum = LiteData::default();
    let mut count = 0_usize;
    let row = |out: &mut dyn Write, name: &str, number: &str, data: &LiteData| {
        writeln!(
            out,
            "  {name:<40} {number:>3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>10} {:>10} {:>10} {:>10}",
            data.stage_in,
            data.run,
            data.stage_out,
            data.waited,
            text::bytes(data.fetched),
            text::bytes(data.cached),
            text::bytes(data.from_peers),
            text::bytes(data.delivered),
        )
    };
    let done = figures.statistics.data(figures.database, |attempt| {
        if count == 0 {
            out.write_all(head.as_bytes())?;
        }
        count += 1;
        sum += attempt.data;
        row(out, &attempt.job, &attempt.number.to_string(), &attempt.data)
    });
    done.map_err(Problem::Read)?.map_err(Problem::Write)?;
    let written = match count {
        0 => write!(out, "Data of jobs without a shared file system\n\n{NONE}"),
        _ => row(out, "all", "", &sum),
    };
    written.map_err(Problem::Write)
}

/// Writes a row for each attempt.
pub(super) fn csv(figures: &Figures<'_>, out: &mut impl Write) -> Result<(), Problem> {
    let head = [
        "Workflow_Id",
        "Dax_Label",
        "Job",
        "Try",
        "Stage-In",
        "Run",
        "Stage-Out",
        "Waited",
        "Bytes-Fetched",
        "Bytes-Cached",
        "Bytes-Delivered",
        "Bytes-From-Peers",
    ];
    line(out, &head).map_err(Problem::Write)?;
    let statistics = &figures.statistics;
    let first = format!("{},{},", quoted(&statistics.uuid), quoted(&statistics.label));
    let done = statistics.data(
        figures.database,
        |DataAttempt {
             job,
             number: at,
             data,
         }| {
            out.write_all(first.as_bytes())?;
            let cells = [
                job.clone(),
                at.to_string(),
                number(data.stage_in),
                number(data.run),
                number(data.stage_out),
                number(data.waited),
                data.fetched.to_string(),
                data.cached.to_string(),
                data.delivered.to_string(),
                data.from_peers.to_string(),
            ];
            line(out, &cells)
        },
    );
    done.map_err(Problem::Read)?.map_err(Problem::Write)
}

/// Returns an object for each attempt.
pub(super) fn json(figures: &Figures<'_>) -> Result<Value, Failure> {
    let mut rows = Vec::new();
    let done = figures.statistics.data(figures.database, |attempt| {
        let mut row = object(&attempt.data);
        row["job"] = attempt.job.clone().into();
        row["try"] = attempt.number.into();
        rows.push(row);
        Ok(())
    });
    done.or_code(exit::NOT_RUN)?.or_code(exit::NOT_RUN)?;
    Ok(rows.into())
}

/// Returns times and bytes as an object.
pub fn object(data: &LiteData) -> Value {
    json!({
        "stage_in_seconds": data.stage_in,
        "run_seconds": data.run,
        "stage_out_seconds": data.stage_out,
        "waited_seconds": data.waited,
        "bytes_fetched": data.fetched,
        "bytes_cached": data.cached,
        "bytes_from_peers": data.from_peers,
        "bytes_delivered": data.delivered,
    })
}
