//! A run as pictures need it: who ran what when, how much was in use, which chain of tasks decided the end,
//! how long tasks took. Everything is bounded, whatever the size of the run.
//!
//! Times are seconds of run time: where a workflow was run several times, the pauses between the runs are left
//! out.

mod chain;
mod clock;
mod lengths;
mod slots;

use crate::events::Micros;
use crate::history::{History, NEVER, seconds};
use crate::kinds::Kind;
use crate::plan::TaskNumber;

use chain::chain;
use clock::Clock;
use lengths::lengths;
use slots::end_of;
pub use slots::{Slot, slots};

/// Up to so many tries are drawn one by one.
pub const EXACT: usize = 6_000;
/// Pieces of time of a picture that is not exact.
pub const CELLS: usize = 720;
/// Pieces of time of a curve.
pub const POINTS: usize = 360;
/// More rows than this are put together by host, and further hosts are left out.
pub const ROWS: usize = 256;
/// Bars of a histogram.
pub const BARS: usize = 36;
/// Classes with a curve and a histogram of their own; the rest share one.
pub const CLASSES: usize = 9;
/// Tasks of the decisive chain that are listed.
pub const CHAIN: usize = 400;

/// What tasks run, the most time first.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Transformation, or `others`.
    pub name: String,
    /// What for.
    pub kind: Kind,
    /// Tries.
    pub count: usize,
    /// Seconds of all.
    pub seconds: f64,
}

/// A row of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Host.
    pub host: String,
    /// Slot of the host; `None` if the row is all of it.
    pub slot: Option<usize>,
}

/// One try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Row.
    pub row: usize,
    /// Class.
    pub class: usize,
    /// Task.
    pub task: TaskNumber,
    /// Begin.
    pub start: f64,
    /// Length.
    pub seconds: f64,
    /// It did not succeed.
    pub failed: bool,
}

/// A piece of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// The class that most time was for.
    pub class: usize,
    /// Part of the time, and of the slots of the row, that was used.
    pub used: f32,
    /// Something failed in it.
    pub failed: bool,
}

/// The picture of who ran what when.
#[derive(Clone, Debug, PartialEq)]
pub enum Picture {
    /// Try by try.
    Exact(Vec<Bar>),
    /// For each row, [`CELLS`] pieces of time.
    Cells(Vec<Vec<Cell>>),
}

/// A task of the decisive chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Task.
    pub task: TaskNumber,
    /// Class.
    pub class: usize,
    /// Begin of its last try.
    pub start: f64,
    /// Its length.
    pub seconds: f64,
    /// From the end of the task before, or the begin of the run, to its begin: earlier tries and waiting.
    pub waited: f64,
}

/// How long tasks of a class took.
#[derive(Clone, Debug, PartialEq)]
pub struct Lengths {
    /// Class.
    pub class: usize,
    /// Tries that succeeded.
    pub count: usize,
    /// Half took less.
    pub median: f64,
    /// One in twenty took more.
    pub p95: f64,
    /// The longest.
    pub max: f64,
    /// Tries by length, [`BARS`] pieces from [`Timeline::shortest`] to [`Timeline::longest`], equally wide on a
    /// logarithmic scale.
    pub bars: Vec<u32>,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Length in seconds of run time.
    pub seconds: f64,
    /// Where runs after the first begin.
    pub restarts: Vec<f64>,
    /// When it began, microseconds since the epoch.
    pub begin: Micros,
    /// Classes.
    pub classes: Vec<Class>,
    /// Rows, by host.
    pub rows: Vec<Row>,
    /// Hosts that have no row, because there are too many.
    pub hosts_left_out: usize,
    /// The picture.
    pub picture: Picture,
    /// Tasks running at a time, by class, [`POINTS`] pieces of time.
    pub running: Vec<Vec<f32>>,
    /// CPUs that running tasks had asked for.
    pub cpus: Vec<f32>,
    /// Memory that they had asked for, in MB.
    pub memory_mb: Vec<f32>,
    /// The chain of tasks that decided the end, from the first.
    pub chain: Vec<Link>,
    /// Shortest length in the histograms, seconds.
    pub shortest: f64,
    /// Longest.
    pub longest: f64,
    /// Histograms.
    pub lengths: Vec<Lengths>,
}

/// What is known of each try.
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
    /// Makes the pictures of a history; running tasks last until `now`.
    #[must_use]
    pub fn new(history: &History, now: Micros) -> Self {
        let clock = Clock::new(history, now);
        let (classes, class_of) = classes(history);
        let (spans, slots, hosts) = spans(history, &clock, &class_of, now);
        let total = clock.total.max(1e-3);
        let (rows, first_row, by_slot, hosts_left_out) = rows(&slots, &hosts);
        let picture = if spans.len() <= EXACT && by_slot {
            Picture::Exact(bars(&spans, &first_row))
        } else {
            Picture::Cells(cells(
                &spans,
                &first_row,
                rows.len(),
                by_slot,
                &slots,
                total,
                classes.len(),
            ))
        };
        let (running, cpus, memory_mb) = curves(history, &spans, total, classes.len());
        let (shortest, longest, lengths) = lengths(history, &class_of, classes.len());
        Self {
            seconds: total,
            restarts: clock.runs.iter().skip(1).map(|(.., before)| *before).collect(),
            begin: clock.runs.first().map_or(now, |(start, ..)| *start),
            chain: chain(history, &clock, &class_of, now),
            classes,
            rows,
            hosts_left_out,
            picture,
            running,
            cpus,
            memory_mb,
            shortest,
            longest,
            lengths,
        }
    }
}

/// The classes that take most time, and for each class of the plan its place among them.
fn classes(history: &History) -> (Vec<Class>, Vec<usize>) {
    let plan = &history.plan;
    let mut sums = vec![(0, 0.0); plan.classes().len()];
    for one in &history.tries {
        let sum = &mut sums[plan.class_index(one.task)];
        sum.0 += 1;
        sum.1 += seconds(one.duration().unwrap_or(0));
    }
    // Kinds of transfers are one transformation; people tell them apart.
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
        if classes.len() < CLASSES {
            classes.push(class);
        } else if classes.len() == CLASSES {
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

/// All tries, the number of slots of each host, and the hosts' names.
fn spans(
    history: &History,
    clock: &Clock,
    class_of: &[usize],
    now: Micros,
) -> (Vec<Span>, Vec<usize>, Vec<String>) {
    let (slots, hosts) = slots(history, now);
    let mut count = vec![0; hosts.len()];
    let span = |at: &Slot| {
        let one = &history.tries[at.try_number];
        count[at.host] = count[at.host].max(at.slot + 1);
        Span {
            start: clock.at(one.start),
            end: clock.at(end_of(one, now)),
            class: class_of
                .get(history.plan.class_index(one.task))
                .copied()
                .unwrap_or(0),
            host: at.host,
            slot: at.slot,
            task: one.task,
            failed: one.end != NEVER && !one.succeeded(),
        }
    };
    let spans = slots.iter().map(span).collect();
    (spans, count, hosts)
}

/// Rows, the first row of each host, whether a row is a slot, and how many hosts have none.
fn rows(slots: &[usize], hosts: &[String]) -> (Vec<Row>, Vec<Option<usize>>, bool, usize) {
    let by_slot = slots.iter().sum::<usize>() <= ROWS;
    let mut order: Vec<usize> = (0..hosts.len()).filter(|host| slots[*host] > 0).collect();
    order.sort_by(|a, b| hosts[*a].cmp(&hosts[*b]));
    let mut first = vec![None; hosts.len()];
    let mut rows = Vec::new();
    let mut left_out = 0;
    for host in order {
        if rows.len() >= ROWS {
            left_out += 1;
            continue;
        }
        first[host] = Some(rows.len());
        let count = if by_slot { slots[host] } else { 1 };
        rows.extend((0..count).map(|slot| Row {
            host: hosts[host].clone(),
            slot: by_slot.then_some(slot),
        }));
    }
    (rows, first, by_slot, left_out)
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

/// Spreads a span over pieces of time: gives each piece and the seconds in it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "indexes of some hundred pieces"
)]
fn pieces(span: &Span, total: f64, count: usize, mut take: impl FnMut(usize, f64)) {
    let width = total / count as f64;
    let first = ((span.start / width) as usize).min(count - 1);
    let last = ((span.end / width) as usize).min(count - 1);
    for piece in first..=last {
        let (from, to) = (piece as f64 * width, (piece + 1) as f64 * width);
        let within = span.end.min(to) - span.start.max(from);
        take(piece, within.max(0.0));
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "shares of a piece of time"
)]
fn cells(
    spans: &[Span],
    first_row: &[Option<usize>],
    rows: usize,
    by_slot: bool,
    slots: &[usize],
    total: f64,
    classes: usize,
) -> Vec<Vec<Cell>> {
    let mut sums = vec![0.0_f32; rows * CELLS * classes];
    let mut failed = vec![false; rows * CELLS];
    let mut width = vec![1; rows];
    for span in spans {
        let Some(first) = first_row[span.host] else {
            continue;
        };
        let row = if by_slot { first + span.slot } else { first };
        if !by_slot {
            width[row] = slots[span.host];
        }
        pieces(span, total, CELLS, |piece, time| {
            sums[(row * CELLS + piece) * classes + span.class] += time as f32;
        });
        if span.failed {
            let at = span.end / total * CELLS as f64;
            #[expect(clippy::cast_sign_loss, reason = "not negative")]
            let piece = (at as usize).min(CELLS - 1);
            failed[row * CELLS + piece] = true;
        }
    }
    let piece = total as f32 / CELLS as f32;
    let cell = |row: usize, at: usize| {
        let of = &sums[(row * CELLS + at) * classes..][..classes];
        let most = (0..classes).max_by(|a, b| of[*a].total_cmp(&of[*b])).unwrap_or(0);
        Cell {
            class: most,
            used: (of.iter().sum::<f32>() / piece / width[row] as f32).min(1.0),
            failed: failed[row * CELLS + at],
        }
    };
    (0..rows)
        .map(|row| (0..CELLS).map(|at| cell(row, at)).collect())
        .collect()
}

type Curves = (Vec<Vec<f32>>, Vec<f32>, Vec<f32>);

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "points of a curve"
)]
fn curves(history: &History, spans: &[Span], total: f64, classes: usize) -> Curves {
    let width = total / POINTS as f64;
    let mut running = vec![vec![0.0_f64; POINTS]; classes];
    let (mut cpus, mut memory) = (vec![0.0_f64; POINTS], vec![0.0_f64; POINTS]);
    for span in spans {
        let request = history.plan.request(span.task);
        pieces(span, total, POINTS, |piece, time| {
            let share = time / width;
            running[span.class][piece] += share;
            cpus[piece] += share * f64::from(request.cpus);
            memory[piece] += share * request.memory_mb as f64;
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
    use crate::history::tests::{DAG, Place};

    fn timeline() -> Timeline {
        let place = Place::new(DAG);
        place.append(
            "jobstate.log",
            "100 INTERNAL *** PMC_STARTED ***\n100 stage_in_0 EXECUTE 1.0 - - 1\n110 stage_in_0 JOB_SUCCESS 0 - - 1\n\
             110 a EXECUTE 2.0 - - 2\n110 b EXECUTE 3.0 - - 3\n130 a JOB_SUCCESS 0 - - 2\n140 b JOB_FAILURE 256 - - 3\n\
             140 INTERNAL *** PMC_FINISHED 1 ***\n\
             500 INTERNAL *** PMC_STARTED ***\n502 b EXECUTE 1.0 - - 1\n512 b JOB_SUCCESS 0 - - 1\n\
             513 c EXECUTE 2.0 - - 2\n520 c JOB_SUCCESS 0 - - 2\n520 INTERNAL *** PMC_FINISHED 0 ***\n",
        );
        Timeline::new(&place.open(), 900 * SECOND)
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
    fn the_chain_that_decides() {
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
        let work = &timeline.lengths[0];
        assert_eq!((work.count, work.median, work.max), (2, 20.0, 20.0));
        assert_eq!(work.bars.iter().sum::<u32>(), 2);
    }

    #[test]
    fn nothing_ran() {
        let timeline = Timeline::new(&Place::new(DAG).open(), 900 * SECOND);
        assert_eq!((timeline.rows.len(), timeline.chain.len()), (0, 0));
    }
}
