//! How long tasks are expected to run, and those that are held back because the run ends before they would.
//!
//! A task says itself how long it runs (`-e`). Else the mean and two standard deviations of its
//! transformation count, once enough of its tasks have succeeded in this run.
//!
//! Some time before its end, a run stops all tasks that run ([`Event::EndsAt`](super::Event::EndsAt)). What
//! would not end before that does not start. Such a task is found when its turn comes: it leaves the queue
//! then, so that shorter ones start, and comes back only if the run ends later than it was said. A task that
//! saves itself when it gets its signal starts as long as it has time to do something and to save itself: it
//! uses the tail of the run.

use std::cmp::Reverse;
use std::time::Duration;

use pmc_dag::{Dag, TaskId};
use pmc_system::planted::{Planted, is_planted};
use rustc_hash::FxHashMap;

use crate::protocol::SubmitId;
use crate::scheduler::run::Master;
use crate::scheduler::tasks::State;
use crate::scheduler::{Outbox, Record, WaitReason};

/// Successes of a transformation after which its run time counts as known.
pub(super) const MIN_SUCCESSES: u32 = 5;

/// The longest time that a task which saves itself is given to do something before it does.
const MAX_WORK: Duration = Duration::from_secs(30);

/// Stands for the transformation of a task that names none.
const NO_TRANSFORMATION: u32 = u32::MAX;

/// Run times of those tasks of a transformation that have succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    count: u32,
    /// Number of successes after which it is looked at again how long the next task may run.
    look_at: u32,
    /// Sum of the run times, in seconds.
    sum: f64,
    /// Sum of their squares.
    squares: f64,
    /// How long the next task may run, as was known when it was last looked at.
    known: Option<Duration>,
}

impl Sample {
    /// Notes a run time. Returns how long the next task may run, if that is looked at again: when there are a
    /// quarter more run times than at the last time, or when one was longer than expected.
    fn note(&mut self, time: Duration) -> Option<Duration> {
        let seconds = time.as_secs_f64();
        self.count = self.count.saturating_add(1);
        self.sum += seconds;
        self.squares += seconds * seconds;
        if self.count < self.look_at && self.known.is_none_or(|known| time <= known) {
            return None;
        }
        self.known = self.expected(MIN_SUCCESSES);
        self.look_at = (self.count + self.count / 4).max(MIN_SUCCESSES);
        self.known
    }

    /// The mean and two standard deviations, if there are that many.
    fn expected(&self, successes: u32) -> Option<Duration> {
        if self.count < successes.max(1) {
            return None;
        }
        let count = f64::from(self.count);
        let mean = self.sum / count;
        let variance = (self.squares - self.sum * mean) / (count - 1.0).max(1.0);
        Duration::try_from_secs_f64(mean + 2.0 * variance.max(0.0).sqrt()).ok()
    }
}

/// What is known of the run times of tasks, and of the end of the run.
#[derive(Debug, Default)]
pub(super) struct RunTimes {
    /// Run times are noted.
    is_on: bool,
    /// Numbers of all transformations.
    names: FxHashMap<Box<[u8]>, u32>,
    /// Number of the transformation of each task, or [`NO_TRANSFORMATION`]. Filled when run times are noted:
    /// the name stands in the text of the DAG, which is far from what is at hand when a task ends.
    transformations: Vec<u32>,
    /// By number of a transformation.
    samples: Vec<Sample>,
    /// No task needs longer, as far as is known.
    longest: Duration,
    /// When tasks that still run are stopped.
    end: Option<Duration>,
    /// Tasks that are held back.
    late: Vec<TaskId>,
}

impl RunTimes {
    /// Learns what the tasks of a DAG say.
    pub(super) fn learn(&mut self, dag: &Dag) {
        let leads = dag.checkpoint_leads().into_iter().map(needed_to_save);
        let said = dag.longest_expected_time().into_iter().chain(leads);
        self.longest = said.fold(self.longest, Duration::max);
    }

    /// Learns the transformations of the tasks of a DAG from this one on: they follow those that are known.
    fn name(&mut self, dag: &Dag, first: TaskId) {
        self.transformations.reserve(dag.len() - first.index());
        for task in dag.ids().skip(first.index()) {
            let number = dag.transformation(task).map(|name| self.number(name));
            self.transformations.push(number.unwrap_or(NO_TRANSFORMATION));
        }
    }

    /// The number of a transformation.
    fn number(&mut self, name: &[u8]) -> u32 {
        // Names are copied only once.
        if let Some(number) = self.names.get(name) {
            return *number;
        }
        let number = self.samples.len() as u32;
        self.samples.push(Sample::default());
        self.names.insert(name.into(), number);
        number
    }

    /// The number of a task's transformation.
    fn transformation(&self, task: TaskId) -> Option<usize> {
        let number = *self.transformations.get(task.index())?;
        (number != NO_TRANSFORMATION).then_some(number as usize)
    }

    /// Tasks that are held back.
    pub(super) fn late(&self) -> &[TaskId] {
        &self.late
    }

    /// Tasks are held back no more of which this is false.
    pub(super) fn retain_late(&mut self, keep: impl FnMut(&TaskId) -> bool) {
        self.late.retain(keep);
    }
}

/// The time for which a task that saves itself when it is told starts, if it is told so long before the end.
fn needed_to_save(lead: Duration) -> Duration {
    lead.saturating_add(lead.min(MAX_WORK))
}

/// What a task needs before the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    time: Duration,
    /// It is not to end, but to save itself.
    saves: bool,
}

impl Master {
    /// Notes run times from now on, so that [`Master::expected_time`] knows those of transformations.
    pub fn learn_run_times(&mut self) {
        self.run_times.is_on = true;
        self.name_transformations();
    }

    /// Learns the transformations of tasks that came since it last did, if run times are noted.
    pub(super) fn name_transformations(&mut self) {
        if !self.run_times.is_on {
            return;
        }
        let known = self.run_times.transformations.len();
        if known < self.dag.len() {
            self.run_times.name(&self.dag, TaskId(known as u32));
        }
        let known = self.run_times.transformations.len();
        let new = self
            .segments
            .partition_point(|segment| (segment.base() as usize) < known);
        for segment in &self.segments[new..] {
            // A DAG that has ended is not there any more.
            let transformations = &mut self.run_times.transformations;
            transformations.resize(segment.base() as usize, NO_TRANSFORMATION);
            self.run_times.name(segment.dag(), TaskId(0));
        }
    }

    /// Returns how long a task is expected to run: what its option says, else the mean and two standard
    /// deviations of its transformation, if at least this number of its tasks have succeeded since
    /// [`Master::learn_run_times`].
    #[must_use]
    pub fn expected_time(&self, task: TaskId, successes: u32) -> Option<Duration> {
        let (dag, local) = self.locate(task);
        if let Some(said) = dag.expected_time(local) {
            return Some(said);
        }
        self.run_times.samples[self.run_times.transformation(task)?].expected(successes)
    }

    /// Notes the run time of a task that has succeeded.
    pub(super) fn note_run_time(&mut self, task: TaskId, time: Duration) {
        let run_times = &mut self.run_times;
        let Some(transformation) = run_times.transformation(task) else {
            return;
        };
        if let Some(known) = run_times.samples[transformation].note(time) {
            run_times.longest = run_times.longest.max(known);
        }
    }

    /// Handles [`Event::EndsAt`](super::Event::EndsAt).
    pub(super) fn set_end(&mut self, end: Duration) {
        let is_later = self.run_times.end.is_some_and(|before| end > before);
        self.run_times.end = Some(end);
        self.learn_run_times();
        if !is_later {
            return;
        }
        let mut late = std::mem::take(&mut self.run_times.late);
        // Each goes to the front of those that were put back before it.
        late.sort_unstable_by_key(|task| Reverse(self.nodes[task.index()].place));
        for task in late {
            self.nodes[task.index()].state = State::Queued;
            self.avoid(task);
            self.queue.put_back(&mut self.nodes, task);
        }
    }

    /// True if tasks are held back.
    #[must_use]
    pub fn has_late(&self) -> bool {
        !self.run_times.late.is_empty()
    }

    /// Holds a queued task back if the run ends before it would. Returns whether it does.
    pub(super) fn hold_back(&mut self, task: TaskId, out: &mut impl Outbox) -> bool {
        if self.lacks_time(task).is_none() || is_planted(Planted::NotHeldBack) {
            return false;
        }
        self.queue.remove(&mut self.nodes, task);
        let node = &mut self.nodes[task.index()];
        node.state = State::Late;
        let submit = SubmitId(node.submit);
        self.run_times.late.push(task);
        out.record(Record::HeldBack(task, submit));
        true
    }

    /// Returns why a task would not end before the run does, if it is known that it would not.
    pub(super) fn lacks_time(&self, task: TaskId) -> Option<WaitReason> {
        let left = self.run_times.end?.saturating_sub(self.now());
        if left >= self.run_times.longest {
            return None;
        }
        let need = self.need(task).filter(|need| need.time > left)?;
        Some(WaitReason::Time {
            needed: need.time,
            left,
            saves: need.saves,
        })
    }

    /// Returns what a task needs, if that is known.
    fn need(&self, task: TaskId) -> Option<Need> {
        let (dag, local) = self.locate(task);
        let whole = dag.expected_time(local).or_else(|| {
            let transformation = self.run_times.transformation(task)?;
            self.run_times.samples[transformation].known
        });
        let whole = whole.map(|time| Need { time, saves: false });
        let Some(checkpoint) = dag.checkpoint(local) else {
            return whole;
        };
        // One that nobody asks saves itself again and again.
        let time = needed_to_save(checkpoint.signal?.lead);
        let part = Need { time, saves: true };
        Some(whole.filter(|whole| whole.time <= time).unwrap_or(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_have_a_mean_and_a_deviation() {
        let mut times = Sample::default();
        assert_eq!(times.expected(0), None);
        for seconds in [58, 60, 62, 60] {
            assert_eq!(times.note(Duration::from_secs(seconds)), None);
        }
        assert_eq!(times.expected(5), None);
        // The deviation is the square root of 8 / 4.
        let expected = times.note(Duration::from_secs(60)).unwrap().as_secs_f64();
        assert!(
            (expected - (60.0 + 2.0 * 2_f64.sqrt())).abs() < 1e-9,
            "{expected}"
        );
        let mut one = Sample::default();
        one.note(Duration::from_secs(7));
        assert_eq!(one.expected(1), Some(Duration::from_secs(7)));
    }

    #[test]
    fn what_is_known_follows_the_run_times() {
        let mut times = Sample::default();
        let note = |times: &mut Sample, seconds| times.note(Duration::from_secs(seconds));
        for _ in 0..5 {
            note(&mut times, 10);
        }
        assert_eq!(times.known, Some(Duration::from_secs(10)));
        // A longer one is seen at once, as many shorter ones are.
        assert!(note(&mut times, 20) > Some(Duration::from_secs(15)));
        let looks = (0..1000).filter(|_| note(&mut times, 10).is_some()).count();
        assert!(
            looks < 30 && times.known < Some(Duration::from_secs(11)),
            "{looks}"
        );
    }

    #[test]
    fn a_task_that_saves_itself_needs_time_to_do_something() {
        let needed = |lead| needed_to_save(Duration::from_secs(lead)).as_secs();
        assert_eq!([0, 3, 30, 60, 600].map(needed), [0, 6, 60, 90, 630]);
    }
}
