//! `pmc attach`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quick_xml::events::Event;

use crate::log::spawn_executor;
use crate::support::{Finished, Place, schema};

/// A function `wait_for FILE`.
pub const WAIT: &str =
    "wait_for() { n=0; while [ ! -e $1 ] && [ $((n += 1)) -lt 3000 ]; do sleep 0.02; done; }";

/// Options of runs whose output can be shown.
const LOCAL: [&str; 4] = ["--workers", "2", "--jobstate-log", "--per-task-stdio"];

/// Starts the executor in the directory `run`. Returns when a task runs.
pub fn start(place: &Place, dag: &str, options: &[&str]) -> Child {
    let child = spawn_executor(place, dag, options);
    wait_until(|| {
        let log = std::fs::read_to_string(place.path().join("run/jobstate.log"));
        log.is_ok_and(|log| log.contains("EXECUTE"))
    });
    child
}

#[track_caller]
pub fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn attach(place: &Place, arguments: &[&str]) -> Child {
    place
        .pmc([&["attach", "run"], arguments].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pmc starts")
}

/// Reads one line of what the tool prints, byte for byte: nothing after it is taken.
pub fn line(tool: &mut Child) -> String {
    let stdout = tool.stdout.as_mut().expect("it is piped");
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte[0] != b'\n' {
        stdout.read_exact(&mut byte).expect("a line comes");
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("it is text")
}

pub fn end(tool: Child) -> Finished {
    Finished::from(tool.wait_with_output().expect("pmc ends"))
}

#[test]
fn running_tasks_are_shown_and_those_that_start_are_joined() {
    let place = Place::new();
    place.script(
        "run/says",
        &format!("{WAIT}\necho begun; wait_for go; printf '\\033[2J\\377\\tno end'; echo oops >&2"),
    );
    place.script(
        "run/fails",
        "echo try; [ -e again ] && exit 0; touch again; exit 1",
    );
    let dag = "TASK a ./says\nTASK b ./says\nTASK c ./fails\nEDGE a c\n";
    let mut run = start(&place, dag, &[&LOCAL[..], &["-t", "2"]].concat());
    let mut tool = attach(&place, &["--tag"]);
    let host = nix::unistd::gethostname().expect("a name");
    let host = host.to_string_lossy();
    let mut begun = [line(&mut tool), line(&mut tool)];
    begun.sort();
    assert_eq!(
        begun,
        ["a", "b"].map(|task| format!("[{task}.1@{host},stdout] begun\n"))
    );
    place.write("run/go", "");
    let rest = end(tool);
    rest.code(0);
    let mut lines: Vec<String> = rest.stdout().lines().map(str::to_owned).collect();
    lines.sort();
    let expected = [
        "[a.1@H,stderr] oops",
        "[a.1@H,stdout] \\u001b[2J\\u00ff\tno end",
        "[b.1@H,stderr] oops",
        "[b.1@H,stdout] \\u001b[2J\\u00ff\tno end",
        "[c.1@H,stdout] try",
        "[c.2@H,stdout] try",
    ];
    assert_eq!(
        lines,
        expected.map(|line| line.replace('H', &host)),
        "{}",
        rest.stderr()
    );
    run.wait().expect("the run ends");
    let late = place.run(["attach", "run"]);
    late.code(4);
    assert!(late.stderr().contains("w.dag has ended"), "{}", late.stderr());
}

/// Each option that the run lacks was named in a message of its own, so that it took three runs.
#[test]
fn all_options_that_the_run_lacks_are_named_at_once() {
    for (options, missing) in [
        (&[][..], "--jobstate-log and --per-task-stdio"),
        (&["--jobstate-log"], "--per-task-stdio"),
        (&["--per-task-stdio"], "--jobstate-log"),
    ] {
        let place = Place::new();
        place.script("run/waits", &format!("{WAIT}\n: > begun; wait_for go"));
        let dag = "TASK a ./waits\n";
        let mut run = spawn_executor(&place, dag, &[&["--workers", "1"], options].concat());
        wait_until(|| place.path().join("run/begun").exists());
        let refused = end(attach(&place, &[]));
        place.write("run/go", "");
        run.wait().expect("the run ends");
        let expected = format!("start it with {missing}, as plans of pmc-plan do");
        assert!(refused.stderr().contains(&expected), "{}", refused.stderr());
        refused.code(if missing == "--jobstate-log" { 4 } else { 69 });
    }
}

/// Tasks under kickstart, whose streams are in files without names while they run.
fn captured(options: &[&str]) {
    let place = Place::new();
    place.script(
        "run/says",
        &format!("{WAIT}\nseq 3000; echo begun; wait_for go; echo end; echo oops >&2"),
    );
    let kickstart = crate::support::bin().join("pegasus-kickstart");
    let kickstart = kickstart.display();
    let dag = format!("TASK a {kickstart} ./says\nTASK b {kickstart} ./says\n");
    let mut run = start(&place, &dag, options);
    let mut tool = attach(&place, &["--tag", "--stdout"]);
    let mut lines = Vec::new();
    // Both have begun while they run.
    while lines
        .iter()
        .filter(|line: &&String| line.contains("begun"))
        .count()
        < 2
    {
        lines.push(line(&mut tool));
    }
    place.write("run/go", "");
    let rest = end(tool);
    rest.code(0);
    lines.extend(rest.stdout().lines().map(|line| format!("{line}\n")));
    for task in ["a", "b"] {
        let tag = format!("[{task}.1@");
        let of_task = lines.iter().filter(|line| line.starts_with(&tag));
        let text: Vec<&str> = of_task
            .filter_map(|line| line.split_once("] ").map(|(_, text)| text.trim_end()))
            .collect();
        let numbers = (1..=3000).map(|number| number.to_string());
        let expected: Vec<String> = numbers.chain(["begun".into(), "end".into()]).collect();
        assert!(
            text == expected,
            "each line of {task} comes once: {:?}",
            text.last_chunk::<4>()
        );
    }
    assert_eq!(lines.len(), 2 * 3002, "and nothing else");
    run.wait().expect("the run ends");
}

#[test]
fn captured_output_is_shown_in_a_local_run() {
    captured(&LOCAL);
}

#[test]
fn captured_output_is_shown_in_agents() {
    let agents = ["--agents", "1", "--launch", "local", "--slots", "2"];
    captured(&[&agents[..], &["--per-task-stdio", "--jobstate-log"]].concat());
}

/// More than the run reads ahead, while the task runs.
#[test]
fn long_captured_output_comes_whole_from_an_agent() {
    let place = Place::new();
    place.script("run/says", &format!("{WAIT}\nseq 2000000; wait_for go"));
    let kickstart = crate::support::bin().join("pegasus-kickstart");
    let dag = format!("TASK t {} ./says\n", kickstart.display());
    let agents = ["--agents", "1", "--launch", "local", "--slots", "1"];
    let options = [&agents[..], &["--per-task-stdio", "--jobstate-log"]].concat();
    let mut run = start(&place, &dag, &options);
    let expected: String = (1..=2_000_000).map(|number| format!("{number}\n")).collect();
    let tools = [&["log", "-f", "t", "run"][..], &["attach", "t", "run"]];
    let tools = tools.map(|words| {
        let mut tool = place.pmc(words);
        let mut tool = tool.stdout(Stdio::piped()).spawn().expect("pmc starts");
        let mut bytes = vec![0; expected.len()];
        let stdout = tool.stdout.as_mut().expect("it is piped");
        stdout
            .read_exact(&mut bytes)
            .expect("it comes while the task runs");
        assert!(bytes == expected.as_bytes(), "{words:?}");
        tool
    });
    place.write("run/go", "");
    for tool in tools {
        assert_eq!(end(tool).code(0).stdout(), "");
    }
    run.wait().expect("the run ends");
}

#[test]
fn output_before_the_start_is_shown_as_asked_for() {
    let place = Place::new();
    place.script("run/says", &format!("{WAIT}\nseq 9; wait_for go; echo end"));
    let kickstart = crate::support::bin().join("pegasus-kickstart");
    let dag = format!("TASK plain ./says\nTASK kept {} ./says\n", kickstart.display());
    let mut run = start(&place, &dag, &LOCAL);
    // All has been written.
    for task in ["plain", "kept"] {
        wait_until(|| place.run(["log", task, "run"]).stdout().ends_with("9\n"));
    }
    let mut last = attach(&place, &["--from", "-2", "plain"]);
    let mut last_kept = attach(&place, &["--from", "-2", "kept"]);
    for tool in [&mut last, &mut last_kept] {
        assert_eq!([line(tool), line(tool)], ["8\n", "9\n"]);
    }
    // One that sees another task shows that it has begun.
    let now = attach(&place, &["--from", "now", "plain", "kept"]);
    std::thread::sleep(Duration::from_millis(500));
    place.write("run/go", "");
    for tool in [last, last_kept] {
        assert_eq!(end(tool).code(0).stdout(), "end\n");
    }
    assert_eq!(end(now).code(0).stdout(), "end\nend\n");
    run.wait().expect("the run ends");
}

#[test]
fn the_tool_ends_with_the_tasks_that_it_was_given() {
    let place = Place::new();
    place.script("run/waits", &format!("{WAIT}\nwait_for go"));
    place.script(
        "run/says",
        &format!("{WAIT}\necho begun; wait_for say; echo said"),
    );
    let mut run = start(&place, "TASK says_1 ./says\nTASK waits ./waits\n", &LOCAL);
    let mut tool = attach(&place, &["says*"]);
    assert_eq!(line(&mut tool), "begun\n");
    place.write("run/say", "");
    assert_eq!(end(tool).code(0).stdout(), "said\n");
    let again = place.run(["attach", "says_1", "run"]);
    again.code(4);
    assert!(
        again.stderr().contains("the task says_1 has ended"),
        "{}",
        again.stderr()
    );
    let unknown = place.run(["attach", "wait", "run"]);
    unknown.code(2);
    assert!(
        unknown.stderr().contains("there is no task wait\n"),
        "{}",
        unknown.stderr()
    );
    assert!(
        unknown.stderr().contains("did you mean waits?"),
        "{}",
        unknown.stderr()
    );
    place.run(["attach", "x*", "run"]).code(2);
    let unknown = place.run(["attach", "run", "--transformation", "x"]);
    unknown.code(2);
    assert!(
        unknown.stderr().contains("no task is of the transformation x"),
        "{}",
        unknown.stderr()
    );
    place.run(["attach", "nowhere"]).code(2);
    // The document is complete although the tool is ended.
    let mut tool = attach(&place, &["--xml"]);
    let head = [line(&mut tool), line(&mut tool)].concat();
    assert!(
        head.starts_with("<?xml") && head.contains("<output run="),
        "{head}"
    );
    place.write("run/go", "");
    assert!(end(tool).code(0).stdout().ends_with("</output>\n"));
    run.wait().expect("the run ends");
}

#[test]
fn any_bytes_make_good_xml_and_json() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..=255).chain(*b"<&>\"'").collect();
    std::fs::create_dir_all(place.path().join("run")).expect("directory");
    std::fs::write(place.path().join("run/bytes"), &bytes).expect("file");
    place.script("run/says", &format!("{WAIT}\nwait_for go; cat bytes"));
    let mut run = start(&place, "TASK <a>&amp ./says\n", &LOCAL);
    let xml = attach(&place, &["--xml", "--timestamp"]);
    let json = attach(&place, &["--json", "--timestamp"]);
    let mut stopped = attach(&place, &["--xml"]);
    line(&mut stopped);
    kill(Pid::from_raw(stopped.id() as i32), Signal::SIGTERM).expect("it runs");
    assert!(end(stopped).code(143).stdout().ends_with("</output>\n"));
    place.write("run/go", "");
    let xml = end(xml).code(0).stdout();
    let mut reader = quick_xml::Reader::from_str(&xml);
    let mut elements = 0;
    loop {
        match reader.read_event() {
            Ok(Event::Eof) => break,
            Ok(Event::Start(element)) if element.name().as_ref() == "stdout" => {
                let name = element
                    .try_get_attribute("task")
                    .expect("good XML")
                    .expect("it is there");
                assert_eq!(
                    name.normalized_value(quick_xml::XmlVersion::Implicit1_0)
                        .expect("good XML"),
                    "<a>&amp"
                );
                elements += 1;
            }
            Ok(_) => {}
            Err(error) => panic!("{error}: {xml}"),
        }
    }
    assert_eq!(elements, 2, "{xml}");
    let json = end(json).code(0).stdout();
    let lines: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("good JSON"))
        .collect();
    let decode = |line: &serde_json::Value| match &line["base64"] {
        serde_json::Value::String(text) => base64::prelude::BASE64_STANDARD.decode(text).expect("good"),
        _ => line["text"].as_str().expect("text").as_bytes().to_vec(),
    };
    assert_eq!(lines.iter().map(decode).collect::<Vec<_>>().join(&b'\n'), bytes);
    assert_eq!(lines[1]["partial"], true);
    assert!(lines[0].get("partial").is_none());
    for line in &lines {
        schema::check("pmc-attach", line);
    }
    run.wait().expect("the run ends");
}

#[test]
fn a_slow_tool_holds_up_nobody_and_loses_nothing() {
    let place = Place::new();
    place.script("run/says", "seq 400000");
    let mut run = start(&place, "TASK a /bin/sleep 1\nTASK b ./says\nEDGE a b\n", &LOCAL);
    let mut tool = attach(&place, &[]);
    // The pipe is full long before the run ends, and nobody reads it.
    run.wait().expect("the run ends");
    let stdout = tool.stdout.take().expect("it is piped");
    for (number, line) in (1..).zip(BufReader::new(stdout).lines().map(|line| line.expect("text"))) {
        assert_eq!(line, number.to_string());
        if number == 400_000 {
            break;
        }
    }
    end(tool).code(0);
}

#[test]
fn what_cannot_be_shown_is_said() {
    let place = Place::new();
    place.script("run/says", &format!("{WAIT}\necho begun; wait_for go"));
    place.write("run/w.dag", "TASK a ./says\n");
    let early = place.run(["attach", "run"]);
    early.code(4);
    assert!(early.stderr().contains("has not started"), "{}", early.stderr());
    let mut run = start(&place, "TASK a ./says\n", &["--workers", "1", "--jobstate-log"]);
    let shared = place.run(["attach", "run"]);
    shared.code(69);
    assert!(
        shared.stderr().contains("--per-task-stdio"),
        "{}",
        shared.stderr()
    );
    place.write("run/go", "");
    run.wait().expect("the run ends");

    let place = Place::new();
    place.script("run/says", &format!("{WAIT}\necho begun; wait_for go"));
    let mut run = start(&place, "TASK a ./says\n", &LOCAL);
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("a device");
    let full = place
        .pmc(["attach", "run"])
        .stdout(full)
        .stderr(Stdio::piped())
        .output();
    let full = Finished::from(full.expect("pmc runs"));
    full.code(4);
    assert!(
        full.stderr().contains("No space left on device"),
        "{}",
        full.stderr()
    );
    let tool = attach(&place, &[]);
    std::thread::sleep(Duration::from_millis(300));
    run.kill().expect("it runs");
    run.wait().expect("the run ends");
    let cut = end(tool);
    cut.code(4);
    assert!(cut.stderr().contains("was killed"), "{}", cut.stderr());
    std::io::stdout().flush().expect("a flush");
    place.write("run/go", "");
}

/// Runs a tool that pushes this.
fn push(place: &Place, arguments: &[&str], input: &[u8]) -> Finished {
    let mut tool = place
        .pmc([&["attach", "run", "--stdin"], arguments].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pmc starts");
    let mut stdin = tool.stdin.take().expect("it is piped");
    // The tool may be refused.
    let _ = stdin.write_all(input);
    drop(stdin);
    end(tool)
}

fn pushed(options: &[&str]) {
    let place = Place::new();
    let kickstart = crate::support::bin().join("pegasus-kickstart");
    let kickstart = kickstart.display();
    place.script("run/sleeps", &format!("{WAIT}\nwait_for go"));
    place.script("run/last", &format!("{WAIT}\nwait_for end"));
    // It says when it has the first half.
    place.script(
        "run/sums",
        "head -c 3000000 > part; : > half; { cat part; cat; } | sha256sum",
    );
    let dag = format!(
        "TASK sum --stdin push {kickstart} -i - ./sums\nTASK sleeps --stdin push ./sleeps\n\
         TASK late --stdin push /bin/cat\nTASK file --stdin data /usr/bin/sha256sum\nEDGE sum late\nEDGE sum file\n\
         TASK last ./last\nEDGE sleeps last\n"
    );
    let data: Vec<u8> = (0..6_000_000_u32)
        .map(|number| (number.wrapping_mul(31) >> 7) as u8)
        .collect();
    std::fs::create_dir_all(place.path().join("run")).expect("directory");
    std::fs::write(place.path().join("run/data"), &data).expect("file");
    let mut run = start(&place, &dag, options);
    // This one never reads: the tool waits, and the task ends it.
    let stuck = place
        .pmc(["attach", "run", "--stdin", "sleeps"])
        .stdin(std::fs::File::open(place.path().join("run/data")).expect("file"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pmc starts");
    // This one waits for the start of its task.
    let mut late = place
        .pmc(["attach", "run", "--stdin", "late", "--complete"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("pmc starts");
    let half = data.len() / 2;
    // Without its end, another tool goes on.
    let mut first = place
        .pmc(["attach", "run", "--stdin", "sum"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("pmc starts");
    let mut stdin = first.stdin.take().expect("it is piped");
    stdin.write_all(&data[..half]).expect("it is taken");
    drop(stdin);
    // The tool has pushed all.
    wait_until(|| place.path().join("run/half").exists());
    let sum = push(&place, &["--to", "sum", "--complete"], &data[half..]);
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&data);
    let expected: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        sum.code(0).stdout(),
        format!("{expected}  -\n"),
        "{}",
        sum.stderr()
    );
    assert_eq!(end(first).code(0).stdout(), format!("{expected}  -\n"));
    let mut stdin = late.stdin.take().expect("it is piped");
    stdin.write_all(b"for the late one").expect("it is taken");
    drop(stdin);
    assert_eq!(end(late).code(0).stdout(), "for the late one");
    wait_until(|| place.run(["log", "file", "run"]).stdout().starts_with(&expected));
    wait_until(|| {
        let log = std::fs::read_to_string(place.path().join("run/jobstate.log"));
        log.is_ok_and(|log| log.contains(" file JOB_SUCCESS "))
    });
    let none = push(&place, &["file"], b"x");
    none.code(4);
    place.write("run/go", "");
    let stuck = end(stuck);
    stuck.code(4);
    assert!(
        stuck.stderr().contains("the attempt of task sleeps has ended"),
        "{}",
        stuck.stderr()
    );
    // Until then, the run answers.
    place.write("run/end", "");
    run.wait().expect("the run ends");
}

#[test]
fn standard_input_is_pushed_in_a_local_run() {
    pushed(&LOCAL);
}

#[test]
fn standard_input_is_pushed_to_agents() {
    let agents = ["--agents", "1", "--launch", "local", "--slots", "2"];
    pushed(&[&agents[..], &["--per-task-stdio", "--jobstate-log"]].concat());
}

/// Such a tool waited until the end of the run.
#[test]
fn input_for_a_task_that_cannot_run_any_more_is_refused_at_once() {
    let place = Place::new();
    place.script("run/waits", &format!("{WAIT}\nwait_for go"));
    place.script("run/fails", &format!("{WAIT}\nwait_for fail; exit 3"));
    let dag = "TASK other ./waits\nTASK bad ./fails\nTASK middle /bin/true\nTASK late --stdin push /bin/cat\n\
               EDGE bad middle\nEDGE middle late\n";
    let mut run = start(&place, dag, &LOCAL);
    let waiting = place
        .pmc(["attach", "run", "--stdin", "late"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pmc starts");
    place.write("run/fail", "");
    let text = "the task late cannot run any more: bad has failed";
    for refused in [end(waiting), push(&place, &["late"], b"x")] {
        refused.code(4);
        assert!(refused.stderr().contains(text), "{}", refused.stderr());
    }
    let why = place.run(["why", "late", "run"]).stdout();
    assert!(
        why.ends_with("it waits because bad has failed: it cannot run any more\n"),
        "{why}"
    );
    // Until then, the run answers.
    schema::check("pmc-why", &place.run(["why", "--json", "late", "run"]).json());
    schema::check("pmc-nodes", &place.run(["nodes", "--json", "run"]).json());
    place.write("run/go", "");
    run.wait().expect("the run ends");
}

#[test]
fn input_that_no_task_takes_is_refused() {
    let place = Place::new();
    place.script("run/waits", &format!("{WAIT}\nwait_for go"));
    place.script("run/counts", "wc -c");
    let mut run = start(&place, "TASK t1 ./waits\n", &LOCAL);
    for arguments in [&["t1"][..], &["--to", "t1"]] {
        let none = push(&place, arguments, b"x");
        none.code(69);
        let text = "task t1 has no standard input (start it with --stdin push)";
        assert!(none.stderr().contains(text), "{}", none.stderr());
    }
    let none = push(&place, &["--to", "all"], b"x");
    none.code(69);
    assert!(
        none.stderr().contains("no running task has standard input"),
        "{}",
        none.stderr()
    );
    push(&place, &[], b"x").code(2);
    push(&place, &["--to", "t2"], b"x").code(2);
    place.write("run/go", "");
    run.wait().expect("the run ends");

    let place = Place::new();
    place.script("run/counts", "wc -c");
    let dag = "TASK a --stdin push ./counts\nTASK b --stdin push ./counts\n";
    let mut run = start(&place, dag, &LOCAL);
    wait_until(|| {
        let log = std::fs::read_to_string(place.path().join("run/jobstate.log"));
        log.is_ok_and(|log| log.matches("EXECUTE").count() == 2)
    });
    let all = push(&place, &["--to", "all", "--complete"], &[b'x'; 3_000_000]);
    assert_eq!(all.code(0).stdout(), "3000000\n3000000\n", "{}", all.stderr());
    run.wait().expect("the run ends");
}
