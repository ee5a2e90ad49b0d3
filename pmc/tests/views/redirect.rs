//! `pmc attach --redirect`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use testutils::redirected::{COUNTS, end_run, in_file, kill_tools, kills};

use crate::attach::{WAIT, attach, end, line, start, wait_until};
use crate::support::Place;

const LOCAL: [&str; 4] = ["--workers", "2", "--jobstate-log", "--per-task-stdio"];
const AGENTS: [&str; 8] = [
    "--agents",
    "1",
    "--launch",
    "local",
    "--slots",
    "2",
    "--per-task-stdio",
    "--jobstate-log",
];

/// Kills tools that redirect a task: what they have got and what is in the file is what the task has written.
fn killed_tools(options: &[&str]) {
    let place = Place::new();
    place.script("run/counts", COUNTS);
    let mut run = start(&place, "TASK counts --io relay ./counts\n", options);
    let directory = place.path().join("run");
    let tools = kill_tools(&crate::support::bin().join("pmc"), &directory, kills());
    place.write("run/stop", "");
    run.wait().expect("the run ends");
    tools.check();
}

#[test]
fn a_killed_tool_leaves_no_gap_in_a_local_run() {
    killed_tools(&LOCAL);
}

#[test]
fn a_killed_tool_leaves_no_gap_with_agents() {
    killed_tools(&AGENTS);
}

/// Ends runs while a tool redirects a task: what was held for the tool is in its output or in the file.
fn aborted(options: &[&str]) {
    let mut random = testutils::Random(777);
    for round in 0..4 {
        let place = Place::new();
        place.script("run/counts", COUNTS);
        let mut run = start(&place, "TASK counts --io relay ./counts\n", options);
        let directory = place.path().join("run");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(run.id()).expect("a number"));
        let pmc = crate::support::bin().join("pmc");
        let after = Duration::from_micros(random.below(50_000));
        let tools = end_run(&pmc, &directory, after, round % 2 == 0, || {
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
        });
        run.wait().expect("the run ends");
        assert!(tools.check_cut_off() > 0);
    }
}

#[test]
fn nothing_comes_twice_if_a_local_run_is_aborted() {
    aborted(&LOCAL);
}

#[test]
fn nothing_comes_twice_if_a_run_with_agents_is_aborted() {
    aborted(&AGENTS);
}

fn seam(options: &[&str]) {
    let place = Place::new();
    let ticks = "until [ -e 1 ]; do echo tick; sleep 0.02; done";
    place.script(
        "run/says",
        &format!("{WAIT}\necho one; {ticks}; echo two; echo oops >&2; wait_for 2; echo three"),
    );
    let mut run = start(
        &place,
        "TASK says --io relay ./says\nTASK plain ./says\n",
        options,
    );
    let out = place.path().join("run/says.out.000");
    wait_until(|| fs::read_to_string(&out).is_ok_and(|text| text.starts_with("one\ntick\n")));
    let mut tool = attach(&place, &["--redirect", "--tag", "says"]);
    let first = line(&mut tool);
    assert!(first.ends_with(",stdout] tick\n"), "{first}");
    let second = place.run(["attach", "run", "--redirect", "says", "--stderr"]);
    second.code(4);
    let text = format!(
        "the output of task says goes to another tool: pmc attach, process {} on ",
        tool.id()
    );
    assert!(second.stderr().contains(&text), "{}", second.stderr());
    place.write("run/1", "");
    let mut lines = Vec::new();
    while lines.len() < 2 {
        let line = line(&mut tool);
        if !line.ends_with(" tick\n") {
            lines.push(line);
        }
    }
    lines.sort();
    assert!(
        lines[0].ends_with(",stderr] oops\n") && lines[0].starts_with("[says.1@"),
        "{lines:?}"
    );
    assert!(lines[1].ends_with(",stdout] two\n"), "{lines:?}");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(tool.id()).expect("a number"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    let ended = end(tool);
    ended.code(143);
    assert_eq!(ended.stdout(), "");
    let none = place.run(["attach", "run", "--redirect", "plain"]);
    none.code(69);
    let text =
        "task plain cannot be redirected (start it with --io relay, or attach with --tail before it starts)";
    assert!(none.stderr().contains(text), "{}", none.stderr());
    place.write("run/2", "");
    run.wait().expect("the run ends");
    let in_file = |name: &str| {
        let text = String::from_utf8(in_file(&place.path().join(name))).expect("text");
        text.replace("tick\n", "")
    };
    assert_eq!(in_file("run/says.out.000"), "one\nthree\n");
    assert_eq!(place.read("run/says.err.000"), "");
    assert_eq!(in_file("run/plain.out.000"), "one\ntwo\nthree\n");
    assert_eq!(place.read("run/plain.err.000"), "oops\n");
}

#[test]
fn files_go_on_where_a_tool_detaches_in_a_local_run() {
    seam(&LOCAL);
}

#[test]
fn files_go_on_where_a_tool_detaches_with_agents() {
    seam(&AGENTS);
}

fn tail(options: &[&str]) {
    let place = Place::new();
    place.script("run/waits", &format!("{WAIT}\nwait_for go"));
    place.script("run/says", "echo first; echo oops >&2; echo last");
    let kickstart = crate::support::bin().join("pegasus-kickstart");
    let kickstart = kickstart.display();
    let dag = format!(
        "TASK first ./waits\nTASK b1 ./says\nTASK b2 ./says\nTASK b3 {kickstart} /bin/sleep 2\nTASK other ./says\n\
         EDGE first b1\nEDGE first b2\nEDGE first b3\nEDGE first other\n"
    );
    let mut run = start(&place, &dag, options);
    let tool = attach(
        &place,
        &["--redirect", "--tail", "b*", "--timestamp=source", "--json"],
    );
    std::thread::sleep(Duration::from_millis(500));
    place.write("run/go", "");
    run.wait().expect("the run ends");
    let ended = end(tool);
    ended.code(0);
    let text = "the output of task b3 cannot be redirected: it has the record of pegasus-kickstart";
    assert!(ended.stderr().contains(text), "{}", ended.stderr());
    let mut lines: Vec<String> = ended
        .stdout()
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let time = line["time"].as_str().expect("a time");
            chrono::DateTime::parse_from_rfc3339(time).expect("a time");
            format!("{} {} {}", line["task"], line["stream"], line["text"]).replace('"', "")
        })
        .collect();
    lines.sort();
    let expected = ["b1", "b2"]
        .map(|task| ["stderr oops", "stdout first", "stdout last"].map(|text| format!("{task} {text}")));
    assert_eq!(lines, expected.concat());
    assert_eq!(in_file(&place.path().join("run/b1.out.000")), b"");
    assert_eq!(place.read("run/b1.err.000"), "");
    assert_eq!(in_file(&place.path().join("run/other.out.000")), b"first\nlast\n");
}

#[test]
fn tasks_are_redirected_from_the_first_byte_in_a_local_run() {
    tail(&LOCAL);
}

#[test]
fn tasks_are_redirected_from_the_first_byte_with_agents() {
    tail(&AGENTS);
}

#[test]
fn no_task_waits_for_a_tool_that_is_stopped() {
    let place = Place::new();
    place.script("run/waits", &format!("{WAIT}\nwait_for $1"));
    place.script(
        "run/says",
        "if [ -p /dev/stdout ]; then echo pipe; else echo file; fi",
    );
    let dag = "TASK w1 ./waits 1\nTASK b1 ./says\nTASK w2 ./waits 2\nTASK b2 ./says\n\
               EDGE w1 b1\nEDGE b1 w2\nEDGE w2 b2\n";
    let mut run = start(&place, dag, &LOCAL);
    let tool = attach(&place, &["--redirect", "--tail", "b*"]);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(tool.id()).expect("a number"));
    let signal = |signal| nix::sys::signal::kill(pid, signal).expect("it runs");
    std::thread::sleep(Duration::from_millis(500));
    signal(nix::sys::signal::Signal::SIGSTOP);
    // The run forgets it after five seconds.
    std::thread::sleep(Duration::from_secs(7));
    place.write("run/1", "");
    wait_until(|| {
        place
            .path()
            .join("run/b1.out.000")
            .metadata()
            .is_ok_and(|data| data.len() > 0)
    });
    signal(nix::sys::signal::Signal::SIGCONT);
    std::thread::sleep(Duration::from_secs(1));
    place.write("run/2", "");
    run.wait().expect("the run ends");
    assert_eq!(in_file(&place.path().join("run/b1.out.000")), b"file\n");
    assert_eq!(in_file(&place.path().join("run/b2.out.000")), b"");
    let ended = end(tool);
    assert_eq!(ended.code(0).stdout(), "pipe\n", "{}", ended.stderr());
}

#[test]
fn a_tool_that_does_not_read_holds_up_the_task_for_a_moment_only() {
    let place = Place::new();
    place.script("run/says", &format!("{WAIT}\nwait_for go; seq 1000000"));
    let mut run = start(&place, "TASK says --io relay ./says\n", &LOCAL);
    let mut tool = attach(
        &place,
        &["--redirect", "--stdout", "--buffer-time", "100", "says"],
    );
    std::thread::sleep(Duration::from_millis(500));
    place.write("run/go", "");
    // Its pipe is full, and nobody reads.
    run.wait().expect("the run ends");
    let mut got = Vec::new();
    let mut stdout = tool.stdout.take().expect("it is piped");
    stdout.read_to_end(&mut got).expect("it can be read");
    let ended = end(tool);
    ended.code(0);
    let text = "pmc was too slow for says: the rest of its output goes to its file";
    assert!(ended.stderr().contains(text), "{}", ended.stderr());
    let all: String = (1..=1_000_000).map(|number| format!("{number}\n")).collect();
    let rest = in_file(&place.path().join("run/says.out.000"));
    assert!(!got.is_empty() && !rest.is_empty());
    assert!(
        [got, rest].concat() == all.as_bytes(),
        "bytes are lost or doubled"
    );
    std::io::stdout().flush().expect("a flush");
}

/// Redirects a task to a tool that does not read for a while, with a rule that drops what overflows. Returns
/// the lines that are left, in the tool and in the file.
fn dropped(options: &[&str], rule: &str) -> Vec<u64> {
    let place = Place::new();
    place.script("run/says", &format!("{WAIT}\nwait_for go; seq 1000000"));
    let mut run = start(&place, "TASK says --io relay ./says\n", options);
    let mut tool = attach(
        &place,
        &[
            "--redirect",
            "--stdout",
            "--buffer-size",
            "65536",
            "--buffer-time",
            "50",
            "--on-overflow",
            rule,
            "says",
        ],
    );
    std::thread::sleep(Duration::from_millis(500));
    place.write("run/go", "");
    let mut stdout = tool.stdout.take().expect("it is piped");
    let mut got = vec![0; 1000];
    stdout.read_exact(&mut got).expect("it can be read");
    // The buffer is full many times before anybody reads on.
    std::thread::sleep(Duration::from_secs(3));
    stdout.read_to_end(&mut got).expect("it can be read");
    run.wait().expect("the run ends");
    let ended = end(tool);
    ended.code(0);
    let messages = ended.stderr();
    let lost = |line: &str| {
        let lost = line.strip_prefix("pmc: ")?;
        let lost = lost.strip_suffix(" bytes of the output of says are lost: pmc was too slow")?;
        lost.parse::<usize>().ok()
    };
    let lost: usize = messages.lines().filter_map(lost).sum();
    assert!(lost > 0, "{messages}");
    // What the tool had no time for after the end of the task.
    got.extend(in_file(&place.path().join("run/says.out.000")));
    let all: usize = (1..=1_000_000)
        .map(|number: u64| number.to_string().len() + 1)
        .sum();
    assert_eq!(got.len() + lost, all, "{messages}");
    let text = String::from_utf8(got).expect("digits");
    let mut numbers: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    // Lines that were cut make any number.
    numbers.retain(|number| *number <= 1_000_000);
    assert!(numbers.starts_with(&[1, 2, 3, 4]), "{:?}", &numbers[..4]);
    numbers
}

#[test]
fn the_oldest_output_is_dropped_on_demand() {
    for options in [&LOCAL[..], &AGENTS] {
        let numbers = dropped(options, "drop-oldest");
        // What was written last is there.
        assert_eq!(numbers.last(), Some(&1_000_000));
    }
}

#[test]
fn the_newest_output_is_dropped_on_demand() {
    for options in [&LOCAL[..], &AGENTS] {
        let numbers = dropped(options, "drop-newest");
        // What had come first is there.
        assert!(numbers.starts_with(&(1..=10_000).collect::<Vec<_>>()));
    }
}
