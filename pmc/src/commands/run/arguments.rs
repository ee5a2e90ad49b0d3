//! Commands from one command and lists of arguments, `COMMAND {} ::: a b c`, as GNU parallel has them.

use std::borrow::Cow;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use pmc_calls::shell::shell_quote;

/// Begins a list of arguments.
const LIST: &str = ":::";
/// Begins a list of files, each line of which is an argument.
const FILES: &str = "::::";
/// Ends the name of a list that goes in step with the one before.
const IN_STEP: char = '+';
/// Maximum commands that a command and its lists make.
const MAX_COMMANDS: usize = 10_000_000;
/// Maximum bytes of a file of arguments, or of standard input.
const MAX_BYTES: u64 = 1 << 30;

/// A list of arguments.
#[derive(Debug, PartialEq, Eq)]
struct List {
    arguments: Vec<String>,
    /// Its n-th argument belongs to the n-th of the list before.
    in_step: bool,
}

/// Returns the commands that a command line stands for, one a line: one for each combination of arguments.
/// Without a list, a command with a placeholder takes the lines of standard input.
///
/// # Errors
/// A file cannot be read, an argument has a line break, there are too many commands, or none.
pub(super) fn commands(words: &[String]) -> Result<String> {
    let end = words.iter().position(|word| is_list(word)).unwrap_or(words.len());
    let (command, rest) = words.split_at(end);
    ensure!(!command.is_empty(), "there is no command before {}", rest[0]);
    let mut template = Template::parse(&command.join(" "));
    let mut lists = lists(rest)?;
    if lists.is_empty() && template.has_placeholder() && !io::stdin().is_terminal() {
        lists.push(List {
            arguments: lines(io::stdin().lock(), Path::new("standard input"))?,
            in_step: false,
        });
    }
    if lists.is_empty() {
        return one_line(&template.text).map(|line| line.to_owned() + "\n");
    }
    if !template.has_placeholder() {
        template = Template::parse(&(template.text + " {}"));
    }
    let combinations = combinations(&lists)?;
    let mut text = String::new();
    for (arguments, number) in combinations.iter().zip(1..) {
        let line = template.fill(arguments, number);
        text.push_str(one_line(&line)?);
        text.push('\n');
    }
    ensure!(
        !text.is_empty(),
        "there is no argument, so there is no command to run"
    );
    Ok(text)
}

/// Returns whether a word begins a list.
fn is_list(word: &str) -> bool {
    let word = word.strip_suffix(IN_STEP).unwrap_or(word);
    word == LIST || word == FILES
}

/// Refuses what a line of a file cannot hold.
fn one_line(command: &str) -> Result<&str> {
    ensure!(
        !command.contains(['\n', '\r', '\0']),
        "the command `{}` has a line break: write it to a script",
        command.escape_debug()
    );
    // It would be a comment.
    ensure!(
        !command.trim_start().starts_with('#'),
        "the command `{command}` begins with #"
    );
    Ok(command)
}

/// Reads all lists.
fn lists(words: &[String]) -> Result<Vec<List>> {
    let mut lists: Vec<List> = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(opening) = words.next() {
        let in_step = opening.ends_with(IN_STEP);
        let is_files = opening.trim_end_matches(IN_STEP) == FILES;
        ensure!(!in_step || !lists.is_empty(), "{opening} has no list before it");
        let mut arguments = Vec::new();
        while let Some(word) = words.next_if(|word| !is_list(word)) {
            match is_files {
                true => arguments.extend(file(Path::new(word))?),
                false => arguments.push(word.clone()),
            }
        }
        lists.push(List { arguments, in_step });
    }
    Ok(lists)
}

/// Reads the lines of a file; `-` is standard input.
fn file(path: &Path) -> Result<Vec<String>> {
    if path == Path::new("-") {
        return lines(io::stdin().lock(), Path::new("standard input"));
    }
    let file = pmc_files::open_input(path).with_context(|| format!("cannot read {}", path.display()))?;
    lines(io::BufReader::new(file), path)
}

fn lines(reader: impl io::BufRead, path: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut reader = reader.take(MAX_BYTES);
    let mut line = String::new();
    loop {
        line.clear();
        let read = reader.read_line(&mut line);
        if read.with_context(|| format!("cannot read {}", path.display()))? == 0 {
            break;
        }
        lines.push(line.trim_end_matches(['\n', '\r']).to_owned());
    }
    ensure!(
        reader.limit() > 0,
        "{} has more than {MAX_BYTES} bytes",
        path.display()
    );
    Ok(lines)
}

/// Returns the arguments of each command. The last list changes fastest.
fn combinations(lists: &[List]) -> Result<Vec<Vec<&str>>> {
    let mut all: Vec<Vec<&str>> = vec![Vec::new()];
    let mut at = 0;
    while at < lists.len() {
        // A list and those that go in step with it. The shortest one ends them.
        let group = 1 + lists[at + 1..].iter().take_while(|list| list.in_step).count();
        let group = &lists[at..at + group];
        let steps = group.iter().map(|list| list.arguments.len()).min().unwrap_or(0);
        if all.len().saturating_mul(steps) > MAX_COMMANDS {
            bail!("the lists make more than {MAX_COMMANDS} commands");
        }
        all = all
            .iter()
            .flat_map(|before| {
                (0..steps).map(move |step| {
                    let own = group.iter().map(|list| list.arguments[step].as_str());
                    before.iter().copied().chain(own).collect()
                })
            })
            .collect();
        at += group.len();
    }
    Ok(all)
}

/// What a placeholder shows of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `{}`: all of it.
    Whole,
    /// `{.}`: without its last extension.
    NoExtension,
    /// `{/}`: without directories.
    FileName,
    /// `{//}`: its directory.
    Directory,
    /// `{/.}`: without directories and last extension.
    Stem,
}

impl Form {
    fn of<'a>(self, argument: &'a str) -> Cow<'a, str> {
        let without_extension = |text: &'a str| {
            let name = text.rfind('/').map_or(0, |slash| slash + 1);
            match text[name..].rfind('.') {
                Some(dot) if dot > 0 => &text[..name + dot],
                _ => text,
            }
        };
        let file_name = |text: &'a str| text.rsplit('/').next().unwrap_or(text);
        Cow::Borrowed(match self {
            Form::Whole => argument,
            Form::NoExtension => without_extension(argument),
            Form::FileName => file_name(argument),
            Form::Directory => match argument.rsplit_once('/') {
                Some(("", _)) => "/",
                Some((directory, _)) => directory,
                None => ".",
            },
            Form::Stem => without_extension(file_name(argument)),
        })
    }
}

/// A part of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// An argument, by the number of its list from 1; all of them with 0.
    Argument(usize, Form),
    /// `{#}`: the number of the command.
    Number,
}

/// A command with placeholders.
#[derive(Debug)]
struct Template {
    text: String,
    parts: Vec<Part>,
}

impl Template {
    fn parse(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let end = rest[open..].find('}').map(|close| open + close);
            let part = end.and_then(|end| placeholder(&rest[open + 1..end]));
            let (Some(part), Some(end)) = (part, end) else {
                plain.push_str(&rest[..=open]);
                rest = &rest[open + 1..];
                continue;
            };
            plain.push_str(&rest[..open]);
            parts.push(Part::Text(std::mem::take(&mut plain)));
            parts.push(part);
            rest = &rest[end + 1..];
        }
        plain.push_str(rest);
        parts.push(Part::Text(plain));
        Template {
            text: text.to_owned(),
            parts,
        }
    }

    fn has_placeholder(&self) -> bool {
        self.parts.len() > 1
    }

    /// Returns the command for these arguments, each quoted for the shell.
    fn fill(&self, arguments: &[&str], number: usize) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Number => text.push_str(&number.to_string()),
                Part::Argument(0, form) => {
                    let words: Vec<String> = arguments
                        .iter()
                        .map(|word| shell_quote(&form.of(word)).into_owned())
                        .collect();
                    text.push_str(&words.join(" "));
                }
                Part::Argument(list, form) => {
                    let argument = arguments.get(list - 1).copied().unwrap_or_default();
                    text.push_str(&shell_quote(&form.of(argument)));
                }
            }
        }
        text
    }
}

/// Parses what stands between the braces of a placeholder.
fn placeholder(inside: &str) -> Option<Part> {
    if inside == "#" {
        return Some(Part::Number);
    }
    let digits = inside.bytes().take_while(u8::is_ascii_digit).count();
    let (number, form) = inside.split_at(digits);
    let list = match number {
        "" => 0,
        number => number.parse().ok().filter(|list| *list > 0)?,
    };
    let form = match form {
        "" => Form::Whole,
        "." => Form::NoExtension,
        "/" => Form::FileName,
        "//" => Form::Directory,
        "/." => Form::Stem,
        _ => return None,
    };
    Some(Part::Argument(list, form))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        commands(&words).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_argument_makes_a_command() {
        assert_eq!(
            made(&["gzip", "-k", "{}", ":::", "a b", "c"]),
            ["gzip -k 'a b'", "gzip -k c"]
        );
        assert_eq!(made(&["echo", ":::", "it's", ""]), ["echo 'it'\\''s'", "echo ''"]);
        assert_eq!(made(&["echo", "plain"]), ["echo plain"]);
    }

    #[test]
    fn lists_are_combined_or_go_in_step() {
        assert_eq!(
            made(&["x {2} {1} {#}", ":::", "a", "b", ":::", "1", "2"]),
            ["x 1 a 1", "x 2 a 2", "x 1 b 3", "x 2 b 4"]
        );
        assert_eq!(
            made(&["x", ":::", "a", "b", ":::+", "1", "2", "3"]),
            ["x a 1", "x b 2"]
        );
        assert_eq!(made(&["x", ":::", "a", ":::", "b", ":::+", "c"]), ["x a b c"]);
    }

    #[test]
    fn placeholders_show_parts_of_names() {
        let line = made(&[
            "{} {.} {/} {//} {/.} {1/.} ${HOME} {a,b} {",
            ":::",
            "d.x/a.tar.gz",
        ]);
        assert_eq!(
            line,
            ["d.x/a.tar.gz d.x/a.tar a.tar.gz d.x a.tar a.tar ${HOME} {a,b} {"]
        );
        assert_eq!(
            made(&["{.} {//}", ":::", "d.x/.rc", "/x"]),
            ["d.x/.rc d.x", "/x /"]
        );
        // A variable of the shell is not a placeholder, an empty one of it does not exist.
        assert_eq!(made(&["echo {9}", ":::", "a"]), ["echo ''"]);
    }

    #[test]
    fn files_have_an_argument_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        std::fs::write(&path, "a b\r\n\nc").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(made(&["x", "::::", path]), ["x 'a b'", "x ''", "x c"]);
        let missing: Vec<String> = ["x", "::::", "no-such-file"].map(str::to_owned).to_vec();
        assert!(format!("{:#}", commands(&missing).unwrap_err()).contains("no-such-file"));
    }

    #[test]
    fn what_makes_no_command_is_refused() {
        for (words, message) in [
            (&["x", ":::"][..], "no argument"),
            (&[":::", "a"], "no command"),
            (&["x", ":::+", "a"], "no list before"),
            (&["x", ":::", "a\nb"], "line break"),
            (&["# x"], "begins with #"),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let error = commands(&words).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let many = vec!["1".to_owned(); 4000];
        let words = [
            vec!["x".to_owned(), ":::".to_owned()],
            many.clone(),
            vec![":::".to_owned()],
            many,
        ]
        .concat();
        assert!(commands(&words).unwrap_err().to_string().contains("more than"));
    }
}
