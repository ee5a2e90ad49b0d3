//! Compares DAGs of PMC.

use std::collections::{BTreeMap, BTreeSet};

use super::super::diff;
use super::compare::{compare_lines, compare_sets, settle_words};

#[derive(Debug, Default)]
struct Dag {
    tasks: BTreeMap<String, Task>,
    edges: BTreeSet<String>,
    problems: Vec<String>,
}

#[derive(Debug)]
struct Task {
    options: Vec<(&'static str, String)>,
    executable: String,
    arguments: Vec<String>,
    /// Transformation and name of the job, from the comment in front.
    comment: Option<(String, String)>,
}

pub fn compare(expected: &str, got: &str) -> Vec<String> {
    // The original writes some DAGs that its own executor refuses.
    let Ok(expected_dag) = parse(expected) else {
        return compare_lines(expected, got);
    };
    let got = match parse(got) {
        Ok(dag) => dag,
        Err(e) => return vec![format!("does not parse: {e}")],
    };
    let mut problems = got.problems;
    for (name, old) in &expected_dag.tasks {
        let Some(new) = got.tasks.get(name) else {
            problems.push(format!("missing TASK {name}"));
            continue;
        };
        if old.options != new.options {
            problems.push(format!(
                "TASK {name} options: {:?} -> {:?}",
                old.options, new.options
            ));
        }
        if old.executable != new.executable {
            problems.push(format!(
                "TASK {name} executable: {} -> {}",
                old.executable, new.executable
            ));
        }
        if old.comment != new.comment {
            problems.push(format!(
                "TASK {name} comment: {:?} -> {:?}",
                old.comment, new.comment
            ));
        }
        if old.arguments != new.arguments {
            let words = [old, new].map(|task| task.arguments.iter().map(String::as_str).collect::<Vec<_>>());
            let change = diff::words(&words[0], &words[1]);
            problems.push(format!("TASK {name} arguments: {change}"));
        }
    }
    let additional = got
        .tasks
        .keys()
        .filter(|name| !expected_dag.tasks.contains_key(*name));
    problems.extend(additional.map(|name| format!("extra   TASK {name}")));
    problems.extend(compare_sets(&expected_dag.edges, &got.edges, "EDGE"));
    problems
}

/// Parses a DAG. A line that PMC refuses is an error.
fn parse(text: &str) -> Result<Dag, String> {
    let mut dag = Dag::default();
    let (mut comment, mut comments) = (None, 0);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["TASK", name, _, ..] => {
                let words = split(after_words(line, 2));
                let mut task = parse_task(words).map_err(|e| format!("line {number}: task {name}: {e}"))?;
                task.comment = comment.take();
                if dag.tasks.insert(name.to_owned(), task).is_some() {
                    return Err(format!("line {number}: duplicate task {name}"));
                }
            }
            // A nested sub-workflow is compared with the task that the original writes for it.
            ["JOB", _, _] | ["SUBDAG", "PLANNED", ..] => {}
            ["SUBDAG", "EXTERNAL", name, file, "DIR", directory] => {
                let task = Task {
                    options: Vec::new(),
                    executable: "SUBDAG".to_owned(),
                    arguments: vec![file.to_owned(), directory.to_owned()],
                    comment: comment.take(),
                };
                dag.tasks.insert(name.to_owned(), task);
            }
            ["SCRIPT", "PRE", name, _, ..] => {
                let words = split(after_words(line, 3));
                let mut task =
                    parse_task(words).map_err(|e| format!("line {number}: script of {name}: {e}"))?;
                let subdag = dag.tasks.remove(name);
                task.comment = comment.take().or(subdag.and_then(|task| task.comment));
                dag.tasks.insert(name.to_owned(), task);
            }
            ["EDGE", parent, child] => {
                for task in [parent, child] {
                    if !dag.tasks.contains_key(task) {
                        return Err(format!("line {number}: EDGE names unknown task {task}"));
                    }
                }
                if !dag.edges.insert(format!("{parent} {child}")) {
                    dag.problems
                        .push(format!("EDGE {parent} -> {child} appears twice"));
                }
            }
            ["#@", index, transformation, _, ..] => {
                comments += 1;
                if index != comments.to_string() {
                    dag.problems
                        .push(format!("#@ record {comments} is numbered {index}"));
                }
                comment = Some((transformation.to_owned(), after_words(line, 3).to_owned()));
            }
            ["#@", ..] => return Err(format!("line {number}: short #@ record")),
            [first, ..] if first.starts_with('#') => {}
            _ => return Err(format!("line {number}: not a DAG record: {line}")),
        }
    }
    Ok(dag)
}

/// Returns what follows the first words of a line.
fn after_words(line: &str, count: usize) -> &str {
    (0..count).fold(line, |rest, _| {
        rest.split_once(char::is_whitespace)
            .map_or("", |(_, rest)| rest.trim_start())
    })
}

fn parse_task(mut words: Vec<String>) -> Result<Task, String> {
    let mut options = Vec::new();
    while words.first().is_some_and(|word| word.starts_with('-')) {
        let name = match words[0].as_str() {
            "-m" | "--request-memory" => "memory",
            "-c" | "--request-cpus" => "cpus",
            "-t" | "--tries" => "tries",
            "-p" | "--priority" => "priority",
            "-e" | "--expected-time" => "expected-time",
            "-f" | "--pipe-forward" => "pipe-forward",
            "-F" | "--file-forward" => "file-forward",
            other => return Err(format!("bad option {other}")),
        };
        if words.len() < 2 {
            return Err(format!("bad option {}", words[0]));
        }
        options.push((name, words.remove(1)));
        words.remove(0);
    }
    options.sort();
    if words.is_empty() {
        return Err("no executable".to_owned());
    }
    Ok(Task {
        options,
        executable: words.remove(0),
        arguments: settle_words(words),
        comment: None,
    })
}

/// Splits the words of a task: white space separates, quotes group, a backslash escapes.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), '\\') => {
                let escaped = rest.next_if(|next| "\"'\\".contains(*next));
                word.get_or_insert_default().push(escaped.unwrap_or(c));
            }
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (None, '\\') => word.get_or_insert_default().push(rest.next().unwrap_or(c)),
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return text.split_whitespace().map(str::to_owned).collect();
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_pmc_does() {
        assert_eq!(
            split(r#"a 'b c' "d\"e" f\ g '' h\\"#),
            ["a", "b c", "d\"e", "f g", "", "h\\"]
        );
        assert_eq!(split("a 'b c"), ["a", "'b", "c"]);
    }

    #[test]
    fn the_order_of_records_does_not_count() {
        let one = "TASK a /bin/true x\nTASK b /bin/true\nEDGE a b\n";
        let other = "TASK b  /bin/true\nTASK a /bin/true 'x'\n\nEDGE a b\n";
        assert_eq!(compare(one, other), Vec::<String>::new());
    }

    #[test]
    fn each_difference_is_a_problem() {
        let one = "#@ 1 t a\nTASK a -c 1 /bin/true -w x\nTASK b /bin/true\nEDGE a b\n";
        let other = "#@ 2 t a\nTASK a -c 2 /bin/false -w y\nTASK c /bin/true\n";
        assert_eq!(
            compare(one, other),
            [
                "#@ record 1 is numbered 2",
                "TASK a options: [(\"cpus\", \"1\")] -> [(\"cpus\", \"2\")]",
                "TASK a executable: /bin/true -> /bin/false",
                "TASK a arguments: -w [x] -> [y]",
                "missing TASK b",
                "extra   TASK c",
                "missing EDGE: a b",
            ]
        );
        assert_eq!(
            compare(one, "TASK a -g 1 /bin/true\n"),
            ["does not parse: line 1: task a: bad option -g"]
        );
    }
}
