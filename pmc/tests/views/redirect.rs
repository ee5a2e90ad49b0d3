//! `pmc attach --redirect`.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

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

/// Returns what a task has in its file, without the record of the executor.
fn in_file(path: &Path) -> Vec<u8> {
    let mut bytes = fs::read(path).expect("the output of the task");
    let record = bytes.windows(14).rposition(|part| part == b"[cluster-task ");
    bytes.truncate(record.expect("a record"));
    bytes
}

/// A task that counts up to 10,000,000 at most, in lines of ten bytes.
const COUNTS: &str =
    "n=0; while [ ! -e stop ]; do echo $((100000000 + n)); n=$((n + 1)); done; echo $n > count";

/// Returns a part of what the task writes.
fn counted(from: usize, length: usize) -> Vec<u8> {
    let lines = from / 10..=(from + length) / 10;
    let text: String = lines
        .map(|number| format!("{}\n", 100_000_000 + number))
        .collect();
    text.into_bytes()[from % 10..][..length].to_vec()
}

/// Returns where a part of what the task writes begins.
fn place_of(part: &[u8]) -> usize {
    let text = std::str::from_utf8(part).expect("digits");
    let before = text.find('\n').expect("a whole line") + 1;
    let number: usize = match text.get(before..before + 9) {
        Some(next) => next.parse().expect("a number"),
        None => text[before - 10..before - 1].parse::<usize>().expect("a number") + 1,
    };
    (number - 100_000_000) * 10 - before
}

/// A tool whose output goes to a file or through a pipe to a reader.
struct KilledTool {
    tool: Child,
    path: PathBuf,
    reader: Option<JoinHandle<()>>,
}

impl KilledTool {
    fn start(place: &Place, round: usize) -> Self {
        let mut command = place.pmc(["attach", "run", "--redirect", "--stdout", "counts"]);
        command.stderr(Stdio::null());
        let path = place.path().join(format!("part{round}"));
        let mut file = File::create(&path).expect("a file");
        if round.is_multiple_of(2) {
            let tool = command.stdout(file).spawn().expect("pmc starts");
            return Self {
                tool,
                path,
                reader: None,
            };
        }
        let mut tool = command.stdout(Stdio::piped()).spawn().expect("pmc starts");
        let mut stdout = tool.stdout.take().expect("it is piped");
        let read = move || {
            std::io::copy(&mut stdout, &mut file).expect("it can be read");
        };
        Self {
            tool,
            path,
            reader: Some(std::thread::spawn(read)),
        }
    }

    /// Kills it some time after it has got something. Returns what it has got.
    fn kill(mut self, after: Duration) -> Vec<u8> {
        wait_until(|| self.path.metadata().is_ok_and(|data| data.len() > 0));
        std::thread::sleep(after);
        self.tool.kill().expect("it runs");
        self.tool.wait().expect("it ends");
        // The run closes the file as soon as it notices.
        match self.reader {
            Some(reader) => reader.join().expect("it reads"),
            None => std::thread::sleep(Duration::from_millis(700)),
        }
        fs::read(self.path).expect("a file")
    }
}

/// Kills tools that redirect a task: what they have got and what is in the file is what the task has written.
fn killed_tools(options: &[&str], rounds: usize) {
    let place = Place::new();
    place.script("run/counts", COUNTS);
    let mut run = start(&place, "TASK counts --io relay ./counts\n", options);
    let mut parts = Vec::new();
    let mut random = 12_345_u64;
    for round in 0..rounds {
        let tool = KilledTool::start(&place, round);
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        parts.push(tool.kill(Duration::from_micros((random >> 33) % 20_000)));
    }
    place.write("run/stop", "");
    run.wait().expect("the run ends");
    let file = in_file(&place.path().join("run/counts.out.000"));
    let (mut at, mut in_file) = (0, 0);
    for part in &parts {
        let begin = place_of(part);
        assert!(begin >= at, "a part comes twice: {begin} after {at}");
        let between = &file[in_file..in_file + (begin - at)];
        assert!(
            between == counted(at, between.len()),
            "the file is wrong after {at}"
        );
        assert!(
            *part == counted(begin, part.len()),
            "a part is wrong after {begin}"
        );
        in_file += between.len();
        at = begin + part.len();
    }
    let rest = &file[in_file..];
    assert!(rest == counted(at, rest.len()), "the end of the file is wrong");
    let count: usize = place.read("run/count").trim().parse().expect("a number");
    assert_eq!(at + rest.len(), count * 10, "bytes are missing at the end");
}

/// Number of tools that are killed; more on demand.
fn kills() -> usize {
    let wanted = std::env::var("PMC_TEST_KILLS").ok();
    wanted.map_or(20, |count| count.parse().expect("PMC_TEST_KILLS is a number"))
}

#[test]
fn a_killed_tool_leaves_no_gap_in_a_local_run() {
    killed_tools(&LOCAL, kills());
}

#[test]
fn a_killed_tool_leaves_no_gap_with_agents() {
    killed_tools(&AGENTS, kills());
}

fn seam(options: &[&str]) {
    let place = Place::new();
    place.script(
        "run/says",
        &format!("{WAIT}\necho one; wait_for 1; echo two; echo oops >&2; wait_for 2; echo three"),
    );
    let mut run = start(
        &place,
        "TASK says --io relay ./says\nTASK plain ./says\n",
        options,
    );
    let out = place.path().join("run/says.out.000");
    wait_until(|| fs::read_to_string(&out).is_ok_and(|text| text == "one\n"));
    let mut tool = attach(&place, &["--redirect", "--tag", "says"]);
    // There is no sign that it has begun but that another one is refused.
    wait_until(|| {
        let second = place.run(["attach", "run", "--redirect", "says", "--stderr"]);
        let text = second.stderr();
        text.contains("the output of task says goes to another tool: pmc attach, process ") && {
            second.code(4);
            text.contains(&tool.id().to_string())
        }
    });
    place.write("run/1", "");
    let mut lines = [line(&mut tool), line(&mut tool)];
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
    assert_eq!(in_file(&place.path().join("run/says.out.000")), b"one\nthree\n");
    assert_eq!(place.read("run/says.err.000"), "");
    assert_eq!(
        in_file(&place.path().join("run/plain.out.000")),
        b"one\ntwo\nthree\n"
    );
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
