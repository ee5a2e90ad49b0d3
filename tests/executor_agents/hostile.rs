//! An agent that is not to be trusted, or a task that speaks in its place with the key of the run.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use pegasus_mpi_cluster::internals::agent_messages::{self as messages, AgentHello, AgentWelcome, Content};
use pegasus_mpi_cluster::internals::{
    Assignment, ForwardedData, Payload, Returned, TaskResult, ToMaster, ToWorker,
};
use pegasus_mpi_cluster::{Outcome, Rank, Registration};
use pmc_link::{Agent, Client, Closed, ConnectError, Connection, Endpoint, Link, Timing};

use super::{Run, Scene, wait_for_file};

/// What it says about the first attempt that it gets.
type Answer = fn(&Assignment) -> TaskResult;

struct Hostile {
    link: Arc<Link>,
    answer: Answer,
}

impl Hostile {
    /// Joins the run of a scene with one slot, and stays until the run ends.
    fn join(scene: &Scene, registration: Registration, answer: Answer) {
        let (link, connection) = connect(scene, "hostile");
        let connection = connection.unwrap();
        let welcome: AgentWelcome = messages::decode(&connection.welcome).unwrap();
        let mut agent = Self { link, answer };
        agent.say(Rank(welcome.first_rank), &ToMaster::Register(registration));
        connection.run(&mut agent);
    }

    fn say(&self, rank: Rank, message: &ToMaster) {
        self.link
            .send(messages::address(rank, |body| message.encode(body)));
    }
}

/// Connects with the master as an agent on this host.
fn connect(scene: &Scene, host: &str) -> (Arc<Link>, Result<Connection, ConnectError>) {
    wait_for_file(&scene.path("x.dag.endpoint"));
    let endpoint = Endpoint::read(&scene.path("x.dag.endpoint")).unwrap();
    let link = Link::new(Timing::with_lease(endpoint.lease));
    let connection = connect_with(scene, &link, host, None);
    (link, connection)
}

/// Goes on with the session of a link or, without one, joins after the session `before`.
fn connect_with(
    scene: &Scene,
    link: &Arc<Link>,
    host: &str,
    before: Option<(u64, u64)>,
) -> Result<Connection, ConnectError> {
    let endpoint = Endpoint::read(&scene.path("x.dag.endpoint")).unwrap();
    let client = Client::new(Arc::clone(link)).unwrap();
    let hello = AgentHello {
        max_slots: 1,
        host: host.to_owned(),
        slots: 1,
        number: None,
        before,
        first_rank: None,
    };
    client.connect(&endpoint, &messages::encode(&hello))
}

impl Agent for Hostile {
    fn message(&mut self, body: &[u8]) {
        let Some((rank, Content::Message(message))) = messages::addressed(body) else {
            return;
        };
        match ToWorker::decode(message).unwrap() {
            ToWorker::Run(task) => self.say(rank, &ToMaster::Finished((self.answer)(&task))),
            ToWorker::Shutdown | ToWorker::Abort => self.link.goodbye(),
            _ => {}
        }
    }

    fn tick(&mut self) -> bool {
        false
    }
}

/// An agent that answers an assignment with a message that makes no sense.
struct Senseless {
    link: Arc<Link>,
    message: fn(Rank, &Assignment) -> Vec<u8>,
}

impl Agent for Senseless {
    fn message(&mut self, body: &[u8]) {
        if let Some((rank, Content::Message(message))) = messages::addressed(body)
            && let Ok(ToWorker::Run(task)) = ToWorker::decode(message)
        {
            self.link.send((self.message)(rank, &task));
        }
    }

    fn tick(&mut self) -> bool {
        false
    }
}

fn address(rank: Rank, message: &ToMaster) -> Vec<u8> {
    messages::address(rank, |body| message.encode(body))
}

/// Runs tasks with an agent that sends a message and one that works. Only the first one is lost, for the
/// reason `why`.
fn costs_only_itself(message: fn(Rank, &Assignment) -> Vec<u8>, why: &str, comes_again: bool) {
    let scene = Scene::new(3, "0.1");
    let run = scene.start("2", &["--tries", "1"]);
    let (link, connection) = connect(&scene, "hostile");
    let connection = connection.unwrap();
    let welcome: AgentWelcome = messages::decode(&connection.welcome).unwrap();
    link.send(address(
        Rank(welcome.first_rank),
        &ToMaster::Register(registration(false)),
    ));
    let mut agent = Senseless {
        link: Arc::clone(&link),
        message,
    };
    // The master closes the connection.
    assert!(matches!(connection.run(&mut agent), Closed::Broken(_)));
    if comes_again {
        let gone = connect_with(&scene, &link, "hostile", None).err().unwrap();
        assert!(matches!(gone, ConnectError::Gone { .. }), "{gone}");
        let before = link.session();
        link.abandon();
        let refused = connect_with(&scene, &link, "hostile", before).err().unwrap();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    let worker = Run::new(scene.command(&["--agent", "x.dag.endpoint", "--host-name", "n1"]));
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(worker.wait().0, 0);
    let message = format!("The agent on hostile takes no part any more: {why}");
    assert_eq!(stderr.matches(&message).count(), 1, "{stderr}");
    assert!(!stderr.contains("does not answer"), "{stderr}");
    scene.begins(3);
}

#[test]
fn a_damaged_message_costs_only_its_agent() {
    let damaged = |rank, _: &Assignment| messages::address(rank, |body| body.extend([99, 1, 7]));
    costs_only_itself(
        damaged,
        "it sent an invalid message (the message has version 99",
        true,
    );
    costs_only_itself(
        damaged,
        "it sent an invalid message (the message has version 99",
        false,
    );
}

#[test]
fn a_message_of_a_slot_of_others_costs_only_its_agent() {
    let of_others = |_, _: &Assignment| address(Rank(7), &ToMaster::Ready);
    costs_only_itself(of_others, "it sent a message that names none of its slots", true);
}

#[test]
fn a_violation_of_the_protocol_costs_only_its_agent() {
    let finished = |rank, task: &Assignment| {
        let mut result = success(task);
        result.submit.0 += 100;
        address(rank, &ToMaster::Finished(result))
    };
    costs_only_itself(finished, "Protocol error: worker 1 reported attempt", true);
    let registered = |rank, _: &Assignment| address(rank, &ToMaster::Register(registration(false)));
    costs_only_itself(registered, "Protocol error: worker 1 has registered twice", true);
}

/// The launcher of the only agent ends with it, so there is nothing to wait for.
#[test]
fn a_run_whose_only_agent_makes_no_sense_does_not_wait_for_ever() {
    let scene = Scene::new(1, "0");
    let run = scene.start("1", &["--join-timeout", "2"]);
    let (link, connection) = connect(&scene, "hostile");
    let connection = connection.unwrap();
    link.send(messages::address(Rank(1), |body| body.push(99)));
    let message: fn(Rank, &Assignment) -> Vec<u8> = |_, _| Vec::new();
    connection.run(&mut Senseless { link, message });
    let (code, stderr) = run.wait();
    assert_eq!(code, 76, "{stderr}");
    assert!(
        stderr.contains("The agent on hostile takes no part any more"),
        "{stderr}"
    );
    assert!(stderr.contains("1 agent did not come within"), "{stderr}");
}

#[test]
fn numbers_of_an_agent_may_be_of_any_size() {
    let scene = Scene::new(0, "0");
    fs::write(scene.path("x.dag"), "TASK t /bin/true\nTASK u /bin/true\n").unwrap();
    let run = scene.start("1", &["--tries", "1", "--jobstate-log", "--per-task-stdio"]);
    let huge = Registration {
        memory_mb: u64::MAX,
        threads: u32::MAX,
        cores: u32::MAX,
        sockets: u32::MAX,
        gpus: u32::MAX,
        ..registration(false)
    };
    Hostile::join(&scene, huge, |task| TaskResult {
        outcome: Outcome::new(0, Duration::new(u64::MAX, 999_999_999)),
        forwards: match &*task.name {
            b"t" => vec![sent(u64::MAX), sent(2)],
            _ => Vec::new(),
        },
        ..success(task)
    });
    let (code, stderr) = run.wait();
    assert!(code == 1 && !stderr.contains("panic"), "{stderr}");
    let rescue = fs::read_to_string(scene.path("x.dag.rescue")).unwrap();
    assert!(
        rescue.contains("DONE u") && !rescue.contains("DONE t"),
        "{rescue}"
    );
}

/// Says that data came ahead of its message.
fn sent(len: u64) -> ForwardedData {
    ForwardedData {
        target: b"good.txt".to_vec(),
        data: Payload::Sent(len),
    }
}

fn registration(away: bool) -> Registration {
    Registration {
        host: "forged\n1.0,9,9,9,other".to_owned(),
        memory_mb: 1000,
        threads: 1,
        cores: 1,
        sockets: 1,
        gpus: 0,
        away,
    }
}

fn success(task: &Assignment) -> TaskResult {
    TaskResult::new(task.submit, Outcome::new(0, Duration::from_millis(1)))
}

fn piece(target: &str) -> ForwardedData {
    ForwardedData {
        target: target.as_bytes().to_vec(),
        data: b"\nDONE u\n".to_vec().into(),
    }
}

/// Runs a DAG with two tasks; the second one never starts. Returns what the master says.
fn run(task: &str, away: bool, answer: Answer) -> (Scene, String) {
    let scene = Scene::new(0, "0");
    let dag = format!("TASK t {task}\nTASK u {task}\nEDGE t u\n");
    fs::write(scene.path("x.dag"), &dag).unwrap();
    let job = r#"{"format": 1, "job": "t", "run": {"program": ["/bin/true"]}, "checksum_file": "a.meta"}"#;
    fs::write(scene.path("a.json"), job).unwrap();
    let run: Run = scene.start("1", &["--tries", "1", "--per-task-stdio"]);
    Hostile::join(&scene, registration(away), answer);
    let (code, stderr) = run.wait();
    assert_eq!(code, 1, "{stderr}");
    let read = |name: &str| fs::read_to_string(scene.path(name)).unwrap_or_default();
    assert_eq!(read("x.dag"), dag);
    assert!(!read("x.dag.rescue").contains("DONE"), "{}", read("x.dag.rescue"));
    // One agent speaks for its own host only.
    let resources = read("x.dag.resource");
    assert!(
        resources.contains(",hostile\n") && !resources.contains("forged"),
        "{resources}"
    );
    (scene, stderr)
}

#[test]
fn data_goes_only_to_the_files_that_the_task_names() {
    let (scene, stderr) = run("-F good.txt=good.txt /bin/true", false, |task| TaskResult {
        forwards: vec![piece("good.txt"), piece("x.dag.rescue")],
        ..success(task)
    });
    let message = "has sent data for x.dag.rescue, to which task t forwards none";
    assert!(stderr.contains(message), "{stderr}");
    assert!(!scene.path("good.txt").exists());
}

#[test]
fn files_are_those_that_the_description_of_the_job_names() {
    let (scene, stderr) = run("pegasus-lite a.json", true, |task| TaskResult {
        returned: Some(Box::new(Returned {
            files: vec![piece("a.meta"), piece("x.dag")],
            ..Returned::default()
        })),
        ..success(task)
    });
    let message = "its host has sent x.dag, which the job is not to write";
    assert!(stderr.contains(message), "{stderr}");
    assert!(!scene.path("a.meta").exists());
}

#[test]
fn an_agent_with_a_name_of_two_lines_is_refused() {
    let scene = Scene::new(1, "0");
    let run = scene.start("1", &[]);
    let (_, refused) = connect(&scene, "n1\nGONE 1 1");
    let error = refused.err().unwrap();
    assert!(matches!(error, ConnectError::Refused(_)), "{error}");
    let agent = Run::new(scene.command(&["--agent", "x.dag.endpoint", "--host-name", "n1"]));
    assert_eq!(run.wait().0, 0);
    assert_eq!(agent.wait().0, 0);
}
