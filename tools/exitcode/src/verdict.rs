//! Whether a job has succeeded.

use monitord_compat::record_reader::Record;

/// Line before each record behind that of the program.
const MULTIPART: &str = "---------------pegasus-multipart";

/// How the output is judged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// What DAGMan says of the end of the job.
    pub(crate) status: Option<i64>,
    /// Texts of which none may be in the output.
    pub(crate) failures: Vec<String>,
    /// Texts that must all be in the output.
    pub(crate) successes: Vec<String>,
    /// The output has no records.
    pub(crate) has_no_records: bool,
}

/// Why a job has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failed {
    #[error("DAGMan reported the exit code {0}")]
    Status(i64),
    #[error("the output is empty")]
    Empty,
    #[error("the output has the failure message `{0}`")]
    Message(String),
    #[error("the output lacks the success message `{0}`")]
    NoMessage(String),
    #[error("a checksum of a file was wrong")]
    Integrity,
    #[error("an invocation record has the status {0}")]
    Record(i64),
    #[error("the output has no invocation record")]
    NoRecord,
    #[error("the summary of the cluster says that jobs failed: {0}")]
    Cluster(String),
}

/// Judges a job.
///
/// # Errors
/// Why it has failed.
pub(crate) fn judge(rules: &Rules, stdout: &str, stderr: &str) -> Result<(), Failed> {
    if let Some(status) = rules.status.filter(|&status| status != 0) {
        return Err(Failed::Status(status));
    }
    if stdout.is_empty() && !rules.has_no_records {
        return Err(Failed::Empty);
    }
    let has = |message: &String| stdout.contains(message.as_str()) || stderr.contains(message.as_str());
    if let Some(message) = rules.failures.iter().find(|message| has(message)) {
        return Err(Failed::Message(message.clone()));
    }
    if let Some(message) = rules.successes.iter().find(|message| !has(message)) {
        return Err(Failed::NoMessage(message.clone()));
    }
    if let Some(summary) = summary(stdout) {
        return cluster(summary);
    }
    if stdout.lines().any(|line| line.starts_with("[cluster-task")) {
        return Err(Failed::Cluster("there is none".to_owned()));
    }
    if rules.has_no_records {
        return Ok(());
    }
    if stdout.contains("integrity_error: ") {
        return Err(Failed::Integrity);
    }
    let mut found = false;
    for status in statuses(stdout) {
        if status != 0 {
            return Err(Failed::Record(status));
        }
        found = true;
    }
    match found {
        true => Ok(()),
        false => Err(Failed::NoRecord),
    }
}

/// Returns the summary of a cluster.
fn summary(stdout: &str) -> Option<&str> {
    let is_summary =
        |line: &&str| line.starts_with("[cluster-summary") || line.starts_with("[seqexec-summary");
    stdout.lines().find(is_summary)
}

/// Judges the summary of a cluster.
fn cluster(line: &str) -> Result<(), Failed> {
    let value = |key: &str| {
        let at = line.find(&format!(" {key}="))? + key.len() + 2;
        let rest = &line[at..];
        let value = rest.split([',', ']']).next()?;
        Some(value.trim().trim_matches('"'))
    };
    let number = |key: &str| value(key).and_then(|text| text.parse::<u64>().ok());
    let all = number("tasks").or(number("submitted"));
    let is_right = value("stat").is_none_or(|stat| stat == "ok")
        && number("failed").is_none_or(|failed| failed == 0)
        && (all == Some(0) || number("succeeded").is_none_or(|succeeded| succeeded > 0));
    match is_right {
        true => Ok(()),
        false => Err(Failed::Cluster(line.to_owned())),
    }
}

/// Returns the raw statuses in the records. What programs have printed, which stands in the records as blocks
/// of data, does not count.
fn statuses(stdout: &str) -> impl Iterator<Item = i64> {
    let mut data: Option<usize> = None;
    stdout.lines().filter_map(move |line| {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if data.is_some_and(|of_data| indent > of_data || text.is_empty()) {
            return None;
        }
        data = (text.starts_with("data: |") || text.starts_with("data: >")).then_some(indent);
        let value = text.strip_prefix("raw:").filter(|_| indent > 0)?;
        value.trim().parse().ok()
    })
}

/// Returns the invocation records in an output, and the records of transfers behind them.
pub(crate) fn records(stdout: &str) -> Vec<Record> {
    let mut all = Vec::new();
    let mut current: Option<String> = None;
    let mut end = |current: &mut Option<String>| {
        if let Some(text) = current.take() {
            all.push(Record::read(&text).0);
        }
    };
    for line in stdout.split_inclusive('\n') {
        let is_first = line.starts_with("- invocation:");
        let is_other =
            line.starts_with("[cluster-") || line.starts_with("[seqexec-") || line.starts_with(MULTIPART);
        if is_first || is_other {
            end(&mut current);
        }
        if is_first {
            current = Some(String::new());
        }
        if let Some(text) = &mut current
            && line.starts_with([' ', '-', '\n', 'l'])
        {
            text.push_str(line);
        }
    }
    end(&mut current);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(raw: i64, printed: &str) -> String {
        format!(
            "- invocation: True\n  mainjob:\n    status:\n      raw: {raw}\n  files:\n    stdout:\n      data_truncated: false\n      \
             data: |\n        {printed}\n    x:\n      sha256: 00ff\n      size: 2\n      output: True\n"
        )
    }

    fn judged(rules: &Rules, stdout: &str) -> Result<(), Failed> {
        judge(rules, stdout, "PegasusLite: exitcode 0")
    }

    #[test]
    fn records_decide() {
        let rules = Rules::default();
        assert_eq!(judged(&rules, &record(0, "fine")), Ok(()));
        assert_eq!(judged(&rules, &record(256, "fine")), Err(Failed::Record(256)));
        assert_eq!(judged(&rules, &record(-127, "fine")), Err(Failed::Record(-127)));
        assert_eq!(
            judged(&rules, &record(0, "raw: 5")),
            Ok(()),
            "what a program prints is no status"
        );
        assert_eq!(
            judged(&rules, &format!("{}{}", record(0, ""), record(9, ""))),
            Err(Failed::Record(9))
        );
        assert_eq!(judged(&rules, "hello\n"), Err(Failed::NoRecord));
        assert_eq!(judged(&rules, ""), Err(Failed::Empty));
    }

    #[test]
    fn status_and_messages_come_first() {
        let rules = Rules {
            status: Some(3),
            ..Rules::default()
        };
        assert_eq!(judged(&rules, &record(0, "")), Err(Failed::Status(3)));
        let rules = Rules {
            failures: vec!["Bad thing".into()],
            successes: vec!["exitcode 0".into()],
            ..Rules::default()
        };
        assert_eq!(judged(&rules, &record(0, "ok")), Ok(()));
        assert_eq!(
            judged(&rules, &record(0, "a Bad thing")),
            Err(Failed::Message("Bad thing".into()))
        );
        let rules = Rules {
            successes: vec!["All is well".into()],
            ..Rules::default()
        };
        assert_eq!(
            judged(&rules, &record(0, "ok")),
            Err(Failed::NoMessage("All is well".into()))
        );
        let rules = Rules {
            has_no_records: true,
            ..Rules::default()
        };
        assert_eq!(judged(&rules, ""), Ok(()));
    }

    #[test]
    fn the_summary_of_a_cluster_decides() {
        let rules = Rules::default();
        let summary = |failed: u32, succeeded: u32| {
            format!(
                "[cluster-summary stat=\"ok\", lines=2, tasks=2, succeeded={succeeded}, failed={failed}, extra=0]\n"
            )
        };
        assert_eq!(judged(&rules, &summary(0, 2)), Ok(()));
        assert!(judged(&rules, &summary(1, 1)).is_err());
        assert!(judged(&rules, &summary(0, 0)).is_err());
        assert!(judged(&rules, "[cluster-task id=1, status=0]\n").is_err());
    }

    #[test]
    fn files_of_records_are_found() {
        let text = format!("noise\n{}{MULTIPART}\n- x: 1\n{}", record(0, "a"), record(0, "b"));
        let all = records(&text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].outputs[0].lfn, "x");
        assert_eq!(all[0].outputs[0].sha256.as_deref(), Some("00ff"));
    }
}
