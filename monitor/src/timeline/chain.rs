//! Critical path: the chain of tasks that decided the end.

use super::clock::Clock;
use super::{Link, MAX_CHAIN};
use crate::events::Micros;
use crate::history::{History, NEVER, State};
use crate::plan::TaskNumber;

/// Returns the chain from the task that ended last back to its parent that ended last, and so on.
pub(super) fn chain(history: &History, clock: &Clock, class_of: &[usize], now: Micros) -> Vec<Link> {
    let end = |task: TaskNumber| {
        let attempt = history.latest_attempt(task)?;
        Some(if attempt.end == NEVER { now } else { attempt.end })
    };
    // For each task the parent that ended last.
    let mut before: Vec<TaskNumber> = vec![TaskNumber::MAX; history.plan.len()];
    for (parent, child) in history.plan.edges() {
        let known = before[*child as usize];
        if let Some(time) = end(*parent)
            && (known == TaskNumber::MAX || end(known).is_none_or(|other| other < time))
        {
            before[*child as usize] = *parent;
        }
    }
    let mut last: Option<(Micros, TaskNumber)> = None;
    for attempt in history
        .attempts
        .iter()
        .filter(|attempt| matches!(history.state(attempt.task), State::Done | State::Running))
    {
        if let Some(time) = end(attempt.task)
            && last.is_none_or(|(latest, _)| latest < time)
        {
            last = Some((time, attempt.task));
        }
    }
    let mut links = Vec::new();
    let mut next = last.map(|(_, task)| task);
    // A damaged DAG may have cycles.
    while let Some(task) = next.filter(|_| links.len() < history.plan.len()) {
        let Some(attempt) = history.latest_attempt(task) else {
            break;
        };
        let parent = before[task as usize];
        next = (parent != TaskNumber::MAX).then_some(parent);
        let start = clock.at(attempt.start);
        let ready = next.and_then(end).map_or(0.0, |time| clock.at(time));
        links.push(Link {
            task,
            class: class_of.get(history.plan.class_index(task)).copied().unwrap_or(0),
            start,
            seconds: clock.at(if attempt.end == NEVER { now } else { attempt.end }) - start,
            waited: (start - ready).max(0.0),
        });
        if links.len() >= MAX_CHAIN {
            break;
        }
    }
    links.reverse();
    links
}
