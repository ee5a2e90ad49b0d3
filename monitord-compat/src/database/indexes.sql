-- Indexes of Pegasus databases, schema version 14. Only readers need them.

CREATE INDEX IF NOT EXISTS "workflowstate_timestamp_COL" ON workflowstate (timestamp);
CREATE INDEX IF NOT EXISTS "job_type_desc_COL" ON job (type_desc);
CREATE INDEX IF NOT EXISTS "job_exec_job_id_COL" ON job (exec_job_id);
CREATE INDEX IF NOT EXISTS "task_abs_task_id_COL" ON task (abs_task_id);
CREATE INDEX IF NOT EXISTS "task_wf_id_COL" ON task (wf_id);
CREATE INDEX IF NOT EXISTS "jobstate_jobstate_submit_seq_COL" ON jobstate (jobstate_submit_seq);
CREATE INDEX IF NOT EXISTS "invoc_wf_id_COL" ON invocation (wf_id);
CREATE INDEX IF NOT EXISTS "invoc_abs_task_id_COL" ON invocation (abs_task_id);
