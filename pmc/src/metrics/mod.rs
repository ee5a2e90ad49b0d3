//! The state of a run for monitoring systems: the text format of OpenMetrics 1.0
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), in the part that readers of the older text
//! format of Prometheus take as well.

mod textfile;

use std::fmt::Write as _;

use pmc_control::RunLimits;
use pmc_monitor::history::{History, Phase, State};
use pmc_monitor::progress::Progress;

pub use textfile::TextFile;

/// States of tasks, and their names.
const STATES: [(State, &str); 5] = [
    (State::Waiting, "waiting"),
    (State::Ready, "ready"),
    (State::Running, "running"),
    (State::Done, "done"),
    (State::Failed, "failed"),
];

/// Returns the metrics of a run, whole and with the line of their end.
pub fn render(history: &History, progress: &Progress, limits: &RunLimits) -> String {
    let mut out = Metrics::new(&history.dir.label, &history.dir.dir.display().to_string());
    out.family("pmc_tasks", "gauge", "Tasks of the workflow by kind and state.");
    for (kind, tally) in &progress.kinds {
        for (state, name) in STATES {
            let labels = [("kind", kind.key()), ("state", name)];
            out.sample("pmc_tasks", &labels, count(tally.get(state)));
        }
    }
    out.family("pmc_tasks_blocked", "gauge", "Tasks that wait for a failed one.");
    out.sample("pmc_tasks_blocked", &[], count(progress.blocked));
    out.family(
        "pmc_attempts",
        "counter",
        "Ended attempts of tasks by their outcome.",
    );
    let not_good = progress.failed_attempts + progress.lost_attempts;
    for (outcome, number) in [
        ("succeeded", progress.attempts.saturating_sub(not_good)),
        ("failed", progress.failed_attempts),
        ("lost", progress.lost_attempts),
    ] {
        out.sample("pmc_attempts_total", &[("outcome", outcome)], count(number));
    }
    out.family("pmc_run_starts", "counter", "Starts of the executor.");
    out.sample("pmc_run_starts_total", &[], count(progress.runs));
    out.family(
        "pmc_run_phase",
        "gauge",
        "1 for the phase of the latest run, else 0.",
    );
    for name in Phase::KEYS {
        let is_it = u8::from(progress.phase.key() == name);
        out.sample("pmc_run_phase", &[("phase", name)], f64::from(is_it));
    }
    if let Phase::Ended(status) = progress.phase {
        out.family("pmc_run_exit_status", "gauge", "Exit status of the latest run.");
        out.sample("pmc_run_exit_status", &[], f64::from(status));
    }
    for (name, help, seconds) in [
        (
            "pmc_run_wall_seconds",
            "Wall time of all runs.",
            Some(progress.wall_seconds),
        ),
        (
            "pmc_run_silent_seconds",
            "Time since the last line of the log.",
            progress.silent_seconds,
        ),
        (
            "pmc_run_left_seconds",
            "Estimated time to the end.",
            progress.estimate.map(|estimate| estimate.seconds),
        ),
        (
            "pmc_run_wall_left_seconds",
            "What is left of the wall time of the run.",
            limits.wall_seconds_left.map(|seconds| seconds as f64),
        ),
    ] {
        if let Some(seconds) = seconds {
            out.family(name, "gauge", help);
            out.unit(name, "seconds");
            out.sample(name, &[], seconds);
        }
    }
    out.family("pmc_run_drains", "gauge", "1 if the run starts no more tasks.");
    out.sample("pmc_run_drains", &[], f64::from(u8::from(limits.drains)));
    out.end()
}

fn count(number: usize) -> f64 {
    number as f64
}

/// A text of metrics, all with the labels of the run.
struct Metrics {
    text: String,
    labels: String,
}

impl Metrics {
    fn new(workflow: &str, submit_directory: &str) -> Self {
        let labels = format!(
            "workflow=\"{}\",submit_directory=\"{}\"",
            escape(workflow),
            escape(submit_directory)
        );
        let text = String::new();
        Self { text, labels }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}\n# HELP {name} {help}");
    }

    fn unit(&mut self, name: &str, unit: &str) {
        let _ = writeln!(self.text, "# UNIT {name} {unit}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{name}{{{}", self.labels);
        for (label, value) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", escape(value));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn end(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

/// Returns the text as the value of a label has it.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            // Readers of lines may take it for the end of one.
            '\r' => out.push(' '),
            _ => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_stay_in_their_quotes() {
        let mut metrics = Metrics::new("a\"} 1\nb\\", "/x");
        metrics.sample("m", &[("k", "v")], 2.5);
        assert_eq!(
            metrics.end(),
            "m{workflow=\"a\\\"} 1\\nb\\\\\",submit_directory=\"/x\",k=\"v\"} 2.5\n# EOF\n"
        );
    }
}
