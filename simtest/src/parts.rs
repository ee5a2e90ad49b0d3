//! Tasks that are not in the DAG file of the run when it starts: sub-workflows, guests, and tasks that tools
//! add.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use pmc_dag::growth;
use pmc_system::simulated::Random;

use crate::kinds::{Part, PartKind};
use crate::plan::{Plan, Task, file_key};

/// Most tasks of a part.
const MAX_TASKS: usize = 6;

impl Plan {
    /// The kind of a part.
    #[must_use]
    pub fn kind(&self, part: u32) -> Option<PartKind> {
        let mut parts = self.parts.iter();
        parts.find(|known| known.number == part).map(|part| part.kind)
    }

    /// The tasks of a part.
    pub(crate) fn tasks_of(&self, part: u32) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(move |task| task.part == part)
    }

    /// The DAG in whose file a task is in the end: 0, or the number of a part.
    pub(crate) fn home(&self, task: &Task) -> u32 {
        match self.kind(task.part) {
            Some(PartKind::Addition { .. }) => 0,
            _ => task.part,
        }
    }

    /// All DAGs: 0 and those of sub-workflows and guests.
    pub(crate) fn homes(&self) -> impl Iterator<Item = u32> {
        let parts = self.parts.iter();
        let own = parts.filter(|part| !matches!(part.kind, PartKind::Addition { .. }));
        std::iter::once(0).chain(own.map(|part| part.number))
    }

    /// The folder of a DAG.
    pub(crate) fn folder(root: &Path, home: u32) -> PathBuf {
        match home {
            0 => root.to_owned(),
            home => root.join(format!("d{home}")),
        }
    }

    /// The part that a task is, if it is a sub-workflow, and whether a command makes its DAG.
    pub(crate) fn subworkflow(&self, task: u32) -> Option<(u32, bool)> {
        self.parts.iter().find_map(|part| match part.kind {
            PartKind::Subworkflow {
                task: known,
                is_prepared,
            } => (known == task).then_some((part.number, is_prepared)),
            _ => None,
        })
    }

    /// The tasks that must be done before this one starts, also those before the sub-workflows around it.
    pub(crate) fn before<'a>(&'a self, task: &'a Task) -> Vec<&'a Task> {
        let mut before = Vec::new();
        let mut around = Some(task);
        while let Some(task) = around {
            let parents = self.tasks.iter();
            before.extend(parents.filter(|other| task.parents.contains(&other.number)));
            around = match self.kind(task.part) {
                Some(PartKind::Subworkflow { task, .. }) => {
                    self.tasks.iter().find(|other| other.number == task)
                }
                _ => None,
            };
        }
        before
    }

    /// The guest of which a DAG is a part.
    pub(crate) fn guest_around(&self, mut home: u32) -> Option<u32> {
        loop {
            let task = match self.kind(home)? {
                PartKind::Guest { .. } => return Some(home),
                PartKind::Subworkflow { task, .. } => task,
                PartKind::Addition { .. } => return None,
            };
            home = self.tasks.iter().find(|known| known.number == task)?.part;
        }
    }

    /// The tasks that can be done: they can succeed, and so can all before them and in them.
    #[must_use]
    pub fn feasible(&self) -> BTreeSet<u32> {
        let mut feasible = BTreeSet::new();
        loop {
            let all =
                |mut tasks: std::vec::IntoIter<&Task>| tasks.all(|task| feasible.contains(&task.number));
            let is_new = |task: &&Task| {
                let inside = self.subworkflow(task.number);
                let inside: Option<Vec<&Task>> = inside.map(|(part, _)| self.tasks_of(part).collect());
                !feasible.contains(&task.number)
                    && task.can_succeed()
                    && all(self.before(task).into_iter())
                    && all(inside.unwrap_or_default().into_iter())
            };
            let new: Vec<u32> = self.tasks.iter().filter(is_new).map(|task| task.number).collect();
            if new.is_empty() {
                return feasible;
            }
            feasible.extend(new);
        }
    }

    /// True if the run takes tasks.
    #[must_use]
    pub fn serves(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| matches!(part.kind, PartKind::Addition { .. }))
    }

    /// True if tools hand workflows to the run.
    #[must_use]
    pub fn has_guests(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| matches!(part.kind, PartKind::Guest { .. }))
    }

    /// The DAG file of one of the DAGs, as it is at the start.
    #[must_use]
    pub fn dag(&self, root: &Path, home: u32) -> String {
        let mut text = String::new();
        if home == 0 && self.serves() {
            text += growth::FIRST_LINE;
        }
        let folder = Self::folder(root, home);
        for task in self.tasks_of(home) {
            match self.subworkflow(task.number) {
                None => {
                    let inputs: Vec<String> = task
                        .inputs
                        .iter()
                        .map(|file| format!("f{}", file_key(*file)))
                        .collect();
                    if !inputs.is_empty() {
                        let _ = writeln!(text, "#inputs {}", inputs.join(" "));
                    }
                    let _ = writeln!(text, "TASK {} {} /bin/task", task.name(), task.options(&folder));
                }
                Some((part, is_prepared)) => {
                    let inside = Self::folder(root, part);
                    let inside = inside.display();
                    let _ = writeln!(
                        text,
                        "SUBDAG EXTERNAL {} {inside}/x.dag DIR {inside}",
                        task.name()
                    );
                    if is_prepared {
                        let options = task.options(&folder);
                        let _ = writeln!(text, "SCRIPT PRE {} {options} /bin/task", task.name());
                    }
                }
            }
        }
        for task in self.tasks_of(home) {
            for parent in &task.parents {
                let _ = writeln!(text, "EDGE t{parent} {}", task.name());
            }
        }
        if home == 0 && self.serves() {
            text += growth::LAST_LINE;
        }
        text
    }

    /// Lets some tasks be sub-workflows, and lets tools hand workflows and tasks to the run.
    pub(crate) fn add_parts(&mut self, random: &mut Random) {
        let at = |random: &mut Random| random.below(30_000);
        match random.below(4) {
            0 => {
                for _ in 0..1 + random.below(2) {
                    let (at, weight) = (at(random), random.pick(&[100, 100, 1_000]));
                    self.add_part(PartKind::Guest { at, weight }, random);
                }
            }
            1 => {
                for _ in 0..1 + random.below(4) {
                    let at = at(random);
                    self.add_part(PartKind::Addition { at }, random);
                }
                self.idle = random.pick(&[0, 0, 5_000]);
            }
            _ => {}
        }
        if random.one_in(3) && !self.serves() {
            for _ in 0..1 + random.below(2) {
                self.add_subworkflow(random);
            }
        }
    }

    fn add_subworkflow(&mut self, random: &mut Random) {
        let at = random.below(self.tasks.len() as u64) as usize;
        let task = self.tasks[at].number;
        if self.subworkflow(task).is_some() {
            return;
        }
        let is_prepared = random.one_in(2);
        let task = &mut self.tasks[at];
        // It has no process, or that of the command.
        (task.gang, task.forwards, task.failures) = (None, None, 0);
        (task.saves, task.is_expected) = (false, false);
        if !is_prepared {
            task.tries = 1;
        }
        let task = task.number;
        self.add_part(PartKind::Subworkflow { task, is_prepared }, random);
    }

    fn add_part(&mut self, kind: PartKind, random: &mut Random) {
        let number = self.parts.iter().map(|part| part.number).max().unwrap_or(0) + 1;
        let first = self.tasks.iter().map(|task| task.number).max().unwrap_or(0) + 1;
        let mut tasks = Self::tasks(random, first);
        tasks.truncate(MAX_TASKS);
        Self::add_gangs(&mut tasks, &self.hosts, random);
        let earlier: Vec<u32> = self
            .tasks
            .iter()
            .filter(|task| self.home(task) == 0)
            .map(|task| task.number)
            .collect();
        for task in &mut tasks {
            task.part = number;
            if matches!(kind, PartKind::Addition { .. }) && !earlier.is_empty() && random.one_in(3) {
                task.parents.insert(0, random.pick(&earlier));
            }
        }
        self.tasks.extend(tasks);
        self.parts.push(Part { number, kind });
    }

    /// Removes parts without tasks, and those of tasks that are not there; then what is in them.
    pub(crate) fn remove_empty_parts(&mut self) {
        loop {
            let (tasks, parts) = (self.tasks.len(), self.parts.len());
            let has = |kind: &PartKind| match kind {
                PartKind::Subworkflow { task, .. } => self.tasks.iter().any(|known| known.number == *task),
                _ => true,
            };
            let is_needed =
                |part: &Part| has(&part.kind) && self.tasks.iter().any(|task| task.part == part.number);
            let kept: Vec<Part> = self.parts.iter().copied().filter(is_needed).collect();
            self.tasks
                .retain(|task| task.part == 0 || kept.iter().any(|part| part.number == task.part));
            self.parts = kept;
            if (tasks, parts) == (self.tasks.len(), self.parts.len()) {
                return;
            }
        }
    }
}
