//! The fuzzed functions. Each entry takes arbitrary bytes and checks properties of the result. The fuzzer
//! (`fuzz/run`) and the test `fuzz_corpus` share this file.

#[path = "built.rs"]
mod built;
#[path = "logs.rs"]
mod logs;
#[path = "planner.rs"]
mod planner;
#[path = "services.rs"]
mod services;
#[path = "structure.rs"]
mod structure;

use std::cell::RefCell;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use pegasus_cluster::list::List;
use pegasus_mpi_cluster::internals::{
    ENCODING_VERSION, ToMaster, ToWorker, agent_messages as agents, forward_journal,
};
use pegasus_transfer::spec::{self, Work};
use pmc_dag::{Dag, list, rescue, trailer, words};
use pmc_expressions::{Amount, Variables};
use pmc_link::{Endpoint, Received as FromLink, Session};
use pmc_wire::{Received, Reply, Request, Ticket};

/// Calls a macro with all entries: the name of the corpus, the function, and the cost of a call compared to
/// that of a cheap one.
#[macro_export]
macro_rules! for_each_entry {
    ($call:ident) => {
        $call! {
            agent_messages agent_messages 1,
            batch_jobs batch_jobs 1,
            braindump braindump 4,
            checkpoint_messages checkpoint_messages 1,
            checkpoint_store checkpoint_store 200,
            checkpoint_texts checkpoint_texts 1,
            cluster_list cluster_list 1,
            dag dag 1,
            dagman dagman 2,
            dagman_built dagman_built 2,
            dagman_out dagman_out 4,
            endpoint endpoint 4,
            expression expression 20,
            gang_frames gang_frames 40,
            http_answer http_answer 400,
            invocation_record invocation_record 4,
            jobstate_log jobstate_log 4,
            journal journal 1,
            launch_frames launch_frames 1,
            link_frames link_frames 1,
            lite_description lite_description 1,
            load_file load_file 1,
            packed packed 20,
            pmi_lines pmi_lines 4,
            properties properties 4,
            replicas replicas 10,
            rescue rescue 1,
            server_reply server_reply 1,
            server_request server_request 1,
            sites sites 10,
            static_bp static_bp 1,
            submit_words submit_words 1,
            to_master to_master 1,
            to_worker to_worker 1,
            trailer trailer 4,
            transfer_list transfer_list 1,
            transformations transformations 10,
            workflow_dax workflow 10,
            workflow_yaml workflow 10,
        }
    };
}

pub use built::{dagman_built, http_answer, lite_description, packed, submit_words};
#[cfg(test)]
pub use built::{dagman_files_of, description_of};
pub use logs::{batch_jobs, braindump, dagman_out, invocation_record, jobstate_log, static_bp};
pub use planner::{properties, replicas, sites, transformations, workflow};
pub use pmc_launch::internals::{launch_frames, load_file, pmi_lines};
pub use services::{checkpoint_store, gang_frames};

/// Text of a DAG. Tasks are found by name, and words can be quoted again.
pub fn dag(data: &[u8]) {
    let Ok(dag) = Dag::parse(data.to_vec()) else {
        return;
    };
    let mut edges = vec![0; dag.len()];
    for task in dag.ids() {
        let line = dag.task(task);
        assert_eq!(dag.find(line.name), Some(task), "a task is found by its name");
        for word in words::split(line.command) {
            assert_eq!(
                words::split(&words::quote(&word)),
                [word],
                "a quoted word is one word"
            );
        }
        for child in dag.children(task) {
            edges[child.index()] += 1;
        }
    }
    for task in dag.ids() {
        assert_eq!(
            dag.parent_count(task),
            edges[task.index()],
            "parents and children agree"
        );
    }
    let _ = pmc_dag::cycle::find(&dag);
}

/// A DAGMan file, and after zero bytes the files `x.dag` and `x.sub`, which it may name.
pub fn dagman(data: &[u8]) {
    let Some(dag) = read_dagman(data) else { return };
    let is_node = |n: u32| (n as usize) < dag.nodes.len();
    assert!(
        dag.edges.iter().all(|&(p, c)| is_node(p) && is_node(c)),
        "edges are between nodes"
    );
    let mut names: Vec<&str> = dag.nodes.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    assert!(names.is_sorted_by(|a, b| a < b), "each name once");
}

/// Reads such files; `None` if they are refused.
pub fn read_dagman(data: &[u8]) -> Option<pmc_dagman::Dag> {
    let parts: Vec<_> = data
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    let load = |path: &Path| {
        let part = match path.file_name().and_then(|name| name.to_str()) {
            Some("top.dag") => parts.first(),
            Some("x.dag") => parts.get(1),
            Some("x.sub") => parts.get(2),
            _ => None,
        };
        part.map(|text| text.to_string())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    let context = pmc_dagman::Context {
        directory: Path::new("/d"),
        load: &load,
        environment: &|_| None,
    };
    pmc_dagman::read(Path::new("/d/top.dag"), context).ok()
}

/// Text of a DAG, a zero byte, text of a rescue file.
pub fn rescue(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let (Some(dag), Some(text)) = (parts.next(), parts.next()) else {
        return;
    };
    let Ok(dag) = Dag::parse(dag.to_vec()) else { return };
    let Ok(done) = rescue::parse(text, &dag) else {
        return;
    };
    assert_eq!(done.ids().count(), done.len(), "each task once");
    assert!(
        done.ids().all(|task| task.index() < dag.len()),
        "tasks of the DAG"
    );
    // A file stays readable when a record is added, unless its end is torn, which the writer removes first.
    if let Some(task) = dag.ids().next().filter(|_| !done.is_torn()) {
        let mut more = text.to_vec();
        more.extend_from_slice(b"\nDONE ");
        more.extend_from_slice(dag.name(task));
        more.extend_from_slice(b"\n");
        let more = rescue::parse(&more, &dag).expect("a record was added");
        assert!(more.contains(task) && done.ids().all(|task| more.contains(task)));
    }
}

/// Text of an endpoint file. An endpoint is the same as a value of the variable.
pub fn endpoint(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(endpoint) = Endpoint::parse(&text, "it") else {
        return;
    };
    let again = Endpoint::from_value(&endpoint.to_value()).expect("an endpoint can be written and read");
    assert_eq!(again, endpoint);
}

/// Frames of a peer, each after a byte with its length. A bad frame changes nothing, messages are counted.
pub fn link_frames(data: &[u8]) {
    let mut session = Session::new(Duration::ZERO);
    let _ = session.beat(Duration::from_millis(1));
    let mut sent = 0;
    let mut rest = data;
    let mut now = Duration::from_millis(2);
    while let Some((&len, more)) = rest.split_first() {
        let (frame, more) = more.split_at(more.len().min(usize::from(len)));
        rest = more;
        now += Duration::from_millis(1);
        let state = |session: &Session| {
            let unsettled = session.unsettled().count();
            (
                session.expected(),
                session.echo(),
                session.leased_at(),
                session.heard_at(),
                unsettled,
            )
        };
        let before = state(&session);
        match session.receive(&frame.to_vec().into(), now) {
            Err(_) => assert_eq!(state(&session), before, "a bad frame changes nothing"),
            Ok(FromLink::Message(_)) => assert_eq!(session.expected(), before.0 + 1),
            Ok(FromLink::Nothing | FromLink::Unnumbered(_) | FromLink::Goodbye) => {
                assert_eq!(session.expected(), before.0)
            }
        }
        assert!(session.leased_at() <= now && session.unsettled().count() <= sent);
        let _ = session.send(b"x".to_vec().into());
        sent += 1;
        session.settle(u64::from(len));
        let _ = session.resume(u64::from(len));
    }
}

/// What agent and master say when an agent joins and about caches, and a message with the rank of its worker.
pub fn agent_messages(data: &[u8]) {
    if let Some(hello) = agents::decode::<agents::AgentHello>(data) {
        assert_eq!(agents::decode(&agents::encode(&hello)), Some(hello));
    }
    if let Some(welcome) = agents::decode::<agents::AgentWelcome>(data) {
        assert_eq!(agents::decode(&agents::encode(&welcome)), Some(welcome));
    }
    if let Some(request) = agents::decode::<pmc_node_files::directory::PeerRequest>(data) {
        assert_eq!(agents::decode(&agents::encode(&request)), Some(request));
    }
    if let Some(answer) = agents::decode::<pmc_node_files::directory::PeerAnswer>(data) {
        assert_eq!(agents::decode(&agents::encode(&answer)), Some(answer));
    }
    match agents::addressed(data) {
        Some((_, agents::Content::Message(rest) | agents::Content::Part(rest))) => {
            assert_eq!(rest.len() + 4, data.len());
        }
        None => assert!(data.len() < 4),
    }
}

/// Completes a message, which inputs hold without the version of the encoding.
pub fn versioned(data: &[u8]) -> Vec<u8> {
    [&[ENCODING_VERSION], data].concat()
}

/// A message of a worker. A decoded message round-trips.
pub fn to_master(data: &[u8]) {
    if let Ok(message) = ToMaster::decode(&versioned(data)) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(bytes.len(), message.encoded_len());
        assert_eq!(ToMaster::decode(&bytes), Ok(message));
    }
}

/// A message of the master. A decoded message round-trips.
pub fn to_worker(data: &[u8]) {
    if let Ok(message) = ToWorker::decode(&versioned(data)) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(bytes.len(), message.encoded_len());
        assert_eq!(ToWorker::decode(&bytes), Ok(message));
    }
}

/// A forward journal. Decoded records round-trip.
pub fn journal(data: &[u8]) {
    if let Ok(content) = forward_journal::decode(data) {
        let mut bytes = forward_journal::header(&content.begin).to_vec();
        for record in &content.records {
            forward_journal::encode(&mut bytes, record.task, &record.pieces);
        }
        assert_eq!(forward_journal::decode(&bytes), Ok(content));
        assert!(bytes.len() <= data.len());
    }
}

/// A DAG that ends with a trailer. Without its last line it is refused, and tasks can be added.
pub fn trailer(data: &[u8]) {
    let Ok(dag) = Dag::parse(data.to_vec()) else {
        return;
    };
    if !data.starts_with(trailer::FIRST_LINE.as_bytes()) {
        return;
    }
    let end = data.strip_suffix(b"\n").unwrap_or(data);
    let last = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // The same line twice is a trailer, too.
    if data[..last].ends_with(&data[last..]) {
        return;
    }
    assert!(
        Dag::parse(data[..last].to_vec()).is_err(),
        "the last line is missing"
    );
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    file.write_all(data).expect("it can be written");
    let name = b"a task that no DAG has";
    if dag.find(name).is_none() {
        trailer::append(file.path(), "TASK one-more /bin/true\n", (1, 0)).expect("it can be changed");
        let longer = std::fs::read(file.path()).expect("it can be read");
        match Dag::parse(longer) {
            Ok(longer) => assert_eq!(longer.len(), dag.len() + 1),
            Err(error) => assert!(dag.find(b"one-more").is_some(), "{error}"),
        }
    }
}

/// An expression for the next request of a task. Whatever it says, it ends, and what it gives is an amount.
pub fn expression(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut variables = Variables::default();
    variables.set_whole("pegasus_memory_mb", 1000);
    variables.set_whole("job_retry", 1);
    variables.set_text("pegasus_wf_name", "w");
    let begun = Instant::now();
    let _ = pmc_expressions::check(&text);
    for amount in Amount::ALL {
        if let Ok(number) = pmc_expressions::evaluate(amount, &text, &variables) {
            assert!(number <= u64::from(u32::MAX), "{number}");
        }
    }
    let _ = pmc_expressions::evaluate_text(&text, &variables);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// Work for `pegasus-transfer`, as JSON or text.
pub fn transfer_list(data: &[u8]) {
    let variable = |name: &str| Some(format!("<{name}>").into());
    for work in spec::parse(data, &variable, &mut || 50).into_iter().flatten() {
        let url = match &work {
            Work::Transfer(transfer) => {
                assert!(!transfer.sources.is_empty());
                &transfer.destination.url
            }
            Work::Mkdir(target) | Work::Remove { target, .. } => &target.url,
        };
        assert!(!url.shown().contains(char::is_control), "{url:?}");
    }
}

/// A list of commands for `pegasus-cluster`. Words can be quoted again.
pub fn cluster_list(data: &[u8]) {
    let mut commands = List::new(Box::new(io::Cursor::new(data.to_vec())));
    while let Some(listed) = commands
        .next_command()
        .expect("reading from memory does not fail")
    {
        assert!(listed.number <= listed.line && listed.line <= commands.lines());
        let Ok(words) = listed.words else { continue };
        // A line feed cannot be quoted; it is the end of the line.
        for word in words.iter().filter(|word| !word.contains(&b'\n')) {
            assert_eq!(list::split(&list::quote(word)).as_ref(), Ok(&vec![word.clone()]));
        }
    }
}

/// What a pipe takes without a reader.
const PIPE: usize = 60_000;

/// A request as the task server receives it. It round-trips.
pub fn server_request(data: &[u8]) {
    let data = &data[..data.len().min(PIPE)];
    let (socket, _) = UnixStream::pair().expect("a socket can be made");
    let (read, write) = io::pipe().expect("a pipe can be made");
    (&write).write_all(data).expect("it fits into the pipe");
    drop(write);
    thread_local! {
        // As in the server, one for all requests.
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    let mut buffer = BUFFER.take();
    let length = buffer.len();
    if let Ok(Some(received)) = pmc_wire::receive_request(&socket, &read, &mut buffer) {
        check_request(&received);
    }
    assert!(buffer.len() <= length.max(65 << 20), "a request is bounded");
    BUFFER.set(buffer);
}

fn check_request(received: &Received<'_>) {
    let request = Request {
        ticket: received.ticket,
        tool: received.tool,
        words: &received.words,
        variables: &received.variables,
        cpus: &received.cpus,
        directory: received.directory,
    };
    let message = request.encode().expect("it was decoded");
    assert!(
        message.len() <= received.size + 4,
        "no descriptors, and no longer"
    );
    let (socket, _) = UnixStream::pair().expect("sockets can be made");
    let (read, write) = io::pipe().expect("a pipe can be made");
    pmc_wire::send_request(&socket, &write, &message, &[]).expect("it fits into the pipe");
    let mut buffer = Vec::new();
    let again = pmc_wire::receive_request(&socket, &read, &mut buffer);
    let again = again.expect("it is complete").expect("a request");
    assert_eq!((again.ticket, again.tool), (received.ticket, received.tool));
    assert_eq!(
        (again.words, again.variables),
        (received.words.clone(), received.variables.clone())
    );
    assert_eq!(
        (again.cpus, again.directory),
        (received.cpus.clone(), received.directory)
    );
}

/// A reply of the task server. It round-trips.
pub fn server_reply(data: &[u8]) {
    let (read, write) = io::pipe().expect("a pipe can be made");
    (&write)
        .write_all(&data[..data.len().min(PIPE)])
        .expect("it fits into the pipe");
    drop(write);
    let ticket = Ticket::default();
    if let Ok(Some(reply)) = pmc_wire::receive_reply(&read, ticket) {
        let (read, write) = io::pipe().expect("a pipe can be made");
        pmc_wire::send_reply(&write, ticket, reply).expect("it fits into the pipe");
        let again: Option<Reply> = pmc_wire::receive_reply(&read, ticket).expect("it is complete");
        assert_eq!(again, Some(reply));
    }
}

/// What a task says to the service of its worker, and the answers.
pub fn checkpoint_messages(data: &[u8]) {
    use pmc_wire::checkpoint::{ToService, ToTask, receive, send};
    let data = &data[..data.len().min(PIPE)];
    let socket = || {
        let (mut task, service) = UnixStream::pair().expect("a socket can be made");
        task.write_all(data).expect("it fits into the socket");
        service
    };
    if let Ok(message) = receive::<ToService>(&socket()) {
        let (task, service) = UnixStream::pair().expect("a socket can be made");
        send(&task, &message).expect("it fits into the socket");
        let again = receive::<ToService>(&service).expect("it is complete");
        // Numbers that are none are not equal to themselves.
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
    let _ = receive::<ToTask>(&socket());
}

/// Texts of a checkpoint store: sidecars, statistics, notices, names of directories.
pub fn checkpoint_texts(data: &[u8]) {
    use pmc_checkpoint::{FileRecord, Hosts, Notice, Settings, Sidecar, task_directory, task_name};
    if let Some(record) = FileRecord::parse(data) {
        let again = FileRecord::parse(record.line().trim_end().as_bytes());
        assert_eq!(again.map(|record| record.line()), Some(record.line()));
    }
    if let Ok(directory) = task_directory(data) {
        assert_eq!(task_name(&directory).as_deref(), Some(data));
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(sidecar) = Sidecar::parse(text) {
        let again = Sidecar::parse(&sidecar.text()).expect("it was one");
        assert_eq!(again.text(), sidecar.text());
    }
    if let Some(notice) = Notice::parse(text) {
        assert_eq!(
            Notice::parse(&notice.text()).map(|again| again.text()),
            Some(notice.text())
        );
    }
    if let Ok(settings) = Settings::parse(text) {
        for place in [settings.local, settings.central].into_iter().flatten() {
            let is_list = matches!(place.hosts, Hosts::List(_));
            assert_ne!(place.order("n7").is_empty(), is_list);
        }
    }
    let _ = task_name(text);
}
