//! `pmc nodes`, `drain`, `kill`, `why` and `submit`: ask a run, or change its course.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use pmc_control::{Answer, MAX_PARENTS, NodeStatus, Request, TaskStatus, ask, memory};
use pmc_terminal::{escape, print};

use crate::cli;
use crate::clock::now;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::reach;
use crate::table::{Align, Table};
use crate::text::duration;

/// Maximum hosts that a command names.
const MAX_HOSTS: usize = 100_000;

/// Shows the hosts of a run, or lets one go. Returns the exit code.
pub fn nodes(arguments: &cli::Nodes) -> Result<u8, Failure> {
    let dir = layout::given_or_latest(arguments.run.as_deref(), arguments.json);
    if let Some(hosts) = &arguments.ping {
        return ping(&dir, hosts);
    }
    if let Some(task) = &arguments.of {
        return nodes_of(&dir, task, arguments.json);
    }
    show(&dir, &request_of(arguments)?, arguments.json)
}

/// Shows the hosts on which a task runs.
fn nodes_of(dir: &Path, task: &str, json: bool) -> Result<u8, Failure> {
    let run = layout::find_run(dir)?;
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, false);
    }
    let request = Request::Workers {
        task: task.to_owned(),
    };
    let workers = match ask(&run.dag, &request).or_code(exit::NOT_RUN)? {
        Answer::Workers { workers, .. } => workers,
        other => return Err(reach::refused(other)),
    };
    let nodes = match ask(&run.dag, &Request::Nodes).or_code(exit::NOT_RUN)? {
        Answer::Nodes(nodes) => nodes,
        other => return Err(reach::refused(other)),
    };
    let nodes = having(nodes, task, &workers);
    print(&match json {
        true => json_text(&nodes),
        false => node_table(&nodes),
    });
    Ok(exit::SUCCESS)
}

/// The nodes of these workers, which run a task: it comes first.
fn having(nodes: Vec<NodeStatus>, task: &str, workers: &[(u32, String)]) -> Vec<NodeStatus> {
    let hosts: BTreeSet<&str> = workers.iter().map(|(_, host)| host.as_str()).collect();
    let own = nodes.into_iter().filter(|node| hosts.contains(&*node.host));
    let first = |mut node: NodeStatus| {
        node.tasks.sort_by_key(|known| known.task != task);
        node
    };
    own.map(first).collect()
}

/// What `pmc nodes` asks for.
fn request_of(arguments: &cli::Nodes) -> Result<Request, Failure> {
    let reserve = |hosts: &str, is_reserved| {
        let hosts = pmc_hosts::expand(hosts, MAX_HOSTS).or_code(exit::USAGE)?;
        Ok(Request::ReserveNodes { hosts, is_reserved })
    };
    if let Some(hosts) = &arguments.reserve {
        return reserve(hosts, true);
    }
    if let Some(hosts) = &arguments.unreserve {
        return reserve(hosts, false);
    }
    Ok(match (&arguments.drain, &arguments.gone) {
        (Some(host), _) => Request::DrainNode { host: host.clone() },
        (None, Some(host)) => Request::NodeGone { host: host.clone() },
        (None, None) => Request::Nodes,
    })
}

/// Lets a run start no more tasks.
pub fn drain(arguments: &cli::Drain) -> Result<u8, Failure> {
    let dir = layout::given_or_latest(arguments.run.as_deref(), false);
    let after_seconds = arguments.after.map(|after| after.as_secs());
    show(&dir, &Request::Drain { after_seconds }, false)
}

/// Hands a planned workflow to a run.
pub fn submit(arguments: &cli::Submit) -> Result<u8, Failure> {
    let dag = layout::find_run(&arguments.other)?.dag;
    let dag = std::path::absolute(&dag).unwrap_or(dag);
    let Some(dag) = dag.to_str().map(str::to_owned) else {
        let error = anyhow!("the name {} is not UTF-8", dag.display());
        return Err(Failure::new(exit::USAGE, error));
    };
    let weight = arguments.weight;
    let run = arguments.run.as_deref().or(arguments.run_option.as_deref());
    let run = layout::given_or_latest(run, false);
    show(&run, &Request::Submit { dag, weight }, false)
}

/// Sends a signal to a running task, or to all of a host.
pub fn kill(arguments: &cli::Kill) -> Result<u8, Failure> {
    let signal = arguments.signal;
    let (task, run) = (arguments.task.as_deref(), arguments.run.as_deref());
    if let Some(host) = &arguments.host {
        if run.is_some() {
            let error = anyhow!("with --host, no task is named, and one run at most");
            return Err(Failure::new(exit::USAGE, error).hint("leave out the task"));
        }
        // The only word is the run.
        let dir = layout::given_or_latest(task.map(Path::new), false);
        let host = host.clone();
        return show(&dir, &Request::KillOnHost { host, signal }, false);
    }
    let (task, run) = task_and_run(task.unwrap_or_default(), run, false);
    show(&run, &Request::Kill { task, signal }, false)
}

/// Says what a task waits for.
pub fn why(arguments: &cli::Why) -> Result<u8, Failure> {
    let (task, run) = task_and_run(&arguments.task, arguments.run.as_deref(), arguments.json);
    show(&run, &Request::Why { task }, arguments.json)
}

/// Returns the task and the directory of its run.
pub(super) fn task_and_run(task: &str, run: Option<&str>, quiet: bool) -> (String, PathBuf) {
    let words = [Some(task), run].into_iter().flatten().map(str::to_owned);
    match layout::tasks_and_run(words.collect()) {
        (mut tasks, run) if tasks.len() == 1 => {
            (tasks.remove(0), layout::given_or_latest(run.as_deref(), quiet))
        }
        // Neither word is a run, or both are.
        _ => (
            task.to_owned(),
            layout::given_or_latest(run.map(Path::new), quiet),
        ),
    }
}

/// Says which hosts of an expression do not answer.
fn ping(dir: &Path, hosts: &str) -> Result<u8, Failure> {
    let hosts = pmc_hosts::expand(hosts, MAX_HOSTS).or_code(exit::USAGE)?;
    let run = layout::find_run(dir)?;
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, false);
    }
    let nodes = match ask(&run.dag, &Request::Nodes).or_code(exit::NOT_RUN)? {
        Answer::Nodes(nodes) => nodes,
        other => return Err(reach::refused(other)),
    };
    let (text, all_answer) = pinged(&hosts, &nodes);
    print(&text);
    Ok(if all_answer {
        exit::SUCCESS
    } else {
        exit::TASKS_FAILED
    })
}

/// Returns a line for each host that does not answer, and whether all do.
fn pinged(hosts: &[String], nodes: &[NodeStatus]) -> (String, bool) {
    let state = |host: &String| {
        let found = nodes.iter().find(|node| node.host == *host);
        found.map_or("no host of this run", |node| node.state.as_str())
    };
    let answers = |state: &str| {
        matches!(
            state,
            "working" | "reserved" | "preparing" | "joined" | "leaving" | "set aside"
        )
    };
    let silent = hosts
        .iter()
        .map(|host| (host, state(host)))
        .filter(|(_, state)| !answers(state));
    let lines = silent.map(|(host, state)| format!("{}: {}\n", escape(host), escape(state)));
    let text: String = lines.collect();
    let all_answer = text.is_empty();
    (text, all_answer)
}

/// Asks a run, and prints the answer. Returns the exit code.
pub fn show(dir: &Path, request: &Request, json: bool) -> Result<u8, Failure> {
    let run = layout::find_run(dir)?;
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, false);
    }
    let answer = ask(&run.dag, request).or_code(exit::NOT_RUN)?;
    let text = match answer {
        Answer::Nodes(nodes) if json => json_text(&nodes),
        Answer::Task(task) if json => json_text(&task),
        Answer::Nodes(nodes) if nodes.is_empty() => {
            "No agent has joined yet: the run waits for the first ones.\n".to_owned()
        }
        Answer::Nodes(nodes) => node_table(&nodes),
        Answer::Task(task) => describe(&task),
        Answer::Done(text) => format!("{}\n", escape(&text)),
        other => return Err(reach::refused(other)),
    };
    print(&text);
    Ok(exit::SUCCESS)
}

/// Returns a value as JSON for people.
pub fn json_text(value: &impl serde::Serialize) -> String {
    // These structures have no keys or numbers that JSON lacks.
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    text + "\n"
}

fn node_table(nodes: &[NodeStatus]) -> String {
    let mut table = Table::new(&[
        ("HOST", Align::Left),
        ("STATE", Align::Left),
        ("TASKS", Align::Right),
        ("SLOTS", Align::Right),
        ("FREE CPUS", Align::Right),
        ("OF", Align::Right),
        ("FREE MEMORY", Align::Right),
        ("OF", Align::Right),
        ("FOR", Align::Right),
        ("TASK", Align::Left),
    ]);
    let now = now() as f64 / 1e6;
    for node in nodes {
        table.row([
            escape(&node.host).into_owned(),
            escape(&node.state).into_owned(),
            node.busy.to_string(),
            node.slots.to_string(),
            node.free_cpus.to_string(),
            node.cpus.to_string(),
            memory(node.free_memory_mib),
            memory(node.memory_mib),
            running_for(node, now),
            task_of(node),
        ]);
    }
    let mut text = table.render("");
    let away: Vec<_> = nodes
        .iter()
        .filter(|node| node.away)
        .map(|node| escape(&node.host))
        .collect();
    if !away.is_empty() {
        let _ = writeln!(text, "Without the submit directory: {}", away.join(", "));
    }
    let reserved = nodes
        .iter()
        .filter_map(|node| Some((node.reserved_for.as_deref()?, node)));
    let mut by_task: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (task, node) in reserved {
        by_task.entry(task).or_default().push(&node.host);
    }
    for (task, mut hosts) in by_task {
        hosts.sort_unstable();
        let hosts = pmc_hosts::compress(&hosts);
        let _ = writeln!(text, "Reserved for {}: {}", escape(task), escape(&hosts));
    }
    text
}

/// For how long the first task of a host runs.
fn running_for(node: &NodeStatus, now: f64) -> String {
    let first = node.tasks.first();
    let seconds = first.map(|first| (now - first.start_time).max(0.0));
    let shown = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    shown.map(duration).unwrap_or_default()
}

/// The first task of a host, and the number of the others.
fn task_of(node: &NodeStatus) -> String {
    let Some(first) = node.tasks.first() else {
        return String::new();
    };
    let name = escape(&first.task);
    match (node.busy as usize).max(node.tasks.len()) - 1 {
        0 => name.into_owned(),
        1 => format!("{name} and another"),
        others => format!("{name} and {others} others"),
    }
}

fn describe(task: &TaskStatus) -> String {
    let mut text = format!("{} is {}", task.task, task.state);
    if let Some(host) = &task.host {
        let _ = write!(text, " on {host}");
    }
    if let Some(attempt) = task.attempt {
        let _ = write!(text, " (submit number {attempt})");
    }
    if task.parents_left > 0 {
        let _ = write!(
            text,
            "\nwaits for {} {}: {}",
            task.parents_left,
            if task.parents_left == 1 {
                "parent"
            } else {
                "parents"
            },
            task.parents.join(", ")
        );
        if task.parents_left as usize > MAX_PARENTS.max(task.parents.len()) {
            text.push_str(", …");
        }
    }
    if let Some(reason) = &task.reason {
        let _ = write!(text, "\nit waits because {reason}");
    }
    text.lines()
        .fold(String::new(), |all, line| all + &escape(line) + "\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use pmc_control::NodeTask;

    use super::*;

    #[test]
    fn hosts_that_do_not_see_the_submit_directory_are_named() {
        let node = |host: &str, away| NodeStatus {
            host: host.to_owned(),
            state: "working".to_owned(),
            slots: 2,
            busy: 1,
            cpus: 2,
            free_cpus: 1,
            memory_mib: 10,
            free_memory_mib: 5,
            away,
            reserved_for: away.then(|| "big".to_owned()),
            tasks: Vec::new(),
        };
        let text = node_table(&[node("near", false), node("n\u{1b}1", true)]);
        assert!(
            text.ends_with("\nWithout the submit directory: n\\u001b1\nReserved for big: n\\u001b1\n"),
            "{text}"
        );
        assert!(!node_table(&[node("near", false)]).contains("Without"));
    }

    #[test]
    fn hosts_are_shown_with_what_runs_there() {
        let node = |host: &str, tasks: &[&str]| NodeStatus {
            host: host.to_owned(),
            state: "working".to_owned(),
            slots: 9,
            busy: tasks.len() as u32,
            cpus: 9,
            free_cpus: 1,
            memory_mib: 10,
            free_memory_mib: 5,
            away: false,
            reserved_for: None,
            tasks: tasks
                .iter()
                .map(|task| NodeTask {
                    task: (*task).to_owned(),
                    start_time: now() as f64 / 1e6 - 75.0,
                })
                .collect(),
        };
        let nodes = || {
            vec![
                node("n1", &["a", "b\u{1b}", "c"]),
                node("n2", &["b\u{1b}"]),
                node("n3", &[]),
            ]
        };
        let text = node_table(&nodes());
        assert!(text.contains("1 min 15 s  a and 2 others\n"), "{text}");
        assert!(text.contains("1 min 15 s  b\\u001b\n"), "{text}");
        let workers = [(1, "n1".to_owned()), (2, "n2".to_owned())];
        let text = node_table(&having(nodes(), "b\u{1b}", &workers));
        assert!(
            text.contains("b\\u001b and 2 others") && !text.contains("n3"),
            "{text}"
        );
    }

    #[test]
    fn hosts_that_do_not_answer_are_named() {
        let node = |host: &str, state: &str| NodeStatus {
            host: host.into(),
            state: state.into(),
            slots: 2,
            busy: 1,
            cpus: 2,
            free_cpus: 1,
            memory_mib: 10,
            free_memory_mib: 5,
            away: false,
            reserved_for: None,
            tasks: Vec::new(),
        };
        let nodes = [
            node("n1", "working"),
            node("n2", "silent"),
            node("n3", "set aside"),
        ];
        let asked = |text: &str| pinged(&pmc_hosts::expand(text, 9).unwrap(), &nodes);
        assert_eq!(asked("n[1,3]"), (String::new(), true));
        let said = "n2: silent\nn4: no host of this run\n".to_owned();
        assert_eq!(asked("n[1-4]"), (said, false));
    }

    #[test]
    fn hosts_are_reserved_and_given_up_by_name() {
        let asked = |words: &[&str]| {
            let words = ["pmc", "nodes"].iter().chain(words);
            let parsed = cli::Cli::try_parse_from(words).map_err(|error| error.to_string())?;
            let cli::Command::Nodes(nodes) = parsed.command else {
                panic!("it is another command")
            };
            request_of(&nodes).map_err(|failure| format!("{:#}", failure.error))
        };
        let hosts = ["n1", "n2"].map(str::to_owned).to_vec();
        let is_reserved = true;
        let reserve = Request::ReserveNodes { hosts, is_reserved };
        assert_eq!(asked(&["--reserve", "n[1-2]", "run"]), Ok(reserve));
        let (hosts, is_reserved) = (vec!["n1".to_owned()], false);
        let open = Request::ReserveNodes { hosts, is_reserved };
        assert_eq!(asked(&["--unreserve", "n1"]), Ok(open));
        let host = "n1".to_owned();
        assert_eq!(asked(&["--gone", "n1"]), Ok(Request::NodeGone { host }));
        for wrong in [
            &["--reserve", "n["][..],
            &["--gone", "n1", "--drain", "n1"],
            &["--json", "--gone", "n1"],
        ] {
            assert!(asked(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_task_is_described_with_what_it_waits_for() {
        let mut task = TaskStatus {
            task: "merge".into(),
            state: "waiting".into(),
            attempt: None,
            host: None,
            parents: vec!["a".into(), "b\u{1b}[2J".into()],
            parents_left: 2,
            reason: None,
        };
        assert_eq!(
            describe(&task),
            "merge is waiting\nwaits for 2 parents: a, b\\u001b[2J\n"
        );
        task.state = "queued".into();
        task.attempt = Some(7);
        task.parents_left = 0;
        task.reason = Some("all slots are busy".into());
        assert_eq!(
            describe(&task),
            "merge is queued (submit number 7)\nit waits because all slots are busy\n"
        );
    }
}
