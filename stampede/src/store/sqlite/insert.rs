//! Statements that insert many rows at once.

use std::fmt::Write as _;

use rusqlite::{Connection, Result, Statement, ToSql};

use crate::rows::{AttemptEnd, InvocationRow};

/// Rows per statement; the remainder of one size goes with the next.
const BATCH_SIZES: [usize; 3] = [32, 4, 1];

/// A job and its only task.
#[derive(Debug)]
pub(super) struct JobWithTask {
    pub job_id: i64,
    pub job: String,
    pub submit_file: String,
    pub type_desc: String,
    pub executable: String,
    pub argv: Option<String>,
    pub task: String,
    pub transformation: String,
}

/// An attempt, with its end if it has ended.
#[derive(Debug)]
pub(super) struct AttemptRow {
    pub id: i64,
    pub job_id: i64,
    pub seq: i64,
    /// Empty if it is unknown.
    pub sched_id: String,
    pub end: Option<End>,
}

/// The end of an attempt, and the id of its host.
pub(super) type End = (AttemptEnd, Option<i64>);

/// Number of columns that hold an [`End`].
const END_COLUMNS: usize = 12;

/// A state of an attempt.
#[derive(Debug)]
pub(super) struct State {
    pub attempt: i64,
    pub name: String,
    pub time: i64,
    pub seq: i64,
}

pub(super) fn jobs_with_tasks(connection: &Connection, wf: i64, rows: &[JobWithTask]) -> Result<()> {
    let insertion = Insertion {
        head: "INSERT OR IGNORE INTO job (clustered, max_retries, task_count, wf_id, job_id, exec_job_id,
                   submit_file, type_desc, executable, argv)",
        constants: &format!("0,0,1,{wf},"),
        columns: 6,
    };
    insertion.run(connection, rows, |values, row| {
        values.bind(row.job_id)?;
        values.bind(&row.job)?;
        values.bind(&row.submit_file)?;
        values.bind(&row.type_desc)?;
        values.bind(&row.executable)?;
        values.bind(&row.argv)
    })?;
    let insertion = Insertion {
        head: "INSERT OR IGNORE INTO task (type_desc, wf_id, job_id, abs_task_id, transformation, argv)",
        constants: &format!("'compute',{wf},"),
        columns: 4,
    };
    insertion.run(connection, rows, |values, row| {
        values.bind(row.job_id)?;
        values.bind(&row.task)?;
        values.bind(&row.transformation)?;
        values.bind(&row.argv)
    })
}

pub(super) fn attempts(connection: &Connection, rows: &[AttemptRow]) -> Result<()> {
    let insertion = Insertion {
        // A refused row, which cannot occur, must not leave half of the rows.
        head:
            "INSERT OR ROLLBACK INTO job_instance (multiplier_factor, job_instance_id, job_id, job_submit_seq,
                   sched_id, host_id, site, user, work_dir, cluster_start, cluster_duration, local_duration,
                   stdout_file, stdout_text, stderr_file, stderr_text, exitcode)",
        constants: "1,",
        columns: 4 + END_COLUMNS,
    };
    insertion.run(connection, rows, |values, row| {
        values.bind(row.id)?;
        values.bind(row.job_id)?;
        values.bind(row.seq)?;
        values.bind(Some(&row.sched_id).filter(|id| !id.is_empty()))?;
        match &row.end {
            Some(end) => bind_end(values, end),
            None => (0..END_COLUMNS).try_for_each(|_| values.bind(None::<i64>)),
        }
    })
}

/// Adds ends to attempts that are in the database.
pub(super) fn update_ends(connection: &Connection, rows: &[(i64, End)]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut statement = connection.prepare_cached(
        "UPDATE job_instance SET host_id = ?1, site = ?2, user = ?3, work_dir = ?4, cluster_start = ?5,
             cluster_duration = ?6, local_duration = ?7, stdout_file = ?8, stdout_text = ?9, stderr_file = ?10,
             stderr_text = ?11, exitcode = ?12
         WHERE job_instance_id = ?13",
    )?;
    for (id, end) in rows {
        let mut values = Values::new(&mut statement);
        bind_end(&mut values, end)?;
        values.bind(id)?;
        statement.raw_execute()?;
    }
    Ok(())
}

/// Adds ids to attempts that are in the database.
pub(super) fn update_sched_ids(connection: &Connection, rows: &[(i64, String)]) -> Result<()> {
    for (id, sched_id) in rows {
        connection
            .prepare_cached("UPDATE job_instance SET sched_id = ?1 WHERE job_instance_id = ?2")?
            .execute((sched_id, id))?;
    }
    Ok(())
}

fn bind_end(values: &mut Values<'_, '_>, (end, host): &End) -> Result<()> {
    values.bind(host)?;
    values.bind(&end.site)?;
    values.bind(&end.user)?;
    values.bind(&end.work_dir)?;
    values.bind(end.cluster_start)?;
    values.bind(end.cluster_duration)?;
    values.bind(end.local_duration)?;
    values.bind(&end.stdout_file)?;
    values.bind(&end.stdout_text)?;
    values.bind(&end.stderr_file)?;
    values.bind(&end.stderr_text)?;
    values.bind(end.exitcode)
}

pub(super) fn states(connection: &Connection, rows: &[State]) -> Result<()> {
    let insertion = Insertion {
        head: "INSERT OR IGNORE INTO jobstate (job_instance_id, state, timestamp, jobstate_submit_seq)",
        constants: "",
        columns: 4,
    };
    insertion.run(connection, rows, |values, row| {
        values.bind(row.attempt)?;
        values.bind(&row.name)?;
        values.bind(row.time)?;
        values.bind(row.seq)
    })
}

pub(super) fn invocations(connection: &Connection, wf: i64, rows: &[(i64, InvocationRow)]) -> Result<()> {
    let insertion = Insertion {
        head: "INSERT OR IGNORE INTO invocation (wf_id, job_instance_id, task_submit_seq, start_time,
                   remote_duration, remote_cpu_time, exitcode, transformation, executable, abs_task_id, maxrss,
                   avg_cpu)",
        constants: &format!("{wf},"),
        columns: 11,
    };
    insertion.run(connection, rows, |values, (attempt, row)| {
        values.bind(attempt)?;
        values.bind(row.task_submit_seq)?;
        values.bind(row.start_time)?;
        values.bind(row.remote_duration)?;
        values.bind(row.remote_cpu_time)?;
        values.bind(row.exitcode)?;
        values.bind(&row.transformation)?;
        values.bind(&row.executable)?;
        values.bind(&row.abs_task_id)?;
        values.bind(row.maxrss)?;
        values.bind(row.avg_cpu)
    })
}

/// Binds the values of a statement, one after another.
struct Values<'s, 'c> {
    statement: &'s mut Statement<'c>,
    count: usize,
}

impl<'s, 'c> Values<'s, 'c> {
    fn new(statement: &'s mut Statement<'c>) -> Self {
        Self { statement, count: 0 }
    }

    fn bind(&mut self, value: impl ToSql) -> Result<()> {
        self.count += 1;
        self.statement.raw_bind_parameter(self.count, value)
    }
}

/// A statement that inserts rows.
struct Insertion<'a> {
    /// The statement up to its list of columns.
    head: &'a str,
    /// Values of the first columns, which are the same in all rows, each with a comma.
    constants: &'a str,
    /// Number of the other columns.
    columns: usize,
}

impl Insertion<'_> {
    fn run<R>(
        &self,
        connection: &Connection,
        mut rows: &[R],
        bind: impl Fn(&mut Values<'_, '_>, &R) -> Result<()>,
    ) -> Result<()> {
        for size in BATCH_SIZES {
            if rows.len() < size {
                continue;
            }
            let mut statement = connection.prepare_cached(&self.sql(size))?;
            while let Some((batch, rest)) = rows.split_at_checked(size) {
                let mut values = Values::new(&mut statement);
                batch.iter().try_for_each(|row| bind(&mut values, row))?;
                statement.raw_execute()?;
                rows = rest;
            }
        }
        Ok(())
    }

    /// Returns the statement for this number of rows.
    fn sql(&self, rows: usize) -> String {
        let row = format!("({}{})", self.constants, vec!["?"; self.columns].join(","));
        let mut sql = format!("{} VALUES {row}", self.head);
        (1..rows).for_each(|_| _ = write!(sql, ",{row}"));
        sql
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_rows_is_inserted() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE t (a INTEGER, b INTEGER, c TEXT)")
            .unwrap();
        let insertion = Insertion {
            head: "INSERT INTO t (c, a, b)",
            constants: "'x',",
            columns: 2,
        };
        let mut expected = 0;
        for count in [0, 1, 3, 31, 32, 33, 71] {
            let rows: Vec<i64> = (expected..expected + count).collect();
            let bind = |values: &mut Values<'_, '_>, row: &i64| {
                values.bind(row)?;
                values.bind(2 * row)
            };
            insertion.run(&connection, &rows, bind).unwrap();
            expected += count;
        }
        let sums = "SELECT count(*), count(DISTINCT a), sum(b = 2 * a AND c = 'x') FROM t";
        let sums: (i64, i64, i64) = connection
            .query_row(sums, (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .unwrap();
        assert_eq!(sums, (expected, expected, expected));
    }
}
