//! An instance as a DAG with recorded run times, for simulations.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use pmc_dag::Dag;

use super::Instance;

/// A DAG and what is known of its execution.
#[derive(Debug)]
pub struct Recorded {
    /// Its tasks, in the order of the instance.
    pub dag: Dag,
    /// Run time of each task in seconds, if it is known.
    pub seconds: Vec<Option<f64>>,
    /// Machines and seconds of the whole execution, if the instance tells.
    pub execution: Option<(usize, f64)>,
}

/// Returns the DAG of an instance.
///
/// # Errors
/// The instance has a cycle.
pub fn recorded(instance: &Instance) -> Result<Recorded> {
    let names = instance.task_names();
    let executed = instance.executed();
    let mut text = String::new();
    for (name, ran) in names.iter().zip(&executed) {
        let cpus = ran.map_or(1, super::ExecutedTask::cpus);
        let _ = writeln!(text, "TASK {name} -c {cpus} /bin/true");
    }
    for (child, parents) in names.iter().zip(instance.parents()) {
        for parent in parents {
            let _ = writeln!(text, "EDGE {} {child}", names[parent]);
        }
    }
    let dag = Dag::parse(text.into_bytes()).with_context(|| instance.name.clone())?;
    if let Some(cycle) = pmc_dag::cycle::find(&dag) {
        let on_it = cycle
            .tasks
            .iter()
            .map(|&task| String::from_utf8_lossy(dag.name(task)));
        bail!(
            "{}: these tasks wait for each other: {}",
            instance.name,
            on_it.take(10).collect::<Vec<_>>().join(", ")
        );
    }
    let run = instance.workflow.execution.as_ref();
    Ok(Recorded {
        dag,
        seconds: executed
            .iter()
            .map(|task| task.map(|task| task.runtime_in_seconds))
            .collect(),
        execution: run
            .filter(|run| run.makespan_in_seconds > 0.0 && !run.machines.is_empty())
            .map(|run| (run.machines.len(), run.makespan_in_seconds)),
    })
}
