//! A workflow of steps that was submitted to Slurm.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monitord_compat::batch_jobs::{self, Event};

use crate::support::pegasus::Monitored;
use crate::support::programs::{Build, PLAN_IN_SUBMIT_RUN};
use crate::support::slurm::Cluster;

const SITES: &str = r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: @DIR@/scratch, fileServers: [{url: "file://@DIR@/scratch", operation: all}]}
"#;

/// A program of steps of a second. At USR1 it saves its work for two seconds, ends with 85, and goes on with
/// the next step in its next attempt. Two attempts at a time are noted.
const STEPS: &str = "#!/bin/sh
exec 9>>@DIR@/lock.$1
flock -n 9 || echo \"$1\" >>@DIR@/overlaps
echo \"$1\" >>@DIR@/begun
trap 'sleep 2 9>&-; exit 85' USR1
i=$(tail -n 1 @DIR@/steps.$1 2>/dev/null || echo 0)
i=${i:-0}
while [ \"$i\" -lt \"$2\" ]; do sleep 1 9>&-; i=$((i + 1)); echo $i >>@DIR@/steps.$1; done
";

/// A workflow that was submitted to Slurm.
pub(super) struct Submitted {
    directory: tempfile::TempDir,
    /// Its DAG file.
    pub(super) dag: PathBuf,
    /// Its first batch job.
    pub(super) job: String,
}

impl Submitted {
    /// Submits this number of jobs with this number of steps.
    pub(super) fn new(cluster: &Cluster, tasks: usize, steps: usize, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        let put = |name: &str, text: &str| {
            let text = text.replace("@DIR@", &top.display().to_string());
            fs::write(top.join(name), text).expect("an input");
        };
        let mut workflow = String::from("pegasus: \"5.0\"\nname: steps\njobs:\n");
        for task in 0..tasks {
            workflow.push_str(&format!(
                "- {{type: job, id: S{task}, name: steps, arguments: [@DIR@/steps.sh, {task}, {steps}], uses: [], \
                 profiles: {{pegasus: {{pmc_checkpoint_signal: USR1@3, pmc_checkpoint_exit: '85'}}}}}}\n"
            ));
        }
        put("workflow.yml", &workflow);
        put("sites.yml", SITES);
        put("steps.sh", STEPS);
        put(
            "transformations.yml",
            "pegasus: \"5.0\"\ntransformations:\n- {name: steps, sites: [{name: local, type: installed, pfn: /bin/sh}]}\n",
        );
        let result = cluster
            .job_command(Build::Local.program("pmc-plan"))
            .in_directory(top)
            .args(PLAN_IN_SUBMIT_RUN)
            .args(["--cleanup", "none", "-Dpegasus.memory=1"])
            .args(["--ntasks-per-node", "2"])
            .args(options)
            .args(["--submit", "--json", "workflow.yml"])
            .run()
            .ok();
        let object: serde_json::Value = serde_json::from_str(&result.stdout).expect("JSON");
        let text = |key: &str| object[key].as_str().expect("a text").to_owned();
        let dag = fs::read_dir(text("submit_dir"))
            .expect("a directory")
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|ending| ending == "dag"));
        Self {
            dag: dag.expect("a DAG"),
            job: text("job_id"),
            directory,
        }
    }

    /// The directory of the plan, in which nothing else is.
    pub(super) fn home(&self) -> &Path {
        self.directory.path()
    }

    /// The run, for Pegasus' monitoring.
    pub(super) fn monitored(&self) -> Monitored<'_> {
        Monitored {
            submit: self.dag.parent().expect("a directory"),
            home: self.home(),
        }
    }

    pub(super) fn lines(&self, name: &str) -> Vec<usize> {
        let text = fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    pub(super) fn events(&self) -> Vec<(String, Event)> {
        let entries = batch_jobs::read(&self.dag).into_iter();
        entries.map(|entry| (entry.job, entry.event)).collect()
    }

    /// The jobs that have ended, and how.
    pub(super) fn ends(&self) -> Vec<String> {
        let ends = self.events().into_iter().filter_map(|(_, event)| match event {
            Event::End { end, action, .. } => Some(format!("{end} {action}")),
            _ => None,
        });
        ends.collect()
    }

    /// What a test that fails shows.
    pub(super) fn details(&self) -> String {
        let base = self.dag.with_extension("");
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let mut text = format!("{:#?}\n", self.events());
        for ending in ["out", "err"] {
            text += &read(&base.with_extension(ending));
        }
        text
    }

    pub(super) fn assert_no_step_was_lost_or_doubled(&self, tasks: usize, steps: usize) {
        for task in 0..tasks {
            let done = self.lines(&format!("steps.{task}"));
            assert_eq!(done, (1..=steps).collect::<Vec<_>>(), "{}", self.details());
        }
        assert!(self.lines("overlaps").is_empty(), "{}", self.details());
    }
}

/// Waits until something is so.
pub(super) fn wait_until(
    what: &str,
    seconds: u64,
    details: impl Fn() -> String,
    mut is_so: impl FnMut() -> bool,
) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(seconds),
            "{what}: {}",
            details()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}
