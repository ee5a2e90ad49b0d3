//! `pmc launch`: starts a parallel program. In a batch job it is a task of the session, which has the nodes
//! of the job, and with `--run` one of a run that takes tasks; elsewhere it runs in this process.

mod guard;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use pmc_control::{
    AddRequest, Answer, EndState, MAX_INPUT, NewTask, NodeStatus, Overflow, Redirect, RedirectOptions,
    RedirectRequest, Request, TailRequest, TaskEnd, Tool, ask,
};
use pmc_dag::words::quote;
use pmc_launch::{Options, RELAY, Shape};
use pmc_plan::input::name_of;
use pmc_terminal::{escape, message};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use self::guard::Guard;
use super::attach::push::Target;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::reach;
use crate::session::{self, Job, Session};

/// The program of the task.
const PROGRAM: &str = "pmc-launch";

/// Wait for a task that is about to start, or to end.
const SHORT: Duration = Duration::from_millis(4);

/// Time after which it is said what a launch waits for, and after which an immediate one is given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// Interval of the messages to the run that this program waits.
const REMINDER: Duration = Duration::from_secs(1);

/// Time for a session that ends to be gone.
const ENDING: Duration = Duration::from_secs(60);

/// The run that takes a launch.
struct Run {
    dag: PathBuf,
    dir: PathBuf,
    /// What has its nodes, for messages.
    owner: String,
    /// What to say if it is killed, and what to do then.
    killed: (String, &'static str),
}

impl Run {
    fn of_session(session: &Session, job: &Job) -> Self {
        Self {
            dag: session.dag.clone(),
            dir: session.run(),
            owner: job.to_string(),
            killed: (
                format!("the session of {job} was killed, and this launch with it"),
                "the next `pmc launch` starts a new session",
            ),
        }
    }
}

/// Starts a parallel program. Returns its exit code.
pub fn launch(options: &Options) -> Result<u8, Failure> {
    if let Some(dir) = options.run_directory() {
        return in_run(options, dir);
    }
    let job = session::job().filter(|_| !options.is_dry_run());
    let Some(job) = job else {
        return Ok(pmc_launch::launch(options));
    };
    let shape = options.shape().map_err(anyhow::Error::msg).or_code(exit::USAGE)?;
    let asked = shape
        .nodes
        .unwrap_or(1)
        .max(u32::try_from(shape.on.len().min(1)).unwrap_or(1));
    if asked > job.nodes {
        let error = anyhow!("it needs {asked} nodes, and {job} has {}", job.nodes);
        return Err(Failure::new(exit::NOT_RUN, error));
    }
    let session = Session::of(&job)?;
    if let Some(place) = reach::elsewhere(&session.dag) {
        return reach::run_there(&place, shape.has_input);
    }
    let label = new_label();
    let ticket = session.ticket(&label)?;
    let run = Run::of_session(&session, &job);
    let until = Instant::now() + ENDING;
    let client = loop {
        let nodes = session.join(&job, shape.linger)?;
        check(&shape, &run.owner, &nodes)?;
        match Client::begin(&run, &shape, &label, ticket.path())? {
            Ok(client) => break client,
            // A session whose time is over. The next one follows.
            Err(why) if why.contains("takes no more tasks") && Instant::now() < until => {
                thread::sleep(Duration::from_millis(50));
            }
            Err(why) => return Err(Failure::new(exit::NOT_RUN, anyhow!("{}", escape(&why)))),
        }
    };
    client.run(&shape)
}

/// Starts it in a run that the person names.
fn in_run(options: &Options, dir: &Path) -> Result<u8, Failure> {
    let shape = options.shape().map_err(anyhow::Error::msg).or_code(exit::USAGE)?;
    let found = layout::find_run(dir)?;
    if let Some(place) = reach::elsewhere(&found.dag) {
        return reach::run_there(&place, shape.has_input);
    }
    // The task starts in another directory.
    let absolute = |path: &Path| std::path::absolute(path).or_code(exit::NOT_RUN);
    let run = Run {
        dag: absolute(&found.dag)?,
        dir: absolute(&found.dir)?,
        owner: format!("the run {}", dir.display()),
        killed: (
            format!("the run {} was killed, and this launch with it", dir.display()),
            "`pmc serve` starts it again",
        ),
    };
    let nodes = match ask(&run.dag, &Request::Nodes).or_code(exit::NOT_RUN)? {
        Answer::Nodes(nodes) => nodes,
        other => return Err(reach::refused(other)),
    };
    // Before its first agent has come, it is not known what it has.
    if !nodes.is_empty() {
        check(&shape, &run.owner, &nodes)?;
    }
    let label = new_label();
    let ticket = session::ticket_in(&run.dir, &label)?;
    let begun = Client::begin(&run, &shape, &label, ticket.path())?;
    let client = begun.map_err(|why| {
        Failure::new(exit::NOT_RUN, anyhow!("{}", escape(&why)))
            .hint("`pmc serve DIR --agents N` starts a run that takes launches")
    })?;
    client.run(&shape)
}

fn new_label() -> String {
    format!("launch-{:x}", random())
}

/// Says if the job does not have what a launch needs, however long it waits.
fn check(shape: &Shape, owner: &str, nodes: &[NodeStatus]) -> Result<(), Failure> {
    let refuse = |why: String| Err(Failure::new(exit::NOT_RUN, anyhow!(why)));
    let hosts: Vec<&str> = nodes.iter().map(|node| &*node.host).collect();
    if let Some(other) = shape.on.iter().find(|host| !hosts.contains(&&***host)) {
        let hosts = pmc_hosts::compress(&hosts);
        return refuse(format!("{} is no host of {owner}: it has {hosts}", escape(other)));
    }
    let asked = u64::from(shape.ranks) * u64::from(shape.cpus);
    let there: u64 = nodes.iter().map(|node| u64::from(node.cpus)).sum();
    if asked > there {
        return refuse(format!(
            "{} ranks need {asked} CPUs, and {owner} has {there} on {} nodes",
            shape.ranks,
            nodes.len()
        ));
    }
    Ok(())
}

fn random() -> u64 {
    // Each state of this kind begins with other random numbers.
    RandomState::new().build_hasher().finish()
}

/// What comes to the loop.
enum Event {
    Signal(i32),
    /// The launch has begun.
    Begun,
    /// All its output was written, or cannot be.
    OutputEnded(Result<(), String>),
}

/// A launch that a run has accepted.
struct Client {
    dag: PathBuf,
    /// What to say if the run is killed, and what to do then.
    killed: (String, &'static str),
    label: String,
    tail: TailRequest,
    tool: Tool,
    guard: Option<Guard>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    interrupts: u32,
    is_withdrawn: bool,
}

impl Client {
    /// Hands the launch to a run, or returns why that refuses.
    fn begin(run: &Run, shape: &Shape, label: &str, ticket: &Path) -> Result<Result<Self, String>, Failure> {
        let options = RedirectOptions {
            token: random(),
            tool: format!("pmc launch, process {}", std::process::id()),
            streams: [true, true],
            buffer: RedirectOptions::BUFFER,
            // A reader that is slow holds up the ranks.
            patience_ms: RedirectOptions::MAX_PATIENCE_MS,
            overflow: Overflow::File,
        };
        let tail = TailRequest {
            patterns: vec![label.to_owned()],
            options,
        };
        let (sender, events) = channel();
        listen(&sender)
            .context("cannot handle signals")
            .or_code(exit::NOT_RUN)?;
        // The run knows of this program before the task starts.
        let mut tool = Tool::connect(&run.dag).or_code(exit::NOT_RUN)?;
        if let Answer::Refused(why) = tool.tail(tail.clone()).or_code(exit::NOT_RUN)? {
            return Ok(Err(why));
        }
        let guard = Guard::start(&run.dir, label, shape.wait).or_code(exit::NOT_RUN)?;
        let own = std::env::current_exe().or_code(exit::NOT_RUN)?;
        let program = own.with_file_name(PROGRAM);
        let words = [program.as_os_str(), RELAY.as_ref(), ticket.as_os_str()];
        let words = words.map(|word| {
            let quoted = quote(word.as_encoded_bytes());
            String::from_utf8_lossy(&quoted).into_owned()
        });
        let task = NewTask {
            label: Some(label.to_owned()),
            after: Vec::new(),
            transformation: name_of(&shape.name).to_owned(),
            options: options_of(shape),
            command: words.join(" "),
        };
        let request = Request::Add(AddRequest {
            length: 0,
            tasks: vec![task],
        });
        let accepted = ask(&run.dag, &request).or_code(exit::NOT_RUN)?;
        let mut client = Self {
            dag: run.dag.clone(),
            killed: run.killed.clone(),
            label: label.to_owned(),
            tail,
            tool,
            guard: Some(guard),
            events,
            sender,
            interrupts: 0,
            is_withdrawn: false,
        };
        match accepted {
            Answer::Added(_) => Ok(Ok(client)),
            Answer::Refused(why) => {
                client.dismiss_guard();
                Ok(Err(why))
            }
            other => Err(reach::refused(other)),
        }
    }

    fn dismiss_guard(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
    }

    /// Returns the exit code of the launch.
    fn run(mut self, shape: &Shape) -> Result<u8, Failure> {
        match self.watch(shape) {
            Err(_) if self.is_forgotten() => {
                // Its ranks end by themselves.
                self.dismiss_guard();
                let (killed, next) = &self.killed;
                Err(Failure::new(exit::NOT_RUN, anyhow!("{killed}")).hint(*next))
            }
            ended => ended,
        }
    }

    /// True if no run knows of the launch any more.
    fn is_forgotten(&self) -> bool {
        let tasks = vec![self.label.clone()];
        !matches!(ask(&self.dag, &Request::Ends { tasks }), Ok(Answer::Ends(_)))
    }

    fn watch(&mut self, shape: &Shape) -> Result<u8, Failure> {
        let redirect = Redirecting {
            dag: self.dag.clone(),
            label: self.label.clone(),
            options: self.tail.options.clone(),
            sender: self.sender.clone(),
        };
        thread::spawn(move || redirect.run());
        let (begun, mut is_running, mut has_said) = (Instant::now(), false, false);
        let mut reminded = Instant::now();
        loop {
            match self
                .events
                .recv_timeout(if self.is_withdrawn { SHORT * 5 } else { REMINDER })
            {
                Ok(Event::Signal(signal)) => {
                    if self.pass(signal, is_running) {
                        return Ok(exit::SIGNAL_BASE.saturating_add(u8::try_from(signal).unwrap_or(0)));
                    }
                }
                Ok(Event::Begun) => {
                    is_running = true;
                    self.push(shape.has_input)?;
                }
                Ok(Event::OutputEnded(Ok(()))) => break,
                Ok(Event::OutputEnded(Err(why))) => {
                    let error = anyhow!("output of the ranks is lost: {}", escape(&why));
                    return Err(Failure::new(exit::NOT_RUN, error));
                }
                Err(_) => {}
            }
            if is_running {
                continue;
            }
            // One that was withdrawn never begins.
            if self.is_withdrawn
                && let Some(end) = self.ended()?
            {
                self.dismiss_guard();
                return Ok(code_of(&end).unwrap_or(exit::NOT_RUN));
            }
            if reminded.elapsed() >= REMINDER {
                reminded = Instant::now();
                // Without an answer, the end of the output says why.
                let _ = self.tool.tail(self.tail.clone());
            }
            if begun.elapsed() >= PATIENCE && !std::mem::replace(&mut has_said, true) {
                let why = self.why();
                message(format!("pmc: waiting: {}", escape(&why)));
                if shape.is_immediate {
                    self.cancel();
                }
            }
        }
        let end = self.end()?;
        self.dismiss_guard();
        code_of(&end).ok_or_else(|| {
            let why = end.reason.unwrap_or_else(|| "the launch has failed".to_owned());
            Failure::new(exit::NOT_RUN, anyhow!("{}", escape(&why)))
        })
    }

    /// Why the launch does not run.
    fn why(&self) -> String {
        let task = self.label.clone();
        match ask(&self.dag, &Request::Why { task }) {
            Ok(Answer::Task(status)) => status.reason.unwrap_or(status.state),
            _ => "the session says nothing".to_owned(),
        }
    }

    fn cancel(&mut self) {
        self.is_withdrawn = true;
        let tasks = vec![self.label.clone()];
        // The end says what has come of it.
        let _ = ask(&self.dag, &Request::Cancel { tasks });
    }

    /// Passes a signal on. Returns whether this program ends at once.
    fn pass(&mut self, signal: i32, is_running: bool) -> bool {
        let ends = ![SIGUSR1, SIGUSR2].contains(&signal);
        self.interrupts += u32::from(ends);
        if self.interrupts > 2 {
            return true;
        }
        match is_running {
            true => {
                let task = self.label.clone();
                let _ = ask(&self.dag, &Request::Kill { task, signal });
            }
            false if ends => self.cancel(),
            false => {}
        }
        false
    }

    /// Says to the task what to start. Then it gets the standard input.
    fn push(&self, has_input: bool) -> Result<(), Failure> {
        let words = std::env::args_os().skip_while(|word| word != "launch").skip(1);
        let hello = pmc_launch::relay::hello(words);
        let hello = hello
            .context("the environment cannot be sent")
            .or_code(exit::NOT_RUN)?;
        let mut target = Target::new(&self.dag, self.label.clone());
        let push = move || {
            // A launch that takes no more input ends, or has ended: its end says more.
            let mut push = |bytes: &[u8], is_end| target.push(bytes, is_end).is_ok();
            if !hello.chunks(MAX_INPUT).all(|part| push(part, false)) {
                return;
            }
            let mut buffer = vec![0; MAX_INPUT];
            let mut input: Box<dyn io::Read> = if has_input {
                Box::new(io::stdin())
            } else {
                Box::new(io::empty())
            };
            loop {
                match input.read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(length @ 1..) if push(buffer.get(..length).unwrap_or_default(), false) => {}
                    _ => break,
                }
            }
            push(&[], true);
        };
        let started = thread::Builder::new().name("push".to_owned()).spawn(push);
        started.map(drop).or_code(exit::NOT_RUN)
    }

    /// How the launch has ended.
    fn end(&self) -> Result<TaskEnd, Failure> {
        loop {
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            thread::sleep(SHORT);
        }
    }

    /// How it has ended, if it has.
    fn ended(&self) -> Result<Option<TaskEnd>, Failure> {
        let tasks = vec![self.label.clone()];
        match ask(&self.dag, &Request::Ends { tasks }).or_code(exit::NOT_RUN)? {
            Answer::Ends(mut ends) => Ok(ends.ends.pop()),
            other => Err(reach::refused(other)),
        }
    }
}

/// The exit code that says how a launch has ended; `None` if the session has more to say.
fn code_of(end: &TaskEnd) -> Option<u8> {
    match (end.state, end.exit_code, end.signal) {
        (EndState::Done, ..) => Some(exit::SUCCESS),
        (EndState::NotRun, ..) => Some(exit::NOT_RUN),
        (_, Some(code), _) if code != 0 => Some(u8::try_from(code).unwrap_or(u8::MAX)),
        (_, _, Some(signal)) => Some(exit::SIGNAL_BASE.saturating_add(u8::try_from(signal).unwrap_or(0))),
        _ => None,
    }
}

/// Options of the TASK line.
fn options_of(shape: &Shape) -> String {
    let mut text = format!(
        "--ranks {} -c {} -t 1 --io relay --stdin push",
        shape.ranks, shape.cpus
    );
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {name} {value}"));
        }
    };
    add("-m", (shape.memory > 0).then(|| shape.memory.to_string()));
    add("-N", shape.nodes.map(|nodes| nodes.to_string()));
    // Both say how many are on a host.
    let per_node = shape.per_node.filter(|_| shape.nodes.is_none());
    add("--ranks-per-node", per_node.map(|each| each.to_string()));
    let names: Vec<&str> = shape.on.iter().map(String::as_str).collect();
    add("--on", (!names.is_empty()).then(|| pmc_hosts::compress(&names)));
    text
}

/// Turns signals into events.
fn listen(sender: &Sender<Event>) -> io::Result<()> {
    let (mut signals, sender) = (
        Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2])?,
        sender.clone(),
    );
    let pass = move || {
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(pass)
        .map(drop)
}

/// Writes the output of the launch.
struct Redirecting {
    dag: PathBuf,
    label: String,
    options: RedirectOptions,
    sender: Sender<Event>,
}

impl Redirecting {
    fn run(self) {
        let ended = self.write_all();
        // Without a receiver, the program ends.
        let _ = self.sender.send(Event::OutputEnded(ended));
    }

    fn write_all(&self) -> Result<(), String> {
        let failed = |error: pmc_control::ControlError| error.to_string();
        let mut tool = Tool::connect(&self.dag).map_err(failed)?;
        let mut request = RedirectRequest::first(self.label.clone(), self.options.clone());
        loop {
            match tool.redirect(request.clone()).map_err(failed)? {
                Redirect::On { attempt, chunks } => {
                    if request.attempt.replace(attempt).is_none() {
                        let _ = self.sender.send(Event::Begun);
                    }
                    request.may_wait = true;
                    let [out, err] = &chunks;
                    let mut stdout = io::stdout().lock();
                    let written = stdout.write_all(&out.bytes).and_then(|()| stdout.flush());
                    let written = written.and_then(|()| io::stderr().lock().write_all(&err.bytes));
                    written.map_err(|error| pmc_dag::reason(&error).to_string())?;
                    request.poll.delivered = chunks
                        .each_ref()
                        .map(|chunk| chunk.offset.saturating_add(chunk.bytes.len() as u64));
                }
                Redirect::Not(Answer::NotYet(_)) => thread::sleep(SHORT),
                // It has ended, or will not run.
                Redirect::Ended(..) | Redirect::Not(_) => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_a_task_over_several_hosts() {
        let mut shape = Shape {
            ranks: 6,
            nodes: Some(3),
            per_node: Some(2),
            on: ["n1", "n2", "n3"].map(str::to_owned).into(),
            cpus: 2,
            memory: 100,
            is_immediate: false,
            has_input: true,
            wait: 5,
            linger: 60,
            name: "./a".to_owned(),
        };
        let text = options_of(&shape);
        assert_eq!(
            text,
            "--ranks 6 -c 2 -t 1 --io relay --stdin push -m 100 -N 3 --on n[1-3]"
        );
        (shape.nodes, shape.memory, shape.on) = (None, 0, Vec::new());
        let text = options_of(&shape);
        assert!(text.ends_with("--stdin push --ranks-per-node 2"), "{text}");
        let dag = pmc_dag::Dag::parse(format!("TASK a {text} true\n").into());
        assert!(dag.is_ok(), "{dag:?}");
    }
}
