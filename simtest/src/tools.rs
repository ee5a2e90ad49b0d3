//! Tools that hand workflows and tasks to the run, and wait for ends.
//!
//! A user hands a workflow over again as long as it is not done, and adds tasks until they are in the DAG
//! file: also to the next master, if one dies.

use pmc_control::{AddRequest, Answer, EndState, Ends, NewTask, Request};

use crate::checks;
use crate::kinds::{Part, PartKind};
use crate::plan::Plan;
use crate::users::{What, additions};
use crate::world::{Master, World, find, later, note, now, with};

/// How often tools look for answers.
const LOOK_MILLIS: u64 = 300;

/// How long a user waits before a workflow is handed over again.
const AGAIN_MILLIS: u128 = 10_000;

/// Looks for answers, asks for what is due, and comes again.
pub(crate) fn look() {
    let answers = with(|world| {
        let Master::Runs(master) = world.master else {
            return Vec::new();
        };
        if world.users.master.replace(master) != Some(master) {
            world.users.begin();
            world.look_for_additions();
        }
        let users = &mut world.users;
        let answers = users.asked.iter();
        let answers = answers.filter_map(|(what, asked)| Some((*what, asked.answer()?)));
        let answers: Vec<_> = answers.collect();
        answers
            .iter()
            .for_each(|(what, _)| drop(users.asked.remove(what)));
        answers
    });
    let Some(answers) = answers else { return };
    for (what, answer) in answers {
        note(|| format!("tool: {what:?}: {answer:?}"));
        let wrong = with(|world| world.hear(what, answer));
        wrong.flatten().into_iter().for_each(find);
    }
    with(World::ask);
    later(LOOK_MILLIS, look);
}

impl World {
    /// Looks which additions are in the DAG file: a loss of power may have taken some.
    fn look_for_additions(&mut self) {
        let text = std::fs::read_to_string(self.folder.join("x.dag")).unwrap_or_default();
        let has = |task: &crate::plan::Task| text.contains(&format!("TASK {} ", task.name()));
        let is_there = |part: &u32| self.plan.tasks_of(*part).all(has);
        self.users.added.retain(is_there);
    }

    /// Hears an answer. Returns what is wrong with it.
    fn hear(&mut self, what: What, answer: Answer) -> Option<String> {
        let now = now().as_millis();
        match (what, answer) {
            (What::Submit(guest), Answer::Done(_)) => {
                self.users.joined.insert(guest, (self.users.master, now));
            }
            (What::Submit(guest), _) => {
                let known = self.users.joined.entry(guest).or_default();
                known.1 = now;
            }
            (What::Add(part), Answer::Added(names)) => {
                let expected: Vec<String> = self.plan.tasks_of(part).map(crate::plan::Task::name).collect();
                if names != expected {
                    return Some(format!("{names:?} were added instead of {expected:?}"));
                }
                self.users.added.insert(part);
            }
            // An earlier master has accepted it, and could not say so.
            (What::Add(part), Answer::Refused(reason)) if reason.starts_with("there is a task") => {
                self.users.added.insert(part);
            }
            (What::Stop, Answer::Done(_)) => self.users.was_stopped = true,
            (What::Ends, Answer::Ends(ends)) => return self.hear_ends(&ends),
            (What::Add(_), Answer::Refused(_)) => {}
            (what, answer) => return Some(format!("{what:?} is answered with {answer:?}")),
        }
        None
    }

    /// Hears of the ends of tasks.
    fn hear_ends(&mut self, ends: &Ends) -> Option<String> {
        self.users.next_end = Some(ends.next);
        if ends.ends.is_empty() {
            return None;
        }
        let rescued = checks::rescued(&self.folder);
        let feasible = self.plan.feasible();
        for end in &ends.ends {
            let name = &end.id;
            if !self.users.told.insert(name.clone()) {
                return Some(format!("a tool hears twice of the end of {name}"));
            }
            let is_feasible = self.plan.task(name.as_bytes());
            let is_feasible = is_feasible.is_some_and(|task| feasible.contains(&task.number));
            match end.state {
                EndState::Done if !rescued.contains(name.as_bytes()) => {
                    return Some(format!(
                        "a tool hears of the end of {name} before the rescue file names it"
                    ));
                }
                EndState::Failed | EndState::NotRun if is_feasible && !self.allowed.disk_errors => {
                    return Some(format!("a tool hears that {name} is {:?}", end.state));
                }
                _ => {}
            }
        }
        None
    }

    /// Asks for what is due.
    fn ask(&mut self) {
        if !matches!(self.master, Master::Runs(_)) {
            return;
        }
        let now = now().as_millis();
        for Part { number, kind } in self.plan.parts.clone() {
            let PartKind::Guest { at, weight } = kind else {
                continue;
            };
            let (_, last) = self.users.joined.get(&number).copied().unwrap_or_default();
            let is_due = now >= u128::from(at) && (last == 0 || now >= last + AGAIN_MILLIS);
            if is_due && !self.is_done(number) {
                let dag = Plan::folder(&self.folder, number).join("x.dag");
                let dag = dag.to_string_lossy().into_owned();
                let submit = || Request::Submit { dag, weight };
                self.users.send(What::Submit(number), submit);
            }
        }
        if self.plan.serves() {
            self.ask_for_tasks(now);
        }
    }

    /// Adds tasks, asks for their ends, and stops the run when there are no more.
    fn ask_for_tasks(&mut self, now: u128) {
        let next = additions(&self.plan).find(|(part, _)| !self.users.added.contains(part));
        if let Some((part, _)) = next.filter(|(_, at)| now >= u128::from(*at)) {
            let tasks = self.plan.tasks_of(part).map(|task| NewTask {
                label: Some(task.name()),
                after: task.parents.iter().map(|parent| format!("t{parent}")).collect(),
                transformation: "task".to_owned(),
                options: task.options(&self.folder),
                command: "/bin/task".to_owned(),
            });
            let tasks = tasks.collect();
            let add = || Request::Add(AddRequest { length: 0, tasks });
            self.users.send(What::Add(part), add);
        }
        if next.is_none() && !self.users.was_stopped && self.plan.idle == 0 {
            self.users.send(What::Stop, || Request::Stop);
        }
        let from = self.users.next_end;
        self.users.send(What::Ends, || Request::NextEnds { from });
    }

    /// Returns whether all tasks of a DAG are done that can be.
    fn is_done(&self, home: u32) -> bool {
        let rescued = checks::rescued(&Plan::folder(&self.folder, home));
        let feasible = self.plan.feasible();
        let mut tasks = self.plan.tasks_of(home);
        tasks.all(|task| !feasible.contains(&task.number) || rescued.contains(task.name().as_bytes()))
    }
}
