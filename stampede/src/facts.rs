//! Turns the output of an attempt into the rows of its end.

use std::collections::BTreeMap;

use monitord_compat::job_output_reader::JobOutput;
use monitord_compat::record_reader::{OutputFile, Record};

use crate::rows::{AttemptEnd, HostRow, InvocationRow};
use crate::text::{self, Column, Metric, MetricKind};

/// Facts of an attempt from the log and the plan, for those that its output lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Background {
    /// Raw wait status.
    pub status: i64,
    /// Start on a worker, seconds since the epoch.
    pub started: Option<i64>,
    /// End, seconds since the epoch.
    pub done: i64,
    /// User who planned the workflow.
    pub user: Option<String>,
    /// The submit directory.
    pub submit_dir: Option<String>,
    /// Site in the arguments of the job.
    pub site: Option<String>,
    /// Transformation of its task, else its program.
    pub transformation: String,
    /// Program of the job.
    pub executable: String,
    /// Id of its task.
    pub task: Option<String>,
}

/// Rows of the end of an attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The attempt. The caller fills in the names of its files.
    pub end: AttemptEnd,
    /// Its invocations, numbered from 1.
    pub invocations: Vec<InvocationRow>,
    /// Its host.
    pub host: Option<HostRow>,
    /// Files that it wrote.
    pub outputs: Vec<OutputFile>,
    /// Checksum work by kind.
    pub metrics: BTreeMap<MetricKind, Metric>,
}

/// Facts from an error file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorText {
    /// The column.
    pub text: String,
    /// Host in the messages of PegasusLite.
    pub host: Option<String>,
    /// Checksum work by kind.
    pub metrics: Vec<(MetricKind, Metric)>,
}

impl ErrorText {
    /// Reads the text of an error file.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut metrics = Vec::new();
        let rest = text::without_payloads(text, |kind, metric| metrics.push((kind, metric)));
        let mut column = Column::default();
        column.push(&rest);
        let host = rest
            .lines()
            .filter(|line| line.contains("PegasusLite"))
            .find_map(|line| {
                let (_, host) = line.split_once("Executing on host ")?;
                host.split_whitespace().next().map(str::to_owned)
            });
        Self {
            text: column.finish(),
            host,
            metrics,
        }
    }
}

impl Facts {
    /// Combines all sources. `text` is the output of the job, if it could be read, and `output` its records.
    #[must_use]
    pub fn new(
        text: Option<&str>,
        output: JobOutput,
        errors: Option<ErrorText>,
        background: &Background,
    ) -> Self {
        let mut facts = Self {
            end: AttemptEnd {
                local_duration: background.started.map(|started| background.done - started),
                exitcode: background.status,
                ..AttemptEnd::default()
            },
            ..Self::default()
        };
        if let Some(summary) = &output.summary {
            facts.end.cluster_start = summary.start;
            facts.end.cluster_duration = summary.duration;
        }
        facts.place(&output, errors.as_ref(), background);
        let mut stdout = Column::default();
        if output.invocations.is_empty() {
            facts.without_record(&output, text, background, &mut stdout);
        }
        for (seq, mut record) in (1..).zip(output.invocations) {
            facts.streams(seq, &mut record, &mut stdout);
            facts.invocation(seq, record, background);
        }
        facts.end.stdout_text = Some(stdout.finish());
        if let Some(integrity) = output.integrity {
            let metric = Metric {
                count: integrity.succeeded.saturating_add(integrity.failed),
                failed: integrity.failed,
                seconds: integrity.duration,
            };
            facts.metric(("check", "input"), metric);
        }
        if let Some(errors) = errors {
            errors
                .metrics
                .iter()
                .for_each(|(kind, metric)| facts.metric(*kind, *metric));
            facts.end.stderr_text = Some(errors.text);
        }
        facts
    }

    fn metric(&mut self, kind: MetricKind, metric: Metric) {
        self.metrics.entry(kind).or_default().add(metric);
    }

    /// Sets site, user, directory and host from the first record, else from another source.
    fn place(&mut self, output: &JobOutput, errors: Option<&ErrorText>, background: &Background) {
        let record = output.invocations.first();
        let of_record =
            |field: fn(&Record) -> &Option<String>| record.and_then(|record| field(record).clone());
        let site = of_record(|record| &record.resource).or_else(|| background.site.clone());
        self.end.user = of_record(|record| &record.user).or_else(|| background.user.clone());
        self.end.work_dir = of_record(|record| &record.cwd).or_else(|| background.submit_dir.clone());
        // The record of the executor is the last one.
        let of_executor = output.tasks.iter().rev().find_map(|task| task.hostname.clone());
        let host_name = of_record(|record| &record.host_name)
            .or(of_executor)
            .or_else(|| errors?.host.clone());
        let address = of_record(|record| &record.host_address);
        if record.is_some() || host_name.is_some() {
            let uname = record.and_then(|record| match &record.uname {
                [Some(system), Some(release), Some(machine)] => Some(format!("{system}-{release}-{machine}")),
                _ => None,
            });
            self.host = Some(HostRow {
                site: site.clone().unwrap_or_else(unknown),
                hostname: host_name.unwrap_or_else(unknown),
                ip: address.unwrap_or_else(unknown),
                uname,
                total_memory: record.and_then(|record| record.ram_total),
            });
        }
        self.end.site = site.unwrap_or_default();
    }

    /// Adds the captured output of an invocation, with the marks that the analyzer searches for.
    fn streams(&mut self, seq: i64, record: &mut Record, column: &mut Column) {
        let mut found = Vec::new();
        let mut clean =
            |text: String| text::without_payloads(&text, |kind, metric| found.push((kind, metric)));
        if let Some(text) = record.stdout.take() {
            column.push(&format!("#@ {seq} stdout\n{}\n", clean(text)));
        }
        let stderr = record.stderr.take().map(&mut clean);
        // A blank replaces the line about a signal if there was none.
        let killed = record.main.raw_status.and_then(signal).map(|signal| {
            let name = record.main.signal_name.as_deref().unwrap_or("unknown");
            format!("Job was killed with signal {signal} ({name})\n")
        });
        if stderr.is_some() || killed.is_some() {
            let first = killed.unwrap_or_else(|| " ".to_owned());
            column.push(&format!(
                "#@ {seq} stderr\n{first}{}\n",
                stderr.unwrap_or_default()
            ));
        }
        found
            .into_iter()
            .for_each(|(kind, metric)| self.metric(kind, metric));
    }

    fn invocation(&mut self, seq: i64, record: Record, background: &Background) {
        let main = record.main;
        let duration = main.duration.unwrap_or_else(|| duration_of(background));
        let cpu = match (main.user_time, main.system_time) {
            (Some(user), Some(system)) => Some(user + system),
            (time, other) => time.or(other),
        };
        self.invocations.push(InvocationRow {
            task_submit_seq: seq,
            start_time: main.start.unwrap_or_else(|| start_of(background)),
            remote_duration: duration,
            remote_cpu_time: cpu,
            exitcode: main.raw_status.unwrap_or(background.status),
            transformation: record
                .transformation
                .unwrap_or_else(|| background.transformation.clone()),
            executable: main.executable.unwrap_or_else(|| background.executable.clone()),
            abs_task_id: match record.derivation {
                Some(derivation) => Some(derivation).filter(|derivation| derivation != "null"),
                None => background.task.clone(),
            },
            maxrss: main.max_rss,
            avg_cpu: cpu.filter(|_| duration > 0.0).map(|cpu| cpu / duration),
        });
        for output in record.outputs {
            let timing = output
                .checksum_timing
                .as_deref()
                .and_then(|timing| timing.parse().ok());
            if let Some(seconds) = timing.filter(|seconds: &f64| seconds.is_finite()) {
                self.metric(
                    ("compute", "output"),
                    Metric {
                        count: 1,
                        failed: 0,
                        seconds,
                    },
                );
            }
            self.outputs.push(output);
        }
    }

    /// Adds the invocation of a job without kickstart, or without output, as the executor measured it.
    fn without_record(
        &mut self,
        output: &JobOutput,
        text: Option<&str>,
        background: &Background,
        column: &mut Column,
    ) {
        let task = output.tasks.last();
        self.invocations.push(InvocationRow {
            task_submit_seq: 1,
            start_time: task
                .and_then(|task| task.start)
                .unwrap_or_else(|| start_of(background)),
            remote_duration: task
                .and_then(|task| task.duration)
                .unwrap_or_else(|| duration_of(background)),
            exitcode: background.status,
            transformation: background.transformation.clone(),
            executable: task
                .and_then(|task| task.app.clone())
                .unwrap_or_else(|| background.executable.clone()),
            abs_task_id: background.task.clone(),
            ..InvocationRow::default()
        });
        if let Some(text) = text {
            let mut found = Vec::new();
            let text = text::without_payloads(text, |kind, metric| found.push((kind, metric)));
            found
                .into_iter()
                .for_each(|(kind, metric)| self.metric(kind, metric));
            let end = text.rfind("[cluster-task ").unwrap_or(text.len());
            column.push(&format!("#@ 1 stdout\n{}", &text[..end]));
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// Returns the signal in a raw wait status.
fn signal(raw: i64) -> Option<i64> {
    Some(raw & 0x7f).filter(|signal| raw > 0 && *signal != 0)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "seconds since the epoch are far below 2^53"
)]
fn start_of(background: &Background) -> f64 {
    background.started.unwrap_or(background.done) as f64
}

#[expect(clippy::cast_precision_loss, reason = "seconds are far below 2^53")]
fn duration_of(background: &Background) -> f64 {
    background.started.map_or(0, |started| background.done - started) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn background() -> Background {
        Background {
            status: 9,
            started: Some(100),
            done: 107,
            user: Some("planner".to_owned()),
            submit_dir: Some("/run".to_owned()),
            site: Some("hpc".to_owned()),
            transformation: "work".to_owned(),
            executable: "/bin/work".to_owned(),
            task: Some("ID1".to_owned()),
        }
    }

    const TASK: &str = "[cluster-task id=1, name=a, start=\"1970-01-01T00:01:40.500+00:00\", duration=6.250, status=9, \
                        app=\"/bin/app\", hostname=\"n7\", slot=1, cpus=1, memory=0]\n";

    fn facts(text: Option<&str>) -> Facts {
        Facts::new(
            text,
            text.map(JobOutput::read).unwrap_or_default(),
            None,
            &background(),
        )
    }

    #[test]
    fn the_log_replaces_missing_output() {
        let facts = facts(None);
        assert_eq!(facts.invocations.len(), 1);
        let row = &facts.invocations[0];
        assert_eq!(
            (row.start_time, row.remote_duration, row.exitcode),
            (100.0, 7.0, 9)
        );
        assert_eq!((&*row.transformation, &*row.executable), ("work", "/bin/work"));
        assert_eq!(row.abs_task_id.as_deref(), Some("ID1"));
        assert_eq!(facts.end.local_duration, Some(7));
        assert_eq!(
            (&*facts.end.site, facts.end.work_dir.as_deref()),
            ("hpc", Some("/run"))
        );
        assert_eq!((facts.host, facts.end.stdout_text.as_deref()), (None, Some("")));
    }

    #[test]
    fn the_executor_measures_a_job_without_kickstart() {
        let facts = facts(Some(&format!("hello\n{TASK}")));
        let row = &facts.invocations[0];
        assert_eq!((row.start_time, row.remote_duration), (100.5, 6.25));
        assert_eq!(row.executable, "/bin/app");
        assert_eq!(facts.end.stdout_text.as_deref(), Some("#@ 1 stdout%0Ahello%0A"));
        let host = facts.host.unwrap();
        assert_eq!(
            (&*host.site, &*host.hostname, &*host.ip),
            ("hpc", "n7", "unknown")
        );
    }

    #[test]
    fn the_record_of_a_killed_job_names_the_signal() {
        let record = "- invocation: True\n  transformation: \"t\"\n  derivation: \"null\"\n  resource: \"s\"\n  user: u\n  \
             hostname: h\n  mainjob:\n    start: 1970-01-01T00:01:40.125+00:00\n    duration: 2.000\n    usage:\n      \
             utime: 1.000\n      stime: 0.500\n    status:\n      raw: 9\n      signalled_name: \"Killed\"\n  cwd: /w\n  \
             machine:\n    uname_system: linux\n    uname_release: 6.18\n    uname_machine: x\n    ram_total: 5\n  files:\n    \
             f:\n      size: 3\n      output: True\n      checksum_timing: 0.25\n";
        let facts = facts(Some(&format!("{record}{TASK}")));
        let row = &facts.invocations[0];
        assert_eq!(
            (row.start_time, row.remote_cpu_time, row.avg_cpu),
            (100.125, Some(1.5), Some(0.75))
        );
        assert_eq!((row.exitcode, row.abs_task_id.as_deref()), (9, None));
        let text = facts.end.stdout_text.as_deref();
        assert_eq!(
            text,
            Some("#@ 1 stderr%0AJob was killed with signal 9 (Killed)%0A%0A")
        );
        let host = facts.host.unwrap();
        assert_eq!(
            (host.uname.as_deref(), host.total_memory),
            (Some("linux-6.18-x"), Some(5))
        );
        assert_eq!(host.hostname, "h");
        let metric = Metric {
            count: 1,
            failed: 0,
            seconds: 0.25,
        };
        assert_eq!(facts.metrics[&("compute", "output")], metric);
    }

    #[test]
    fn an_error_file_names_the_host() {
        let errors = ErrorText::read("2026 PegasusLite: Executing on host n9 IP=1\nfailed\n");
        assert_eq!(errors.host.as_deref(), Some("n9"));
        assert_eq!(
            errors.text,
            "2026 PegasusLite: Executing on host n9 IP=1%0Afailed%0A"
        );
    }
}
