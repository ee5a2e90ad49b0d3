//! Tasks that are added: their lines, and how they come into DAG and scheduler.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use pmc_control::{Answer, NewTask};
use pmc_dag::write::{TaskLine, comment, task as write_task};
use pmc_dag::{Dag, TaskId, growth, reason};
use pmc_system::disk;
use pmc_system::planted::{Planted, is_planted};
use rustc_hash::FxHashMap;

use super::{Run, RunError, Serving};
use crate::transport::MasterTransport;

/// Maximum bytes of a label, which is a part of file names.
const MAX_LABEL: usize = 100;

/// Why tasks are not accepted.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the run takes no more tasks: it ends")]
    Ending,
    #[error("`{0}` is no label: it needs letters, digits, and . _ -, and not digits alone")]
    Label(String),
    #[error("there is a task {0} already")]
    Taken(String),
    #[error("task {task}: after {parent}: there is no such task before it")]
    NoTask { task: String, parent: String },
    #[error("{0}")]
    Line(String),
    #[error("task {0}: --abort-on would end the whole run")]
    AbortOn(String),
    #[error("no host has what task {0} requests")]
    NoHost(String),
    #[error("{0}")]
    Growth(crate::scheduler::GrowthError),
    #[error("the tasks cannot be written into the DAG file: {}", reason(.0))]
    Write(io::Error),
}

/// Tasks that are about to be added.
struct Addition {
    /// What the DAG file gets.
    text: String,
    dag: Dag,
    /// Names, by task.
    names: Vec<String>,
    /// Pairs of parent and child, with their numbers in the run.
    edges: Vec<(TaskId, TaskId)>,
}

impl Serving {
    /// Adds tasks to the run: all of them, or none. Returns the answer.
    pub(super) fn add<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        tasks: &[NewTask],
    ) -> Result<Answer, RunError> {
        let addition = match self.prepare(run, tasks) {
            Ok(addition) => addition,
            Err(refusal) => return Ok(Answer::Refused(refusal.to_string())),
        };
        let text = match is_planted(Planted::LostAddition) {
            true => "",
            false => &addition.text,
        };
        if let Err(error) = disk::write_all(&self.file, text.as_bytes()) {
            // What is there of them would be completed by the next ones.
            let cut = disk::set_len(&self.file, self.length);
            cut.map_err(|error| RunError::system("Unable to write the DAG file", error))?;
            return Ok(Answer::Refused(Refusal::Write(error).to_string()));
        }
        self.length += text.len() as u64;
        if let Some(syncer) = &run.syncer {
            // Before rescue records that name these tasks.
            syncer.note(None, BTreeSet::from([Arc::from(&*self.dag)]), false)?;
        }
        run.extend(&addition);
        self.left += addition.names.len();
        self.idle_since = None;
        self.note_unreachable(run, &addition.edges);
        Ok(Answer::Added(addition.names))
    }

    fn prepare<T: MasterTransport>(&self, run: &Run<'_, T>, tasks: &[NewTask]) -> Result<Addition, Refusal> {
        if self.is_stopped || run.is_ending() {
            return Err(Refusal::Ending);
        }
        run.master.has_room_for(tasks.len()).map_err(Refusal::Growth)?;
        let mut addition = lines(run.own_dag(), tasks)?;
        if let Some(cpus) = run.options.one_host {
            addition.dag.gather_on_one_host(cpus);
        }
        let name = |task: TaskId| String::from_utf8_lossy(addition.dag.name(task)).into_owned();
        let added = &addition.dag;
        if let Some(task) = added.ids().find(|task| added.abort_on(*task).is_some()) {
            return Err(Refusal::AbortOn(name(task)));
        }
        if !run.may_others_come()
            && let Some(task) = run.master.unfit_new_task(added)
        {
            return Err(Refusal::NoHost(name(task)));
        }
        Ok(addition)
    }
}

/// Returns the lines of tasks for the DAG file, and what they say.
fn lines(dag: &Dag, tasks: &[NewTask]) -> Result<Addition, Refusal> {
    let mut numbers: FxHashMap<String, TaskId> = FxHashMap::default();
    let (mut text, mut edge_lines) = (String::new(), String::new());
    let (mut names, mut edges) = (Vec::with_capacity(tasks.len()), Vec::new());
    for (new, number) in tasks.iter().zip(dag.len() as u32..) {
        let name = match &new.label {
            None => (number + 1).to_string(),
            Some(label) if is_label(label) => label.clone(),
            Some(label) => return Err(Refusal::Label(label.clone())),
        };
        let id = TaskId(number);
        let mut parents = BTreeSet::new();
        for parent in &new.after {
            let found = numbers
                .get(parent)
                .copied()
                .or_else(|| dag.find(parent.as_bytes()));
            let found = found.ok_or_else(|| Refusal::NoTask {
                task: name.clone(),
                parent: parent.clone(),
            })?;
            if parents.insert(found) {
                edges.push((found, id));
                edge_lines.extend(["EDGE ", parent, " ", &name, "\n"]);
            }
        }
        let line = TaskLine {
            name: &name,
            options: &new.options,
            command: &new.command,
            ..TaskLine::default()
        };
        let written = comment(&mut text, u64::from(number) + 1, &new.transformation, &name)
            .and_then(|()| write_task(&mut text, &line));
        written.map_err(|error| Refusal::Line(error.to_string()))?;
        if dag.find(name.as_bytes()).is_some() || numbers.insert(name.clone(), id).is_some() {
            return Err(Refusal::Taken(name));
        }
        names.push(name);
    }
    let added = Dag::parse(text.clone().into_bytes()).map_err(|error| Refusal::Line(error.to_string()))?;
    text.push_str(&edge_lines);
    text.push_str(growth::LAST_LINE);
    Ok(Addition {
        text,
        dag: added,
        names,
        edges,
    })
}

/// Returns whether a text can be the name of a task that is no number.
fn is_label(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty()
        && text.len() <= MAX_LABEL
        && text.bytes().all(is_valid)
        && !text.starts_with(['.', '-'])
        && !text.bytes().all(|byte| byte.is_ascii_digit())
}

impl<T: MasterTransport> Run<'_, T> {
    /// Adds tasks to the DAG of the run, and to all that know its tasks.
    fn extend(&mut self, addition: &Addition) {
        let known_sets = self.own_dag().option_sets().len();
        let root = &mut self.out.dags.root;
        // The DAG grows in place: nobody else has it meanwhile.
        drop((self.master.take_dag(), root.logs.take_dag()));
        match Arc::get_mut(&mut root.dag) {
            Some(dag) => dag.append(&addition.dag, &addition.edges),
            None => tracing::error!("The DAG of the run is in use: the new tasks run with the next start"),
        }
        let dag = Arc::clone(&root.dag);
        root.logs.extend(Arc::clone(&dag));
        if let Some(numbers) = &mut root.numbers {
            numbers.extend(dag.len());
        }
        if dag.option_sets().len() > known_sets {
            self.notices.learn(&dag);
        }
        self.master.extend(dag, &addition.edges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(label: &str, after: &[&str]) -> NewTask {
        NewTask {
            label: (!label.is_empty()).then(|| label.to_owned()),
            after: after.iter().map(|name| (*name).to_owned()).collect(),
            transformation: "true".to_owned(),
            options: String::new(),
            command: "/bin/true".to_owned(),
        }
    }

    #[test]
    fn tasks_have_labels_or_numbers_and_come_after_earlier_ones() {
        let dag = Dag::parse(b"TASK 1 /bin/true\nTASK b /bin/true\n".to_vec()).unwrap();
        let tasks = [task("", &["b", "1", "b"]), task("c", &["3"]), task("", &[])];
        let addition = lines(&dag, &tasks).unwrap();
        assert_eq!(addition.names, ["3", "c", "5"]);
        let ids = |pairs: &[(u32, u32)]| -> Vec<_> {
            pairs.iter().map(|(a, b)| (TaskId(*a), TaskId(*b))).collect()
        };
        assert_eq!(addition.edges, ids(&[(1, 2), (0, 2), (2, 3)]));
        assert_eq!(
            addition.text,
            "#@ 3 true 3 \nTASK 3 /bin/true\n#@ 4 true c \nTASK c /bin/true\n#@ 5 true 5 \nTASK 5 /bin/true\n\
             EDGE b 3\nEDGE 1 3\nEDGE 3 c\n#+ added\n"
        );
    }

    #[test]
    fn wrong_tasks_are_refused() {
        let dag = Dag::parse(b"TASK 1 /bin/true\nTASK b /bin/true\n".to_vec()).unwrap();
        let options = NewTask {
            options: "--no-such-option".to_owned(),
            ..task("x", &[])
        };
        let line = NewTask {
            command: "/bin/true\nTASK y /bin/true".to_owned(),
            ..task("x", &[])
        };
        for (tasks, message) in [
            (vec![task("b", &[])], "a task b already"),
            (vec![task("x", &[]), task("x", &[])], "a task x already"),
            (vec![task("12", &[])], "no label"),
            (vec![task("a b", &[])], "no label"),
            (vec![task("x", &["y"]), task("y", &[])], "no such task before it"),
            (vec![task("x", &["x"])], "no such task before it"),
            (vec![options], "x"),
            (vec![line], "line break"),
        ] {
            let refusal = lines(&dag, &tasks).err().map(|refusal| refusal.to_string());
            let text = refusal.unwrap_or_default();
            assert!(text.contains(message), "{tasks:?}: {text}");
        }
    }
}
