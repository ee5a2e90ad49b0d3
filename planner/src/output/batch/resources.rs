//! What batch scripts ask for: from options, properties and profiles, checked for sense.

use std::path::PathBuf;

use crate::error::PlanError;
use crate::profiles::Profiles;
use crate::properties::Properties;
use crate::request::Request;
use crate::scheduler::Scheduler;

/// Nodes, processes per node and minutes when nobody says anything.
const NODES: u32 = 1;
const TASKS_PER_NODE: u32 = 2;
const MINUTES: u32 = 60;
/// Running tasks get a twelfth of the wall time to end, but no more than this, when nobody says anything.
const LONGEST_DRAIN: u32 = 10;
/// What is wrong with a job of one process.
const ONE_PROCESS: &str = "the batch job has one process, and pegasus-mpi-cluster needs two under MPI, a master and a \
                           worker: ask for more nodes or processes per node, or choose --launcher none";
/// Launchers that pass SIGUSR1 on to the executor.
const PASSES_ON: &[&str] = &["mpiexec", "mpirun", "srun", "none"];

/// What the scripts ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Schedulers that get a script; one for each suffix.
    pub(crate) schedulers: Vec<Scheduler>,
    /// Nodes.
    pub(crate) nodes: u32,
    /// Processes per node.
    pub(crate) tasks_per_node: u32,
    /// Wall time in minutes.
    pub(crate) minutes: u32,
    /// Nobody has asked for anything: the script for PBS is that of Pegasus.
    pub(crate) untouched: bool,
    /// The wall time was chosen by somebody.
    minutes_given: bool,
    /// One process, which is too few under MPI.
    alone: bool,
    /// Queue or partition.
    pub(crate) queue: Option<String>,
    /// Account or project.
    pub(crate) account: Option<String>,
    launcher: Option<String>,
    /// Size of a node, as far as it is known.
    pub(crate) node: NodeSize,
    /// Minutes before the executor's own limit at which it stops starting tasks, where somebody chose them.
    drain: Option<u32>,
    /// Shell commands that precede the run.
    pub(crate) setup: Option<String>,
    /// More directives, one a line, without the scheduler's prefix.
    pub(crate) directives: Vec<String>,
    /// The executor writes the database of the run.
    pub(crate) stampede: bool,
    /// Directory of the site's own templates.
    pub(crate) templates: Option<PathBuf>,
}

/// What a node has, where that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSize {
    /// CPUs.
    pub(crate) cpus: Option<u32>,
    /// MB of memory.
    pub(crate) memory_mb: Option<u64>,
}

impl NodeSize {
    /// Why a task with these needs fits on no node.
    pub(crate) fn problem(&self, task: &str, memory_mb: Option<u64>, cpus: Option<u32>) -> Option<String> {
        let too_much = |what: String, node: String, profile: &str| {
            format!(
                "the task {task} fits on no node: it asks for {what}, and a node has {node}; lower its profile \
                 pegasus::{profile} or ask for larger nodes"
            )
        };
        if let (Some(wanted), Some(there)) = (cpus, self.cpus)
            && wanted > there
        {
            return Some(too_much(format!("{wanted} CPUs"), there.to_string(), "cores"));
        }
        if let (Some(wanted), Some(there)) = (memory_mb, self.memory_mb)
            && wanted > there
        {
            return Some(too_much(
                format!("{wanted} MB of memory"),
                format!("{there} MB"),
                "memory",
            ));
        }
        None
    }
}

impl Resources {
    /// From the options, else properties `pegasus.batch.*`, else profiles of the site (over those in
    /// properties).
    ///
    /// # Errors
    /// Values that make no sense; all of them.
    pub(crate) fn new(
        request: &Request,
        properties: &Properties,
        site: &Profiles,
    ) -> Result<Self, PlanError> {
        let mut problems = Vec::new();
        let stampede = properties.get_bool("pegasus.batch.stampede", false)?;
        let raw = |property: &str, profile: Option<&str>| -> Option<String> {
            properties
                .get(&format!("pegasus.batch.{property}"))
                .or_else(|| site.pegasus(profile?))
                .or_else(|| properties.get(&format!("pegasus.{}", profile?)))
                .map(str::trim)
                .filter(|t| !t.is_empty())
                .map(str::to_owned)
        };
        let options = &request.batch;
        let mut number = |option: Option<u32>, property: &str, profile: Option<&str>, parse: Parse| {
            option.or_else(|| {
                let text = raw(property, profile)?;
                let number = (parse.read)(&text).filter(|&n| n >= parse.least);
                if number.is_none() {
                    let profile = profile.map_or(String::new(), |p| format!(" or the profile pegasus::{p}"));
                    problems.push(format!(
                        "the property pegasus.batch.{property}{profile} must be {}, not {text}",
                        parse.what
                    ));
                }
                number
            })
        };
        let nodes = number(options.nodes, "nodes", Some("nodes"), COUNT);
        let tasks_per_node = number(options.tasks_per_node, "ppn", Some("ppn"), COUNT);
        let minutes = number(options.walltime, "walltime", Some("maxwalltime"), TIME);
        let cpus = number(options.node_cpus, "node.cpus", None, COUNT);
        let memory = number(options.node_memory, "node.memory", None, MEMORY);
        let drain = number(options.drain, "drain", None, DRAIN);
        // A line break would begin a line of the script that nobody asked for.
        let mut word = |option: &Option<String>, property: &str, profile: Option<&str>, blanks: bool| {
            let text = option.clone().or_else(|| raw(property, profile))?;
            let bad = |c: char| c.is_control() || (!blanks && c.is_whitespace());
            if text.contains(bad) {
                problems.push(format!(
                    "the {property} of the batch job must be {}, not {text:?}",
                    if blanks { "one line" } else { "one word" }
                ));
            }
            Some(text)
        };
        let queue = word(&options.queue, "queue", Some("queue"), false);
        let account = word(&options.account, "account", Some("project"), false);
        let launcher = word(&options.launcher, "launcher", Some("batch.launcher"), true);
        let schedulers = schedulers(request, raw("scheduler", None).as_deref(), &mut problems);
        let directives: Vec<String> = raw("directives", Some("glite.arguments"))
            .unwrap_or_default()
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect();
        let setup = raw("setup", None);
        if let (Some(ppn), Some(cpus)) = (tasks_per_node, cpus)
            && ppn > cpus
        {
            problems.push(format!(
                "{ppn} processes per node are asked for, and a node has {cpus} CPUs"
            ));
        }
        let untouched = nodes.is_none()
            && tasks_per_node.is_none()
            && minutes.is_none()
            && cpus.is_none()
            && memory.is_none()
            && drain.is_none()
            && launcher.is_none()
            && setup.is_none()
            && directives.is_empty();
        let ranks = u64::from(nodes.unwrap_or(NODES)) * u64::from(tasks_per_node.unwrap_or(TASKS_PER_NODE));
        let alone = ranks < 2 && launcher.as_deref() != Some("none");
        if alone && (options.nodes.is_some() || options.tasks_per_node.is_some()) {
            problems.push(ONE_PROCESS.into());
        }
        if let Some(launcher) = &launcher
            && (launcher.contains([';', '|', '&', '<', '>', '`'])
                || launcher
                    .split_whitespace()
                    .next()
                    .is_some_and(|first| first.contains('=')))
        {
            problems.push(format!(
                "the launcher must be a program and its arguments, not {launcher}; put settings into the property \
                 pegasus.batch.setup"
            ));
        }
        if !problems.is_empty() {
            return Err(PlanError::Refinement(problems));
        }
        let templates = options.template_dir.clone().or_else(|| {
            let directory = properties.get("pegasus.batch.templates").map(str::trim)?;
            (!directory.is_empty()).then(|| request.environment.working_dir.join(directory))
        });
        Ok(Resources {
            schedulers,
            nodes: nodes.unwrap_or(NODES),
            tasks_per_node: tasks_per_node.unwrap_or(TASKS_PER_NODE),
            minutes: minutes.unwrap_or(MINUTES),
            untouched,
            minutes_given: minutes.is_some(),
            alone,
            queue,
            account,
            launcher,
            node: NodeSize {
                cpus,
                memory_mb: memory.map(u64::from),
            },
            drain,
            setup,
            directives,
            stampede,
            templates,
        })
    }

    /// Processes in all.
    pub(crate) fn ranks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.tasks_per_node)
    }

    /// CPUs for each process, if the size of a node is known.
    pub(crate) fn cpus_per_task(&self) -> Option<u32> {
        self.node.cpus.map(|cpus| (cpus / self.tasks_per_node).max(1))
    }

    /// What starts the processes.
    pub(crate) fn launcher(&self, scheduler: Scheduler) -> String {
        match (&self.launcher, scheduler) {
            (Some(launcher), _) => launcher.clone(),
            (None, Scheduler::Flux) => format!("flux run --nodes={} --ntasks={}", self.nodes, self.ranks()),
            (None, Scheduler::Cobalt) => {
                format!("aprun -n {} -N {}", self.ranks(), self.tasks_per_node)
            }
            (None, _) => "mpiexec".into(),
        }
    }

    /// Minutes after which the executor ends the run itself; some are left for that. Only the script for PBS of
    /// which nobody chose the wall time keeps the figures of Pegasus.
    pub(crate) fn max_wall_time(&self, scheduler: Scheduler) -> u32 {
        match self.minutes {
            minutes if !self.minutes_given && scheduler.suffix() == "pbs" => minutes,
            minutes if minutes > 10 => minutes - 5,
            minutes => minutes.saturating_sub(1).max(1),
        }
    }

    /// Minutes from the start of the job to the signal after which no task is started; none without such a
    /// signal. Unasked it is sent only by a scheduler that can, and only to launchers that pass it on.
    pub(crate) fn drain_after(&self, scheduler: Scheduler) -> Option<u32> {
        let launcher = self.launcher.as_deref().unwrap_or("mpiexec");
        let first = launcher.split_whitespace().next().unwrap_or_default();
        let program = first.rsplit('/').next().unwrap_or_default();
        let limit = self.max_wall_time(scheduler);
        let lead = match self.drain {
            Some(minutes) => minutes,
            None if scheduler == Scheduler::Slurm && PASSES_ON.contains(&program) => {
                (self.minutes / 12).min(LONGEST_DRAIN)
            }
            None => 0,
        };
        (lead > 0 && lead < limit).then(|| limit - lead)
    }

    /// What is odd about them.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.alone {
            warnings.push(ONE_PROCESS.into());
        }
        if self.launcher.as_deref() == Some("none") && self.nodes > 1 {
            warnings.push(format!(
                "the launcher none starts the executor on one node only; {} nodes are asked for",
                self.nodes
            ));
        }
        if let Some(drain) = self.drain
            && self.schedulers.iter().any(|&s| drain >= self.max_wall_time(s))
        {
            warnings.push(format!(
                "no task would be started in the last {drain} minutes of a job of {} minutes, that is never: the \
                 signal for that is left out",
                self.minutes
            ));
        }
        warnings
    }
}

/// How a number is read.
#[derive(Clone, Copy)]
struct Parse {
    read: fn(&str) -> Option<u32>,
    least: u32,
    what: &'static str,
}

const COUNT: Parse = Parse {
    read: |text| text.parse().ok(),
    least: 1,
    what: "a positive number",
};
const TIME: Parse = Parse {
    read: parse_minutes,
    least: 1,
    what: "a positive number of minutes or HH:MM:SS",
};
const DRAIN: Parse = Parse {
    read: parse_minutes,
    least: 0,
    what: "a number of minutes or HH:MM:SS",
};
const MEMORY: Parse = Parse {
    read: parse_megabytes,
    least: 1,
    what: "a number of MB, or a number with M, G or T",
};

/// The schedulers that get a script: those of PBS and Slurm always, others when they are named.
fn schedulers(request: &Request, property: Option<&str>, problems: &mut Vec<String>) -> Vec<Scheduler> {
    let mut wanted = request.batch.schedulers.clone();
    if wanted.is_empty() {
        for name in property
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            match Scheduler::parse(name) {
                Some(scheduler) => wanted.push(scheduler),
                None => problems.push(format!(
                    "the property pegasus.batch.scheduler: {}",
                    Scheduler::unknown(name)
                )),
            }
        }
    }
    if wanted.is_empty() {
        wanted.extend(request.batch.detected);
    }
    let mut all: Vec<Scheduler> = Vec::new();
    for scheduler in wanted {
        match all.iter().find(|known| known.suffix() == scheduler.suffix()) {
            Some(&known) if known != scheduler => problems.push(format!(
                "the scripts for {known} and {scheduler} would have one name: choose one of the two"
            )),
            Some(_) => {}
            None => all.push(scheduler),
        }
    }
    for scheduler in [Scheduler::Torque, Scheduler::Slurm] {
        if !all.iter().any(|known| known.suffix() == scheduler.suffix()) {
            all.push(scheduler);
        }
    }
    all
}

/// Minutes from `N` (minutes), `HH:MM` or `HH:MM:SS`, `D-HH:MM:SS`; seconds are rounded up.
pub(crate) fn parse_minutes(text: &str) -> Option<u32> {
    let text = text.trim();
    if let Ok(minutes) = text.parse::<u32>() {
        return Some(minutes);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u32>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<u32> = clock
        .split(':')
        .map(|part| {
            part.parse()
                .ok()
                .filter(|_| part.bytes().all(|b| b.is_ascii_digit()))
        })
        .collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match parts.as_slice() {
        [h, m] => (*h, *m, 0),
        [h, m, s] => (*h, *m, *s),
        _ => return None,
    };
    days.checked_mul(24 * 60)?
        .checked_add(hours.checked_mul(60)?)?
        .checked_add(minutes)?
        .checked_add(seconds.div_ceil(60))
}

/// MB from `N` (MB) or a number with the unit M, G or T (with or without B), in powers of 1024.
pub(crate) fn parse_megabytes(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let factor = match text[digits.len()..].trim().to_ascii_uppercase().as_str() {
        "" | "M" | "MB" => 1,
        "G" | "GB" => 1024,
        "T" | "TB" => 1024 * 1024,
        _ => return None,
    };
    digits.parse::<u32>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_times() {
        assert_eq!(parse_minutes("90"), Some(90));
        assert_eq!(parse_minutes("1:30"), Some(90));
        assert_eq!(parse_minutes("01:30:01"), Some(91));
        assert_eq!(parse_minutes("2-00:00:00"), Some(2880));
        assert_eq!(parse_minutes("soon"), None);
        assert_eq!(parse_minutes("1:-3"), None);
        assert_eq!(parse_minutes("1:2:3:4"), None);
    }

    #[test]
    fn memory_sizes() {
        assert_eq!(parse_megabytes("512"), Some(512));
        assert_eq!(parse_megabytes("64G"), Some(65536));
        assert_eq!(parse_megabytes("1 tb"), Some(1 << 20));
        assert_eq!(parse_megabytes("64K"), None);
        assert_eq!(parse_megabytes("G"), None);
        assert_eq!(parse_megabytes("9999999G"), None);
    }

    #[test]
    fn a_task_that_fits_nowhere_is_named_with_the_size_of_the_node() {
        let node = NodeSize {
            cpus: Some(4),
            memory_mb: Some(1000),
        };
        assert_eq!(node.problem("t", Some(1000), Some(4)), None);
        let problem = node.problem("big", None, Some(5)).expect("too many CPUs");
        assert!(problem.contains("the task big"), "{problem}");
        assert!(problem.contains("5 CPUs, and a node has 4"), "{problem}");
        let problem = node.problem("big", Some(1001), Some(1)).expect("too much memory");
        assert!(
            problem.contains("1001 MB of memory, and a node has 1000 MB"),
            "{problem}"
        );
        assert_eq!(NodeSize::default().problem("t", Some(1 << 40), Some(999)), None);
    }
}
