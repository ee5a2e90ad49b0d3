//! Rows that wait to be written many at a time. A try that ends while its row waits is written once, with
//! its end, instead of being written and changed.

use std::borrow::Cow;
use std::fmt::Write as _;

use rusqlite::{Connection, Result, Statement, ToSql};

use crate::rows::{InvocationRow, JobRow, TryEnd};

/// Rows to hold back at most, and bytes of their texts.
const ROWS: usize = 40_000;
const BYTES: usize = 8 << 20;
/// Rows of one statement; what is left after the largest number goes with the next.
const AT_ONCE: [usize; 3] = [32, 4, 1];

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
    end: Option<(TryEnd, Option<i64>)>,
}

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
    /// Their numbers follow each other without gaps.
    tries: Vec<Try>,
    /// Ends of tries that are written.
    ends: Vec<(i64, TryEnd, Option<i64>)>,
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
        let first = self.tries.first().map_or(i64::MAX, |first| first.id);
        let at = try_id.checked_sub(first).and_then(|at| usize::try_from(at).ok());
        match at.and_then(|at| self.tries.get_mut(at)) {
            Some(this) => this.end = Some((end, host)),
            None => self.ends.push((try_id, end, host)),
        }
    }

    /// Writes all rows, in a transaction of the caller.
    pub fn write(&mut self, connection: &Connection, wf: i64) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        write_planned(connection, wf, &self.planned)?;
        write_tries(connection, &self.tries)?;
        write_ends(connection, &self.ends)?;
        insert(
            connection,
            "INSERT OR IGNORE INTO jobstate (job_instance_id, state, timestamp, jobstate_submit_seq)",
            "",
            4,
            // What follows each other in the key is appended to it.
            &by_tries(&self.states),
            |to, row| {
                to.put(row.try_id)?;
                to.put(&*row.name)?;
                to.put(row.time)?;
                to.put(row.seq)
            },
        )?;
        write_invocations(connection, wf, &self.invocations)?;
        self.planned.clear();
        self.tries.clear();
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
        &format!("0,0,1,{wf},"),
        6,
        rows,
        |to, row| {
            to.put(row.job_id)?;
            to.put(&row.job)?;
            to.put(&row.submit_file)?;
            to.put(&row.type_desc)?;
            to.put(&row.executable)?;
            to.put(&row.argv)
        },
    )?;
    insert(
        connection,
        "INSERT OR IGNORE INTO task (type_desc, wf_id, job_id, abs_task_id, transformation, argv)",
        &format!("'compute',{wf},"),
        4,
        rows,
        |to, row| {
            to.put(row.job_id)?;
            to.put(&row.task)?;
            to.put(&row.transformation)?;
            to.put(&row.argv)
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
        "1,",
        16,
        rows,
        |to, row| {
            to.put(row.id)?;
            to.put(row.job_id)?;
            to.put(row.seq)?;
            to.put(&row.sched_id)?;
            match &row.end {
                Some((end, host)) => put_end(to, end, *host),
                None => (0..12).try_for_each(|_| to.put(rusqlite::types::Null)),
            }
        },
    )
}

/// The twelve columns of an end.
fn put_end(to: &mut Values<'_, '_>, end: &TryEnd, host: Option<i64>) -> Result<()> {
    to.put(host)?;
    to.put(&end.site)?;
    to.put(&end.user)?;
    to.put(&end.work_dir)?;
    to.put(end.cluster_start)?;
    to.put(end.cluster_duration)?;
    to.put(end.local_duration)?;
    to.put(&end.stdout_file)?;
    to.put(&end.stdout_text)?;
    to.put(&end.stderr_file)?;
    to.put(&end.stderr_text)?;
    to.put(end.exitcode)
}

fn write_ends(connection: &Connection, rows: &[(i64, TryEnd, Option<i64>)]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut statement = connection.prepare_cached(
        "UPDATE job_instance SET host_id = ?1, site = ?2, user = ?3, work_dir = ?4, cluster_start = ?5,
             cluster_duration = ?6, local_duration = ?7, stdout_file = ?8, stdout_text = ?9, stderr_file = ?10,
             stderr_text = ?11, exitcode = ?12
         WHERE job_instance_id = ?13",
    )?;
    for (id, end, host) in rows {
        let mut values = Values {
            statement: &mut statement,
            count: 0,
        };
        put_end(&mut values, end, *host)?;
        values.put(id)?;
        statement.raw_execute()?;
    }
    Ok(())
}

fn write_invocations(connection: &Connection, wf: i64, rows: &[(i64, InvocationRow)]) -> Result<()> {
    insert(
        connection,
        "INSERT OR REPLACE INTO invocation (wf_id, job_instance_id, task_submit_seq, start_time, remote_duration,
             remote_cpu_time, exitcode, transformation, executable, abs_task_id, maxrss, avg_cpu)",
        &format!("{wf},"),
        11,
        rows,
        |to, (try_id, row)| {
            to.put(try_id)?;
            to.put(row.task_submit_seq)?;
            to.put(row.start_time)?;
            to.put(row.remote_duration)?;
            to.put(row.remote_cpu_time)?;
            to.put(row.exitcode)?;
            to.put(&row.transformation)?;
            to.put(&row.executable)?;
            to.put(&row.abs_task_id)?;
            to.put(row.maxrss)?;
            to.put(row.avg_cpu)
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
}

/// Inserts rows. `head` is the statement up to its columns; the first of these have the values `same` in all
/// rows, and `put` gives those of the `columns` others.
fn insert<R>(
    connection: &Connection,
    head: &str,
    same: &str,
    columns: usize,
    rows: &[R],
    put: impl Fn(&mut Values<'_, '_>, &R) -> Result<()>,
) -> Result<()> {
    let mut rest = rows;
    for size in AT_ONCE {
        if rest.len() < size {
            continue;
        }
        let mut row = format!("({same}?");
        (1..columns).for_each(|_| row.push_str(",?"));
        row.push(')');
        let mut sql = String::with_capacity(head.len() + size * (row.len() + 1) + 8);
        let _ = write!(sql, "{head} VALUES {row}");
        (1..size).for_each(|_| _ = write!(sql, ",{row}"));
        let mut statement = connection.prepare_cached(&sql)?;
        while let Some((now, later)) = rest.split_at_checked(size) {
            let mut values = Values {
                statement: &mut statement,
                count: 0,
            };
            now.iter().try_for_each(|row| put(&mut values, row))?;
            statement.raw_execute()?;
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
                "'x',",
                2,
                &rows,
                |to, row| {
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
