//! Where the output of tasks goes.

use super::*;

#[test]
fn resumed_run_appends_to_the_output_files() {
    let run = Run::new("TASK a ./say.sh a\nTASK b ./b.sh\nEDGE a b\n");
    run.script("b.sh", "echo b out; echo b err >&2; [ -f repaired ]");
    let execute =
        |arguments: &[&str]| run.run(&[&["-o", "out", "-e", "err"], arguments, &["x.dag"]].concat());
    let prints = |name: &str, text: &str| run.read(name).lines().filter(|line| *line == text).count();
    run.write("out", "of another run\n");
    assert_eq!(execute(&[]).status.code(), Some(1));
    run.write("repaired", "");
    for _ in 0..2 {
        assert_eq!(execute(&[]).status.code(), Some(0));
        assert_eq!((prints("out", "a out"), prints("out", "b out")), (1, 2));
        assert_eq!((prints("err", "a err"), prints("err", "b err")), (1, 2));
        assert_eq!(prints("out", "of another run"), 0);
    }
    // This run repeats all tasks, so it keeps nothing.
    assert_eq!(execute(&["--skip-rescue"]).status.code(), Some(0));
    assert_eq!((prints("out", "a out"), prints("out", "b out")), (1, 1));
    assert_eq!((prints("err", "a err"), prints("err", "b err")), (1, 1));
}

/// Starts a run whose task waits for the file `go`; the task of later runs does not.
fn start_holding(run: &Run, arguments: &[&str]) -> Child {
    run.script(
        "hold.sh",
        "echo from $PPID; mkdir running || exit 0; while [ ! -f go ]; do sleep 0.01; done",
    );
    let child = run.start(arguments);
    run.wait_for("running");
    child
}

#[test]
fn runs_with_their_own_rescue_files_have_their_own_output() {
    let run = Run::new("TASK a ./hold.sh\n");
    let first = start_holding(&run, &["-n", "-r", "one.rescue", "-o", "one", "x.dag"]);
    let first_id = first.id();
    let second = run.start(&["-n", "-r", "two.rescue", "-o", "two", "x.dag"]);
    let second_id = second.id();
    assert_eq!(second.wait_with_output().unwrap().status.code(), Some(0));
    run.write("go", "");
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(0));
    for (name, process) in [("one", first_id), ("two", second_id)] {
        let text = run.read(name);
        assert!(
            text.starts_with(&format!("from {process}\n[cluster-task ")),
            "{text}"
        );
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}

#[test]
fn run_does_not_take_the_output_of_another() {
    let run = Run::new("TASK a ./hold.sh\n");
    let first = start_holding(&run, &["-n", "-o", "one", "x.dag"]);
    let second = run.run(&["-n", "-o", "two", "x.dag"]);
    assert_eq!(second.status.code(), Some(1));
    let message = last_line(&second.stderr);
    assert!(
        message.ends_with(
            ": another run of this DAG uses it; give runs that overlap different rescue files (-r)"
        ),
        "{message}"
    );
    run.write("go", "");
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(0));
    assert!(run.read("one").contains("[cluster-task name=a"));
}

#[test]
fn pipes_are_numbered_from_three() {
    let names = ["A", "B", "C"];
    let forwards: String = names
        .iter()
        .map(|name| format!("-f {name}={name}.txt "))
        .collect();
    let run = Run::new(&format!("TASK t {forwards} ./pipes.sh\n"));
    // Some shells know descriptors of one digit only.
    run.script("pipes.sh", "echo $A $B $C; echo a >&3; echo b >&4; echo c >&5");
    let output = run.run(&["--per-task-stdio", "x.dag"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(run.read("t.out.000").starts_with("3 4 5\n"));
    assert_eq!(
        (run.read("A.txt"), run.read("B.txt"), run.read("C.txt")),
        ("a\n".into(), "b\n".into(), "c\n".into())
    );
}
