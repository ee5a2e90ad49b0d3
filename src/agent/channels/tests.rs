//! A lead and a member on this machine, and processes that call from one to the other.

use std::os::unix::net::UnixStream;

use pmc_link::{Endpoint, Link, RunKey, Timing};
use pmc_wire::command::{self, Stream, ToCaller, ToCommand};

use super::*;
use crate::channels::Channels as _;
use crate::protocol::GangStart;

/// Name of the member.
const MEMBER: &str = "member.cluster";

/// Time for what must not happen.
const MOMENT: Duration = Duration::from_millis(50);

fn options() -> WorkerOptions {
    WorkerOptions {
        per_task_stdio: true,
        environment: vec![("TMPDIR".into(), "/own".into())],
        ..WorkerOptions::new("a.dag".as_ref())
    }
}

/// An agent without a master.
fn agent(key: &RunKey) -> Arc<Channels> {
    let endpoint = Endpoint {
        addresses: vec!["127.0.0.1:1".to_owned()],
        epoch: 1,
        lease: Duration::from_secs(30),
        key: key.clone(),
    };
    let peers = Peers::start(&Link::new(Timing::default()), &endpoint).unwrap();
    Channels::start(&peers, &options()).unwrap()
}

fn token(number: u128) -> GangToken {
    GangToken(u128::from(std::process::id()) << 96 | number << 64 | 0xfeed)
}

fn membership(token: GangToken) -> Membership {
    Membership {
        submit: SubmitId(7),
        token,
        task: b"t".to_vec(),
        part: Part {
            ranks: 2,
            cpus: 2,
            memory_mb: 30,
            ..Part::default()
        },
        place: None,
    }
}

fn assignment(gang: GangStart) -> Assignment {
    Assignment {
        name: b"t".to_vec(),
        gang: Some(Box::new(gang)),
        ..Assignment::empty(SubmitId(7))
    }
}

/// A gang whose lead and member are agents of this process.
struct TestGang {
    lead: Arc<Channels>,
    member: Arc<Channels>,
    token: GangToken,
}

impl TestGang {
    fn new(token: GangToken) -> Self {
        let key = RunKey::generate().unwrap();
        Self::with_keys(token, &key, &key)
    }

    fn with_keys(token: GangToken, of_lead: &RunKey, of_member: &RunKey) -> Self {
        let (lead, member) = (agent(of_lead), agent(of_member));
        let addresses = member.join(&membership(token), (Rank(5), 1)).unwrap();
        let host = |name: &str, addresses| GangHost {
            name: name.to_owned(),
            ranks: 1,
            addresses,
        };
        let gang = GangStart {
            token,
            hosts: vec![host("lead", Vec::new()), host(MEMBER, addresses)],
            exclusive: false,
        };
        let environment = [
            "PATH=/usr/bin:/bin",
            "PMC_RANK=1",
            "TMPDIR=/lead",
            "A=b",
            &format!("PMC_TOKENS={token}"),
        ];
        let environment = environment.map(|variable| variable.as_bytes().to_vec());
        lead.open(&assignment(gang), environment.into(), Path::new("/"));
        Self { lead, member, token }
    }

    fn call(&self, host: &str, command: &str) -> UnixStream {
        let agent = command::connect(&self.token.to_string()).unwrap();
        let call = Call {
            token: self.token.to_string(),
            host: host.to_owned(),
            command: command.as_bytes().to_vec(),
            no_input: false,
        };
        command::send(&agent, &call).unwrap();
        agent
    }
}

/// What a command has written, and its wait status.
fn finish(agent: &UnixStream) -> (String, String, i32) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match next(agent) {
            ToCaller::Output(stream, bytes) => {
                match stream {
                    Stream::Out => out.extend(bytes),
                    Stream::Err => err.extend(bytes),
                }
                command::send(agent, &ToCommand::Taken(stream)).unwrap();
            }
            ToCaller::Taken => {}
            ToCaller::Ended(status) => {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                return (text(out), text(err), status);
            }
            refused @ ToCaller::Refused(_) => panic!("{refused:?}"),
        }
    }
}

fn next(mut agent: &UnixStream) -> ToCaller {
    agent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    command::receive(&mut agent).unwrap().expect("a frame")
}

fn refusal(agent: &UnixStream) -> String {
    match next(agent) {
        ToCaller::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

/// Waits until no process has this word among its arguments.
fn is_gone(word: &str) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    let runs = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut words =
            processes.map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default());
        words.any(|words| {
            words
                .split(|byte| *byte == 0)
                .any(|found| found == word.as_bytes())
        })
    };
    while runs() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

#[test]
fn a_command_runs_on_the_member_with_the_environment_of_the_task_and_its_own_part() {
    let gang = TestGang::new(token(1));
    let show = "echo $PMC_RANK $PMC_HOST_RANK $PMC_MEMORY $A $TMPDIR $PWD; echo e >&2; exit 7";
    // The second command finds what the first one has brought.
    for host in [MEMBER, "member"] {
        let (out, err, status) = finish(&gang.call(host, show));
        assert_eq!(
            (out.as_str(), err.as_str(), status),
            ("5 1 30 b /own /\n", "e\n", 7 << 8)
        );
    }
    // A host may call itself.
    let (out, _, status) = finish(&gang.call("lead", "echo $PMC_RANK $TMPDIR"));
    assert_eq!((out.as_str(), status), ("1 /lead\n", 0));
    let left = gang.member.leave(SubmitId(7)).unwrap();
    assert!(!left.is_cut && left.killed.is_empty());
    assert!(!gang.lead.close(gang.token));
}

#[test]
fn input_arrives_in_order_and_signals_end_a_command() {
    let gang = TestGang::new(token(2));
    let agent = gang.call(MEMBER, "cat");
    let sent: Vec<u8> = (0..1_000_000_u32)
        .map(|number| b'a' + (number % 26) as u8)
        .collect();
    let mut chunks = sent.chunks(command::MAX_DATA).chain([&[][..]]);
    let mut give = || {
        if let Some(chunk) = chunks.next() {
            command::send(&agent, &ToCommand::Input(chunk.to_vec())).unwrap();
        }
    };
    give();
    let mut received = Vec::new();
    let status = loop {
        match next(&agent) {
            ToCaller::Output(stream, bytes) => {
                received.extend(bytes);
                command::send(&agent, &ToCommand::Taken(stream)).unwrap();
            }
            ToCaller::Taken => give(),
            ToCaller::Ended(status) => break status,
            refused @ ToCaller::Refused(_) => panic!("{refused:?}"),
        }
    };
    assert!(status == 0 && received == sent);
    let agent = gang.call(MEMBER, "exec sleep 100041");
    command::send(&agent, &ToCommand::Signal(libc::SIGUSR1)).unwrap();
    assert_eq!(finish(&agent).2, libc::SIGUSR1);
}

#[test]
fn a_stream_that_nobody_takes_holds_up_no_other() {
    let gang = TestGang::new(token(3));
    let agent = gang.call(MEMBER, "head -c 1000000 /dev/zero & echo e >&2; wait");
    let (mut out, mut err) = (0, Vec::new());
    while err != b"e\n" || out == 0 {
        match next(&agent) {
            ToCaller::Output(Stream::Out, bytes) => out += bytes.len(),
            ToCaller::Output(Stream::Err, bytes) => err.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    assert!(out <= command::MAX_DATA, "one frame is on its way at most");
    agent.set_read_timeout(Some(MOMENT)).unwrap();
    assert!(command::receive::<ToCaller>(&agent).is_err());
}

#[test]
fn a_caller_that_goes_ends_its_command() {
    let gang = TestGang::new(token(4));
    let agent = gang.call(MEMBER, "trap '' TERM; echo ready; sleep 100042; sleep 100042");
    assert_eq!(next(&agent), ToCaller::Output(Stream::Out, b"ready\n".to_vec()));
    drop(agent);
    assert!(is_gone("100042"));
    assert!(!gang.lead.close(gang.token), "the network has cut nothing");
}

#[test]
fn what_a_gang_has_left_is_killed_and_named() {
    let gang = TestGang::new(token(5));
    let (out, ..) = finish(&gang.call(MEMBER, "setsid sleep 100043 >/dev/null 2>&1 </dev/null & echo o"));
    assert_eq!(out, "o\n");
    let left = gang.member.leave(SubmitId(7)).unwrap();
    assert_eq!(left.killed, ["sleep"]);
    assert!(is_gone("100043"));
    assert!(gang.member.leave(SubmitId(7)).is_none(), "it has left");
    let why = refusal(&gang.call(MEMBER, "echo o"));
    assert!(why.contains("takes no part"), "{why}");
}

#[test]
fn other_hosts_forged_tokens_and_strangers_run_nothing() {
    let gang = TestGang::new(token(6));
    let file = tempfile::tempdir().unwrap().keep();
    let touch = format!("touch {}/t", file.display());
    let why = refusal(&gang.call("n9", &touch));
    assert_eq!(why, "n9 is no host of this task: it has lead,member.cluster");
    // The name of the socket is known, but not the rest of the token.
    let agent = command::connect(&gang.token.to_string()).unwrap();
    let forged = Call {
        token: GangToken(gang.token.0 ^ 1).to_string(),
        host: MEMBER.to_owned(),
        command: touch.clone().into_bytes(),
        no_input: true,
    };
    command::send(&agent, &forged).unwrap();
    assert_eq!(refusal(&agent), "its token is that of no task on this host");
    // Nonsense closes the connection, and no more.
    for nonsense in [&b"\0\0\0\x05abcde"[..], &[0xff; 64]] {
        let agent = command::connect(&gang.token.to_string()).unwrap();
        // The other side may hang up before it has got all of it.
        if let Err(error) = std::io::Write::write_all(&mut &agent, nonsense) {
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        }
        assert!(matches!(command::receive::<ToCaller>(&agent), Ok(None) | Err(_)));
    }
    assert_eq!(finish(&gang.call(MEMBER, "echo o")).0, "o\n");
    let keys = [RunKey::generate().unwrap(), RunKey::generate().unwrap()];
    let strangers = TestGang::with_keys(token(7), &keys[0], &keys[1]);
    let why = refusal(&strangers.call(MEMBER, &touch));
    assert!(
        why.starts_with("the agent of member.cluster cannot be reached"),
        "{why}"
    );
    assert!(!file.join("t").exists());
    std::fs::remove_dir(&file).unwrap();
}

#[test]
fn the_death_of_the_other_agent_is_a_cut() {
    let gang = TestGang::new(token(8));
    let agent = gang.call(MEMBER, "echo ready; sleep 100044");
    assert_eq!(next(&agent), ToCaller::Output(Stream::Out, b"ready\n".to_vec()));
    let TestGang { lead, member, token } = gang;
    // Its threads end in the midst of the command.
    member.gangs.peers.close();
    drop(member);
    assert!(matches!(command::receive::<ToCaller>(&agent), Ok(None)));
    assert!(lead.close(token));
    assert!(is_gone("100044"));
}

/// Waits until a process with this word among its arguments has left its group, of which it was the leader.
fn has_left_its_group(word: &str) -> bool {
    let left = |pid: i32| {
        let pid = Pid::from_raw(pid);
        getpgid(Some(pid)).is_ok_and(|group| group != pid)
    };
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let has_word = |pid: i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words
                .split(|byte| *byte == 0)
                .any(|found| found == word.as_bytes())
        };
        if pids.any(|pid| has_word(pid) && left(pid)) {
            return true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    false
}

#[test]
fn a_command_that_has_left_its_group_is_ended() {
    let gang = TestGang::new(token(9));
    let script = "setpgrp(0, getpgrp(getppid())); sleep 200";
    let agent = gang.call(MEMBER, &format!("exec perl -e '{script}' 100045"));
    assert!(has_left_its_group("100045"));
    drop(agent);
    assert!(is_gone("100045"));
    assert_eq!(finish(&gang.call(MEMBER, "echo o")).0, "o\n");
}

#[test]
fn nonsense_of_a_caller_is_no_cut_of_the_network() {
    let gang = TestGang::new(token(10));
    // Two frames of input, though the first one was not taken; bytes that are no message.
    let too_many = command::frame(&ToCommand::Input(vec![0; command::MAX_DATA]))
        .unwrap()
        .repeat(9);
    for nonsense in [&too_many[..], b"\0\0\0\x03abc"] {
        let agent = gang.call(MEMBER, "echo ready; exec sleep 100046");
        assert_eq!(next(&agent), ToCaller::Output(Stream::Out, b"ready\n".to_vec()));
        // The other side may hang up before it has all.
        if let Err(error) = std::io::Write::write_all(&mut &agent, nonsense) {
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        }
        assert_eq!(refusal(&agent), "what the caller says makes no sense");
        assert!(is_gone("100046"));
    }
    let left = gang.member.leave(SubmitId(7)).unwrap();
    assert!(!left.is_cut && !gang.lead.close(gang.token));
}

#[test]
fn a_host_that_has_left_all_gangs_becomes_a_member_of_no_other_one() {
    let gang = TestGang::new(token(11));
    let agent = gang.call(MEMBER, "trap '' TERM; echo ready; sleep 100047; sleep 100047");
    assert_eq!(next(&agent), ToCaller::Output(Stream::Out, b"ready\n".to_vec()));
    gang.member.leave_all();
    assert!(is_gone("100047"), "nothing is left");
    let joined = gang.member.join(&membership(token(12)), (Rank(5), 1));
    assert_eq!(joined, Err("its agent ends".to_owned()));
}
