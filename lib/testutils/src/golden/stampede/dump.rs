//! The content of a database in a form that does not depend on ids, times, paths and the order of parallel
//! jobs.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value, json};

use super::super::text::{regex, replace_path};

type Row = Map<String, Value>;
/// Names by id.
type Names = BTreeMap<i64, String>;

/// Reads a database. Directories are replaced as `places` says.
///
/// # Panics
/// The database cannot be read, or has no workflow.
pub fn dump(database: &Path, places: &[(String, &'static str)]) -> Value {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let mut places = places.to_vec();
    // A longer path may begin with a shorter one.
    places.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    let mut dumper = Dumper {
        database: Connection::open_with_flags(database, flags).expect("a database"),
        places,
        user: Value::Null,
        begin: 0.0,
        end: 0.0,
    };
    dumper.dump()
}

struct Dumper {
    database: Connection,
    places: Vec<(String, &'static str)>,
    /// The user who ran the workflow.
    user: Value,
    /// The times of the first and the last state of the workflow.
    begin: f64,
    end: f64,
}

/// Returns the mark in place of a value that is not null.
fn mark(value: &Value, mark: &str) -> Value {
    if value.is_null() { Value::Null } else { mark.into() }
}

fn id(row: &Row, name: &str) -> Option<i64> {
    row[name].as_i64()
}

/// Shows a text without quotes, null as `None`, other values as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Copies columns of a row.
fn columns(row: &Row, names: &[&str]) -> Row {
    names
        .iter()
        .map(|name| ((*name).to_owned(), row[*name].clone()))
        .collect()
}

impl Dumper {
    fn rows(&self, query: &str) -> Vec<Row> {
        let mut statement = self.database.prepare(query).expect("a query");
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let rows = statement.query_map([], |row| {
            let mut values = Row::new();
            for (index, name) in names.iter().enumerate() {
                values.insert(
                    name.clone(),
                    match row.get_ref(index)? {
                        ValueRef::Null => Value::Null,
                        ValueRef::Integer(number) => number.into(),
                        ValueRef::Real(number) => number.into(),
                        ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into(),
                    },
                );
            }
            Ok(values)
        });
        rows.expect("rows").collect::<Result<_, _>>().expect("rows")
    }

    fn table(&self, name: &str) -> Vec<Row> {
        self.rows(&format!("select * from {name}"))
    }

    fn names(&self, table: &str, id_column: &str, name_column: &str) -> Names {
        let rows = self.table(table).into_iter();
        rows.map(|row| (id(&row, id_column).expect("an id"), shown(&row[name_column])))
            .collect()
    }

    fn path(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let places = self.places.iter();
                places
                    .fold(text.clone(), |text, (from, to)| replace_path(&text, from, to))
                    .into()
            }
            other => other.clone(),
        }
    }

    fn paths(&self, row: &Row, names: &[&str]) -> Row {
        names
            .iter()
            .map(|name| ((*name).to_owned(), self.path(&row[*name])))
            .collect()
    }

    /// Normalizes the output of a job. That of the jobs of the planner does not count.
    fn output(&self, value: &Value, counts: bool) -> Value {
        let Some(text) = value.as_str().filter(|text| !text.is_empty()) else {
            return value.clone();
        };
        if !counts {
            return "<text>".into();
        }
        let text = shown(&self.path(&percent_decode(text).into()));
        let time = regex!(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?([+-]\d\d:?\d\d|Z)?");
        time.replace_all(&text, "<TIME>").into()
    }

    fn user(&self, user: &Value) -> Value {
        if *user == self.user {
            "<USER>".into()
        } else {
            user.clone()
        }
    }

    fn dump(&mut self) -> Value {
        let workflows = self.rows("select * from workflow order by wf_id");
        assert!(!workflows.is_empty(), "the table workflow is empty");
        self.user = workflows[0]["user"].clone();
        let names: Names = workflows
            .iter()
            .zip(1..)
            .map(|(row, number)| (id(row, "wf_id").expect("an id"), format!("wf{number}")))
            .collect();
        let states = self.rows("select rowid, * from workflowstate order by timestamp, rowid");
        let times = || states.iter().filter_map(|state| state["timestamp"].as_f64());
        self.begin = times().next().unwrap_or(0.0);
        self.end = times().next_back().unwrap_or(0.0);
        let states = states
            .iter()
            .map(|row| columns(row, &["state", "restart_count", "status", "reason"]));
        let metadata = self.table("workflow_meta").into_iter();
        let metadata: Row = metadata
            .map(|row| (shown(&row["key"]), row["value"].clone()))
            .collect();
        let mut result = json!({
            "workflow": self.workflows(&workflows, &names),
            "workflowstate": states.collect::<Vec<_>>(),
            "workflow_meta": metadata,
        });
        let object = result.as_object_mut().expect("an object");
        object.append(&mut self.tasks_and_jobs());
        object.append(&mut self.job_instances(&names));
        object.append(&mut self.files());
        result
    }

    fn workflows(&self, workflows: &[Row], names: &Names) -> Row {
        let dump = |row: &Row| {
            let mut entry = columns(row, &["grid_dn", "planner_version", "dax_label", "dax_version"]);
            entry.append(&mut self.paths(
                row,
                &[
                    "dag_file_name",
                    "submit_dir",
                    "planner_arguments",
                    "dax_file",
                    "db_url",
                ],
            ));
            for (column, text) in [
                ("wf_uuid", "<UUID>"),
                ("timestamp", "<TIME>"),
                ("submit_hostname", "<HOST>"),
                ("user", "<USER>"),
            ] {
                entry.insert(column.to_owned(), mark(&row[column], text));
            }
            let name = |column: &str| id(row, column).and_then(|id| names.get(&id)).cloned();
            entry.insert("parent".to_owned(), name("parent_wf_id").into());
            entry.insert("root".to_owned(), name("root_wf_id").into());
            (name("wf_id").expect("a workflow"), entry.into())
        };
        workflows.iter().map(dump).collect()
    }

    fn tasks_and_jobs(&self) -> Row {
        let jobs: Row = self
            .table("job")
            .iter()
            .map(|row| {
                let mut entry = columns(row, &["type_desc", "clustered", "max_retries", "task_count"]);
                entry.append(&mut self.paths(row, &["submit_file", "executable", "argv"]));
                (shown(&row["exec_job_id"]), entry.into())
            })
            .collect();
        let job_names = self.names("job", "job_id", "exec_job_id");
        let task_names = self.names("task", "task_id", "abs_task_id");
        let tasks: Row = self
            .table("task")
            .iter()
            .map(|row| {
                let mut entry = columns(row, &["transformation", "type_desc"]);
                entry.append(&mut self.paths(row, &["argv"]));
                let job = id(row, "job_id").and_then(|id| job_names.get(&id)).cloned();
                entry.insert("job".to_owned(), job.into());
                (shown(&row["abs_task_id"]), entry.into())
            })
            .collect();
        let edges = |table: &str, parent: &str, child: &str| {
            let rows = self.table(table).into_iter();
            let rows = rows.map(|row| format!("{} -> {}", shown(&row[parent]), shown(&row[child])));
            sorted(rows)
        };
        let metadata = self.table("task_meta").into_iter().map(|row| {
            let task = &task_names[&id(&row, "task_id").expect("an id")];
            format!("{task}: {} = {}", shown(&row["key"]), shown(&row["value"]))
        });
        object(json!({
            "job": jobs,
            "job_edge": edges("job_edge", "parent_exec_job_id", "child_exec_job_id"),
            "task": tasks,
            "task_edge": edges("task_edge", "parent_abs_task_id", "child_abs_task_id"),
            "task_meta": sorted(metadata),
        }))
    }

    fn job_instances(&self, workflows: &Names) -> Row {
        let host = |row: &Row| {
            let known = |column: &str, text: &str| {
                if row[column] == "unknown" {
                    "unknown".to_owned()
                } else {
                    text.to_owned()
                }
            };
            json!({
                "site": row["site"], "hostname": known("hostname", "<HOST>"), "ip": known("ip", "<IP>"),
                "uname": mark(&row["uname"], "<UNAME>"), "total_memory": mark(&row["total_memory"], "<MEMORY>"),
            })
        };
        let hosts: BTreeMap<i64, Value> = self
            .table("host")
            .iter()
            .map(|row| (id(row, "host_id").expect("an id"), host(row)))
            .collect();
        // Equal ones once, in order.
        let distinct: BTreeMap<String, &Value> =
            hosts.values().map(|host| (host.to_string(), host)).collect();
        let jobs: BTreeMap<i64, Row> = self
            .table("job")
            .into_iter()
            .map(|row| (id(&row, "job_id").expect("an id"), row))
            .collect();
        let (mut names, mut attempts, mut instances) = (Names::new(), BTreeMap::new(), Row::new());
        let mut numbers = Vec::new();
        for row in self.rows("select * from job_instance order by job_submit_seq") {
            let job = &jobs[&id(&row, "job_id").expect("an id")];
            let attempt: &mut u32 = attempts.entry(id(&row, "job_id")).or_default();
            *attempt += 1;
            let name = format!("{} #{attempt}", shown(&job["exec_job_id"]));
            names.insert(id(&row, "job_instance_id").expect("an id"), name.clone());
            numbers.push(row["job_submit_seq"].clone());
            let mut entry = self.job_instance(&row, job["type_desc"] == "compute");
            let subworkflow = id(&row, "subwf_id").and_then(|id| workflows.get(&id)).cloned();
            entry.insert("subwf".to_owned(), subworkflow.into());
            let host = id(&row, "host_id").and_then(|id| hosts.get(&id)).cloned();
            entry.insert("host".to_owned(), host.into());
            instances.insert(name, entry.into());
        }
        let times = self.add_states(&mut instances, &names);
        self.add_details(&mut instances, &names);
        let ascending = numbers.iter().zip(1..).all(|(number, index)| *number == index);
        object(json!({
            "host": distinct.values().collect::<Vec<_>>(),
            "job_instance": instances,
            "job_submit_seqs": if ascending { "1..n".into() } else { Value::Array(numbers) },
            "times": times,
        }))
    }

    fn job_instance(&self, row: &Row, is_compute: bool) -> Row {
        let mut entry = columns(
            row,
            &[
                "site",
                "stdout_file",
                "stderr_file",
                "multiplier_factor",
                "exitcode",
            ],
        );
        entry.append(&mut self.paths(row, &["work_dir", "stdin_file"]));
        let scheduler_id = format!("{}.0", row["job_submit_seq"]);
        let scheduler_id = if row["sched_id"] == scheduler_id.as_str() {
            "as job_submit_seq".into()
        } else {
            row["sched_id"].clone()
        };
        entry.append(&mut object(json!({
            "sched_id": scheduler_id,
            "user": self.user(&row["user"]),
            "cluster_start": mark(&row["cluster_start"], "<TIME>"),
            "cluster_duration": mark(&row["cluster_duration"], "<S>"),
            "local_duration": mark(&row["local_duration"], "<S>"),
            "stdout_text": self.output(&row["stdout_text"], is_compute),
            "stderr_text": self.output(&row["stderr_text"], true),
            "states": [], "invocations": [], "integrity": [], "tags": [],
        })));
        entry
    }

    /// Adds the states of each job, and returns what is wrong with their times.
    fn add_states(&self, instances: &mut Row, names: &Names) -> Vec<String> {
        let mut problems = Vec::new();
        let mut latest: BTreeMap<&str, f64> = BTreeMap::new();
        for row in self.rows("select * from jobstate order by job_instance_id, jobstate_submit_seq") {
            let name = &names[&id(&row, "job_instance_id").expect("an id")];
            let state = shown(&row["state"]);
            let reason = row["reason"].as_str().filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let text = format!("{} {state}{reason}", row["jobstate_submit_seq"]);
            push(instances, name, "states", text.into());
            let time = row["timestamp"].as_f64().expect("a time");
            if time < latest.insert(name, time).unwrap_or(0.0) {
                problems.push(format!("{name}: time of {state} goes backwards"));
            }
            if !(self.begin..=self.end).contains(&time) {
                problems.push(format!("{name}: {state} lies outside the workflow's times"));
            }
        }
        if problems.is_empty() {
            vec!["ordered".to_owned()]
        } else {
            problems
        }
    }

    /// Adds the invocations, the integrity checks and the tags of each job.
    fn add_details(&self, instances: &mut Row, names: &Names) {
        let name = |row: &Row| names[&id(row, "job_instance_id").expect("an id")].clone();
        for row in self.rows("select * from invocation order by job_instance_id, task_submit_seq") {
            let mut entry = columns(
                &row,
                &["task_submit_seq", "transformation", "abs_task_id", "exitcode"],
            );
            entry.append(&mut self.paths(&row, &["executable", "argv"]));
            for (column, text) in [
                ("start_time", "<TIME>"),
                ("remote_duration", "<S>"),
                ("remote_cpu_time", "<S>"),
                ("maxrss", "<KB>"),
            ] {
                entry.insert(column.to_owned(), mark(&row[column], text));
            }
            push(instances, &name(&row), "invocations", entry.into());
        }
        for row in self.table("integrity") {
            let [kind, file, count] = ["type", "file_type", "count"].map(|column| shown(&row[column]));
            let duration = shown(&mark(&row["duration"], "<S>"));
            push(
                instances,
                &name(&row),
                "integrity",
                format!("{kind} {file} {count} {duration}").into(),
            );
        }
        for row in self.table("tag") {
            let text = format!("{} {}", shown(&row["name"]), shown(&row["count"]));
            push(instances, &name(&row), "tags", text.into());
        }
        for entry in instances.values_mut() {
            for list in ["integrity", "tags"] {
                let list = entry[list].as_array_mut().expect("a list");
                list.sort_by_key(shown);
            }
        }
    }

    fn files(&self) -> Row {
        const COUNTED: [&str; 14] = [
            "task",
            "task_edge",
            "job",
            "job_edge",
            "job_instance",
            "jobstate",
            "invocation",
            "host",
            "rc_lfn",
            "rc_meta",
            "rc_pfn",
            "integrity",
            "tag",
            "workflowstate",
        ];
        let names = self.names("rc_lfn", "lfn_id", "lfn");
        let empty = || json!({"meta": {}, "pfn": []});
        let mut files: Row = names.values().map(|name| (name.clone(), empty())).collect();
        for row in self.table("rc_meta") {
            let value = &row["value"];
            let time = regex!(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d");
            let value = match row["key"].as_str() {
                Some("ctime") if time.is_match(&shown(value)) => "<TIME>".into(),
                Some("user") => self.user(value),
                Some("checksum.timing") => "<S>".into(),
                _ => value.clone(),
            };
            files[&names[&id(&row, "lfn_id").expect("an id")]]["meta"][shown(&row["key"])] = value;
        }
        for row in self.table("rc_pfn") {
            let text = format!("{} {}", shown(&row["site"]), shown(&self.path(&row["pfn"])));
            push(
                &mut files,
                &names[&id(&row, "lfn_id").expect("an id")],
                "pfn",
                text.into(),
            );
        }
        for file in files.values_mut() {
            file["pfn"].as_array_mut().expect("a list").sort_by_key(shown);
        }
        let tables = self.rows("select name from sqlite_master where type='table'");
        let exists = |name: &str| tables.iter().any(|row| row["name"] == name);
        let counts: Row = COUNTED
            .iter()
            .filter(|table| exists(table))
            .map(|table| {
                let count = &self.rows(&format!("select count(*) c from {table}"))[0]["c"];
                ((*table).to_owned(), count.clone())
            })
            .collect();
        let mut result = object(json!({"rc_lfn": files, "counts": counts}));
        if exists("workflow_files") {
            let tasks = self.names("task", "task_id", "abs_task_id");
            let uses = self.table("workflow_files").into_iter().map(|row| {
                let name = |names: &Names, column: &str| {
                    let name = id(&row, column).and_then(|id| names.get(&id)).cloned();
                    shown(&name.into())
                };
                let kind = row.get("file_type").map_or("None".to_owned(), shown);
                format!("{} {} {kind}", name(&tasks, "task_id"), name(&names, "lfn_id"))
            });
            result.insert("workflow_files".to_owned(), sorted(uses).into());
        }
        result
    }
}

/// Appends a value to a list of an entry.
fn push(entries: &mut Row, name: &str, list: &str, value: Value) {
    entries[name][list].as_array_mut().expect("a list").push(value);
}

fn object(value: Value) -> Row {
    match value {
        Value::Object(map) => map,
        _ => Row::new(),
    }
}

fn sorted(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut items: Vec<String> = items.collect();
    items.sort();
    items
}

/// Decodes `%41`.
fn percent_decode(text: &str) -> String {
    let bytes = regex::bytes::Regex::new("%([0-9A-Fa-f]{2})").expect("a regular expression");
    let decoded = bytes.replace_all(text.as_bytes(), |found: &regex::bytes::Captures| {
        let digits = std::str::from_utf8(&found[1]).expect("digits");
        vec![u8::from_str_radix(digits, 16).expect("digits")]
    });
    String::from_utf8_lossy(&decoded).into_owned()
}
