//! Nodes whose submit descriptions queue several jobs: each job becomes a node.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::super::{FileDescription, MAX_EDGES, Reader};
use super::{Pending, Place};
use crate::error::{DagmanError, ErrorKind};
use crate::job;
use crate::queue::{Items, Process};

/// Maximum jobs of all nodes that have several.
const MAX_PROCESSES: u32 = 1 << 20;

/// Nodes that have become several, by their numbers.
pub(super) type Several = FxHashMap<u32, Copies>;

/// All nodes that a node has become.
pub(super) struct Copies {
    nodes: Vec<u32>,
    place: Place,
}

/// Returns the jobs of a node, at least one.
pub(super) fn of(
    reader: &Reader<'_>,
    pending: &Pending,
    described: &FileDescription,
) -> Result<Vec<Process>, DagmanError> {
    let (file, description) = described;
    let first = Process::default();
    let Some(queue) = &description.queue else {
        return Ok(vec![first]);
    };
    let at = |problem| pending.problem(file, problem);
    let view = pending.view(reader, description, &first);
    let count = job::count(&view, queue).map_err(at)?;
    let from_file;
    let items = match &queue.items {
        Items::None => &[],
        Items::List(items) => items.as_slice(),
        Items::File(name) => {
            let name = job::items_file(&view, queue, name).map_err(at)?;
            let path = view.directory.join(name);
            let place = Place {
                file: Rc::clone(file),
                line: queue.line,
            };
            let text = reader.load(&path, &place)?;
            let lines = text.lines().map(str::trim);
            let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
            from_file = lines.map(str::to_owned).collect::<Vec<_>>();
            &from_file
        }
    };
    let all: usize = items.iter().map(String::len).sum();
    let made = reader.budget.bytes(all.saturating_mul(count as usize));
    made.map_err(|kind| at((Some(queue.line), kind)))?;
    let max = (MAX_PROCESSES - reader.processes).max(1);
    let Some(processes) = queue.processes(items, count, max) else {
        let (what, limit) = ("jobs of nodes that queue several", MAX_PROCESSES as usize);
        return Err(at((Some(queue.line), ErrorKind::TooLarge { what, limit })));
    };
    if processes.is_empty() {
        let kind = crate::queue::invalid("", "there is no item, so that the node has no job");
        return Err(at((Some(queue.line), kind)));
    }
    let has_script = pending.pre.is_some() || pending.post.is_some();
    if processes.len() > 1 && has_script {
        let what = format!(
            "a script of {}, which has {} jobs,",
            pending.name,
            processes.len()
        );
        let reason = "it would run with each of them; give each job a node of its own";
        return Err(pending.place.error(ErrorKind::unsupported(what, reason)));
    }
    Ok(processes)
}

/// Returns the nodes for the jobs of a node: itself and, for all but the first job, copies. Those of several
/// are numbered, as `NODE.0`.
pub(super) fn nodes(
    reader: &mut Reader<'_>,
    pending: &Pending,
    count: usize,
    several: &mut Several,
) -> Result<Vec<u32>, DagmanError> {
    let mut all = vec![pending.node];
    if count == 1 {
        return Ok(all);
    }
    for number in 1..count {
        let mut node = reader.dag.nodes[pending.node as usize].clone();
        node.name = format!("{}.{number}", pending.name);
        all.push(reader.add(node, &pending.place)?);
    }
    reader.dag.nodes[pending.node as usize].name = format!("{}.0", pending.name);
    // There are at most `MAX_PROCESSES`.
    reader.processes += count as u32;
    let copies = Copies {
        nodes: all.clone(),
        place: pending.place.clone(),
    };
    several.insert(pending.node, copies);
    Ok(all)
}

/// Gives the edges of nodes to all nodes that they have become.
pub(super) fn connect(
    reader: &mut Reader<'_>,
    first_edge: usize,
    several: Several,
) -> Result<(), DagmanError> {
    if several.is_empty() {
        return Ok(());
    }
    let own = reader.dag.edges.split_off(first_edge);
    for (parent, child) in own {
        let (of_parent, of_child) = (several.get(&parent), several.get(&child));
        let (one_parent, one_child) = ([parent], [child]);
        let parents = of_parent.map_or(&one_parent[..], |copies| &copies.nodes);
        let children = of_child.map_or(&one_child[..], |copies| &copies.nodes);
        let new = parents.len().saturating_mul(children.len());
        if let Some(copies) = of_parent.or(of_child)
            && reader.dag.edges.len().saturating_add(new) > MAX_EDGES
        {
            let (what, limit) = ("edges", MAX_EDGES);
            return Err(copies.place.error(ErrorKind::TooLarge { what, limit }));
        }
        for &parent in parents {
            let edges = children.iter().map(|&child| (parent, child));
            reader.dag.edges.extend(edges);
        }
    }
    let several = several.into_iter();
    reader
        .several
        .extend(several.map(|(node, copies)| (node, copies.nodes)));
    Ok(())
}
