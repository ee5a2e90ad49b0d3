//! An agent that is not to be trusted, or a task that speaks in its place with the key of the run.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use pegasus_mpi_cluster::internals::agent_messages::{self as messages, AgentHello, AgentWelcome, Content};
use pegasus_mpi_cluster::internals::{Assignment, ForwardedData, Returned, TaskResult, ToMaster, ToWorker};
use pegasus_mpi_cluster::{Outcome, Rank, Registration};
use pmc_link::{Agent, Client, ConnectError, Connection, Endpoint, Link, Timing};

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
    let client = Client::new(Arc::clone(&link)).unwrap();
    let hello = AgentHello {
        host: host.to_owned(),
        slots: 1,
        number: None,
        before: None,
        first_rank: None,
    };
    let connection = client.connect(&endpoint, &messages::encode(&hello));
    (link, connection)
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
    fs::write(scene.path("a.json"), "{\"checksum_file\": \"a.meta\"}").unwrap();
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
