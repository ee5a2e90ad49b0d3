//! Sub-workflows of a run: each has a submit directory and logs of its own, and so a history of its own.

use std::mem;
use std::path::{Path, PathBuf};

use monitord_compat::reason::Reason;
use pmc_files::Folder;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Attempt, History, MAX_DEPTH, NEVER, NO_ATTEMPT, Tally};
use crate::dir::RunDir;
use crate::events::Micros;
use crate::plan::TaskNumber;
use crate::resources::{Host, NO_HOST};

/// The submit directories of sub-workflows that were read: each belongs to one task. A DAG can name one
/// twice, or a directory around itself.
#[derive(Debug, Default)]
pub struct Seen(FxHashSet<PathBuf>);

/// The tasks of a sub-workflow at its ends.
struct Ends {
    /// Those without parents.
    first: Vec<TaskNumber>,
    /// The one that ended last.
    last: Option<TaskNumber>,
}

impl History {
    /// Returns the submit directory of a task that is a sub-workflow, where it is now. `None` if there is
    /// none.
    #[must_use]
    pub fn nested_dir(&self, task: TaskNumber) -> Option<PathBuf> {
        let dag = self.plan.subdag(task)?;
        let planned = self.dir.braindump.get("submit_dir");
        let inside = planned.and_then(|planned| dag.strip_prefix(planned).ok());
        let dag = self.dir.dir.join(inside.unwrap_or(dag));
        dag.parent().filter(|dir| dir.is_dir()).map(Path::to_owned)
    }

    /// Reads the run of a task that is a sub-workflow, as far as it has begun, unless it was read before. Its
    /// directory belongs to the user whose run it is: a run cannot show what is another user's.
    #[must_use]
    pub fn nested(&self, task: TaskNumber, seen: &mut Seen) -> Option<Self> {
        let dir = RunDir::open(&self.nested_dir(task)?).ok()?;
        let is_same_user = user(&self.dir.dir).is_some_and(|own| user(&dir.dir) == Some(own));
        (is_same_user && seen.0.insert(dir.dir.clone())).then_some(())?;
        Self::open(dir).ok()
    }

    /// Reads the runs of all sub-workflows at any depth, as far as they have begun, the outer ones first.
    /// Each has the name that its tasks begin with in [`History::with_nested`].
    #[must_use]
    pub fn all_nested(&self) -> Vec<(String, Self)> {
        let mut seen = Seen::default();
        let mut found = self.nested_named("", &mut seen);
        let mut next = 0;
        while let Some((name, run)) = found.get(next) {
            let mut inner = run.nested_named(name, &mut seen);
            found.append(&mut inner);
            next += 1;
        }
        found
    }

    fn nested_named(&self, around: &str, seen: &mut Seen) -> Vec<(String, Self)> {
        let named = |task| format!("{around}{}/", self.plan.text_name(task));
        let tasks = self.plan.subdags();
        tasks
            .filter_map(|task| Some((named(task), self.nested(task, seen)?)))
            .collect()
    }

    /// Returns the history of the run as a whole, at a time: it has the tasks of sub-workflows at any depth,
    /// named `SUB-WORKFLOW/TASK`, and the use of hosts by all of them. A sub-workflow itself has no attempts
    /// then, because it takes no slot. Such a history cannot be updated.
    #[must_use]
    pub fn with_nested(self, now: Micros) -> Self {
        self.with_nested_below(now, 0, &mut Seen::default())
    }

    fn with_nested_below(mut self, now: Micros, depth: usize, seen: &mut Seen) -> Self {
        let mut parts = Vec::new();
        if depth < MAX_DEPTH {
            for task in self.plan.subdags() {
                if let Some(nested) = self.nested(task, seen) {
                    parts.push((task, nested.with_nested_below(now, depth + 1, seen)));
                }
            }
        }
        if parts.is_empty() {
            return self;
        }
        let mut hosts = self.use_of_hosts(now);
        let tasks = parts.iter().map(|(task, _)| *task).collect();
        self.drop_attempts(&tasks, now, &mut hosts);
        self.hosts.settle(hosts);
        let around = self.plan.take_edges();
        let ends = parts
            .into_iter()
            .map(|(task, nested)| (task, self.append(task, &nested, now)))
            .collect();
        self.connect(around, &ends, now);
        self
    }

    /// Removes the attempts of sub-workflows, but for those whose planner failed, and the slots that the log
    /// of resources has for them.
    fn drop_attempts(&mut self, tasks: &FxHashSet<TaskNumber>, now: Micros, hosts: &mut [Host]) {
        let attempts = mem::take(&mut self.attempts);
        let submit_numbers = mem::take(&mut self.submit_numbers);
        let reasons = mem::take(&mut self.reasons);
        self.latest.fill(NO_ATTEMPT);
        for (index, (attempt, submit_number)) in (0..).zip(attempts.into_iter().zip(submit_numbers)) {
            if !tasks.contains(&attempt.task) || submit_number == 0 {
                self.add(attempt, submit_number, reasons.get(&index));
            } else if let Some(host) = hosts.get_mut(usize::from(attempt.host)) {
                host.remove_slot(attempt.start, (attempt.end != NEVER).then_some(attempt.end), now);
            }
        }
    }

    /// Adds an attempt of a task.
    fn add(&mut self, attempt: Attempt, submit_number: u32, reason: Option<&Reason>) {
        let index = u32::try_from(self.attempts.len()).ok();
        let Some(index) = index.filter(|index| *index != NO_ATTEMPT) else {
            return;
        };
        self.latest[attempt.task as usize] = index;
        self.attempts.push(attempt);
        self.submit_numbers.push(submit_number);
        self.reasons.extend(reason.map(|reason| (index, *reason)));
    }

    /// Adds the tasks, attempts and hosts of a sub-workflow, and the edges between its tasks.
    fn append(&mut self, task: TaskNumber, nested: &Self, now: Micros) -> Ends {
        let hosts = self.hosts.add_use(&nested.use_of_hosts(now));
        let mut numbers = Vec::with_capacity(nested.plan.len());
        for (inner, state) in (0..).zip(&nested.states) {
            let number = self.plan.adopt(task, &nested.plan, inner);
            if number.is_some() {
                self.states.push(*state);
                self.latest.push(NO_ATTEMPT);
                self.queued.push(nested.queued[inner as usize]);
            }
            numbers.push(number);
        }
        for (class, tally) in nested.plan.classes().iter().zip(&nested.tallies) {
            let class = self.plan.class_number(class);
            self.tallies.resize(self.plan.classes().len(), Tally::default());
            self.tallies[class].add(tally);
        }
        for (index, attempt) in (0..).zip(&nested.attempts) {
            if let Some(task) = numbers[attempt.task as usize] {
                let host = hosts.get(usize::from(attempt.host)).copied();
                let host = host.unwrap_or(NO_HOST);
                let submit_number = nested.submit_numbers[index as usize];
                let attempt = Attempt {
                    task,
                    host,
                    ..*attempt
                };
                self.add(attempt, submit_number, nested.reasons.get(&index));
            }
        }
        let mut has_parent = vec![false; numbers.len()];
        for &(parent, child) in nested.plan.edges() {
            has_parent[child as usize] = true;
            if let (Some(parent), Some(child)) = (numbers[parent as usize], numbers[child as usize]) {
                self.plan.add_edge(parent, child);
            }
        }
        let without_parents = numbers.iter().zip(has_parent);
        let first = without_parents.filter_map(|(number, has_parent)| number.filter(|_| !has_parent));
        Ends {
            first: first.collect(),
            last: numbers
                .iter()
                .flatten()
                .copied()
                .filter_map(|task| Some((self.end_of(task, now)?, task)))
                .max()
                .map(|(_, task)| task),
        }
    }

    /// Connects sub-workflows with the tasks around them. Of several parents, only the last one decides when
    /// a task can start: the number of edges stays that of the plans.
    fn connect(
        &mut self,
        around: Vec<(TaskNumber, TaskNumber)>,
        ends: &FxHashMap<TaskNumber, Ends>,
        now: Micros,
    ) {
        let mut parents: FxHashMap<TaskNumber, TaskNumber> = FxHashMap::default();
        for (parent, child) in around {
            let last = ends.get(&parent).and_then(|ends| ends.last).unwrap_or(parent);
            self.plan.add_edge(last, child);
            if ends.contains_key(&child) {
                let known = parents.entry(child).or_insert(last);
                if self.end_of(*known, now) < self.end_of(last, now) {
                    *known = last;
                }
            }
        }
        for (task, parent) in parents {
            for first in ends.get(&task).into_iter().flat_map(|ends| &ends.first) {
                self.plan.add_edge(parent, *first);
            }
        }
    }

    /// Returns the end of the latest attempt of a task, if it has one; `now` while it runs.
    fn end_of(&self, task: TaskNumber, now: Micros) -> Option<Micros> {
        let end = self.latest_attempt(task)?.end;
        Some(if end == NEVER { now } else { end })
    }
}

fn user(directory: &Path) -> Option<u32> {
    Folder::open(directory).and_then(|folder| folder.user()).ok()
}
