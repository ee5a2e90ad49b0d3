-- Tables of Pegasus databases on PostgreSQL, schema version 14 (Pegasus 5.0.1 to 5.1).

CREATE TYPE workflow_state AS ENUM ('WORKFLOW_STARTED', 'WORKFLOW_TERMINATED');
CREATE TYPE master_workflow_state AS ENUM ('WORKFLOW_STARTED', 'WORKFLOW_TERMINATED');
CREATE TYPE job_type_desc AS ENUM (
    'unknown', 'compute', 'stage-in-tx', 'stage-out-tx', 'registration', 'inter-site-tx', 'create-dir',
    'staged-compute', 'cleanup', 'chmod', 'dax', 'dag');
CREATE TYPE integrity_type_desc AS ENUM ('check', 'compute');
CREATE TYPE integrity_file_type_desc AS ENUM ('input', 'output');
CREATE TYPE ensemble_state AS ENUM ('ACTIVE', 'PAUSED', 'HELD');
CREATE TYPE ensemble_wf_state AS ENUM (
    'READY', 'PLANNING', 'PLAN_FAILED', 'QUEUED', 'RUN_FAILED', 'RUNNING', 'ABORTED', 'SUCCESSFUL', 'FAILED');
CREATE TYPE trigger_state AS ENUM ('READY', 'RUNNING', 'STOPPED', 'FAILED');
CREATE TYPE trigger_type AS ENUM ('CRON', 'FILE_PATTERN');

CREATE TABLE dbversion (
    id BIGSERIAL PRIMARY KEY, version_number INTEGER, version VARCHAR(50) NOT NULL,
    version_timestamp INTEGER NOT NULL
);

-- Files and replicas, of all workflows together.
CREATE TABLE rc_lfn (
    lfn_id BIGSERIAL PRIMARY KEY, lfn VARCHAR(245) NOT NULL,
    CONSTRAINT "UNIQUE_LFN" UNIQUE (lfn)
);
CREATE TABLE rc_pfn (
    pfn_id BIGSERIAL PRIMARY KEY, lfn_id BIGINT NOT NULL REFERENCES rc_lfn ON DELETE CASCADE,
    pfn VARCHAR(245) NOT NULL, site VARCHAR(245),
    CONSTRAINT "UNIQUE_PFN" UNIQUE (lfn_id, pfn, site)
);
CREATE TABLE rc_meta (
    lfn_id BIGINT NOT NULL REFERENCES rc_lfn ON DELETE CASCADE, key VARCHAR(245) NOT NULL,
    value VARCHAR(245) NOT NULL,
    PRIMARY KEY (lfn_id, key)
);

-- The list of workflows.
CREATE TABLE master_workflow (
    wf_id BIGSERIAL PRIMARY KEY, wf_uuid VARCHAR(255) NOT NULL, dax_label VARCHAR(255), dax_version VARCHAR(255),
    dax_file VARCHAR(255), dag_file_name VARCHAR(255), timestamp NUMERIC(16, 6), submit_hostname VARCHAR(255),
    submit_dir TEXT, planner_arguments TEXT, "user" VARCHAR(255), grid_dn VARCHAR(255),
    planner_version VARCHAR(255), db_url TEXT, archived BOOLEAN NOT NULL,
    CONSTRAINT "UNIQUE_MASTER_WF_UUID" UNIQUE (wf_uuid)
);
CREATE TABLE master_workflowstate (
    wf_id BIGINT NOT NULL REFERENCES master_workflow ON DELETE CASCADE, state master_workflow_state NOT NULL,
    timestamp NUMERIC(16, 6) NOT NULL, restart_count INTEGER NOT NULL, status INTEGER, reason TEXT,
    PRIMARY KEY (wf_id, state, timestamp)
);

-- Ensembles, which nothing here uses.
CREATE TABLE ensemble (
    id BIGSERIAL PRIMARY KEY, name VARCHAR(100) NOT NULL, created TIMESTAMP WITHOUT TIME ZONE NOT NULL,
    updated TIMESTAMP WITHOUT TIME ZONE NOT NULL, state ensemble_state NOT NULL, max_running INTEGER NOT NULL,
    max_planning INTEGER NOT NULL, username VARCHAR(100) NOT NULL,
    CONSTRAINT "UNIQUE_ENSEMBLE" UNIQUE (name, username)
);
CREATE TABLE ensemble_workflow (
    id BIGSERIAL PRIMARY KEY, ensemble_id BIGINT NOT NULL REFERENCES ensemble, name VARCHAR(100) NOT NULL,
    basedir VARCHAR(512) NOT NULL, created TIMESTAMP WITHOUT TIME ZONE NOT NULL,
    updated TIMESTAMP WITHOUT TIME ZONE NOT NULL, state ensemble_wf_state NOT NULL, priority INTEGER NOT NULL,
    wf_uuid VARCHAR(36), submitdir VARCHAR(512), plan_command VARCHAR(1024) NOT NULL,
    CONSTRAINT "UNIQUE_ENSEMBLE_WORKFLOW" UNIQUE (ensemble_id, name)
);
CREATE TABLE trigger (
    id BIGSERIAL PRIMARY KEY, ensemble_id BIGINT NOT NULL REFERENCES ensemble, name VARCHAR(100) NOT NULL,
    state trigger_state NOT NULL, workflow TEXT NOT NULL, args TEXT, type trigger_type NOT NULL,
    CONSTRAINT "UNIQUE_TRIGGER" UNIQUE (ensemble_id, name)
);

-- Workflows.
CREATE TABLE workflow (
    wf_id BIGSERIAL PRIMARY KEY, wf_uuid VARCHAR(255) NOT NULL, dag_file_name VARCHAR(255),
    timestamp NUMERIC(16, 6), submit_hostname VARCHAR(255), submit_dir TEXT, planner_arguments TEXT,
    "user" VARCHAR(255), grid_dn VARCHAR(255), planner_version VARCHAR(255), dax_label VARCHAR(255),
    dax_version VARCHAR(255), dax_file VARCHAR(255), db_url TEXT,
    parent_wf_id BIGINT REFERENCES workflow ON DELETE CASCADE, root_wf_id BIGINT,
    CONSTRAINT "UNIQUE_WF_UUID" UNIQUE (wf_uuid)
);
CREATE TABLE workflowstate (
    wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE, state workflow_state NOT NULL,
    timestamp NUMERIC(16, 6) NOT NULL, restart_count INTEGER NOT NULL, status INTEGER, reason TEXT,
    PRIMARY KEY (wf_id, state, timestamp)
);
CREATE TABLE workflow_meta (
    wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE, key VARCHAR(255) NOT NULL,
    value VARCHAR(255) NOT NULL,
    PRIMARY KEY (wf_id, key)
);
CREATE TABLE host (
    host_id BIGSERIAL PRIMARY KEY, wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE,
    site VARCHAR(255) NOT NULL, hostname VARCHAR(255) NOT NULL, ip VARCHAR(255) NOT NULL, uname VARCHAR(255),
    total_memory INTEGER,
    CONSTRAINT "UNIQUE_HOST" UNIQUE (wf_id, site, hostname, ip)
);

-- Jobs and their tries.
CREATE TABLE job (
    job_id BIGSERIAL PRIMARY KEY, wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE,
    exec_job_id VARCHAR(255) NOT NULL, submit_file VARCHAR(255) NOT NULL, type_desc job_type_desc NOT NULL,
    clustered BOOLEAN NOT NULL, max_retries INTEGER NOT NULL, executable TEXT NOT NULL, argv TEXT,
    task_count INTEGER NOT NULL,
    CONSTRAINT "UNIQUE_JOB" UNIQUE (wf_id, exec_job_id)
);
CREATE TABLE job_edge (
    wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE, parent_exec_job_id VARCHAR(255) NOT NULL,
    child_exec_job_id VARCHAR(255) NOT NULL,
    PRIMARY KEY (wf_id, parent_exec_job_id, child_exec_job_id)
);
CREATE TABLE job_instance (
    job_instance_id BIGSERIAL PRIMARY KEY, job_id BIGINT NOT NULL REFERENCES job ON DELETE CASCADE,
    host_id BIGINT REFERENCES host ON DELETE SET NULL, job_submit_seq INTEGER NOT NULL, sched_id VARCHAR(255),
    site VARCHAR(255), "user" VARCHAR(255), work_dir TEXT, cluster_start NUMERIC(16, 6),
    cluster_duration NUMERIC(10, 3), local_duration NUMERIC(10, 3),
    subwf_id BIGINT REFERENCES workflow ON DELETE SET NULL, stdout_file VARCHAR(255), stdout_text TEXT,
    stderr_file VARCHAR(255), stderr_text TEXT, stdin_file VARCHAR(255), multiplier_factor INTEGER NOT NULL,
    exitcode INTEGER,
    CONSTRAINT "UNIQUE_JOB_INSTANCE" UNIQUE (job_id, job_submit_seq)
);
CREATE TABLE jobstate (
    job_instance_id BIGINT NOT NULL REFERENCES job_instance ON DELETE CASCADE, state VARCHAR(255) NOT NULL,
    timestamp NUMERIC(16, 6) NOT NULL, jobstate_submit_seq INTEGER NOT NULL, reason TEXT,
    PRIMARY KEY (job_instance_id, state, timestamp, jobstate_submit_seq)
);
CREATE TABLE tag (
    tag_id BIGSERIAL PRIMARY KEY, wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE,
    job_instance_id BIGINT NOT NULL REFERENCES job_instance ON DELETE CASCADE, name VARCHAR(255) NOT NULL,
    count INTEGER NOT NULL,
    CONSTRAINT "UNIQUE_TAG" UNIQUE (wf_id, job_instance_id)
);
CREATE TABLE integrity (
    integrity_id BIGSERIAL PRIMARY KEY, wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE,
    job_instance_id BIGINT NOT NULL REFERENCES job_instance ON DELETE CASCADE, type integrity_type_desc NOT NULL,
    file_type integrity_file_type_desc, count INTEGER NOT NULL, duration NUMERIC(10, 3) NOT NULL,
    CONSTRAINT "UNIQUE_INTEGRITY" UNIQUE (job_instance_id, type, file_type)
);

-- Tasks and invocations.
CREATE TABLE task (
    task_id BIGSERIAL PRIMARY KEY, wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE,
    job_id BIGINT REFERENCES job ON DELETE SET NULL, abs_task_id VARCHAR(255) NOT NULL,
    transformation TEXT NOT NULL, argv TEXT, type_desc VARCHAR(255) NOT NULL,
    CONSTRAINT "UNIQUE_TASK" UNIQUE (wf_id, abs_task_id)
);
CREATE TABLE task_edge (
    wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE, parent_abs_task_id VARCHAR(255) NOT NULL,
    child_abs_task_id VARCHAR(255) NOT NULL,
    PRIMARY KEY (wf_id, parent_abs_task_id, child_abs_task_id)
);
CREATE TABLE task_meta (
    task_id BIGINT NOT NULL REFERENCES task ON DELETE CASCADE, key VARCHAR(255) NOT NULL,
    value VARCHAR(255) NOT NULL,
    PRIMARY KEY (task_id, key)
);
CREATE TABLE workflow_files (
    wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE,
    task_id BIGINT NOT NULL REFERENCES task ON DELETE CASCADE,
    lfn_id BIGINT NOT NULL REFERENCES rc_lfn ON DELETE CASCADE, file_type VARCHAR(255),
    PRIMARY KEY (wf_id, task_id, lfn_id)
);
CREATE TABLE invocation (
    invocation_id BIGSERIAL PRIMARY KEY, wf_id BIGINT NOT NULL REFERENCES workflow ON DELETE CASCADE,
    job_instance_id BIGINT NOT NULL REFERENCES job_instance ON DELETE CASCADE, task_submit_seq INTEGER NOT NULL,
    start_time NUMERIC(16, 6) NOT NULL, remote_duration NUMERIC(10, 3) NOT NULL,
    remote_cpu_time NUMERIC(10, 3), exitcode INTEGER NOT NULL, transformation TEXT NOT NULL,
    executable TEXT NOT NULL, argv TEXT, abs_task_id VARCHAR(255), maxrss INTEGER, avg_cpu NUMERIC(16, 6),
    CONSTRAINT "UNIQUE_INVOCATION" UNIQUE (job_instance_id, task_submit_seq)
);
