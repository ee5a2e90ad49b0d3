//! Programs that are traced while they run.
#![cfg(feature = "trace")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pmc_stacks::{Frame, HostStacks, trace};

/// A program with threads. It says when it has come where it stays.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static int is_there[2];

__attribute__((noinline)) int innermost(int depth) {
    write(is_there[1], "x", 1);
    for (;;)
        pause();
    return depth;
}

__attribute__((noinline)) int solve(int depth) {
    if (depth == 0)
        return innermost(depth) + 1;
    return solve(depth - 1) + 1;
}

static void *work(void *unused) {
    solve(1);
    return unused;
}

int main(void) {
    pthread_t thread;
    char said[2];
    if (pipe(is_there) || pthread_create(&thread, NULL, work, NULL))
        return 1;
    read(is_there[0], said, 1);
    puts("ready");
    fflush(stdout);
    return solve(2);
}
"#;

/// Builds the program, or returns `None` without a compiler.
fn build(folder: &Path, options: &[&str]) -> Option<std::path::PathBuf> {
    let (source, program) = (folder.join("solver.c"), folder.join("solver"));
    std::fs::write(&source, PROGRAM).expect("a source");
    let mut command = Command::new("cc");
    command
        .args(options)
        .arg("-pthread")
        .arg("-o")
        .arg(&program)
        .arg(&source);
    let built = command.status().ok()?;
    assert!(built.success());
    Some(program)
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &Path) -> Ended {
    let mut child = Command::new(program)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output"))
        .read_line(&mut line)
        .expect("a line");
    assert_eq!(line, "ready\n");
    Ended(child)
}

fn functions(frames: &[Frame]) -> Vec<&str> {
    frames
        .iter()
        .filter_map(|frame| frame.function.as_deref())
        .collect()
}

/// Traces until the first thread has come to its place.
fn traced(program: &Ended, all_threads: bool) -> HostStacks {
    let pid = i32::try_from(program.0.id()).expect("a number");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let stacks = trace(&[pid], all_threads);
        assert_eq!(stacks.failures, [], "{stacks:?}");
        let is_there = |frames: &[Frame]| functions(frames).windows(2).any(|two| two == ["solve", "main"]);
        if stacks.stacks.iter().any(|stack| is_there(&stack.frames)) {
            return stacks;
        }
        assert!(std::time::Instant::now() < end, "{stacks:#?}");
    }
}

#[test]
fn functions_files_and_lines_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), &["-g", "-O1", "-fno-optimize-sibling-calls"]) else {
        return;
    };
    let running = start(&program);
    let stacks = traced(&running, false);
    assert_eq!(stacks.processes[0].program, "solver");
    let [stack] = stacks.stacks.as_slice() else {
        panic!("one thread: {stacks:#?}");
    };
    let names = functions(&stack.frames);
    let at = names.iter().position(|name| *name == "innermost").unwrap();
    assert_eq!(
        names[at..at + 5],
        ["innermost", "solve", "solve", "solve", "main"],
        "{stacks:#?}"
    );
    let main = stack
        .frames
        .iter()
        .find(|frame| frame.function.as_deref() == Some("main"))
        .unwrap();
    let call = PROGRAM
        .lines()
        .position(|line| line.contains("return solve(2)"))
        .unwrap()
        + 1;
    assert_eq!(main.line, Some(u32::try_from(call).unwrap()));
    assert!(main.file.as_deref().unwrap().ends_with("solver.c"));
    assert_eq!(main.module.as_deref(), Some("solver"));
    // It goes on.
    assert_eq!(traced(&running, false).stacks.len(), 1);
    let all = traced(&running, true);
    assert_eq!(all.stacks.len(), 2, "{all:#?}");
    assert!(
        all.stacks
            .iter()
            .any(|stack| functions(&stack.frames).contains(&"work"))
    );
    let text = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<HostStacks>(&text).unwrap(), all);
}

#[test]
fn a_program_without_debug_information_has_names() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["-O2", "-fno-optimize-sibling-calls", "-fomit-frame-pointer"];
    let Some(program) = build(folder.path(), &options) else {
        return;
    };
    let running = start(&program);
    let stacks = traced(&running, false);
    let main = stacks.stacks[0]
        .frames
        .iter()
        .find(|frame| frame.function.as_deref() == Some("main"));
    assert_eq!(main.unwrap().line, None);
}

#[test]
fn a_process_that_has_ended_has_no_stack() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let stacks = trace(&[i32::try_from(child.id()).unwrap()], true);
    assert_eq!(stacks, HostStacks::default());
}
