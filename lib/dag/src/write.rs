//! Writes the lines of a DAG file, for the planner.
//!
//! The layout is that of Pegasus' planner, because Pegasus' monitoring daemon reads these lines, too: the
//! `#@` line ends with a blank, and exactly one blank separates the name of a task from the next word.

use std::fmt::Write as _;
use std::num::NonZeroU32;

use thiserror::Error;

use crate::options;

/// Why a line cannot be written into a DAG file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A name or identifier contains a blank or is empty.
    #[error("{what} '{value}' is empty or contains a blank, which a DAG file cannot express")]
    Name {
        /// Kind of name.
        what: &'static str,
        /// The name.
        value: String,
    },
    /// A text contains a line break.
    #[error("the {what} of task {task} contains a line break, which a DAG file cannot express")]
    LineBreak {
        /// Which part of the line.
        what: &'static str,
        /// Name of the task.
        task: String,
    },
    /// The reader would not return what was written.
    #[error("the {what} of task {task} cannot be written into a DAG file: {reason}")]
    Unreadable {
        /// Which part of the line.
        what: &'static str,
        /// Name of the task.
        task: String,
        /// Message of the reader.
        reason: String,
    },
}

/// A TASK line.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskLine<'a> {
    /// Name of the task.
    pub name: &'a str,
    /// `-m`: memory in MB.
    pub memory_mb: Option<u64>,
    /// `-c`: CPUs.
    pub cpus: Option<u32>,
    /// `-g`: GPUs.
    pub gpus: Option<u32>,
    /// `-p`: priority.
    pub priority: Option<i64>,
    /// `-t`: attempts.
    pub tries: Option<u32>,
    /// More options, in the syntax of the line; may be empty.
    pub options: &'a str,
    /// Program and arguments in the syntax of the line, quoted with [`words::quote`](crate::words::quote) if
    /// necessary.
    pub command: &'a str,
}

/// Adds the line with transformation and identifier of the next task.
///
/// # Errors
/// `transformation` or `id` is empty or contains a blank.
pub fn comment(out: &mut String, number: u64, transformation: &str, id: &str) -> Result<(), WriteError> {
    check_name("transformation", transformation)?;
    check_name("job identifier", id)?;
    // Writing into a String cannot fail.
    let _ = write!(out, "#@ {number} ");
    for part in [transformation, " ", id, " \n"] {
        out.push_str(part);
    }
    Ok(())
}

/// Adds the line with the inputs of the next task that others read, too. Without any, nothing is added; a
/// name with a line break is left out.
pub fn inputs<'n>(out: &mut String, names: impl Iterator<Item = &'n str>) {
    let start = out.len();
    for name in names.filter(|name| !name.contains(['\n', '\r'])) {
        out.push_str(if out.len() == start { "#inputs " } else { " " });
        out.push_str(&String::from_utf8_lossy(&crate::words::quote(name.as_bytes())));
    }
    if out.len() > start {
        out.push('\n');
    }
}

/// A SUBDAG line: a task that is a DAG of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct SubdagLine<'a> {
    /// Name of the task.
    pub name: &'a str,
    /// Its DAG file, absolute or relative to the directory of the DAG file with this line.
    pub dag: &'a str,
    /// Where its tasks run, absolute or relative to the same directory.
    pub directory: &'a str,
    /// The submit description by which Pegasus' monitoring finds the logs of a planned sub-workflow,
    /// relative to the directory of the DAG file with this line. `None` if the DAG is not the planner's.
    pub description: Option<&'a str>,
}

/// Adds a SUBDAG line. It counts as a task in the trailer.
///
/// # Errors
/// The reader would not return what was written. Nothing is added then.
pub fn subdag(out: &mut String, line: &SubdagLine<'_>) -> Result<(), WriteError> {
    check_name("task name", line.name)?;
    let description = line.description.unwrap_or("-");
    for (what, path) in [
        ("DAG file", line.dag),
        ("directory", line.directory),
        ("submit description", description),
    ] {
        if path.contains('\n') {
            let task = line.name.to_owned();
            return Err(WriteError::LineBreak { what, task });
        }
        if path.is_empty() {
            let value = path.to_owned();
            return Err(WriteError::Name { what, value });
        }
    }
    let quoted = |path: &str| String::from_utf8_lossy(&crate::words::quote(path.as_bytes())).into_owned();
    let (dag, directory) = (quoted(line.dag), quoted(line.directory));
    let name = line.name;
    let kind = if line.description.is_some() {
        "PLANNED"
    } else {
        "EXTERNAL"
    };
    let _ = writeln!(out, "SUBDAG {kind} {name} {dag} DIR {directory}");
    if let Some(description) = line.description {
        let _ = writeln!(out, "JOB {name} {description}");
    }
    Ok(())
}

/// Adds the SCRIPT PRE line that makes the DAG file of a sub-workflow, whose SUBDAG line comes before.
///
/// # Errors
/// The reader would not return what was written. Nothing is added then.
pub fn pre_script(out: &mut String, line: &TaskLine<'_>) -> Result<(), WriteError> {
    line_in_parts(out, "SCRIPT PRE ", line, &[])
}

/// Adds a TASK line.
///
/// # Errors
/// The reader would not return what was written. Nothing is added then.
pub fn task(out: &mut String, line: &TaskLine<'_>) -> Result<(), WriteError> {
    task_in_parts(out, line, &[])
}

/// Like [`task`], but the command is the concatenation of `line.command` and `more`.
///
/// # Errors
/// The reader would not return what was written. Nothing is added then.
pub fn task_in_parts(out: &mut String, line: &TaskLine<'_>, more: &[&str]) -> Result<(), WriteError> {
    line_in_parts(out, "TASK ", line, more)
}

fn line_in_parts(
    out: &mut String,
    keyword: &str,
    line: &TaskLine<'_>,
    more: &[&str],
) -> Result<(), WriteError> {
    let task = || line.name.to_owned();
    check_name("task name", line.name)?;
    let texts = [("command", line.command), ("options", line.options)];
    let parts = more.iter().map(|part| ("command", *part));
    for (what, text) in texts.into_iter().chain(parts) {
        if text.contains('\n') {
            return Err(WriteError::LineBreak { what, task: task() });
        }
    }
    let start = out.len();
    for part in [keyword, line.name, " "] {
        out.push_str(part);
    }
    let rest = out.len();
    if let Some(memory) = line.memory_mb {
        let _ = write!(out, "-m {memory} ");
    }
    if let Some(cpus) = line.cpus {
        let _ = write!(out, "-c {cpus} ");
    }
    if let Some(gpus) = line.gpus {
        let _ = write!(out, "-g {gpus} ");
    }
    if let Some(priority) = line.priority {
        let _ = write!(out, "-p {priority} ");
    }
    if let Some(tries) = line.tries {
        let _ = write!(out, "-t {tries} ");
    }
    let options = line.options.trim_matches([' ', '\t', '\r']);
    if !options.is_empty() {
        let _ = write!(out, "{options} ");
    }
    let command = out.len();
    out.push_str(line.command);
    for part in more {
        out.push_str(part);
    }
    if is_plain(line, more) {
        out.push('\n');
        return Ok(());
    }
    // Quotes in the options may include the program, or the program may look like an option: reads the line
    // back.
    let read_back = options::parse(line.name.as_bytes(), &out.as_bytes()[rest..]);
    let problem = match read_back {
        // Both end at the end of the text.
        Ok((_, read)) if read.len() == out.len() - command => None,
        Ok(_) => Some(("command", "it would begin at another word".to_owned())),
        Err(kind) => Some(("options or command", kind.to_string())),
    };
    if let Some((what, reason)) = problem {
        out.truncate(start);
        return Err(WriteError::Unreadable {
            what,
            task: task(),
            reason,
        });
    }
    out.push('\n');
    Ok(())
}

/// True if the line is certainly read back correctly: its options are small numbers, and the program begins
/// with a character that begins no option and needs no quotes.
fn is_plain(line: &TaskLine<'_>, more: &[&str]) -> bool {
    const SMALL: u64 = 1 << 20;
    let numbers = [
        line.memory_mb,
        line.cpus.map(u64::from),
        line.gpus.map(u64::from),
        line.priority.map(i64::unsigned_abs),
        line.tries.map(u64::from),
    ];
    let mut command = [line.command].into_iter().chain(more.iter().copied());
    let first = command.find_map(|part| part.bytes().next());
    line.options.is_empty()
        && numbers.into_iter().flatten().all(|number| number < SMALL)
        && first.is_some_and(|byte| byte == b'/' || byte.is_ascii_alphanumeric())
}

/// Adds a MAXJOBS line: at most `limit` tasks of a category run at a time.
///
/// # Errors
/// `category` is empty or contains a blank.
pub fn max_jobs(out: &mut String, category: &str, limit: NonZeroU32) -> Result<(), WriteError> {
    check_name("category", category)?;
    let category = crate::words::quote(category.as_bytes());
    let _ = writeln!(out, "MAXJOBS {} {limit}", String::from_utf8_lossy(&category));
    Ok(())
}

/// Adds an EDGE line. Both tasks must have been written before it.
///
/// # Errors
/// A name is empty or contains a blank.
pub fn edge(out: &mut String, parent: &str, child: &str) -> Result<(), WriteError> {
    edges(out, parent, [child])
}

/// Adds an EDGE line for each child of a task. All tasks must have been written before.
///
/// # Errors
/// A name is empty or contains a blank.
pub fn edges<'n>(
    out: &mut String,
    parent: &str,
    children: impl IntoIterator<Item = &'n str>,
) -> Result<(), WriteError> {
    check_name("task name", parent)?;
    for child in children {
        check_name("task name", child)?;
        for part in ["EDGE ", parent, " ", child, "\n"] {
            out.push_str(part);
        }
    }
    Ok(())
}

fn check_name(what: &'static str, value: &str) -> Result<(), WriteError> {
    // Refuses all white space, because the monitoring daemon knows more blanks than the reader. Checking all
    // bytes of a plain name is faster than stopping at the first special one.
    let plain = value
        .bytes()
        .fold(true, |plain, b| plain & (b > b' ') & b.is_ascii());
    if value.is_empty() || (!plain && value.chars().any(char::is_whitespace)) {
        return Err(WriteError::Name {
            what,
            value: value.to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Dag, TaskId, words};

    #[test]
    fn inputs_are_read_back_for_the_next_task() {
        let mut out = String::new();
        inputs(&mut out, std::iter::empty());
        inputs(&mut out, ["line\nbreak"].into_iter());
        assert_eq!(out, "");
        let names = ["a", "b c", "it's\\", ""];
        inputs(&mut out, names.into_iter());
        out.push_str("#@ 1 x:1 A \nTASK a /bin/true\nTASK b /bin/true\n");
        inputs(&mut out, ["a"].into_iter());
        out.push_str("TASK c /bin/true\n");
        inputs(&mut out, names.into_iter());
        out.push_str("TASK d /bin/true\nTASK e /bin/true\n");
        let dag = Dag::parse(out.into_bytes()).unwrap();
        let sets: Vec<u32> = dag.ids().map(|task| dag.inputs(task)).collect();
        assert_eq!(sets, [1, 0, 2, 1, 0]);
        let read: Vec<Vec<Vec<u8>>> = dag
            .input_sets()
            .map(|set| set.map(std::borrow::Cow::into_owned).collect())
            .collect();
        let names = names.map(|name| name.as_bytes().to_vec()).to_vec();
        assert_eq!(read, [names, vec![b"a".to_vec()]]);
        assert_eq!(dag.task(TaskId(0)).id, Some(&b"1"[..]));
    }

    #[test]
    fn the_layout_is_that_of_pegasus() {
        let mut out = String::new();
        comment(&mut out, 7, "gen:4.0", "ID01").unwrap();
        let line = TaskLine {
            name: "gen_ID01",
            memory_mb: Some(1024),
            cpus: Some(1),
            gpus: Some(2),
            priority: Some(-10),
            tries: Some(4),
            options: " -f A=a ",
            command: "/bin/kickstart  -n gen ",
        };
        task(&mut out, &line).unwrap();
        task(
            &mut out,
            &TaskLine {
                name: "b",
                command: "/bin/true",
                ..Default::default()
            },
        )
        .unwrap();
        edge(&mut out, "gen_ID01", "b").unwrap();
        assert_eq!(
            out,
            "#@ 7 gen:4.0 ID01 \n\
             TASK gen_ID01 -m 1024 -c 1 -g 2 -p -10 -t 4 -f A=a /bin/kickstart  -n gen \n\
             TASK b /bin/true\n\
             EDGE gen_ID01 b\n"
        );
    }

    #[test]
    fn lines_that_cannot_be_read_back_are_refused() {
        let refused = |line: TaskLine<'_>| {
            let mut out = "before\n".to_owned();
            let error = task(&mut out, &line).unwrap_err();
            assert_eq!(out, "before\n");
            error.to_string()
        };
        let base = TaskLine {
            name: "t",
            command: "/bin/true",
            ..Default::default()
        };
        assert!(refused(TaskLine { name: "a b", ..base }).contains("'a b'"));
        assert!(refused(TaskLine { name: "", ..base }).contains("empty"));
        assert!(
            refused(TaskLine {
                command: "/bin/echo 'a\nb'",
                ..base
            })
            .contains("line break")
        );
        assert!(refused(TaskLine { command: "", ..base }).contains("Missing program"));
        assert!(
            refused(TaskLine {
                command: "-m 5 x",
                ..base
            })
            .contains("another word")
        );
        assert!(
            refused(TaskLine {
                options: "-f 'A=b",
                ..base
            })
            .contains("Missing program")
        );
        assert!(
            refused(TaskLine {
                options: "-x",
                ..base
            })
            .contains("Invalid argument '-x'")
        );
        assert!(edge(&mut String::new(), "a", "b c").is_err());
        assert!(comment(&mut String::new(), 1, "a b", "c").is_err());
    }

    #[test]
    fn sub_workflows_are_read_back() {
        let mut out = String::new();
        let line = SubdagLine {
            name: "s",
            dag: "sub dir/it's.dag",
            directory: "sub dir",
            description: Some("00/00/s.sub"),
        };
        subdag(&mut out, &line).unwrap();
        assert!(out.contains("\nJOB s 00/00/s.sub\n"), "{out}");
        let script = TaskLine {
            name: "s",
            memory_mb: Some(7),
            command: "/bin/plan 'a b'",
            ..Default::default()
        };
        pre_script(&mut out, &script).unwrap();
        for bad in [
            SubdagLine { name: "a b", ..line },
            SubdagLine { dag: "", ..line },
            SubdagLine {
                directory: "a\nb",
                ..line
            },
        ] {
            assert!(subdag(&mut out, &bad).is_err(), "{bad:?}");
        }
        let dag = Dag::parse(out.into_bytes()).unwrap();
        let read = dag.subdag(TaskId(0)).unwrap();
        assert_eq!(
            (read.dag, read.directory),
            (line.dag.as_bytes(), Some(&b"sub dir"[..]))
        );
        assert!(read.is_prepared);
        assert_eq!(read.description, Some(&b"00/00/s.sub"[..]));
        let task = dag.task(TaskId(0));
        assert_eq!((task.command, task.memory_mb), (&b"/bin/plan 'a b'"[..], 7));
    }

    #[test]
    fn limits_of_categories_are_read_back() {
        let mut out = String::new();
        let options = "--category d'b";
        assert!(
            task(
                &mut out,
                &TaskLine {
                    name: "t",
                    options,
                    command: "/bin/a",
                    ..Default::default()
                }
            )
            .is_err()
        );
        let options = "--category d\\'b";
        task(
            &mut out,
            &TaskLine {
                name: "t",
                options,
                command: "/bin/a",
                ..Default::default()
            },
        )
        .unwrap();
        max_jobs(&mut out, "d'b", NonZeroU32::new(3).unwrap()).unwrap();
        assert!(max_jobs(&mut out, "two words", NonZeroU32::MIN).is_err());
        let dag = Dag::parse(out.into_bytes()).unwrap();
        assert_eq!(
            dag.category(TaskId(0))
                .map(|id| dag.category_limits()[id.index()]),
            Some(3)
        );
    }

    proptest! {
        #[test]
        fn any_arguments_are_read_back(args in proptest::collection::vec("[^\n]*", 0..5)) {
            let mut words = vec!["/bin/echo".to_owned()];
            words.extend(args);
            let quoted: Vec<Vec<u8>> = words.iter().map(|w| words::quote(w.as_bytes()).into_owned()).collect();
            let command = String::from_utf8(quoted.join(&b' ')).unwrap();
            let mut out = String::new();
            task(&mut out, &TaskLine { name: "t", command: &command, ..Default::default() }).unwrap();
            let dag = Dag::parse(out.into_bytes()).unwrap();
            let read: Vec<String> = words::split(dag.task(TaskId(0)).command)
                .into_iter().map(|w| String::from_utf8(w).unwrap()).collect();
            prop_assert_eq!(read, words);
        }

        #[test]
        fn plain_lines_need_no_reading_back(
            memory_mb in proptest::option::of(0_u64..1_100_000),
            cpus in proptest::option::of(0_u32..1_100_000),
            gpus in proptest::option::of(0_u32..1_100_000),
            priority in proptest::option::of(-1_100_000_i64..1_100_000),
            first in "[a-c/0-9][a-c/'\" \\\\0-9=.-]{0,3}",
            more in "[^\n]{0,8}",
        ) {
            let line = TaskLine { name: "t", memory_mb, cpus, gpus, priority, command: &first, ..Default::default() };
            prop_assume!(is_plain(&line, &[&more]));
            let mut out = String::new();
            task_in_parts(&mut out, &line, &[&more]).unwrap();
            let text = out.strip_prefix("TASK t ").and_then(|rest| rest.strip_suffix('\n')).unwrap();
            let (_, command) = options::parse(b"t", text.as_bytes()).unwrap();
            let expected = format!("{first}{more}");
            prop_assert_eq!(command, expected.as_bytes());
        }
    }
}
