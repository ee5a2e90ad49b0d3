//! Data for the charts of a run: tasks by host, use over time, critical path, run times. Its size is bounded
//! for any size of the run.
//!
//! Times are seconds of run time: pauses between several runs are left out.

mod chain;
mod clock;
mod run_times;
mod slots;

use crate::events::Micros;
use crate::history::{History, seconds};
use crate::kinds::Kind;
use crate::plan::TaskNumber;

use chain::chain;
use clock::Clock;
use run_times::run_times;
use slots::end_of;
pub use slots::{Slot, slots};

/// Maximum attempts of an exact chart.
pub const MAX_EXACT: usize = 6_000;
/// Time cells of a chart that is not exact.
pub const CELLS: usize = 720;
/// Points of a curve.
pub const POINTS: usize = 360;
/// Maximum rows. More slots are merged by host, and more hosts are left out.
pub const MAX_ROWS: usize = 256;
/// Bars of a histogram.
pub const BARS: usize = 36;
/// Maximum classes with a separate curve and histogram; the rest share one.
pub const MAX_CLASSES: usize = 9;
/// Maximum tasks of the critical path.
pub const MAX_CHAIN: usize = 400;

/// A group of tasks that run the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Transformation, or `others`.
    pub name: String,
    /// Kind.
    pub kind: Kind,
    /// Number of attempts.
    pub count: usize,
    /// Total time in seconds.
    pub seconds: f64,
}

/// A row of the chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Host.
    pub host: String,
    /// Slot of the host; `None` if the row is the whole host.
    pub slot: Option<usize>,
}

/// An attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Index of the row.
    pub row: usize,
    /// Class.
    pub class: usize,
    /// Task.
    pub task: TaskNumber,
    /// Start.
    pub start: f64,
    /// Length.
    pub seconds: f64,
    /// It failed.
    pub failed: bool,
}

/// A time cell of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// Class that took most of the time.
    pub class: usize,
    /// Used share of the slots of the row.
    pub used: f32,
    /// An attempt failed in it.
    pub failed: bool,
}

/// The chart of tasks by host.
#[derive(Clone, Debug, PartialEq)]
pub enum Picture {
    /// A bar per attempt.
    Exact(Vec<Bar>),
    /// [`CELLS`] cells for each row.
    Cells(Vec<Vec<Cell>>),
}

/// A task of the critical path.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Task.
    pub task: TaskNumber,
    /// Class.
    pub class: usize,
    /// Start of its last attempt.
    pub start: f64,
    /// Duration.
    pub seconds: f64,
    /// Time from the end of the task before, or the start of the run: earlier attempts and waiting.
    pub waited: f64,
}

/// Run times of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTimes {
    /// Class.
    pub class: usize,
    /// Number of successful attempts.
    pub count: usize,
    /// Median.
    pub median: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Maximum.
    pub max: f64,
    /// Number of attempts per bar: [`BARS`] bars from [`Timeline::shortest`] to [`Timeline::longest`],
    /// equally wide on a logarithmic scale.
    pub bars: Vec<u32>,
}

/// Data of all charts.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Length in seconds of run time.
    pub seconds: f64,
    /// Start of each run after the first.
    pub restarts: Vec<f64>,
    /// Start, microseconds since the epoch.
    pub begin: Micros,
    /// Classes, the one with most time first.
    pub classes: Vec<Class>,
    /// Rows, by host.
    pub rows: Vec<Row>,
    /// Number of hosts without a row.
    pub hosts_left_out: usize,
    /// Chart of tasks by host.
    pub picture: Picture,
    /// Running tasks by class, [`POINTS`] values each.
    pub running: Vec<Vec<f32>>,
    /// CPUs requested by running tasks.
    pub cpus: Vec<f32>,
    /// Memory requested by running tasks, in MB.
    pub memory_mb: Vec<f32>,
    /// Critical path, from its first task.
    pub chain: Vec<Link>,
    /// Lower end of the histograms, seconds.
    pub shortest: f64,
    /// Upper end of the histograms, seconds.
    pub longest: f64,
    /// Histograms.
    pub run_times: Vec<RunTimes>,
}

/// What is known of each attempt.
struct Span {
    start: f64,
    end: f64,
    class: usize,
    host: usize,
    slot: usize,
    task: TaskNumber,
    failed: bool,
}

impl Timeline {
    /// Makes the charts of a history. Running tasks last until `now`.
    #[must_use]
    pub fn new(history: &History, now: Micros) -> Self {
        let clock = Clock::new(history, now);
        let (classes, class_of) = classes(history);
        let (spans, slots, hosts) = spans(history, &clock, &class_of, now);
        let total = clock.total.max(1e-3);
        let rows = Rows::new(&slots, &hosts);
        let picture = if spans.len() <= MAX_EXACT && rows.by_slot {
            Picture::Exact(bars(&spans, &rows.first))
        } else {
            Picture::Cells(cells(&spans, &rows, &slots, total, classes.len()))
        };
        let (running, cpus, memory_mb) = curves(history, &spans, total, classes.len());
        let (shortest, longest, run_times) = run_times(history, &class_of, classes.len());
        Self {
            seconds: total,
            restarts: clock.runs.iter().skip(1).map(|(.., before)| *before).collect(),
            begin: clock.runs.first().map_or(now, |(start, ..)| *start),
            chain: chain(history, &clock, &class_of, now),
            classes,
            rows: rows.rows,
            hosts_left_out: rows.hosts_left_out,
            picture,
            running,
            cpus,
            memory_mb,
            shortest,
            longest,
            run_times,
        }
    }
}

/// Returns the classes, the one with most time first, and the index of each class of the plan among them.
fn classes(history: &History) -> (Vec<Class>, Vec<usize>) {
    let plan = &history.plan;
    let mut sums = vec![(0, 0.0); plan.classes().len()];
    for attempt in &history.attempts {
        let sum = &mut sums[plan.class_index(attempt.task)];
        sum.0 += 1;
        sum.1 += seconds(attempt.duration().unwrap_or(0));
    }
    // All transfers have one transformation; the chart shows their kinds.
    let mut found: Vec<(Class, Vec<usize>)> = Vec::new();
    for (at, (class, (count, time))) in plan.classes().iter().zip(&sums).enumerate() {
        if *count == 0 {
            continue;
        }
        let name = match class.kind {
            Kind::Compute | Kind::Other => class.transformation.clone(),
            kind => kind.name().to_owned(),
        };
        match found.iter_mut().find(|(known, _)| known.name == name) {
            Some((known, of)) => {
                known.count += count;
                known.seconds += time;
                of.push(at);
            }
            None => found.push((
                Class {
                    name,
                    kind: class.kind,
                    count: *count,
                    seconds: *time,
                },
                vec![at],
            )),
        }
    }
    found.sort_by(|(a, _), (b, _)| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
    let mut place = vec![0; plan.classes().len()];
    let mut classes: Vec<Class> = Vec::new();
    for (class, of) in found {
        if classes.len() < MAX_CLASSES {
            classes.push(class);
        } else if classes.len() == MAX_CLASSES {
            classes.push(Class {
                name: "others".to_owned(),
                kind: Kind::Other,
                ..class
            });
        } else if let Some(others) = classes.last_mut() {
            others.count += class.count;
            others.seconds += class.seconds;
        }
        for at in of {
            place[at] = classes.len() - 1;
        }
    }
    (classes, place)
}

/// Returns all attempts, the number of slots of each host, and the names of hosts.
fn spans(
    history: &History,
    clock: &Clock,
    class_of: &[usize],
    now: Micros,
) -> (Vec<Span>, Vec<usize>, Vec<String>) {
    let (slots, hosts) = slots(history, now);
    let mut count = vec![0; hosts.len()];
    let span = |at: &Slot| {
        let attempt = &history.attempts[at.attempt];
        count[at.host] = count[at.host].max(at.slot + 1);
        Span {
            start: clock.at(attempt.start),
            end: clock.at(end_of(attempt, now)),
            class: class_of
                .get(history.plan.class_index(attempt.task))
                .copied()
                .unwrap_or(0),
            host: at.host,
            slot: at.slot,
            task: attempt.task,
            failed: attempt.failed(),
        }
    };
    let spans = slots.iter().map(span).collect();
    (spans, count, hosts)
}

/// The rows of the chart.
struct Rows {
    rows: Vec<Row>,
    /// First row of each host.
    first: Vec<Option<usize>>,
    /// True if a row is a slot, false if it is a host.
    by_slot: bool,
    /// Number of hosts without a row.
    hosts_left_out: usize,
}

impl Rows {
    fn new(slots: &[usize], hosts: &[String]) -> Self {
        let by_slot = slots.iter().sum::<usize>() <= MAX_ROWS;
        let mut order: Vec<usize> = (0..hosts.len()).filter(|host| slots[*host] > 0).collect();
        order.sort_by(|a, b| hosts[*a].cmp(&hosts[*b]));
        let mut first = vec![None; hosts.len()];
        let mut rows = Vec::new();
        let mut hosts_left_out = 0;
        for host in order {
            if rows.len() >= MAX_ROWS {
                hosts_left_out += 1;
                continue;
            }
            first[host] = Some(rows.len());
            let count = if by_slot { slots[host] } else { 1 };
            rows.extend((0..count).map(|slot| Row {
                host: hosts[host].clone(),
                slot: by_slot.then_some(slot),
            }));
        }
        Self {
            rows,
            first,
            by_slot,
            hosts_left_out,
        }
    }
}

fn bars(spans: &[Span], first_row: &[Option<usize>]) -> Vec<Bar> {
    let bar = |span: &Span| {
        Some(Bar {
            row: first_row[span.host]? + span.slot,
            class: span.class,
            task: span.task,
            start: span.start,
            seconds: span.end - span.start,
            failed: span.failed,
        })
    };
    spans.iter().filter_map(bar).collect()
}

/// Divides a span into `count` cells. Calls `take` with each cell and the seconds in it.
fn divide(span: &Span, total: f64, count: usize, mut take: impl FnMut(usize, f64)) {
    let width = total / count as f64;
    let first = ((span.start / width) as usize).min(count - 1);
    let last = ((span.end / width) as usize).min(count - 1);
    for cell in first..=last {
        let (from, to) = (cell as f64 * width, (cell + 1) as f64 * width);
        let within = span.end.min(to) - span.start.max(from);
        take(cell, within.max(0.0));
    }
}

fn cells(spans: &[Span], rows: &Rows, slots: &[usize], total: f64, classes: usize) -> Vec<Vec<Cell>> {
    let count = rows.rows.len();
    let mut sums = vec![0.0_f32; count * CELLS * classes];
    let mut failed = vec![false; count * CELLS];
    let mut width = vec![1; count];
    for span in spans {
        let Some(first) = rows.first[span.host] else {
            continue;
        };
        let row = if rows.by_slot { first + span.slot } else { first };
        if !rows.by_slot {
            width[row] = slots[span.host];
        }
        divide(span, total, CELLS, |cell, time| {
            sums[(row * CELLS + cell) * classes + span.class] += time as f32;
        });
        if span.failed {
            let cell = (span.end / total * CELLS as f64) as usize;
            failed[row * CELLS + cell.min(CELLS - 1)] = true;
        }
    }
    let cell_seconds = total as f32 / CELLS as f32;
    let cell = |row: usize, at: usize| {
        let times = &sums[(row * CELLS + at) * classes..][..classes];
        let class = (0..classes).max_by(|a, b| times[*a].total_cmp(&times[*b]));
        Cell {
            class: class.unwrap_or(0),
            used: (times.iter().sum::<f32>() / cell_seconds / width[row] as f32).min(1.0),
            failed: failed[row * CELLS + at],
        }
    };
    (0..count)
        .map(|row| (0..CELLS).map(|at| cell(row, at)).collect())
        .collect()
}

type Curves = (Vec<Vec<f32>>, Vec<f32>, Vec<f32>);

fn curves(history: &History, spans: &[Span], total: f64, classes: usize) -> Curves {
    let width = total / POINTS as f64;
    let mut running = vec![vec![0.0_f64; POINTS]; classes];
    let (mut cpus, mut memory) = (vec![0.0_f64; POINTS], vec![0.0_f64; POINTS]);
    for span in spans {
        let request = history.plan.request(span.task);
        divide(span, total, POINTS, |cell, time| {
            let share = time / width;
            running[span.class][cell] += share;
            cpus[cell] += share * f64::from(request.cpus);
            memory[cell] += share * request.memory_mb as f64;
        });
    }
    let single = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect::<Vec<f32>>();
    (
        running.into_iter().map(single).collect(),
        single(cpus),
        single(memory),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::SECOND;
    use crate::history::tests::{DAG, TestRun};

    fn timeline() -> Timeline {
        let run = TestRun::new(DAG);
        run.append(
            "jobstate.log",
            "100 INTERNAL *** PMC_STARTED ***\n100 stage_in_0 EXECUTE 1.0 - - 1\n\
             110 stage_in_0 JOB_SUCCESS 0 - - 1\n\
             110 a EXECUTE 2.0 - - 2\n110 b EXECUTE 3.0 - - 3\n130 a JOB_SUCCESS 0 - - 2\n\
             140 b JOB_FAILURE 256 - - 3\n\
             140 INTERNAL *** PMC_FINISHED 1 ***\n\
             500 INTERNAL *** PMC_STARTED ***\n502 b EXECUTE 1.0 - - 1\n512 b JOB_SUCCESS 0 - - 1\n\
             513 c EXECUTE 2.0 - - 2\n520 c JOB_SUCCESS 0 - - 2\n520 INTERNAL *** PMC_FINISHED 0 ***\n",
        );
        Timeline::new(&run.open(), 900 * SECOND)
    }

    #[test]
    fn pauses_between_runs_are_left_out() {
        let timeline = timeline();
        assert_eq!(timeline.restarts, [41.0]);
        assert!((timeline.seconds - 61.0).abs() < 1e-9, "{}", timeline.seconds);
        let Picture::Exact(bars) = &timeline.picture else {
            panic!("a small run is drawn exactly");
        };
        assert_eq!(bars.len(), 5);
        assert_eq!((bars[1].row, bars[2].row, timeline.rows.len()), (0, 1, 2));
        assert_eq!(
            (bars[2].failed, bars[3].start, bars[3].seconds),
            (true, 43.0, 10.0)
        );
        let area: f32 = timeline.running.iter().flatten().sum::<f32>() * 61.0 / POINTS as f32;
        assert!((area - 77.0).abs() < 0.1, "{area}");
        let cpus: f32 = timeline.cpus.iter().sum::<f32>() * 61.0 / POINTS as f32;
        assert!((cpus - 137.0).abs() < 0.2, "{cpus}");
    }

    #[test]
    fn the_critical_path() {
        let timeline = timeline();
        let chain: Vec<_> = timeline
            .chain
            .iter()
            .map(|link| (link.task, link.seconds, link.waited))
            .collect();
        assert_eq!(chain, [(0, 10.0, 0.0), (2, 10.0, 33.0), (3, 7.0, 1.0)]);
        assert_eq!(
            timeline
                .classes
                .iter()
                .map(|class| class.name.as_str())
                .collect::<Vec<_>>(),
            ["work", "stage in", "last"]
        );
        let work = &timeline.run_times[0];
        assert_eq!((work.count, work.median, work.max), (2, 20.0, 20.0));
        assert_eq!(work.bars.iter().sum::<u32>(), 2);
    }

    #[test]
    fn a_run_without_attempts() {
        let timeline = Timeline::new(&TestRun::new(DAG).open(), 900 * SECOND);
        assert_eq!((timeline.rows.len(), timeline.chain.len()), (0, 0));
    }
}
