//! Holds rows back, so that many of them are written with one statement.
//!
//! The row of an attempt that ends while it is held back is written once, with its end.

use rusqlite::{Connection, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use super::insert::{self, AttemptRow, End, JobWithTask, State};
use crate::rows::{AttemptEnd, InvocationRow, JobRow};

/// Maximum rows held back.
const MAX_ROWS: usize = 4_000;
/// Maximum bytes of their texts.
const MAX_BYTES: usize = 8 << 20;

/// Rows that are not in the database yet.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    jobs: Vec<JobWithTask>,
    attempts: Vec<AttemptRow>,
    /// Positions in `attempts` by id.
    positions: FxHashMap<i64, usize>,
    /// Ends of attempts that are in the database.
    ends: Vec<(i64, End)>,
    /// Ids of attempts that are in the database without one.
    sched_ids: Vec<(i64, String)>,
    states: Vec<State>,
    invocations: Vec<(i64, InvocationRow)>,
    rows: usize,
    bytes: usize,
}

impl WriteBuffer {
    pub fn is_full(&self) -> bool {
        self.rows >= MAX_ROWS || self.bytes >= MAX_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the id of the last job, if a job is held back.
    pub fn last_job(&self) -> Option<i64> {
        self.jobs.last().map(|job| job.job_id)
    }

    pub fn add_job_with_task(&mut self, job_id: i64, job: &JobRow<'_>, task: &str, transformation: &str) {
        self.rows += 2;
        self.bytes += job.exec_job_id.len() + job.executable.len() + 2 * job.argv.map_or(0, str::len);
        self.jobs.push(JobWithTask {
            job_id,
            job: job.exec_job_id.to_owned(),
            submit_file: job.submit_file.to_owned(),
            type_desc: job.type_desc.to_owned(),
            executable: job.executable.to_owned(),
            argv: job.argv.map(str::to_owned),
            task: task.to_owned(),
            transformation: transformation.to_owned(),
        });
    }

    pub fn add_attempt(&mut self, id: i64, job_id: i64, seq: i64, sched_id: &str) {
        self.rows += 1;
        self.positions.insert(id, self.attempts.len());
        self.attempts.push(AttemptRow {
            id,
            job_id,
            seq,
            sched_id: sched_id.to_owned(),
            end: None,
        });
    }

    pub fn set_sched_id(&mut self, attempt: i64, sched_id: &str) {
        self.rows += 1;
        let sched_id = sched_id.to_owned();
        match self.positions.get(&attempt).map(|at| &mut self.attempts[*at]) {
            Some(row) => row.sched_id = sched_id,
            None => self.sched_ids.push((attempt, sched_id)),
        }
    }

    pub fn add_state(&mut self, attempt: i64, name: &str, time: i64, seq: i64) {
        self.rows += 1;
        let name = name.to_owned();
        self.states.push(State {
            attempt,
            name,
            time,
            seq,
        });
    }

    pub fn add_invocation(&mut self, attempt: i64, row: InvocationRow) {
        self.rows += 1;
        self.bytes += row.transformation.len() + row.executable.len();
        self.invocations.push((attempt, row));
    }

    pub fn end_attempt(&mut self, attempt: i64, end: AttemptEnd, host: Option<i64>) {
        self.rows += 1;
        self.bytes += [&end.stdout_text, &end.stderr_text, &end.work_dir]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum::<usize>();
        match self.positions.get(&attempt).map(|at| &mut self.attempts[*at]) {
            Some(row) => row.end = Some((end, host)),
            None => self.ends.push((attempt, (end, host))),
        }
    }

    /// Writes all rows except those of attempts without an end, as these may end soon. The caller has a
    /// transaction open.
    pub fn write_ended(&mut self, connection: &Connection, wf: i64) -> Result<()> {
        let attempts: Vec<_> = self.attempts.extract_if(.., |row| row.end.is_none()).collect();
        let open: FxHashSet<i64> = attempts.iter().map(|row| row.id).collect();
        let states = self.states.extract_if(.., |state| open.contains(&state.attempt));
        let states = states.collect();
        self.write(connection, wf)?;
        self.positions = attempts.iter().map(|row| row.id).zip(0..).collect();
        self.attempts = attempts;
        self.states = states;
        self.rows = self.attempts.len() + self.states.len();
        Ok(())
    }

    /// Writes all rows. The caller has a transaction open.
    pub fn write(&mut self, connection: &Connection, wf: i64) -> Result<()> {
        // Rows in the order of their keys are appended to their tables and indexes.
        self.attempts.sort_by_key(|row| row.id);
        self.states.sort_by_key(|state| state.attempt);
        self.invocations.sort_by_key(|(attempt, _)| *attempt);
        insert::jobs_with_tasks(connection, wf, &self.jobs)?;
        insert::attempts(connection, &self.attempts)?;
        insert::update_ends(connection, &self.ends)?;
        insert::update_sched_ids(connection, &self.sched_ids)?;
        insert::states(connection, &self.states)?;
        insert::invocations(connection, wf, &self.invocations)?;
        *self = Self::default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        connection
            .execute_batch(monitord_compat::database::TABLES)
            .unwrap();
        connection
    }

    #[test]
    fn states_are_stored_by_attempt() {
        let connection = tables();
        let kinds: [&[&str]; 4] = [
            &["SUBMIT", "EXECUTE", "JOB_TERMINATED", "JOB_SUCCESS"],
            &["SUBMIT", "EXECUTE", "JOB_TERMINATED", "JOB_FAILURE"],
            &["JOB_HELD"],
            &[],
        ];
        let mut buffer = WriteBuffer::default();
        let mut expected = Vec::new();
        // The states of all attempts are interleaved.
        for seq in 1..=4_i64 {
            for id in (1..=400).rev() {
                if let Some(state) = kinds[id as usize % kinds.len()].get(seq as usize - 1) {
                    buffer.add_state(id, state, 1000 + 7 * id + seq, seq);
                    expected.push((id, (*state).to_owned(), 1000 + 7 * id + seq, seq));
                }
            }
        }
        expected.sort_by_key(|(id, ..)| *id);
        buffer.write(&connection, 1).unwrap();
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
    fn ends_are_stored_with_their_attempts_or_later() {
        let connection = tables();
        let end = |id: i64| AttemptEnd {
            site: ["local", "", "other"][(id / 40 % 3) as usize].to_owned(),
            user: (id % 90 > 30).then(|| format!("u{}", id / 60)),
            stdout_file: format!("t{id}.out"),
            stdout_text: (id % 5 > 0).then(|| "text".to_owned()),
            local_duration: Some(id / 33),
            exitcode: i64::from(id % 70 == 0),
            ..AttemptEnd::default()
        };
        let host = |id: i64| (id % 50 > 10).then_some(id / 50);
        let ends_first = |id: i64| id % 100 < 60;
        let mut buffer = WriteBuffer::default();
        for id in 1..=300 {
            buffer.add_attempt(id, id, id, "1.0");
            if ends_first(id) {
                buffer.end_attempt(id, end(id), host(id));
            }
        }
        buffer.write_ended(&connection, 1).unwrap();
        let count = "SELECT count(*) FROM job_instance";
        let count: i64 = connection.query_row(count, (), |row| row.get(0)).unwrap();
        assert_eq!(count, (1..=300).filter(|id| ends_first(*id)).count() as i64);
        buffer.write(&connection, 1).unwrap();
        for id in (1..=300).filter(|id| !ends_first(*id)) {
            buffer.end_attempt(id, end(id), host(id));
        }
        buffer.write(&connection, 1).unwrap();
        let mut read = connection
            .prepare(
                "SELECT job_instance_id, site, user, stdout_file, stdout_text, local_duration, exitcode, host_id
                 FROM job_instance ORDER BY 1",
            )
            .unwrap();
        let rows = read.query_map((), |row| {
            let end = AttemptEnd {
                site: row.get(1)?,
                user: row.get(2)?,
                stdout_file: row.get(3)?,
                stdout_text: row.get(4)?,
                local_duration: row.get(5)?,
                exitcode: row.get(6)?,
                ..AttemptEnd::default()
            };
            Ok((row.get(0)?, end, row.get(7)?))
        });
        let rows: Vec<(i64, AttemptEnd, Option<i64>)> = rows.unwrap().map(Result::unwrap).collect();
        let expected: Vec<_> = (1..=300).map(|id| (id, end(id), host(id))).collect();
        assert_eq!(rows, expected);
    }
}
