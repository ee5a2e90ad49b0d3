//! Rows that wait to be written many at a time. A try that ends while its row waits is written once, with
//! its end, instead of being written and changed.

use std::borrow::Cow;
use std::fmt::Write as _;

use rusqlite::{Connection, Result, Statement, ToSql};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::rows::{InvocationRow, JobRow, TryEnd};

/// Rows to hold back at most, and bytes of their texts.
const ROWS: usize = 4_000;
const BYTES: usize = 8 << 20;
/// Rows of one statement; what is left after the largest number goes with the next.
const AT_ONCE: [usize; 3] = [32, 4, 1];
/// States that tries usually have between two commits, each with its place among those of the try. Where a try has
/// them, only its number and the times are new.
const USUAL: [&[(&str, i64)]; 3] = [
    &[
        ("SUBMIT", 1),
        ("EXECUTE", 2),
        ("JOB_TERMINATED", 3),
        ("JOB_SUCCESS", 4),
    ],
    &[("EXECUTE", 2), ("JOB_TERMINATED", 3), ("JOB_SUCCESS", 4)],
    &[("SUBMIT", 1)],
];

/// A job with the one task in it.
#[derive(Debug)]
struct Planned {
    job_id: i64,
    job: String,
    submit_file: String,
    type_desc: String,
    executable: String,
    argv: Option<String>,
    task: String,
    transformation: String,
}

#[derive(Debug)]
struct Try {
    id: i64,
    job_id: i64,
    seq: i64,
    sched_id: String,
    end: Option<End>,
}

/// The end of a try, and the number of its host.
type End = (TryEnd, Option<i64>);

#[derive(Debug)]
struct State {
    try_id: i64,
    name: Cow<'static, str>,
    time: i64,
    seq: i64,
}

/// The rows that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    planned: Vec<Planned>,
    tries: Vec<Try>,
    /// Where they are, by their numbers.
    places: FxHashMap<i64, usize>,
    /// Ends of tries that are written.
    ends: Vec<(i64, End)>,
    states: Vec<State>,
    invocations: Vec<(i64, InvocationRow)>,
    rows: usize,
    bytes: usize,
}

impl Waiting {
    pub fn is_full(&self) -> bool {
        self.rows >= ROWS || self.bytes >= BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Number of the job that was planned last, if its row waits.
    pub fn last_job(&self) -> Option<i64> {
        self.planned.last().map(|planned| planned.job_id)
    }

    pub fn planned(&mut self, job_id: i64, job: &JobRow<'_>, task: &str, transformation: &str) {
        let planned = Planned {
            job_id,
            job: job.exec_job_id.to_owned(),
            submit_file: job.submit_file.to_owned(),
            type_desc: job.type_desc.to_owned(),
            executable: job.executable.to_owned(),
            argv: job.argv.map(str::to_owned),
            task: task.to_owned(),
            transformation: transformation.to_owned(),
        };
        self.rows += 2;
        self.bytes += job.exec_job_id.len() + job.executable.len() + 2 * job.argv.map_or(0, str::len);
        self.planned.push(planned);
    }

    pub fn new_try(&mut self, id: i64, job_id: i64, seq: i64, sched_id: &str) {
        self.rows += 1;
        self.places.insert(id, self.tries.len());
        self.tries.push(Try {
            id,
            job_id,
            seq,
            sched_id: sched_id.to_owned(),
            end: None,
        });
    }

    pub fn state(&mut self, try_id: i64, name: &str, time: i64, seq: i64) {
        self.rows += 1;
        let name = match name {
            "SUBMIT" => "SUBMIT".into(),
            "EXECUTE" => "EXECUTE".into(),
            "JOB_TERMINATED" => "JOB_TERMINATED".into(),
            "JOB_SUCCESS" => "JOB_SUCCESS".into(),
            "JOB_FAILURE" => "JOB_FAILURE".into(),
            other => Cow::Owned(other.to_owned()),
        };
        self.states.push(State {
            try_id,
            name,
            time,
            seq,
        });
    }

    pub fn invocation(&mut self, try_id: i64, row: InvocationRow) {
        self.rows += 1;
        self.bytes += row.transformation.len() + row.executable.len();
        self.invocations.push((try_id, row));
    }

    pub fn end(&mut self, try_id: i64, end: TryEnd, host: Option<i64>) {
        self.rows += 1;
        self.bytes += [&end.stdout_text, &end.stderr_text, &end.work_dir]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum::<usize>();
        match self.places.get(&try_id).map(|at| &mut self.tries[*at]) {
            Some(this) => this.end = Some((end, host)),
            None => self.ends.push((try_id, (end, host))),
        }
    }

    /// Writes all rows but those of tries that have not ended, in a transaction of the caller: a try that ends soon is
    /// then written once.
    pub fn write_ended(&mut self, connection: &Connection, wf: i64) -> Result<()> {
        let open: FxHashSet<i64> = self
            .tries
            .iter()
            .filter(|this| this.end.is_none())
            .map(|this| this.id)
            .collect();
        let tries = self.tries.extract_if(.., |this| this.end.is_none()).collect();
        let states = self.states.extract_if(.., |state| open.contains(&state.try_id));
        let states = states.collect();
        self.write(connection, wf)?;
        self.tries = tries;
        self.states = states;
        self.rows = self.tries.len() + self.states.len();
        self.places = self
            .tries
            .iter()
            .zip(0..)
            .map(|(this, at)| (this.id, at))
            .collect();
        Ok(())
    }

    /// Writes all rows, in a transaction of the caller.
    pub fn write(&mut self, connection: &Connection, wf: i64) -> Result<()> {
        write_planned(connection, wf, &self.planned)?;
        // What follows each other in the key is appended to it.
        self.tries.sort_by_key(|this| this.id);
        self.invocations.sort_by_key(|(try_id, _)| *try_id);
        write_tries(connection, &self.tries)?;
        write_ends(connection, &self.ends)?;
        write_states(connection, &by_tries(&self.states))?;
        write_invocations(connection, wf, &self.invocations)?;
        self.planned.clear();
        self.tries.clear();
        self.places.clear();
        self.ends.clear();
        self.states.clear();
        self.invocations.clear();
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

/// The states of one try after another, each in their order.
fn by_tries(states: &[State]) -> Vec<&State> {
    let tries = || states.iter().map(|state| state.try_id);
    let first = tries().min().unwrap_or(0);
    let place = |state: &State| usize::try_from(state.try_id - first).unwrap_or(usize::MAX);
    let span = states
        .iter()
        .map(place)
        .max()
        .map_or(0, |last| last.saturating_add(1));
    let mut sorted: Vec<&State> = states.iter().collect();
    if span > 4 * states.len() {
        sorted.sort_by_key(|state| state.try_id);
        return sorted;
    }
    // Tries have their numbers one after another, so where each begins is known when they are counted.
    let mut begins = vec![0; span + 1];
    states.iter().for_each(|state| begins[place(state) + 1] += 1);
    (0..span).for_each(|at| begins[at + 1] += begins[at]);
    for state in states {
        let begin = &mut begins[place(state)];
        sorted[*begin] = state;
        *begin += 1;
    }
    sorted
}

fn write_planned(connection: &Connection, wf: i64, rows: &[Planned]) -> Result<()> {
    insert(
        connection,
        "INSERT OR IGNORE INTO job (clustered, max_retries, task_count, wf_id, job_id, exec_job_id, submit_file,
             type_desc, executable, argv)",
        &row_of(&format!("0,0,1,{wf},"), 6),
        rows,
        |to, row, before| {
            to.put(row.job_id)?;
            to.put(&row.job)?;
            to.put_new(&row.submit_file, before.map(|row| &row.submit_file))?;
            to.put_new(&row.type_desc, before.map(|row| &row.type_desc))?;
            to.put_new(&row.executable, before.map(|row| &row.executable))?;
            to.put_new(&row.argv, before.map(|row| &row.argv))
        },
    )?;
    insert(
        connection,
        "INSERT OR IGNORE INTO task (type_desc, wf_id, job_id, abs_task_id, transformation, argv)",
        &row_of(&format!("'compute',{wf},"), 4),
        rows,
        |to, row, before| {
            to.put(row.job_id)?;
            to.put(&row.task)?;
            to.put_new(&row.transformation, before.map(|row| &row.transformation))?;
            to.put_new(&row.argv, before.map(|row| &row.argv))
        },
    )
}

fn write_tries(connection: &Connection, rows: &[Try]) -> Result<()> {
    insert(
        connection,
        // Should a row be refused, which cannot be, no half of the rows stays.
        "INSERT OR ROLLBACK INTO job_instance (multiplier_factor, job_instance_id, job_id, job_submit_seq, sched_id,
             host_id, site, user, work_dir, cluster_start, cluster_duration, local_duration, stdout_file, stdout_text,
             stderr_file, stderr_text, exitcode)",
        &row_of("1,", 16),
        rows,
        |to, row, before| {
            to.put(row.id)?;
            to.put(row.job_id)?;
            to.put(row.seq)?;
            to.put(&row.sched_id)?;
            match (&row.end, before.map(|row| &row.end)) {
                (Some(end), before) => put_end(to, end, before.and_then(Option::as_ref)),
                (None, before) => {
                    let before = before.is_some_and(Option::is_none).then_some(&None::<i64>);
                    (0..12).try_for_each(|_| to.put_new(&None, before))
                }
            }
        },
    )
}

/// The twelve columns of an end; `before` is the end that the statement had there.
fn put_end(to: &mut Values<'_, '_>, (end, host): &End, before: Option<&End>) -> Result<()> {
    let old = before.map(|(end, _)| end);
    to.put_new(host, before.map(|(_, host)| host))?;
    to.put_new(&end.site, old.map(|end| &end.site))?;
    to.put_new(&end.user, old.map(|end| &end.user))?;
    to.put_new(&end.work_dir, old.map(|end| &end.work_dir))?;
    to.put_new(&end.cluster_start, old.map(|end| &end.cluster_start))?;
    to.put_new(&end.cluster_duration, old.map(|end| &end.cluster_duration))?;
    to.put_new(&end.local_duration, old.map(|end| &end.local_duration))?;
    to.put_new(&end.stdout_file, old.map(|end| &end.stdout_file))?;
    to.put_new(&end.stdout_text, old.map(|end| &end.stdout_text))?;
    to.put_new(&end.stderr_file, old.map(|end| &end.stderr_file))?;
    to.put_new(&end.stderr_text, old.map(|end| &end.stderr_text))?;
    to.put_new(&end.exitcode, old.map(|end| &end.exitcode))
}

fn write_ends(connection: &Connection, rows: &[(i64, End)]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut statement = connection.prepare_cached(
        "UPDATE job_instance SET host_id = ?1, site = ?2, user = ?3, work_dir = ?4, cluster_start = ?5,
             cluster_duration = ?6, local_duration = ?7, stdout_file = ?8, stdout_text = ?9, stderr_file = ?10,
             stderr_text = ?11, exitcode = ?12
         WHERE job_instance_id = ?13",
    )?;
    let mut before = None;
    for (id, end) in rows {
        let mut values = Values {
            statement: &mut statement,
            count: 0,
        };
        put_end(&mut values, end, before)?;
        values.put(id)?;
        statement.raw_execute()?;
        before = Some(end);
    }
    Ok(())
}

fn write_invocations(connection: &Connection, wf: i64, rows: &[(i64, InvocationRow)]) -> Result<()> {
    insert(
        connection,
        "INSERT OR IGNORE INTO invocation (wf_id, job_instance_id, task_submit_seq, start_time, remote_duration,
             remote_cpu_time, exitcode, transformation, executable, abs_task_id, maxrss, avg_cpu)",
        &row_of(&format!("{wf},"), 11),
        rows,
        |to, (try_id, row), before| {
            let old = before.map(|(_, row)| row);
            to.put(try_id)?;
            to.put_new(&row.task_submit_seq, old.map(|row| &row.task_submit_seq))?;
            to.put(row.start_time)?;
            to.put(row.remote_duration)?;
            to.put_new(&row.remote_cpu_time, old.map(|row| &row.remote_cpu_time))?;
            to.put_new(&row.exitcode, old.map(|row| &row.exitcode))?;
            to.put_new(&row.transformation, old.map(|row| &row.transformation))?;
            to.put_new(&row.executable, old.map(|row| &row.executable))?;
            to.put_new(&row.abs_task_id, old.map(|row| &row.abs_task_id))?;
            to.put_new(&row.maxrss, old.map(|row| &row.maxrss))?;
            to.put_new(&row.avg_cpu, old.map(|row| &row.avg_cpu))
        },
    )
}

/// The values of a statement, one after another.
struct Values<'s, 'c> {
    statement: &'s mut Statement<'c>,
    count: usize,
}

impl Values<'_, '_> {
    fn put(&mut self, value: impl ToSql) -> Result<()> {
        self.count += 1;
        self.statement.raw_bind_parameter(self.count, value)
    }

    /// Puts a value in the place of one that the statement still has from the last time, unless they are equal:
    /// SQLite copies each text that it is given.
    fn put_new<T: ToSql + PartialEq>(&mut self, value: &T, before: Option<&T>) -> Result<()> {
        if before == Some(value) {
            self.count += 1;
            return Ok(());
        }
        self.put(value)
    }
}

/// The values of a row, for [`insert_groups`]: `same` in all rows, and so many `columns` of its own.
fn row_of(same: &str, columns: u8) -> String {
    let mut row = format!("({same}?a");
    (b'b'..b'a' + columns).for_each(|letter| _ = write!(row, ",?{}", char::from(letter)));
    row.push(')');
    row
}

fn write_states(connection: &Connection, mut rest: &[&State]) -> Result<()> {
    const HEAD: &str =
        "INSERT OR IGNORE INTO jobstate (job_instance_id, state, timestamp, jobstate_submit_seq)";
    while !rest.is_empty() {
        let usual = USUAL.into_iter().find(|usual| are(rest, usual));
        let Some(usual) = usual else {
            let others = rest.iter().enumerate();
            let others =
                others.take_while(|(at, _)| !USUAL.into_iter().any(|usual| are(&rest[*at..], usual)));
            let (now, later) = rest.split_at(others.count());
            insert(connection, HEAD, &row_of("", 4), now, |to, row, _| {
                to.put(row.try_id)?;
                to.put(&*row.name)?;
                to.put(row.time)?;
                to.put(row.seq)
            })?;
            rest = later;
            continue;
        };
        let mut end = usual.len();
        while are(&rest[end..], usual) {
            end += usual.len();
        }
        let (now, later) = rest.split_at(end);
        let mut row = String::new();
        for (letter, (name, seq)) in (b'b'..).zip(usual) {
            let comma = if row.is_empty() { "" } else { "," };
            let _ = write!(row, "{comma}(?a,'{name}',?{},{seq})", char::from(letter));
        }
        insert_groups(connection, HEAD, &row, usual.len(), now, |to, group, _| {
            to.put(group[0].try_id)?;
            group.iter().try_for_each(|state| to.put(state.time))
        })?;
        rest = later;
    }
    Ok(())
}

/// Whether the first states are these, of one try, and all of it.
fn are(states: &[&State], usual: &[(&str, i64)]) -> bool {
    let of_first = |state: &State| state.try_id == states[0].try_id;
    states.len() >= usual.len()
        && states.get(usual.len()).is_none_or(|next| !of_first(next))
        && states
            .iter()
            .zip(usual)
            .all(|(state, (name, seq))| of_first(state) && state.seq == *seq && state.name == *name)
}

/// Inserts rows. `head` is the statement up to its columns, `row` is as for [`insert_groups`], and `put` gives the values
/// of a row. It gets the row, too, that the statement had there the last time.
fn insert<R>(
    connection: &Connection,
    head: &str,
    row: &str,
    rows: &[R],
    put: impl Fn(&mut Values<'_, '_>, &R, Option<&R>) -> Result<()>,
) -> Result<()> {
    insert_groups(connection, head, row, 1, rows, |to, group, before| {
        put(to, &group[0], before.map(|group| &group[0]))
    })
}

/// Inserts what so many `items` together tell at a time. `row` has their rows as SQL: `?a` is the first of their
/// values, `?b` the next, which may stand in several places.
fn insert_groups<R>(
    connection: &Connection,
    head: &str,
    row: &str,
    items: usize,
    rows: &[R],
    put: impl Fn(&mut Values<'_, '_>, &[R], Option<&[R]>) -> Result<()>,
) -> Result<()> {
    let mut rest = rows;
    for size in AT_ONCE {
        if rest.len() < size * items {
            continue;
        }
        let mut sql = String::with_capacity(head.len() + 2 * size * row.len());
        let _ = write!(sql, "{head} VALUES ");
        let mut values = 0;
        for group in 0..size {
            let (mut parts, first) = (row.split('?'), values);
            sql.push_str(if group == 0 { "" } else { "," });
            sql.push_str(parts.next().unwrap_or_default());
            for part in parts {
                let letter = part.bytes().next().unwrap_or(b'a');
                let number = first + usize::from(letter - b'a') + 1;
                values = values.max(number);
                let _ = write!(sql, "?{number}{}", &part[1..]);
            }
        }
        let mut statement = connection.prepare_cached(&sql)?;
        let mut before = None;
        while let Some((now, later)) = rest.split_at_checked(size * items) {
            let mut values = Values {
                statement: &mut statement,
                count: 0,
            };
            let mut old = before.map(|rows: &[R]| rows.chunks(items));
            for group in now.chunks(items) {
                put(&mut values, group, old.as_mut().and_then(Iterator::next))?;
            }
            statement.raw_execute()?;
            before = Some(now);
            rest = later;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_by_tries() {
        let state = |try_id, seq| State {
            try_id,
            name: "SUBMIT".into(),
            time: 0,
            seq,
        };
        for far in [0, 1_000_000] {
            let states = [(7, 1), (9 + far, 1), (8, 4), (7, 2), (9 + far, 2), (7, 3)];
            let states = states.map(|(id, seq)| state(id, seq));
            let sorted = by_tries(&states);
            let sorted: Vec<_> = sorted.iter().map(|state| (state.try_id, state.seq)).collect();
            assert_eq!(
                sorted,
                [(7, 1), (7, 2), (7, 3), (8, 4), (9 + far, 1), (9 + far, 2)]
            );
        }
        assert!(by_tries(&[]).is_empty());
    }

    fn tables() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        connection
            .execute_batch(monitord_compat::database::TABLES)
            .unwrap();
        connection
    }

    #[test]
    fn states_are_stored_as_they_came() {
        let connection = tables();
        let tries: [&[&str]; 7] = [
            &["SUBMIT", "EXECUTE", "JOB_TERMINATED", "JOB_SUCCESS"],
            &[
                "SUBMIT",
                "EXECUTE",
                "JOB_TERMINATED",
                "JOB_SUCCESS",
                "POST_SCRIPT_STARTED",
            ],
            &["SUBMIT", "EXECUTE", "JOB_TERMINATED", "JOB_FAILURE"],
            &["SUBMIT"],
            &["SUBMIT", "EXECUTE"],
            &["JOB_HELD"],
            &[],
        ];
        let mut waiting = Waiting::default();
        let mut expected = Vec::new();
        for id in 1..=400 {
            // Runs of the same, and all of them mixed.
            let kind = if id < 200 { id / 40 } else { id % 7 };
            let (early, late) = tries[kind as usize].split_at(tries[kind as usize].len().min(1));
            for (state, seq) in early.iter().chain(late).zip(1..) {
                waiting.state(id, state, 1000 + 7 * id + seq, seq);
                expected.push((id, (*state).to_owned(), 1000 + 7 * id + seq, seq));
            }
        }
        for id in 500..600 {
            for (state, seq) in [("EXECUTE", 2), ("JOB_TERMINATED", 3), ("JOB_SUCCESS", 4)] {
                waiting.state(id, state, id, seq);
                expected.push((id, state.to_owned(), id, seq));
            }
        }
        waiting.write(&connection, 1).unwrap();
        let mut read = connection
            .prepare(
                "SELECT job_instance_id, state, timestamp, jobstate_submit_seq FROM jobstate ORDER BY rowid",
            )
            .unwrap();
        let rows = read.query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
        let rows: Vec<(i64, String, i64, i64)> = rows.unwrap().map(Result::unwrap).collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn ends_are_stored_as_they_came() {
        let connection = tables();
        // Values that stay for some rows, or come back, or are none: now in new rows, now in old ones.
        let end = |id: i64| TryEnd {
            site: ["local", "", "other"][(id / 40 % 3) as usize].to_owned(),
            user: (id % 90 > 30).then(|| format!("u{}", id / 60)),
            stdout_file: format!("t{id}.out"),
            stdout_text: (id % 5 > 0).then(|| "text".to_owned()),
            local_duration: Some(id / 33),
            exitcode: i64::from(id % 70 == 0),
            ..TryEnd::default()
        };
        let host = |id: i64| (id % 50 > 10).then_some(id / 50);
        let mut waiting = Waiting::default();
        for id in 1..=300 {
            waiting.new_try(id, id, id, "1.0");
            if id % 100 < 60 {
                waiting.end(id, end(id), host(id));
            }
        }
        waiting.write(&connection, 1).unwrap();
        for id in (1..=300).filter(|id| id % 100 >= 60) {
            waiting.end(id, end(id), host(id));
        }
        waiting.write(&connection, 1).unwrap();
        let mut read = connection
            .prepare("SELECT job_instance_id, site, user, stdout_file, stdout_text, local_duration, exitcode, host_id FROM job_instance ORDER BY 1")
            .unwrap();
        let rows = read.query_map((), |row| {
            let end = TryEnd {
                site: row.get(1)?,
                user: row.get(2)?,
                stdout_file: row.get(3)?,
                stdout_text: row.get(4)?,
                local_duration: row.get(5)?,
                exitcode: row.get(6)?,
                ..TryEnd::default()
            };
            Ok((row.get(0)?, end, row.get(7)?))
        });
        let rows: Vec<(i64, TryEnd, Option<i64>)> = rows.unwrap().map(Result::unwrap).collect();
        let expected: Vec<_> = (1..=300).map(|id| (id, end(id), host(id))).collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn any_number_of_rows() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE t (a INTEGER, b INTEGER, c TEXT)")
            .unwrap();
        let mut expected = 0;
        for count in [0, 1, 3, 31, 32, 33, 71] {
            let rows: Vec<i64> = (expected..expected + count).collect();
            insert(
                &connection,
                "INSERT INTO t (c, a, b)",
                &row_of("'x',", 2),
                &rows,
                |to, row, _| {
                    to.put(row)?;
                    to.put(2 * row)
                },
            )
            .unwrap();
            expected += count;
        }
        let sums = "SELECT count(*), count(DISTINCT a), sum(b = 2 * a AND c = 'x') FROM t";
        let sums: (i64, i64, i64) = connection
            .query_row(sums, (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .unwrap();
        assert_eq!(sums, (expected, expected, expected));
    }
}
