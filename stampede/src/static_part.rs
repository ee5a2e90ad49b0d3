//! Loads the plan of a workflow: the events of the planner (`*.static.bp`), or the DAG itself.

use std::path::Path;

use monitord_compat::static_bp_reader::Event;
use pmc_files::LineReader;

use pmc_dag::words::Words;
use pmc_dag::{Dag, TaskId};

use crate::error::{LoadError, Notice};
use crate::job_command::{base_name, kickstart_option};
use crate::rows::JobRow;
use crate::store::{Store, StoreError};
use crate::text;

/// Maximum size in bytes of the events: those of some ten million tasks.
const MAX_EVENTS: u64 = 16 << 30;

/// Values of the column `type_desc` of a job.
const JOB_TYPES: [&str; 12] = [
    "unknown",
    "compute",
    "stage-in-tx",
    "stage-out-tx",
    "registration",
    "inter-site-tx",
    "create-dir",
    "staged-compute",
    "cleanup",
    "chmod",
    "dax",
    "dag",
];

/// Inserts the events of a file. There is one notice about all damaged lines.
///
/// # Errors
/// The file cannot be read, is larger than 16 GiB or has a line of more than 64 MiB, or the database cannot
/// be written.
pub fn load(path: &Path, store: &dyn Store, notice: &mut dyn FnMut(Notice)) -> Result<(), LoadError> {
    let unreadable = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let mut reader = LineReader::open_at_most(path, MAX_EVENTS).map_err(unreadable)?;
    // The first damaged line, and how many there are.
    let (mut first, mut count) = (0, 0);
    for number in 1_u64.. {
        let line = match reader.next_line().map_err(unreadable)? {
            Some(line) => line,
            None => match reader.take_rest() {
                Some(line) => line,
                None => break,
            },
        };
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        if text.is_empty() {
            continue;
        }
        let inserted = match Event::read(text) {
            Some(event) => insert(&event, store)?,
            None => None,
        };
        if inserted.is_none() {
            count += 1;
            if count == 1 {
                first = number;
            }
        }
    }
    if count > 0 {
        notice(Notice::StaticLines {
            path: path.to_owned(),
            first,
            count,
        });
    }
    Ok(())
}

/// A job of a DAG that was not planned, with its only task.
#[derive(Clone, Debug)]
struct UnplannedJob {
    program: String,
    argv: Option<String>,
    transformation: String,
    /// Id of the task, if it is not the name of the job.
    task: Option<String>,
}

impl UnplannedJob {
    /// Reads the command of a task of the DAG.
    fn new(dag: &Dag, id: TaskId) -> Self {
        let mut words = Words::new(dag.task(id).command).map(|word| text::into_lossy(word.into_owned()));
        let program = words.next().unwrap_or_default();
        let arguments: Vec<_> = words.collect();
        let arguments = arguments.join(" ");
        let transformation = kickstart_option(&arguments, 'n');
        Self {
            transformation: transformation.unwrap_or_else(|| base_name(&program).to_owned()),
            task: kickstart_option(&arguments, 'N'),
            argv: Some(arguments).filter(|argv| !argv.is_empty()),
            program,
        }
    }
}

/// Reads a DAG that was not planned.
///
/// # Errors
/// The DAG cannot be read.
pub fn open_dag(path: &Path) -> Result<Dag, LoadError> {
    // The directory may be that of another user: a FIFO would never end.
    pmc_files::open(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })?;
    Dag::open(path).map_err(|source| LoadError::Dag {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// Inserts the jobs of a DAG that was not planned.
///
/// # Errors
/// The database cannot be written.
pub fn load_dag(dag: &Dag, store: &dyn Store) -> Result<(), StoreError> {
    let text = String::from_utf8_lossy;
    for id in dag.ids() {
        let name = text(dag.name(id));
        let command = UnplannedJob::new(dag, id);
        let job = JobRow {
            exec_job_id: &name,
            type_desc: "compute",
            executable: &command.program,
            argv: command.argv.as_deref(),
            task_count: 1,
            ..JobRow::default()
        };
        store.insert_job_with_task(
            &job,
            command.task.as_deref().unwrap_or(&name),
            &command.transformation,
        )?;
        for child in dag.children(id) {
            store.insert_job_edge(&name, &text(dag.name(*child)))?;
        }
    }
    Ok(())
}

/// Inserts an event. `None` if an attribute is missing, or the event refers to an unknown job or task.
fn insert(event: &Event<'_>, store: &dyn Store) -> Result<Option<()>, StoreError> {
    let get = |key| event.get(key);
    let argv = || get("argv").map(text::argv);
    let number = |key| get(key).and_then(|value| value.parse::<i64>().ok());
    // The closure returns at the first missing attribute.
    let inserted = || -> Option<Result<bool, StoreError>> {
        let done = |result: Result<(), StoreError>| Some(result.map(|()| true));
        match &*event.name {
            "task.info" => {
                let kind = get("type_desc").unwrap_or("unknown");
                done(store.insert_task(get("task.id")?, get("transformation")?, argv().as_deref(), kind))
            }
            "task.edge" => done(store.insert_task_edge(get("parent.task.id")?, get("child.task.id")?)),
            "xwf.meta" => done(store.set_workflow_meta(get("key")?, get("value")?)),
            "task.meta" => Some(store.set_task_meta(get("task.id")?, get("key")?, get("value")?)),
            "rc.meta" => {
                let (lfn, key, value) = (get("lfn.id")?, get("key")?, get("value")?);
                done(store.set_file_meta(lfn, &[(key, value)]))
            }
            "wf.map.file" => Some(store.insert_workflow_file(get("task.id")?, get("lfn.id")?)),
            "job.info" => done(
                store.insert_job(&JobRow {
                    exec_job_id: get("job.id")?,
                    submit_file: get("submit_file").unwrap_or_default(),
                    type_desc: get("type_desc")
                        .filter(|kind| JOB_TYPES.contains(kind))
                        .unwrap_or("unknown"),
                    clustered: get("clustered") == Some("1"),
                    max_retries: number("max_retries").unwrap_or(0),
                    executable: get("executable").unwrap_or_default(),
                    argv: argv().as_deref(),
                    task_count: number("task_count").unwrap_or(0),
                }),
            ),
            "wf.map.task_job" => Some(store.assign_task(get("task.id")?, get("job.id")?)),
            "job.edge" => done(store.insert_job_edge(get("parent.job.id")?, get("child.job.id")?)),
            // Marks between the parts, and events of later versions.
            _ => Some(Ok(true)),
        }
    };
    match inserted() {
        Some(Ok(is_known)) => Ok(is_known.then_some(())),
        Some(Err(error)) => Err(error),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::WorkflowRow;
    use crate::store::{Lookup as _, Purpose, Sqlite};

    #[test]
    fn a_dag_that_was_not_planned_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.dag");
        let dag = "TASK a -c 2 /bin/echo one \"two three\"\nTASK b /bin/pegasus-kickstart -n ns::b -N ID7 /bin/b\nEDGE a b\n";
        std::fs::write(&path, dag).unwrap();
        let mut store = Sqlite::create(&dir.path().join("x.db"), Purpose::Bulk, 0).unwrap();
        store.insert_workflow(&WorkflowRow::default()).unwrap();
        load_dag(&open_dag(&path).unwrap(), &store).unwrap();
        let job = |name| store.job_id(name).unwrap();
        assert_eq!(
            store.task_facts("a").unwrap(),
            Some(("echo".to_owned(), job("a")))
        );
        assert_eq!(
            store.task_facts("ID7").unwrap(),
            Some(("ns::b".to_owned(), job("b")))
        );
        let (program, arguments, _) = store.job_facts(job("a").unwrap()).unwrap();
        assert_eq!(
            (&*program, arguments.as_deref()),
            ("/bin/echo", Some("one two three"))
        );
        std::fs::write(&path, "TASK\n").unwrap();
        assert!(open_dag(&path).unwrap_err().to_string().contains("x.dag"));
    }

    #[test]
    fn damaged_lines_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.static.bp");
        let text = "\
event=task.info task.id=\"T1\" type_desc=\"compute\" transformation=\"t\" argv=\"it's\" \n\
event=task.info task.id=\"T2\" type_desc=\"com\n\
event=task.meta task.id=\"T9\" key=\"a\" value=\"b\" \n\
event=job.info job.id=\"J\" type_desc=\"unassigned\" clustered=\"0\" \n\
event=wf.map.task_job job.id=\"J\" task.id=\"T1\" \n\
event=xwf.meta key=\"a\" \n\
\n\
event=of.a.later.version x=\"y\" \n";
        std::fs::write(&path, text).unwrap();
        let mut store = Sqlite::create(&dir.path().join("x.db"), Purpose::Bulk, 0).unwrap();
        store.insert_workflow(&WorkflowRow::default()).unwrap();
        let mut notices = Vec::new();
        load(&path, &store, &mut |notice| notices.push(notice.to_string())).unwrap();
        let expected = format!(
            "{}:2: damaged or incomplete event, skipped, as 2 more after it",
            path.display()
        );
        assert_eq!(notices, [expected]);
        let job = store.job_id("J").unwrap();
        assert_eq!(store.task_facts("T1").unwrap(), Some(("t".to_owned(), job)));
        assert_eq!(store.task_facts("T2").unwrap(), None);
    }
}
