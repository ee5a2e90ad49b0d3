//! What a run is asked to do; the command line ([`crate::cli`]) and the front end make these.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::RawArgs;

/// How long what was written may take to be brought to the disk, unless the user says otherwise.
const DEFAULT_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// How long running tasks may go on after SIGTERM, unless the user says otherwise. Of the batch
/// systems that send SIGKILL some time later, PBS is the fastest: 10 seconds.
const DEFAULT_DRAIN_GRACE: Duration = Duration::from_secs(8);

/// Everything that the master needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// The DAG file.
    pub dag: PathBuf,
    /// Keep others from running the same DAG.
    pub lock: bool,
    /// The rescue file.
    pub rescue: PathBuf,
    /// Do not read it.
    pub skip_rescue: bool,
    /// How often to try a task that does not say so itself; at least 1.
    pub tries: u32,
    /// Stop after so many tasks have failed; 0 for no limit.
    pub max_failures: u32,
    /// End of the run, counted from its start, in minutes.
    pub max_wall_minutes: Option<f64>,
    /// How long running tasks may go on after SIGTERM. After SIGUSR1 they may as long as the run.
    pub drain_grace: Duration,
    /// `.dagman.out`.
    pub dagman_log: Option<PathBuf>,
    /// `jobstate.log`.
    pub jobstate_log: Option<PathBuf>,
    /// `.resource`.
    pub resource_log: Option<PathBuf>,
    /// The STAMPEDE database, written from `dagman_log` while the run goes on.
    pub stampede: Option<Stampede>,
    /// Where the output of the tasks goes.
    pub stdio: Stdio,
    /// Files for forwarded data that are kept open; the default depends on the system's limit.
    pub max_fds: Option<u32>,
    /// Keep forwarded data in its files exactly once by a journal beside the rescue file.
    pub forward_journal: bool,
    /// How long what was written may take to be brought to the disk; nothing to leave it to the
    /// system.
    pub sync_interval: Option<Duration>,
    /// Wait for the host scripts before the first task.
    pub host_script: bool,
    /// Write the summary record to stdout, and merged output to where it belongs.
    pub console: bool,
    /// Name of the program for the summary record.
    pub app: OsString,
}

/// Variables of the environment that say how to connect to the server of a database.
#[cfg(feature = "stampede")]
pub const SERVER_VARIABLES: [&str; 14] = pmc_stampede::client::VARIABLES;
/// No database, no server.
#[cfg(not(feature = "stampede"))]
pub const SERVER_VARIABLES: [&str; 0] = [];

/// How the STAMPEDE database is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stampede {
    /// The user's directory: the list of all workflows is there, and what PostgreSQL's programs keep.
    pub home: Option<PathBuf>,
    /// Those of [`SERVER_VARIABLES`] that are set.
    pub variables: Vec<(&'static str, OsString)>,
}

/// Where the output of tasks goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Each worker appends to its own files beside the DAG file; the master merges them.
    Merged {
        /// Standard output of all tasks.
        stdout: Target,
        /// Standard error of all tasks.
        stderr: Target,
    },
    /// Each try of a task has its own files in the folder of the DAG file.
    PerTask,
}

/// Where merged output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output of the master.
    Stdout,
    /// Standard error of the master.
    Stderr,
    /// A file, truncated.
    File(PathBuf),
}

impl Target {
    fn new(path: Option<PathBuf>, default: Self) -> Self {
        match path {
            None => default,
            Some(path) if path.as_os_str() == "stdout" => Self::Stdout,
            Some(path) if path.as_os_str() == "stderr" => Self::Stderr,
            Some(path) => Self::File(path),
        }
    }
}

/// What a worker needs to know besides.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The DAG file: names of output files are derived from it.
    pub dag: PathBuf,
    /// Each try of a task has its own files.
    pub per_task_stdio: bool,
    /// Report attempts that printed nothing: their files hold only the record.
    pub report_quiet: bool,
    /// Memory of the host in MB; 0 to find out.
    pub host_memory: u32,
    /// CPUs of the host; 0 to find out.
    pub host_cpus: u32,
    /// GPUs of the host; 0 to find out.
    pub host_gpus: u32,
    /// Limit the memory of tasks to what they asked for.
    pub strict_limits: bool,
    /// Bind tasks to the CPUs that were granted.
    pub set_affinity: bool,
    /// Program to run once on every host before the first task.
    pub host_script: Option<PathBuf>,
    /// How long a task may take that does not say so itself.
    pub runtime_limit: Option<Duration>,
    /// The kickstart of this installation. One that stays does its tasks; without it they start it.
    pub kickstart: Option<PathBuf>,
    /// Environment that tasks inherit.
    pub environment: Vec<(OsString, OsString)>,
}

impl Options {
    /// A run of `dag` with the defaults of the command line.
    #[must_use]
    pub fn new(dag: &Path, app: &OsStr) -> Self {
        Self {
            dag: dag.to_owned(),
            lock: true,
            rescue: with_suffix(dag, ".rescue"),
            skip_rescue: false,
            tries: 1,
            max_failures: 0,
            max_wall_minutes: None,
            drain_grace: DEFAULT_DRAIN_GRACE,
            dagman_log: None,
            jobstate_log: None,
            resource_log: Some(with_suffix(dag, ".resource")),
            stampede: None,
            stdio: Stdio::Merged {
                stdout: Target::Stdout,
                stderr: Target::Stderr,
            },
            max_fds: None,
            forward_journal: true,
            sync_interval: Some(DEFAULT_SYNC_INTERVAL),
            host_script: false,
            console: true,
            app: app.to_owned(),
        }
    }

    /// What the words of a command line mean.
    #[must_use]
    pub fn from_args(args: &RawArgs, app: &OsStr) -> Self {
        let mut options = Self::new(&args.dag, app);
        let dag = &args.dag;
        options.lock = !args.no_lock;
        if let Some(rescue) = &args.rescue {
            options.rescue.clone_from(rescue);
        }
        options.skip_rescue = args.skip_rescue;
        options.tries = args.tries.unwrap_or(1);
        options.max_failures = args.max_failures;
        options.max_wall_minutes = args.max_wall_time.filter(|minutes| *minutes > 0.0);
        if let Some(seconds) = args.drain_grace {
            // More than can be counted is as good as for ever.
            options.drain_grace = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        }
        if args.monitord_hack {
            options.dagman_log = Some(with_suffix(dag, ".dagman.out"));
        }
        if args.jobstate_log {
            options.jobstate_log = Some(folder(dag).join("jobstate.log"));
        }
        options.stampede = args.stampede.then(|| Stampede {
            home: args.home.clone(),
            variables: args.server_variables.clone(),
        });
        if args.no_resource_log {
            options.resource_log = None;
        }
        options.stdio = if args.per_task_stdio {
            Stdio::PerTask
        } else {
            Stdio::Merged {
                stdout: Target::new(args.stdout.clone(), Target::Stdout),
                stderr: Target::new(args.stderr.clone(), Target::Stderr),
            }
        };
        options.max_fds = args.max_fds;
        options.forward_journal = !args.no_forward_journal;
        if let Some(milliseconds) = args.sync_interval_ms {
            let interval = Duration::from_millis(milliseconds.into());
            options.sync_interval = Some(interval).filter(|interval| !interval.is_zero());
        }
        options.host_script = args.host_script.is_some();
        options
    }

    /// End of the run, counted from its start. Nothing if there is none or it is further away than
    /// can be counted.
    #[must_use]
    pub fn wall_limit(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.max_wall_minutes? * 60.0).ok()
    }
}

impl WorkerOptions {
    /// What the words of a command line mean for a worker.
    #[must_use]
    pub fn from_args(args: &RawArgs, environment: Vec<(OsString, OsString)>) -> Self {
        Self {
            dag: args.dag.clone(),
            per_task_stdio: args.per_task_stdio,
            report_quiet: args.stampede && args.per_task_stdio,
            host_memory: args.host_memory,
            host_cpus: args.host_cpus,
            host_gpus: args.host_gpus,
            strict_limits: args.strict_limits,
            set_affinity: args.set_affinity,
            host_script: args.host_script.clone(),
            // More than can be counted is no limit.
            runtime_limit: args
                .runtime_limit
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            kickstart: (!args.exec_kickstart).then(own_kickstart).flatten(),
            environment,
        }
    }
}

/// The kickstart of this installation: beside this program, whether it is there or not.
#[must_use]
pub fn own_kickstart() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.with_file_name("pegasus-kickstart"))
}

/// Path with something appended to its last part.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Folder of a file; `.` for a bare name.
pub(crate) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> RawArgs {
        RawArgs {
            dag: "run/x.dag".into(),
            ..RawArgs::default()
        }
    }

    #[test]
    fn names_of_files() {
        let options = Options::from_args(&args(), OsStr::new("pmc"));
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
        let options = Options::from_args(&args, OsStr::new("pmc"));
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
    fn words_for_the_streams() {
        let args = RawArgs {
            stdout: Some("stderr".into()),
            stderr: Some("e.txt".into()),
            ..args()
        };
        let Stdio::Merged { stdout, stderr } = Options::from_args(&args, OsStr::new("pmc")).stdio else {
            panic!("not merged");
        };
        assert_eq!((stdout, stderr), (Target::Stderr, Target::File("e.txt".into())));
    }

    #[test]
    fn wall_limits() {
        let limit = |minutes| {
            let args = RawArgs {
                max_wall_time: Some(minutes),
                ..args()
            };
            Options::from_args(&args, OsStr::new("pmc")).wall_limit()
        };
        assert_eq!(limit(0.05), Some(Duration::from_secs(3)));
        for none in [-1.0, 0.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(limit(none), None);
        }
    }
}
