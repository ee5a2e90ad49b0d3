//! `pmc mcp`: the Model Context Protocol on standard input and output.
#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::support::{Place, schema};

/// A session with a server.
struct Session {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    number: u64,
}

impl Session {
    fn begin(place: &Place, options: &[&str]) -> Self {
        let mut child = place
            .pmc([&["mcp"], options].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut session = Session {
            input: child.stdin.take(),
            child,
            lines,
            number: 0,
        };
        let hello = session.ask(
            "initialize",
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}),
        );
        assert_eq!(hello["result"]["serverInfo"]["name"], "pmc", "{hello}");
        session.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        session
    }

    fn send(&mut self, message: Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let number = self.number;
        self.send(json!({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}));
        let answer: Value = serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], number, "{answer}");
        answer
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    fn tools(&mut self) -> Vec<(String, bool)> {
        let answer = self.ask("tools/list", json!({}));
        let tools = answer["result"]["tools"].as_array().unwrap().clone();
        let read_only = |tool: &Value| tool["annotations"]["readOnlyHint"].as_bool().unwrap();
        let tools = tools
            .iter()
            .map(|tool| (tool["name"].as_str().unwrap().to_owned(), read_only(tool)));
        tools.collect()
    }

    fn end(mut self) -> Option<i32> {
        self.input = None;
        self.child.wait().unwrap().code()
    }
}

#[test]
fn runs_are_looked_at_and_not_changed() {
    let place = Place::new();
    place.chain("echo made; cp in.txt mid.txt", "echo no >&2; exit 3");
    place.run(["run", "workflow.yml"]).code(1);
    let run = "pmc-runs/chain/latest";
    let mut session = Session::begin(&place, &[]);
    let tools = session.tools();
    let names: Vec<&str> = tools.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["status", "why", "analyzer", "log", "simulate"]);
    assert!(tools.iter().all(|(_, is_read_only)| *is_read_only));

    let status = session.call("status", json!({"run": run}));
    schema::check("pmc-status", &status["result"]["structuredContent"]);
    let analysis = session.call("analyzer", json!({"run": run}));
    assert_eq!(analysis["result"]["isError"], false, "{analysis}");
    schema::check("pmc-analyzer", &analysis["result"]["structuredContent"]);
    let failed = analysis["result"]["structuredContent"].to_string();
    assert!(failed.contains("second"), "{failed}");
    let task = status["result"]["structuredContent"]["failed"][0]["task"].clone();
    let log = session.call("log", json!({"task": task, "run": run, "stderr": true}));
    let text = log["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.contains("no"), "{log}");
    let simulated = session.call("simulate", json!({"run": run, "nodes": "1"}));
    let text = simulated["result"]["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(text.contains("no run time is known of: second"), "{simulated}");

    // The message says what is wrong, as that of the command does.
    let no_run = session.call("status", json!({"run": "nowhere"}));
    assert_eq!(no_run["result"]["isError"], true, "{no_run}");
    let text = no_run["result"]["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(text.contains("nowhere"), "{no_run}");
    for (tool, arguments, message) in [
        ("kill", json!({"task": "x", "run": run}), "--allow-control"),
        ("drain", json!({"run": run}), "--allow-control"),
        ("run", json!({}), "there is no tool run"),
    ] {
        let refused = session.call(tool, arguments)["error"].clone();
        assert!(
            refused["message"].as_str().unwrap().contains(message),
            "{refused}"
        );
    }
    assert_eq!(session.end(), Some(0));
}

#[test]
fn a_run_is_controlled_if_that_is_allowed() {
    let place = Place::new();
    let words = ["serve", "run", "--idle-limit", "60", "-w", "1"];
    let mut served = place.pmc(words).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(served.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    place
        .run([
            "add",
            "run",
            "--label",
            "long",
            "--",
            "touch begun; exec sleep 1000",
        ])
        .code(0);
    while !place.path().join("begun").exists() {
        std::thread::yield_now();
    }
    let mut session = Session::begin(&place, &["--allow-control"]);
    assert_eq!(session.tools().len(), 7);
    assert_eq!(
        session
            .tools()
            .iter()
            .filter(|(_, is_read_only)| !is_read_only)
            .count(),
        2
    );
    let why = session.call("why", json!({"task": "long", "run": "run"}));
    assert_eq!(why["result"]["structuredContent"]["state"], "running", "{why}");
    let unknown = session.call("kill", json!({"task": "--signal=9", "run": "run"}));
    assert_eq!(unknown["result"]["isError"], true, "{unknown}");
    let killed = session.call("kill", json!({"task": "long", "run": "run", "signal": "KILL"}));
    assert_eq!(killed["result"]["isError"], false, "{killed}");
    place.run(["wait", "run", "long"]).code(1);
    let drained = session.call("drain", json!({"run": "run"}));
    assert_eq!(drained["result"]["isError"], false, "{drained}");
    assert_eq!(session.end(), Some(0));
    served.wait().unwrap();
}

#[test]
fn who_speaks_something_else_hears_of_it() {
    let place = Place::new();
    let refused = place.run(["mcp"]);
    assert!(
        refused.code(4).stderr().contains("nobody speaks"),
        "{}",
        refused.stderr()
    );
}
