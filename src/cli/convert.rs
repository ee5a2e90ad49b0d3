//! Turns the words of the command line into the options of a run.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use super::RawArgs;
use crate::options::{
    DEFAULT_FORWARD_LIMIT, DEFAULT_STOP_GRACE, Options, SITE_DRAIN_FILE, Stampede, Stdio, Target,
    WorkerOptions, folder, is_device, own_kickstart, with_suffix,
};

impl RawArgs {
    /// Returns the options of the master; `app` is the name of the program.
    #[must_use]
    pub fn options(&self, app: &OsStr) -> Options {
        let mut options = Options::new(&self.dag, app);
        let dag = &self.dag;
        options.accept_incomplete = self.accept_incomplete;
        options.lock = !self.no_lock;
        if let Some(rescue) = &self.rescue {
            options.rescue.clone_from(rescue);
        }
        options.skip_rescue = self.skip_rescue;
        options.tries = self.tries.unwrap_or(1);
        options.more_memory_percent = self.more_memory_percent.unwrap_or(100);
        options.user.clone_from(&self.user);
        options.retry_delay = self.retry_delay;
        options.max_failures = self.max_failures;
        if let Some(limit) = self.bad_host_limit {
            options.bad_host_limit = limit;
        }
        if let Some(limit) = self.crash_limit {
            options.crash_limit = limit;
        }
        options.max_jobs.clone_from(&self.max_jobs);
        if let Some(limit) = self.max_plans {
            options.max_plans = limit;
        }
        options.max_wall_minutes = self.max_wall_time.filter(|minutes| *minutes > 0.0);
        options.asks_time_left = self.asks_time_left;
        options.stop_grace = match self.stop_grace {
            // A time that does not fit ends tasks at once.
            Some(seconds) => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            None if self.asks_time_left => DEFAULT_STOP_GRACE,
            None => Duration::ZERO,
        };
        // Most sites have no such directory: nothing is to be looked for then.
        let site = PathBuf::from(SITE_DRAIN_FILE);
        let has_site = || folder(&site).is_dir();
        options.drain_file = self
            .drain_file
            .clone()
            .or_else(|| has_site().then_some(site.clone()));
        if let Some(seconds) = self.drain_grace {
            // A time that does not fit is as good as unlimited.
            options.drain_grace = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        }
        if self.monitord_hack {
            options.dagman_log = Some(with_suffix(dag, ".dagman.out"));
        }
        if self.jobstate_log {
            options.jobstate_log = Some(folder(dag).join("jobstate.log"));
        }
        options.stampede = self.stampede.then(|| Stampede {
            home: self.home.clone(),
            variables: self.server_variables.clone(),
        });
        if self.no_resource_log {
            options.resource_log = None;
        }
        options.stdio = if self.packed_output {
            Stdio::Packed
        } else if self.per_task_stdio {
            Stdio::PerTask
        } else {
            Stdio::Merged {
                stdout: target(self.stdout.clone(), Target::Stdout),
                stderr: target(self.stderr.clone(), Target::Stderr),
            }
        };
        options.pmix = self.pmix;
        options.batch_job.clone_from(&self.batch_job);
        options.worker_files = self.worker_files();
        options.max_fds = self.max_fds;
        options.forward_journal = !self.no_forward_journal;
        if let Some(milliseconds) = self.sync_interval_ms {
            let interval = Duration::from_millis(milliseconds.into());
            options.sync_interval = Some(interval).filter(|interval| !interval.is_zero());
        }
        if let Some(mib) = self.disk_reserve_mib {
            options.disk_reserve = Some(u64::from(mib) << 20);
        }
        options.host_script = self.host_script.is_some();
        options
    }

    /// Returns the options of the workers; `environment` is that of this process.
    #[must_use]
    pub fn worker_options(&self, environment: Vec<(OsString, OsString)>) -> WorkerOptions {
        WorkerOptions {
            dag: self.dag.clone(),
            per_task_stdio: self.per_task_stdio,
            worker_files: self.worker_files(),
            lock_worker_files: self.no_lock,
            host_name: self.host_name.clone(),
            host_memory: self.host_memory,
            host_cpus: self.host_cpus,
            host_gpus: self.host_gpus,
            strict_limits: self.strict_limits,
            watch_memory: self.watch_memory,
            set_affinity: self.set_affinity,
            host_script: self.host_script.clone(),
            // A time that does not fit is no limit.
            runtime_limit: self
                .runtime_limit
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            forward_limit: self
                .forward_limit_mib
                .map_or(DEFAULT_FORWARD_LIMIT, |mib| u64::from(mib) << 20),
            kickstart: (!self.exec_kickstart).then(own_kickstart).flatten(),
            environment,
            away: None,
            channels: None,
            nodes: None,
        }
    }

    /// Returns the path of the workers' output files, without suffixes. Runs of one DAG that may overlap have
    /// rescue files of their own, and these keep the output files apart.
    fn worker_files(&self) -> PathBuf {
        let own_rescue = self.rescue.as_ref().filter(|rescue| {
            self.no_lock && **rescue != with_suffix(&self.dag, ".rescue") && !is_device(rescue)
        });
        own_rescue.unwrap_or(&self.dag).clone()
    }
}

/// The words `stdout` and `stderr` name the streams of the master.
fn target(path: Option<PathBuf>, default: Target) -> Target {
    match path {
        None => default,
        Some(path) if path.as_os_str() == "stdout" => Target::Stdout,
        Some(path) if path.as_os_str() == "stderr" => Target::Stderr,
        Some(path) => Target::File(path),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn args() -> RawArgs {
        RawArgs {
            dag: "run/x.dag".into(),
            ..RawArgs::default()
        }
    }

    #[test]
    fn files_lie_beside_the_dag() {
        let options = args().options(OsStr::new("pmc"));
        assert_eq!(options.rescue, Path::new("run/x.dag.rescue"));
        assert_eq!(
            options.resource_log.as_deref(),
            Some(Path::new("run/x.dag.resource"))
        );
        assert_eq!((options.dagman_log, options.jobstate_log), (None, None));
        let args = RawArgs {
            monitord_hack: true,
            jobstate_log: true,
            no_resource_log: true,
            ..args()
        };
        let options = args.options(OsStr::new("pmc"));
        assert_eq!(
            options.dagman_log.as_deref(),
            Some(Path::new("run/x.dag.dagman.out"))
        );
        assert_eq!(
            options.jobstate_log.as_deref(),
            Some(Path::new("run/jobstate.log"))
        );
        assert_eq!(options.resource_log, None);
        assert_eq!(folder(Path::new("x.dag")), Path::new("."));
    }

    #[test]
    fn words_name_the_streams_of_the_master() {
        let args = RawArgs {
            stdout: Some("stderr".into()),
            stderr: Some("e.txt".into()),
            ..args()
        };
        let Stdio::Merged { stdout, stderr } = args.options(OsStr::new("pmc")).stdio else {
            panic!("not merged");
        };
        assert_eq!((stdout, stderr), (Target::Stderr, Target::File("e.txt".into())));
    }

    #[test]
    fn runs_that_may_overlap_have_their_own_worker_files() {
        let files = |no_lock, rescue: &str| {
            let args = RawArgs {
                no_lock,
                rescue: Some(rescue.into()),
                ..args()
            };
            let files = args.options(OsStr::new("pmc")).worker_files;
            let worker = args.worker_options(Vec::new());
            assert_eq!(
                (&worker.worker_files, worker.lock_worker_files),
                (&files, no_lock)
            );
            files
        };
        assert_eq!(files(true, "other/b.rescue"), Path::new("other/b.rescue"));
        for (no_lock, rescue) in [
            (false, "b.rescue"),
            (true, "run/x.dag.rescue"),
            (true, "/dev/null"),
        ] {
            assert_eq!(files(no_lock, rescue), Path::new("run/x.dag"), "{rescue}");
        }
    }

    #[test]
    fn wall_time_is_limited_only_by_positive_finite_minutes() {
        let limit = |minutes| {
            let args = RawArgs {
                max_wall_time: Some(minutes),
                ..args()
            };
            args.options(OsStr::new("pmc")).wall_limit()
        };
        assert_eq!(limit(0.05), Some(Duration::from_secs(3)));
        for none in [-1.0, 0.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(limit(none), None);
        }
    }
}
