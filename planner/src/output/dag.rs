//! The DAG for pegasus-mpi-cluster (section 7.1 of the planner's specification).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use pmc_dag::write::{self, TaskLine};

use crate::plan::PlanError;

use super::Plan;
use super::batch::NodeSize;
use super::command::{Command, command};
use super::events::JobEvents;

/// Problems of this many jobs are shown.
const SHOWN: usize = 20;

/// Writes the DAG, argument files, and the job part of the events, in one pass over the jobs.
///
/// # Errors
/// Jobs that cannot be expressed, files that cannot be written.
pub(crate) fn write(
    plan: &Plan<'_>,
    dir: &Path,
    dag: &Path,
    node: NodeSize,
    events: &mut JobEvents<'_>,
) -> Result<(), PlanError> {
    let failed = |source| PlanError::io("write", dag, source);
    let mut file = BufWriter::with_capacity(1 << 18, File::create(dag).map_err(failed)?);
    let mut problems = Vec::new();
    let mut text = String::new();
    for (n, &id) in plan.order.iter().enumerate() {
        let job = plan.job(id);
        let command = match command(plan, id) {
            Ok(command) => command,
            Err(more) => {
                problems.extend(more);
                if problems.len() > SHOWN {
                    break;
                }
                continue;
            }
        };
        if let Some(problem) = node.problem(&job.name, command.memory_mb, command.cpus) {
            problems.push(problem);
            if problems.len() > SHOWN {
                break;
            }
        }
        text.clear();
        if let Err(problem) = task(plan, id, n as u64 + 1, &command, &mut text) {
            problems.push(problem.to_string());
            continue;
        }
        file.write_all(text.as_bytes()).map_err(failed)?;
        if let Some(content) = &command.argument_file {
            let path = dir.join(format!("{}.arg", job.name));
            std::fs::write(&path, content).map_err(|e| PlanError::io("write", &path, e))?;
        }
        events.job(id, command);
    }
    if !problems.is_empty() {
        return Err(PlanError::Code(problems));
    }
    file.write_all(b"\n").map_err(failed)?;
    let mut children: Vec<u32> = Vec::new();
    let place = positions(plan);
    let edges = &plan.exec.edges;
    for &parent in &plan.order {
        let first = edges.partition_point(|&(p, _)| p < parent);
        children.clear();
        children.extend(
            edges[first..]
                .iter()
                .take_while(|(p, _)| *p == parent)
                .map(|&(_, c)| c),
        );
        children.sort_unstable_by_key(|&c| place[c as usize]);
        text.clear();
        for &child in &children {
            let (parent, child) = (&plan.job(parent).name, &plan.job(child).name);
            if let Err(problem) = write::edge(&mut text, parent, child) {
                return Err(PlanError::Code(vec![problem.to_string()]));
            }
        }
        file.write_all(text.as_bytes()).map_err(failed)?;
    }
    file.flush().map_err(failed)
}

/// Position of each job in the order.
pub(crate) fn positions(plan: &Plan<'_>) -> Vec<u32> {
    let mut place = vec![0; plan.order.len()];
    for (n, &id) in plan.order.iter().enumerate() {
        place[id as usize] = n as u32;
    }
    place
}

fn task(
    plan: &Plan<'_>,
    id: u32,
    n: u64,
    command: &Command,
    text: &mut String,
) -> Result<(), write::WriteError> {
    let job = plan.job(id);
    let blank_free = |name: &str| name.replace(char::is_whitespace, "_");
    write::comment(
        text,
        n,
        &blank_free(&plan.transformation(job)),
        &blank_free(plan.logical_id(job)),
    )?;
    let line = format!("{}{} {}", command.environment, command.program, command.arguments);
    write::task(
        text,
        &TaskLine {
            name: &job.name,
            memory_mb: command.memory_mb,
            cpus: command.cpus,
            gpus: command.gpus,
            priority: command.priority,
            options: &command.options,
            command: line.trim_end_matches([' ', '\t']),
        },
    )
}
