//! Runs of HTCondor. The views read no logs of HTCondor: they say how DAGMan gets on, and what shows more.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Error, anyhow};

/// Bytes at the end of DAGMan's log in which its last table is.
const TABLE_SIZE: u64 = 1 << 16;

/// Returns why a view shows nothing of the run in a submit directory.
pub fn refusal(dir: &Path, dag: &Path) -> Error {
    let log = pmc_files::with_suffix(dag, ".dagman.out");
    let state = match tail(&log) {
        None => format!(
            "It has not been started: `pmc pegasus run {}` submits it.",
            dir.display()
        ),
        Some(text) => state(&text),
    };
    anyhow!(
        "the plan in {} is for HTCondor. {state} `condor_q -nobatch` shows its jobs; the log of DAGMan is {}; pegasus-status \
         and pegasus-analyzer of Pegasus read it, and JOB.out.NNN below the directory is the output of an attempt",
        dir.display(),
        log.display()
    )
}

fn tail(path: &Path) -> Option<String> {
    let mut file: File = pmc_files::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TABLE_SIZE)))
        .ok()?;
    let mut bytes = Vec::new();
    file.take(TABLE_SIZE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns what the end of DAGMan's log says, as sentences.
fn state(text: &str) -> String {
    let last = text.lines().next_back().unwrap_or_default();
    let end = match last.split_once(" EXITING WITH STATUS ") {
        Some((_, status)) => format!("DAGMan has ended with status {}.", status.trim()),
        None => "DAGMan has not ended.".to_owned(),
    };
    match counts(text) {
        Some((done, failed, total)) => {
            format!("{end} {done} of {total} nodes are done, {failed} have failed.")
        }
        None => end,
    }
}

/// Returns the numbers of nodes that are done, that have failed, and of all, of the last table.
fn counts(text: &str) -> Option<(u64, u64, u64)> {
    let (before, after) = text.rsplit_once(" nodes total:")?;
    let total = before.rsplit(' ').next()?.parse().ok()?;
    // A line with names, one below them; then date, time, and a number for each name.
    let names: Vec<&str> = after.lines().nth(1)?.split_whitespace().skip(2).collect();
    let numbers: Vec<&str> = after.lines().nth(3)?.split_whitespace().skip(2).collect();
    let number = |name: &str| -> Option<u64> {
        let at = names.iter().position(|known| *known == name)?;
        numbers.get(at)?.parse().ok()
    };
    Some((number("Done")?, number("Failed")?, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
11/28/26 07:38:34 Of 14 nodes total:
11/28/26 07:38:34  Done     Pre   Queued    Post   Ready   Un-Ready   Failed   Futile
11/28/26 07:38:34   ===     ===      ===     ===     ===        ===      ===      ===
11/28/26 07:38:34    11       0        0       0       0          0        1        2
11/28/26 07:38:34 0 job proc(s) currently held
";

    #[test]
    fn the_last_table_is_read() {
        assert_eq!(
            state(LOG),
            "DAGMan has not ended. 11 of 14 nodes are done, 1 have failed."
        );
        let ended = format!(
            "{LOG}11/28/26 07:38:34 **** condor_dagman (condor_DAGMAN) pid 265 EXITING WITH STATUS 1\n"
        );
        assert_eq!(
            state(&ended),
            "DAGMan has ended with status 1. 11 of 14 nodes are done, 1 have failed."
        );
        assert_eq!(state(""), "DAGMan has not ended.");
        assert_eq!(state("Of 3 nodes total:\ncut"), "DAGMan has not ended.");
    }
}
