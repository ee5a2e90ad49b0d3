//! Statements that write rows, one per table.

use std::hash::Hasher as _;

use rustc_hash::FxHasher;

use super::Postgresql;
use super::batch::{Kind, Table, Value};
use crate::rows::{AttemptEnd, HostRow, InvocationRow, JobRow, WorkflowRow, WorkflowState};
use crate::store::{Position, Store, StoreError};
use crate::text::{Metric, MetricKind};

use Kind::{Id, Int, Real, Text, Varchar};

const NAME: Kind = Varchar(255);
const FILE: Kind = Varchar(245);
const TIME: Kind = Real(10);
const SECONDS: Kind = Real(7);

/// Ids of attempts fetched at once.
const ATTEMPT_IDS: i32 = 500;

const WORKFLOW_META: usize = 0;
pub(super) const JOB: usize = 1;
pub(super) const TASK: usize = 2;
pub(super) const TASK_JOB: usize = 3;
const JOB_EDGE: usize = 4;
const TASK_EDGE: usize = 5;
const TASK_META: usize = 6;
const LFN: usize = 7;
const FILE_META: usize = 8;
const WORKFLOW_FILE: usize = 9;
const REPLICA: usize = 10;
pub(super) const ATTEMPT: usize = 11;
pub(super) const STATE: usize = 12;
const INVOCATION: usize = 13;
const INTEGRITY: usize = 14;
const TAG: usize = 15;
pub(super) const END: usize = 16;
pub(super) const WORKFLOW_STATE: usize = 17;
pub(super) const SCHED_ID: usize = 18;

/// All tables, in the order of their references. Of several rows with one key, the last row of a batch
/// counts. Files are sorted by name, so that loaders with common files cannot deadlock.
pub(super) static TABLES: [Table; 19] = [
    Table {
        kinds: &[Id, NAME, NAME],
        sql: "INSERT INTO workflow_meta (wf_id, key, value)
              SELECT DISTINCT ON (wf, x.key) wf, x.key, x.value
              FROM unnest($1::bigint[], $2::text[], $3::text[]) WITH ORDINALITY AS x (wf, key, value, n)
              ORDER BY wf, x.key, n DESC
              ON CONFLICT (wf_id, key) DO UPDATE SET value = excluded.value",
    },
    Table {
        kinds: &[Id, NAME, NAME, Text, Int, Int, Text, Text, Int],
        sql: "INSERT INTO job (wf_id, exec_job_id, submit_file, type_desc, clustered, max_retries, executable, argv,
                  task_count)
              SELECT wf, job, submit, kind::job_type_desc, clustered <> 0, retries, exe, argv, tasks
              FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[],
                  $8::text[], $9::bigint[]) AS x (wf, job, submit, kind, clustered, retries, exe, argv, tasks)
              ON CONFLICT DO NOTHING",
    },
    Table {
        kinds: &[Id, NAME, Text, Text, NAME],
        sql: "INSERT INTO task (wf_id, abs_task_id, transformation, argv, type_desc)
              SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[])
              ON CONFLICT DO NOTHING",
    },
    Table {
        kinds: &[Id, NAME, NAME],
        sql: "UPDATE task SET job_id = job.job_id
              FROM unnest($1::bigint[], $2::text[], $3::text[]) AS x (wf, task, job), job
              WHERE task.wf_id = x.wf AND task.abs_task_id = x.task AND job.wf_id = x.wf AND job.exec_job_id = x.job",
    },
    Table {
        kinds: &[Id, NAME, NAME],
        sql: "INSERT INTO job_edge SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING",
    },
    Table {
        kinds: &[Id, NAME, NAME],
        sql: "INSERT INTO task_edge SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING",
    },
    Table {
        kinds: &[Id, NAME, NAME, NAME],
        sql: "INSERT INTO task_meta (task_id, key, value)
              SELECT DISTINCT ON (task_id, x.key) task_id, x.key, x.value
              FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS x (wf, task, key, value, n)
              JOIN task ON task.wf_id = x.wf AND task.abs_task_id = x.task
              ORDER BY task_id, x.key, n DESC
              ON CONFLICT (task_id, key) DO UPDATE SET value = excluded.value",
    },
    Table {
        kinds: &[FILE],
        sql: "INSERT INTO rc_lfn (lfn) SELECT DISTINCT lfn FROM unnest($1::text[]) AS x (lfn)
              WHERE NOT EXISTS (SELECT FROM rc_lfn r WHERE r.lfn = x.lfn) ORDER BY lfn
              ON CONFLICT DO NOTHING",
    },
    Table {
        kinds: &[FILE, FILE, FILE],
        sql: "INSERT INTO rc_meta (lfn_id, key, value)
              SELECT DISTINCT ON (lfn_id, x.key) lfn_id, x.key, x.value
              FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS x (lfn, key, value, n)
              JOIN rc_lfn USING (lfn)
              ORDER BY lfn_id, x.key, n DESC
              ON CONFLICT (lfn_id, key) DO UPDATE SET value = excluded.value",
    },
    Table {
        kinds: &[Id, NAME, FILE],
        sql: "INSERT INTO workflow_files (wf_id, task_id, lfn_id)
              SELECT wf, task_id, lfn_id FROM unnest($1::bigint[], $2::text[], $3::text[]) AS x (wf, task, lfn)
              JOIN task ON task.wf_id = x.wf AND task.abs_task_id = x.task JOIN rc_lfn ON rc_lfn.lfn = x.lfn
              ON CONFLICT DO NOTHING",
    },
    Table {
        kinds: &[FILE, FILE, FILE],
        sql: "INSERT INTO rc_pfn (lfn_id, pfn, site)
              SELECT lfn_id, pfn, site FROM unnest($1::text[], $2::text[], $3::text[]) AS x (lfn, pfn, site)
              JOIN rc_lfn USING (lfn) ORDER BY lfn_id, pfn, site
              ON CONFLICT DO NOTHING",
    },
    Table {
        kinds: &[Id, Id, Int, NAME],
        sql: "INSERT INTO job_instance (job_instance_id, job_id, job_submit_seq, sched_id, multiplier_factor)
              SELECT id, job, seq, sched, 1
              FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) AS x (id, job, seq, sched)",
    },
    Table {
        kinds: &[Id, NAME, Id, Int],
        sql: "INSERT INTO jobstate (job_instance_id, state, timestamp, jobstate_submit_seq)
              SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[])
              ON CONFLICT DO NOTHING",
    },
    Table {
        kinds: &[Id, Id, Int, TIME, SECONDS, SECONDS, Int, Text, Text, NAME, Int, TIME],
        sql: "INSERT INTO invocation (wf_id, job_instance_id, task_submit_seq, start_time, remote_duration,
                  remote_cpu_time, exitcode, transformation, executable, abs_task_id, maxrss, avg_cpu)
              SELECT DISTINCT ON (try, seq) wf, try, seq, start, seconds, cpu, raw, xform, exe, task, rss, avg
              FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::float8[], $5::float8[], $6::float8[],
                  $7::bigint[], $8::text[], $9::text[], $10::text[], $11::bigint[], $12::float8[]) WITH ORDINALITY
                  AS x (wf, try, seq, start, seconds, cpu, raw, xform, exe, task, rss, avg, n)
              ORDER BY try, seq, n DESC
              ON CONFLICT ON CONSTRAINT \"UNIQUE_INVOCATION\" DO UPDATE SET start_time = excluded.start_time,
                  remote_duration = excluded.remote_duration, remote_cpu_time = excluded.remote_cpu_time,
                  exitcode = excluded.exitcode, transformation = excluded.transformation,
                  executable = excluded.executable, abs_task_id = excluded.abs_task_id, maxrss = excluded.maxrss,
                  avg_cpu = excluded.avg_cpu",
    },
    Table {
        kinds: &[Id, Id, Text, Text, Int, SECONDS],
        sql: "INSERT INTO integrity (wf_id, job_instance_id, type, file_type, count, duration)
              SELECT DISTINCT ON (try, kind, files) wf, try, kind::integrity_type_desc,
                  files::integrity_file_type_desc, checked, seconds
              FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::float8[])
                  WITH ORDINALITY AS x (wf, try, kind, files, checked, seconds, n)
              ORDER BY try, kind, files, n DESC
              ON CONFLICT ON CONSTRAINT \"UNIQUE_INTEGRITY\" DO UPDATE
                  SET count = excluded.count, duration = excluded.duration",
    },
    Table {
        kinds: &[Id, Id, Int],
        sql: "INSERT INTO tag (wf_id, job_instance_id, name, count)
              SELECT DISTINCT ON (try) wf, try, 'int.error', failed
              FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS x (wf, try, failed, n)
              ORDER BY try, n DESC
              ON CONFLICT ON CONSTRAINT \"UNIQUE_TAG\" DO UPDATE SET count = excluded.count",
    },
    Table {
        kinds: &[Id, Id, NAME, NAME, Text, TIME, SECONDS, SECONDS, NAME, Text, NAME, Text, Int],
        sql: "UPDATE job_instance SET host_id = x.host, site = x.site, \"user\" = x.account, work_dir = x.dir,
                  cluster_start = x.cstart, cluster_duration = x.cseconds, local_duration = x.seconds,
                  stdout_file = x.out, stdout_text = x.outtext, stderr_file = x.err, stderr_text = x.errtext,
                  exitcode = x.raw
              FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::float8[], $7::float8[],
                  $8::float8[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[])
                  AS x (id, host, site, account, dir, cstart, cseconds, seconds, out, outtext, err, errtext, raw)
              WHERE job_instance_id = x.id",
    },
    Table {
        kinds: &[Id, Text, TIME, Int, Int],
        sql: "INSERT INTO workflowstate (wf_id, state, timestamp, restart_count, status)
              SELECT wf, state::workflow_state, time, restart, status
              FROM unnest($1::bigint[], $2::text[], $3::float8[], $4::bigint[], $5::bigint[])
                  AS x (wf, state, time, restart, status)",
    },
    Table {
        kinds: &[Id, NAME],
        sql: "UPDATE job_instance SET sched_id = x.sched FROM unnest($1::bigint[], $2::text[]) AS x (id, sched)
              WHERE job_instance_id = x.id",
    },
];

impl Postgresql {
    fn push<const N: usize>(&self, table: usize, row: [Value<'_>; N]) -> Result<(), StoreError> {
        let mut batches = self.batches.borrow_mut();
        self.truncated
            .set(self.truncated.get() + batches.push(table, row));
        let is_full = batches.is_full();
        drop(batches);
        if is_full { self.send() } else { Ok(()) }
    }

    /// Sends all rows that are held back.
    pub(super) fn send(&self) -> Result<(), StoreError> {
        let mut batches = self.batches.borrow_mut();
        if batches.is_empty() {
            return Ok(());
        }
        self.with(true, |client| batches.send(client))
    }

    /// Sends all rows if rows of these tables are held back.
    pub(super) fn send_if_any(&self, tables: &[usize]) -> Result<(), StoreError> {
        let has_rows = {
            let batches = self.batches.borrow();
            tables.iter().any(|table| batches.has_rows(*table))
        };
        if has_rows { self.send() } else { Ok(()) }
    }

    fn is_planned(&self, table: usize, name: &str) -> bool {
        self.planned.borrow().contains(&hash(table, name))
    }

    fn insert_file(&self, lfn: &str) -> Result<(), StoreError> {
        self.push(LFN, [lfn.into()])
    }
}

fn hash(table: usize, name: &str) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_usize(table);
    hasher.write(name.as_bytes());
    hasher.finish()
}

impl Store for Postgresql {
    fn commit(&self, position: Position) -> Result<(), StoreError> {
        self.send()?;
        let number = u64::cast_signed;
        self.with(true, |client| {
            client.execute(
                "UPDATE pmc_loader SET log_bytes = $1, log_lines = $2, log_head = $3, log_tail = $4,
                     jobstate_bytes = $5 WHERE wf_id = $6",
                &[
                    &number(position.log_bytes),
                    &number(position.log_lines),
                    &position.log_head,
                    &position.log_tail,
                    &number(position.jobstate_bytes),
                    &self.wf,
                ],
            )?;
            client.batch_execute("COMMIT")
        })?;
        self.in_transaction.set(false);
        Ok(())
    }

    /// The indexes exist from the beginning, as several workflows share the tables.
    fn finish_plan(&self) -> Result<(), StoreError> {
        self.planned.take();
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        let Self { client, at, .. } = *self;
        client.into_inner().close().map_err(|source| StoreError::Server {
            at,
            problem: Box::new(source.into()),
        })
    }

    fn insert_workflow(&mut self, row: &WorkflowRow) -> Result<(), StoreError> {
        let truncate = |text: &Option<String>| {
            text.as_ref()
                .map(|text| text.chars().filter(|c| *c != '\0').take(255).collect::<String>())
        };
        let without_nul = |text: &Option<String>| text.as_ref().map(|text| text.replace('\0', ""));
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds since the epoch are far below 2^53"
        )]
        let time = row.timestamp as f64;
        (self.wf, self.root) = self.with(true, |client| {
            let made = client.query_one(
                "INSERT INTO workflow (wf_uuid, dag_file_name, timestamp, submit_hostname, submit_dir, planner_arguments,
                     \"user\", grid_dn, planner_version, dax_label, dax_version, dax_file)
                 VALUES ($1, $2, $3::float8, $4, $5, $6, $7, $8, $9, $10, $11, $12) RETURNING wf_id",
                &[
                    &row.wf_uuid,
                    &truncate(&row.dag_file_name),
                    &time,
                    &truncate(&row.submit_hostname),
                    &without_nul(&row.submit_dir),
                    &without_nul(&row.planner_arguments),
                    &truncate(&row.user),
                    &truncate(&row.grid_dn),
                    &truncate(&row.planner_version),
                    &truncate(&row.dax_label),
                    &truncate(&row.dax_version),
                    &truncate(&row.dax_file),
                ],
            )?;
            let wf: i64 = made.get(0);
            let around = row.around.as_ref();
            let [parent, root] = [around.map(|a| &a.parent), around.map(|a| &a.root)];
            let root = client.query_one(
                "UPDATE workflow SET parent_wf_id = (SELECT wf_id FROM workflow WHERE wf_uuid = $2),
                     root_wf_id = COALESCE((SELECT wf_id FROM workflow WHERE wf_uuid = $3), wf_id)
                 WHERE wf_id = $1 RETURNING root_wf_id",
                &[&wf, &parent, &root],
            )?;
            client.execute("INSERT INTO pmc_loader VALUES ($1, 0, 0, 0, 0, 0)", &[&wf])?;
            Ok((wf, root.get(0)))
        })?;
        Ok(())
    }

    fn insert_workflow_state(&self, row: &WorkflowState) -> Result<(), StoreError> {
        let time = Value::Real(Some(row.timestamp));
        let status = Value::Int(row.status);
        self.push(
            WORKFLOW_STATE,
            [
                self.wf.into(),
                row.state.into(),
                time,
                row.restart_count.into(),
                status,
            ],
        )
    }

    fn set_workflow_meta(&self, key: &str, value: &str) -> Result<(), StoreError> {
        self.push(WORKFLOW_META, [self.wf.into(), key.into(), value.into()])
    }

    fn insert_task(
        &self,
        id: &str,
        transformation: &str,
        argv: Option<&str>,
        kind: &str,
    ) -> Result<(), StoreError> {
        self.planned.borrow_mut().insert(hash(TASK, id));
        let row = [
            self.wf.into(),
            id.into(),
            transformation.into(),
            argv.into(),
            kind.into(),
        ];
        self.push(TASK, row)
    }

    fn insert_task_edge(&self, parent: &str, child: &str) -> Result<(), StoreError> {
        self.push(TASK_EDGE, [self.wf.into(), parent.into(), child.into()])
    }

    fn set_task_meta(&self, task: &str, key: &str, value: &str) -> Result<bool, StoreError> {
        self.push(TASK_META, [self.wf.into(), task.into(), key.into(), value.into()])?;
        Ok(self.is_planned(TASK, task))
    }

    fn insert_job(&self, row: &JobRow<'_>) -> Result<(), StoreError> {
        self.planned.borrow_mut().insert(hash(JOB, row.exec_job_id));
        self.push(
            JOB,
            [
                self.wf.into(),
                row.exec_job_id.into(),
                row.submit_file.into(),
                row.type_desc.into(),
                i64::from(row.clustered).into(),
                row.max_retries.into(),
                row.executable.into(),
                row.argv.into(),
                row.task_count.into(),
            ],
        )
    }

    fn insert_job_edge(&self, parent: &str, child: &str) -> Result<(), StoreError> {
        self.push(JOB_EDGE, [self.wf.into(), parent.into(), child.into()])
    }

    fn assign_task(&self, task: &str, job: &str) -> Result<bool, StoreError> {
        self.push(TASK_JOB, [self.wf.into(), task.into(), job.into()])?;
        Ok(self.is_planned(TASK, task) && self.is_planned(JOB, job))
    }

    fn insert_workflow_file(&self, task: &str, lfn: &str) -> Result<bool, StoreError> {
        self.insert_file(lfn)?;
        self.push(WORKFLOW_FILE, [self.wf.into(), task.into(), lfn.into()])?;
        Ok(self.is_planned(TASK, task))
    }

    fn set_file_meta(&self, lfn: &str, values: &[(&str, &str)]) -> Result<(), StoreError> {
        self.insert_file(lfn)?;
        for (key, value) in values {
            self.push(FILE_META, [lfn.into(), (*key).into(), (*value).into()])?;
        }
        Ok(())
    }

    fn insert_replica(&self, lfn: &str, pfn: &str, site: Option<&str>) -> Result<(), StoreError> {
        self.insert_file(lfn)?;
        self.push(REPLICA, [lfn.into(), pfn.into(), site.into()])
    }

    fn insert_attempt(&self, job_id: i64, seq: i64, sched_id: &str) -> Result<i64, StoreError> {
        if self.attempt_ids.borrow().is_empty() {
            let rows = self.with(false, |client| {
                client.query(
                    "SELECT nextval(pg_get_serial_sequence('job_instance', 'job_instance_id'))
                     FROM generate_series(1, $1)",
                    &[&ATTEMPT_IDS],
                )
            })?;
            self.attempt_ids
                .borrow_mut()
                .extend(rows.iter().map(|row| row.get::<_, i64>(0)));
        }
        let id = self.attempt_ids.borrow_mut().pop_front().unwrap_or_default();
        let sched_id = Value::Text(Some(sched_id).filter(|id| !id.is_empty()));
        self.push(ATTEMPT, [id.into(), job_id.into(), seq.into(), sched_id])?;
        Ok(id)
    }

    fn link(&self, parent: &str, job: &str, seq: i64) -> Result<(), StoreError> {
        let wf = self.wf;
        self.with(true, |client| {
            client.execute(
                "UPDATE job_instance SET subwf_id = $1 WHERE job_submit_seq = $2::bigint AND job_id = (
                     SELECT job_id FROM job WHERE exec_job_id = $3
                         AND wf_id = (SELECT wf_id FROM workflow WHERE wf_uuid = $4))",
                &[&wf, &seq, &job, &parent],
            )
        })
        .map(drop)
    }

    fn set_sched_id(&self, attempt: i64, sched_id: &str) -> Result<(), StoreError> {
        self.push(SCHED_ID, [attempt.into(), sched_id.into()])
    }

    fn insert_state(&self, attempt: i64, state: &str, time: i64, seq: i64) -> Result<(), StoreError> {
        self.push(STATE, [attempt.into(), state.into(), time.into(), seq.into()])
    }

    fn insert_invocation(&self, attempt: i64, row: InvocationRow) -> Result<(), StoreError> {
        self.push(
            INVOCATION,
            [
                self.wf.into(),
                attempt.into(),
                row.task_submit_seq.into(),
                Value::Real(Some(row.start_time)),
                Value::Real(Some(row.remote_duration)),
                Value::Real(row.remote_cpu_time),
                row.exitcode.into(),
                (&row.transformation).into(),
                (&row.executable).into(),
                (&row.abs_task_id).into(),
                Value::Int(row.maxrss),
                Value::Real(row.avg_cpu),
            ],
        )
    }

    fn host_id(&mut self, row: &HostRow) -> Result<i64, StoreError> {
        if let Some(id) = self.hosts.get(row) {
            return Ok(id);
        }
        let truncate = |text: &str| text.chars().filter(|c| *c != '\0').take(255).collect::<String>();
        let (site, hostname, ip) = (truncate(&row.site), truncate(&row.hostname), truncate(&row.ip));
        let uname = row.uname.as_deref().map(truncate);
        let memory = row
            .total_memory
            .map(|memory| i32::try_from(memory).unwrap_or(i32::MAX));
        let wf = self.root;
        let id = self.with(true, |client| {
            client.execute(
                "INSERT INTO host (wf_id, site, hostname, ip, uname, total_memory) VALUES ($1, $2, $3, $4, $5, $6)
                 ON CONFLICT DO NOTHING",
                &[&wf, &site, &hostname, &ip, &uname, &memory],
            )?;
            let found = client.query_one(
                "SELECT host_id FROM host WHERE wf_id = $1 AND site = $2 AND hostname = $3 AND ip = $4",
                &[&wf, &site, &hostname, &ip],
            )?;
            Ok(found.get(0))
        })?;
        Ok(self.hosts.insert(id))
    }

    fn insert_integrity(
        &self,
        attempt: i64,
        (kind, files): MetricKind,
        metric: Metric,
    ) -> Result<(), StoreError> {
        let seconds = Value::Real(Some(metric.seconds));
        self.push(
            INTEGRITY,
            [
                self.wf.into(),
                attempt.into(),
                kind.into(),
                files.into(),
                metric.count.into(),
                seconds,
            ],
        )
    }

    fn insert_integrity_errors(&self, attempt: i64, count: i64) -> Result<(), StoreError> {
        self.push(TAG, [self.wf.into(), attempt.into(), count.into()])
    }

    fn end_attempt(&self, attempt: i64, end: AttemptEnd, host: Option<i64>) -> Result<(), StoreError> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a duration in seconds is far below 2^53"
        )]
        let seconds = end.local_duration.map(|seconds| seconds as f64);
        self.push(
            END,
            [
                attempt.into(),
                Value::Int(host),
                (&end.site).into(),
                (&end.user).into(),
                (&end.work_dir).into(),
                Value::Real(end.cluster_start),
                Value::Real(end.cluster_duration),
                Value::Real(seconds),
                (&end.stdout_file).into(),
                (&end.stdout_text).into(),
                (&end.stderr_file).into(),
                (&end.stderr_text).into(),
                end.exitcode.into(),
            ],
        )
    }

    fn take_truncated(&self) -> u64 {
        self.truncated.take()
    }
}
