//! `pmc simulate`: how long a plan would run on other nodes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use pegasus_mpi_cluster::simulate::{Cluster, Losses, Saving, Simulated, Workload, simulate as run};
use pegasus_mpi_cluster::{HostSize, Registration, describe_host};
use pmc_checkpoint::{NODE_HOURS, best_interval};
use pmc_control::memory;
use pmc_dag::Dag;
use pmc_monitor::history::{History, MAX_DEPTH, Seen, seconds};
use pmc_monitor::kinds::Kind;
use pmc_terminal::print;
use serde_json::{Value, json};

use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::table::{Align, Table, thousands};
use crate::text;
use crate::wfformat::{self, Instance};

/// Version of the JSON form.
const VERSION: &str = "1.1";
/// Run time of an auxiliary job that has not run, in seconds.
const AUXILIARY_SECONDS: f64 = 1.0;
/// Largest number of nodes that is tried without `--nodes`.
const MOST_NODES: u32 = 1024;
/// Twice the nodes must save this share of the time, or no more are tried.
const WORTHWHILE: f64 = 0.02;

/// The shortest time from one save to the next.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Simulates a run on the numbers of nodes that the user asks for. Returns the exit code.
pub fn simulate(arguments: &cli::Simulate) -> Result<u8, Failure> {
    let subject = Subject::open(arguments)?;
    let mut rows = Vec::new();
    for &nodes in &arguments.nodes {
        rows.push(one(&subject, nodes.get(), arguments)?);
    }
    if rows.is_empty() {
        rows = doubling(&subject, arguments)?;
    }
    let best = cheapest(&rows, arguments.walltime.map(|minutes| minutes * 60.0));
    let shown = Shown {
        subject: &subject,
        rows: &rows,
        best,
    };
    print(&if arguments.json {
        format!("{:#}\n", json_value(&shown, arguments))
    } else {
        human(&shown, arguments)
    });
    Ok(exit::SUCCESS)
}

/// What is simulated.
struct Subject {
    label: String,
    workload: Workload,
    /// Tasks whose own time is not known.
    guessed: usize,
    node: Node,
    /// Nodes and wall time of the recorded run, if there is one.
    recorded: Option<(usize, f64)>,
}

impl Subject {
    /// Opens a run, a plan, or an instance of WfFormat.
    fn open(arguments: &cli::Simulate) -> Result<Self, Failure> {
        if let Some(path) = &arguments.dir
            && let Some(instance) = Instance::read(path).or_code(exit::NOT_RUN)?
        {
            return Self::of_instance(&instance, arguments);
        }
        let dir = layout::given_or_latest(arguments.dir.as_deref(), arguments.json);
        let history = History::open(layout::find_run(&dir)?).or_code(exit::NOT_RUN)?;
        let mut guessed = 0;
        let workload = workload(
            &history,
            &arguments.times,
            (0, &mut Seen::default()),
            &mut guessed,
        )?;
        let capacities = history.hosts.all().iter().map(|host| host.capacity);
        let largest = capacities
            .filter(|capacity| capacity.slots > 0)
            .max_by_key(|capacity| capacity.slots)
            .map(|capacity| (capacity.slots, capacity.cpus, capacity.memory_mb));
        Ok(Self {
            node: node(largest, &workload, arguments),
            recorded: recorded(&history),
            label: history.dir.label,
            workload,
            guessed,
        })
    }

    fn of_instance(instance: &Instance, arguments: &cli::Simulate) -> Result<Self, Failure> {
        let wfformat::Recorded {
            dag,
            seconds,
            execution,
        } = wfformat::recorded(instance).or_code(exit::NOT_RUN)?;
        let set = arguments.times.iter().rev().find(|set| set.transformation == "*");
        let other = set.map(|set| set.seconds);
        let guessed = seconds.iter().filter(|time| time.is_none()).count();
        if guessed > 0 && other.is_none() {
            let error = anyhow!("no run time is known of {}", text::count(guessed, "task"));
            return Err(Failure::new(exit::USAGE, error)
                .hint("say how long such a task runs, such as --set '*.time=60'".to_owned()));
        }
        let times = seconds.into_iter().map(|time| time.or(other).unwrap_or(0.0));
        let workload = Workload {
            dag: Arc::new(dag),
            times: times.map(duration).collect(),
            nested: BTreeMap::new(),
        };
        Ok(Self {
            label: instance.name.clone(),
            node: node(None, &workload, arguments),
            workload,
            guessed,
            recorded: execution,
        })
    }
}

/// Returns the tasks of a run, those of its sub-workflows included. Counts the tasks whose own time is not
/// known.
fn workload(
    history: &History,
    set: &[cli::TimeOf],
    (depth, seen): (usize, &mut Seen),
    guessed: &mut usize,
) -> Result<Workload, Failure> {
    let dag = Dag::open(&history.dir.dag)
        .map_err(|error| anyhow!("{}: {error}", history.dir.dag.display()))
        .or_code(exit::NOT_RUN)?;
    let mut nested = BTreeMap::new();
    if depth < MAX_DEPTH {
        for task in history.plan.subdags() {
            let run = history.nested(task, seen).filter(|run| run.dir.dag.exists());
            if let (Some(run), Some(task)) = (run, dag.find(history.plan.name(task))) {
                nested.insert(task, workload(&run, set, (depth + 1, seen), guessed)?);
            }
        }
    }
    let mut times = times(history, &dag, set, guessed)?;
    for task in nested.keys() {
        // Its record is the time of all of its tasks. What planning took is not in the logs.
        times[task.index()] = duration(AUXILIARY_SECONDS);
    }
    let dag = Arc::new(dag);
    Ok(Workload { dag, times, nested })
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
}

/// Returns the run times of all tasks: the recorded one of each, else the mean of its transformation. `set`
/// replaces both. Counts the tasks whose own time is not known.
fn times(
    history: &History,
    dag: &Dag,
    set: &[cli::TimeOf],
    guessed: &mut usize,
) -> Result<Vec<Duration>, Failure> {
    let classes = history.plan.classes();
    let mut own: Vec<Option<f64>> = vec![None; dag.len()];
    let mut sums = vec![(0.0, 0_u32); classes.len()];
    for attempt in history.attempts.iter().filter(|attempt| attempt.succeeded()) {
        let Some(duration) = attempt.duration() else {
            continue;
        };
        let time = seconds(duration);
        let sum = &mut sums[history.plan.class_index(attempt.task)];
        *sum = (sum.0 + time, sum.1 + 1);
        if let Some(task) = dag.find(history.plan.name(attempt.task)) {
            own[task.index()] = Some(time);
        }
    }
    let given = |name: &str| {
        let matching = set.iter().rev();
        let mut exact = matching.clone().filter(|set| set.transformation == name);
        let mut any = matching.filter(|set| set.transformation == "*");
        exact.next().or_else(|| any.next()).map(|set| set.seconds)
    };
    let mut unknown: Vec<&str> = Vec::new();
    let mut times = Vec::with_capacity(dag.len());
    for task in dag.ids() {
        let class = history
            .plan
            .find(dag.name(task))
            .map(|task| history.plan.class_index(task));
        let name = class.map_or("", |class| classes[class].transformation.as_str());
        let exact = set.iter().any(|set| set.transformation == name);
        let recorded = own[task.index()].filter(|_| !exact);
        let mean = class.and_then(|class| {
            let (sum, count) = sums[class];
            (count > 0 && !exact).then(|| sum / f64::from(count))
        });
        let is_auxiliary = class.is_some_and(|class| classes[class].kind != Kind::Compute);
        let auxiliary = is_auxiliary.then_some(AUXILIARY_SECONDS);
        *guessed += usize::from(recorded.is_none());
        let time = recorded.or(mean).or_else(|| given(name)).or(auxiliary);
        if time.is_none() && !unknown.contains(&name) {
            unknown.push(name);
        }
        times.push(duration(time.unwrap_or(0.0)));
    }
    if let Some(first) = unknown.first() {
        let all = unknown.join(", ");
        let error = anyhow!("no run time is known of: {all}");
        return Err(Failure::new(exit::USAGE, error)
            .hint(format!("say how long a task runs, such as --set {first}.time=60")));
    }
    Ok(times)
}

/// A node of the simulated run, and its slots.
struct Node {
    registration: Registration,
    slots: u32,
}

/// Returns a node with the slots, CPUs and MiB of `largest`, the largest node of the recorded run. Without
/// it, the node is like this machine. Options replace the values.
fn node(largest: Option<(u32, u32, u64)>, workload: &Workload, arguments: &cli::Simulate) -> Node {
    let here = describe_host(None, HostSize::default(), &[]);
    let (slots, cpus, memory_mb) = largest.unwrap_or((here.threads, here.threads, here.memory_mb));
    let cpus = arguments.node_cpus.map_or(cpus, NonZeroU32::get);
    let slots = arguments
        .node_slots
        .or(arguments.node_cpus)
        .map_or(slots, NonZeroU32::get);
    // The logs do not tell the GPUs of a node: it has as many as the task that requests most.
    let gpus = most_gpus(workload);
    Node {
        registration: Registration {
            host: String::new(),
            memory_mb: arguments.node_memory.unwrap_or(memory_mb),
            threads: cpus,
            cores: cpus,
            sockets: 1,
            gpus,
            away: false,
        },
        slots,
    }
}

fn most_gpus(workload: &Workload) -> u32 {
    let own = workload.dag.option_sets().map(|set| set.request.gpus);
    own.chain(workload.nested.values().map(most_gpus))
        .max()
        .unwrap_or(0)
}

fn one(subject: &Subject, nodes: u32, arguments: &cli::Simulate) -> Result<Simulated, Failure> {
    let node = &subject.node;
    let named = |number| {
        let host = format!("node{number}");
        let registration = Registration {
            host,
            ..node.registration.clone()
        };
        (registration, node.slots)
    };
    let cluster = Cluster {
        nodes: (1..=nodes).map(named).collect(),
        overhead: Duration::ZERO,
        losses: arguments
            .loss_rate
            .filter(|rate| *rate > 0.0)
            .map(|per_hour| Losses {
                per_hour,
                replacement: Duration::from_secs(arguments.replacement),
                seed: arguments.seed,
            }),
        saving: saving(arguments),
    };
    run(&subject.workload, &cluster)
        .with_context(|| {
            format!(
                "the run cannot be simulated on {}",
                text::count(nodes as usize, "node")
            )
        })
        .or_code(exit::NOT_RUN)
}

/// How tasks save their state, if they do.
fn saving(arguments: &cli::Simulate) -> Option<Saving> {
    let cost = arguments.checkpoint_cost?;
    let every = match arguments.checkpoint_every {
        cli::Every::Seconds(seconds) => seconds,
        cli::Every::Auto => {
            let hours = arguments.loss_rate.map_or(NODE_HOURS, |rate| 1.0 / rate);
            best_interval(cost, hours * 3600.0)
        }
    };
    Some(Saving {
        every: duration(every).max(SHORTEST_INTERVAL),
        cost: duration(cost),
    })
}

/// Tries 1, 2, 4… nodes while that makes the run shorter.
fn doubling(subject: &Subject, arguments: &cli::Simulate) -> Result<Vec<Simulated>, Failure> {
    let mut rows: Vec<Simulated> = Vec::new();
    let mut nodes = 1;
    while nodes <= MOST_NODES {
        let row = one(subject, nodes, arguments)?;
        let before = rows.last().map(|row| row.makespan.as_secs_f64());
        rows.push(row);
        if before.is_some_and(|before| row.makespan.as_secs_f64() > before * (1.0 - WORTHWHILE)) {
            break;
        }
        nodes *= 2;
    }
    Ok(rows)
}

/// Returns the place of the row with the fewest node hours among those that end in time.
fn cheapest(rows: &[Simulated], limit: Option<f64>) -> Option<usize> {
    let limit = limit?;
    let in_time = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.makespan.as_secs_f64() <= limit);
    let cheaper = in_time.min_by(|(_, a), (_, b)| a.node_hours().total_cmp(&b.node_hours()));
    cheaper.map(|(at, _)| at)
}

/// Nodes and wall time of the recorded run, if there is one and it was not resumed.
fn recorded(history: &History) -> Option<(usize, f64)> {
    let [run] = history.runs.as_slice() else {
        return None;
    };
    let last = history.attempts.iter().map(|attempt| attempt.end).max()?;
    let first = history.attempts.iter().map(|attempt| attempt.start).min()?;
    run.end?;
    Some((history.hosts.all().len(), seconds(last - first)))
}

/// What to show.
struct Shown<'a> {
    subject: &'a Subject,
    rows: &'a [Simulated],
    best: Option<usize>,
}

fn human(shown: &Shown<'_>, arguments: &cli::Simulate) -> String {
    let span = |seconds: f64| text::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let subject = shown.subject;
    let node = &subject.node.registration;
    let mut out = format!(
        "{}: {}, simulated on nodes with {}, {} and {}\n\n",
        subject.label,
        text::count(subject.workload.tasks(), "task"),
        text::count(subject.node.slots as usize, "slot"),
        text::count(node.threads as usize, "CPU"),
        memory(node.memory_mb),
    );
    let mut columns = vec![
        ("nodes", Align::Right),
        ("time", Align::Right),
        ("use of slots", Align::Right),
        ("node hours", Align::Right),
    ];
    if arguments.loss_rate.is_some() {
        columns.extend([("lost attempts", Align::Right), ("lost time", Align::Right)]);
    }
    let saving = saving(arguments);
    if saving.is_some() {
        columns.push(("saving", Align::Right));
    }
    columns.push(("", Align::Left));
    let mut table = Table::new(&columns);
    for (at, row) in shown.rows.iter().enumerate() {
        let mut cells = vec![
            thousands(row.nodes as usize),
            span(row.makespan.as_secs_f64()),
            format!("{:.0} %", 100.0 * row.utilisation()),
            format!("{:.2}", row.node_hours()),
        ];
        if arguments.loss_rate.is_some() {
            let lost = usize::try_from(row.lost_attempts).unwrap_or(usize::MAX);
            cells.extend([thousands(lost), span(row.lost.as_secs_f64())]);
        }
        if saving.is_some() {
            cells.push(span(row.saving_time.as_secs_f64()));
        }
        let is_best = shown.best == Some(at);
        cells.push(if is_best { "<- ask for this" } else { "" }.to_owned());
        table.row(cells);
    }
    out.push_str(&table.render("  "));
    out.push('\n');
    if let Some((nodes, time)) = subject.recorded {
        let _ = writeln!(
            out,
            "  recorded  {} on {}",
            span(time),
            text::count(nodes, "node")
        );
    }
    if let Some(saving) = saving {
        let (every, cost) = (saving.every.as_secs_f64(), saving.cost.as_secs_f64());
        let _ = writeln!(
            out,
            "  saving    each task after {every:.0} s of work, in {cost} s"
        );
    }
    if let (Some(minutes), None) = (arguments.walltime, shown.best) {
        let _ = writeln!(out, "  none of these ends within {}", span(minutes * 60.0));
    }
    if subject.guessed > 0 {
        let _ = writeln!(
            out,
            "  guessed   the run times of {}, from others of the transformation or from --set",
            text::count(subject.guessed, "task")
        );
    }
    out
}

fn json_value(shown: &Shown<'_>, arguments: &cli::Simulate) -> Value {
    let subject = shown.subject;
    let row = |row: &Simulated| {
        json!({
            "nodes": row.nodes,
            "slots": row.slots,
            "seconds": row.makespan.as_secs_f64(),
            "utilisation": row.utilisation(),
            "node_hours": row.node_hours(),
            "lost_attempts": row.lost_attempts,
            "lost_seconds": row.lost.as_secs_f64(),
            "saving_seconds": row.saving_time.as_secs_f64(),
        })
    };
    json!({
        "format": "pmc-simulate",
        "version": VERSION,
        "workflow": subject.label,
        "tasks": subject.workload.tasks(),
        "tasks_with_guessed_time": subject.guessed,
        "node": {
            "slots": subject.node.slots,
            "cpus": subject.node.registration.threads,
            "memory_mb": subject.node.registration.memory_mb,
        },
        "recorded": subject.recorded.map(|(nodes, time)| json!({"nodes": nodes, "seconds": time})),
        "simulated": shown.rows.iter().map(row).collect::<Vec<_>>(),
        "saving": saving(arguments).map(|saving| json!({
            "every_seconds": saving.every.as_secs_f64(),
            "cost_seconds": saving.cost.as_secs_f64(),
        })),
        "walltime_minutes": arguments.walltime,
        "cheapest": shown.best.map(|at| row(&shown.rows[at])),
    })
}
