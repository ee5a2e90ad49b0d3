//! What the fuzzer calls: readers of what others have written. Each takes arbitrary bytes and checks what is
//! made of them.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frames::{FrameReader, PmiEnd, ToFront, ToProxy, send};
use crate::loadfile;
use crate::pmi::{Action, Facts, MAX_LINE, Server};
use crate::world::{Host, Wanted, World};

/// Frames between front end and proxy: the first byte says in which direction. They come in two pieces.
pub fn launch_frames(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else {
        return;
    };
    match first % 2 {
        0 => drop(read_frames::<ToProxy>(stream)),
        _ => drop(read_frames::<ToFront>(stream)),
    }
}

/// Returns the messages up to the first one that is none.
fn read_frames<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(stream: &[u8]) -> Vec<T> {
    let (mut reader, mut messages) = (FrameReader::default(), Vec::new());
    let (first, second) = stream.split_at(stream.len() / 2);
    for piece in [first, second] {
        // Bytes of memory are always read.
        let _ = reader.read(piece);
        while let Ok(Some(message)) = reader.next::<T>() {
            let mut again = Vec::new();
            let sent = send(&mut again, &message).is_ok();
            let mut other = FrameReader::default();
            let _ = other.read(&again[..]);
            // A reader takes 64 KiB at a time.
            let is_whole = sent && again.len() < 1 << 16;
            assert!(
                !is_whole || other.next::<T>().ok().flatten().as_ref() == Some(&message),
                "what was read can be written and read"
            );
            messages.push(message);
        }
    }
    messages
}

/// Lines of three ranks of PMI-1: the first byte of each says which rank it is.
pub fn pmi_lines(data: &[u8]) {
    let facts = Facts {
        name: "launch_1".to_owned(),
        size: 3,
        mapping: "(vector,(0,1,3))".to_owned(),
    };
    let mut server = Server::new(facts, [(0, 0), (1, 0), (2, 1)].into());
    let mut waiting = [false; 3];
    for line in data.split(|byte| *byte == b'\n') {
        let Some((first, line)) = line.split_first() else {
            continue;
        };
        let rank = u32::from(first % 3);
        let line = String::from_utf8_lossy(line);
        let is_barrier = line.contains("cmd=barrier_in");
        for action in server.line(rank, &line) {
            match action {
                Action::Answer(to, text) => {
                    let lines = text.matches('\n').count();
                    assert!(to == rank && lines == 1 && text.ends_with('\n'), "{text:?}");
                    assert!(
                        text.len() <= MAX_LINE,
                        "an answer is as long as a question at most"
                    );
                }
                Action::Barrier(pairs) => {
                    assert!(is_barrier, "a rank that comes completes the barrier");
                    server.learn(pairs);
                    assert_eq!(server.pass_barrier().len(), waiting.len(), "all pass");
                    waiting = [false; 3];
                }
                Action::Name { rank: asked, request } => {
                    assert_eq!(asked, rank);
                    let _ = crate::pmi::Names::default().handle(request);
                    assert_eq!(
                        server.named(rank, Some("port")).len(),
                        1,
                        "each question has one answer"
                    );
                }
                Action::Abort { rank: by, .. } => assert_eq!(by, rank),
                Action::Drop(dropped) => assert_eq!(dropped, rank),
            }
        }
        let _: PmiEnd = server.end_of(rank);
    }
}

/// Load files: what they say fits on the hosts, or is refused.
pub fn load_file(data: &[u8]) {
    let Ok(lines) = loadfile::parse(data) else {
        return;
    };
    assert!(
        !lines.is_empty() && lines.iter().all(|line| !line.words.is_empty()),
        "each line has a program"
    );
    let host = |number: u32| Host {
        name: format!("n{number}"),
        slots: 8,
    };
    let hosts: Vec<Host> = (1..5).map(host).collect();
    let Ok(world) = World::new(&hosts, &Wanted::default(), lines, true) else {
        return;
    };
    assert!(world.ranks.len() <= 32, "there is room for all");
    for (number, host) in (0..).zip(&world.hosts) {
        let count = world.ranks_of(number).count();
        assert!((1..=8).contains(&count), "{count} ranks on {}", host.name);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pmc_stacks::{Frame, HostStacks, Process};

    use super::*;
    use crate::frames::Strace;
    use crate::frames::{Bytes, Input, Load, LocalRank, NameRequest, Pair, Stream};
    use crate::spread::messages::{
        Kind, Lack, Needs, Offer, OfferedFile, Part, RawPath, Room, Secret, Source, Sources,
    };

    fn to_proxy() -> Vec<ToProxy> {
        let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
        let raw = |text: &str| RawPath(text.as_bytes().to_vec());
        let pair = || Pair {
            key: "k".to_owned(),
            value: "v".to_owned(),
        };
        let rank = |rank, words: Option<Vec<Bytes>>| LocalRank {
            rank,
            program: 0,
            words,
        };
        vec![
            ToProxy::Load(Box::new(Load {
                node: 1,
                ranks: vec![rank(2, None), rank(3, Some(vec![bytes("./a"), bytes("3")]))],
                programs: vec![vec![bytes("./a"), bytes("%t")]],
                size: 4,
                mapping: "(vector,(0,2,2))".to_owned(),
                name: "launch_1".to_owned(),
                environment: vec![bytes("PATH=/bin"), Bytes(b"X=\xff".to_vec())],
                directory: bytes("/tmp"),
                umask: 0o22,
                has_pmi: true,
                pmix: None,
                binds: false,
                input: Input::All,
                traces: true,
                sets_torch: true,
                holds: false,
                strace: Some(Strace {
                    directory: bytes("/tmp"),
                    job: 7,
                    options: vec![bytes("-f")],
                    ranks: vec![2],
                }),
            })),
            ToProxy::Go,
            ToProxy::Signal(10),
            ToProxy::Pairs(vec![pair()]),
            ToProxy::PastBarrier,
            ToProxy::Named {
                rank: 2,
                port: Some("p".to_owned()),
            },
            ToProxy::Input(bytes("in")),
            ToProxy::Taken {
                rank: 3,
                stream: Stream::Err,
            },
            ToProxy::Done,
            ToProxy::Offer(Box::new(Offer {
                secret: Secret(vec![1, 2]),
                folder: Some(raw("/ram")),
                takes_seen: true,
                files: vec![OfferedFile {
                    sha256: "ab".repeat(32),
                    bytes: 7,
                    path: raw("/home/a"),
                    seen: (3, 4, 5),
                }],
                programs: vec![Needs {
                    program: 0,
                    parts: vec![Part {
                        kind: Kind::Program,
                        name: raw("a"),
                        file: 0,
                    }],
                }],
            })),
            ToProxy::Sources(Box::new(Sources {
                files: vec![Source {
                    file: 0,
                    givers: vec![1, 0],
                }],
                hosts: [(0, vec!["n1:7".to_owned()])].into(),
                front: vec!["n1:8".to_owned()],
                instead: vec![(0, raw("/shared"))],
            })),
        ]
    }

    fn to_front() -> Vec<ToFront> {
        let process = Process {
            pid: 7,
            program: "a".to_owned(),
            rank: Some(2),
        };
        let mut stacks = HostStacks {
            processes: vec![process],
            ..HostStacks::default()
        };
        stacks.add(0, 7, vec![Frame::default()]);
        let failed = |what: &str| ToFront::Failed {
            what: what.to_owned(),
            why: "permission denied".to_owned(),
        };
        vec![
            ToFront::Here { groups: vec![0, 7] },
            failed("./a"),
            ToFront::Stopped {
                processes: vec![(2, 7), (3, 8)],
                is_held: true,
            },
            ToFront::Output {
                rank: 2,
                stream: Stream::Out,
                bytes: Bytes(b"out\n".to_vec()),
            },
            ToFront::InputTaken,
            ToFront::Put(Vec::new()),
            ToFront::AtBarrier,
            ToFront::Name {
                rank: 2,
                request: NameRequest::Look { name: "n".to_owned() },
            },
            ToFront::Abort { rank: 2, code: 3 },
            ToFront::Trace(stacks),
            ToFront::Alone { rank: 3 },
            ToFront::Room(Room {
                port: 7,
                addresses: vec!["10.0.0.1:7".to_owned()],
                missing: vec![0],
                lack: Some(Lack { needs: 7, has: 3 }),
            }),
            ToFront::Wrong {
                file: 0,
                from: vec![1],
            },
            ToFront::Spread,
            ToFront::Ended {
                rank: 2,
                status: 11,
                end: PmiEnd::Open,
            },
        ]
    }

    fn stream<T: Serialize>(first: u8, messages: &[T]) -> Vec<u8> {
        let mut bytes = vec![first];
        messages
            .iter()
            .for_each(|message| send(&mut bytes, message).unwrap());
        bytes
    }

    /// With `UPDATE_CORPUS`, writes it: messages have changed.
    #[test]
    fn the_corpus_of_the_fuzzer_has_frames_of_this_version() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/launch_frames");
        let all = [
            ("to_proxy", stream(0, &to_proxy())),
            ("to_front", stream(1, &to_front())),
        ];
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            for (name, bytes) in &all {
                std::fs::write(folder.join(name), bytes).unwrap();
            }
        }
        for (name, bytes) in &all {
            assert!(
                std::fs::read(folder.join(name)).unwrap() == *bytes,
                "{name} is of another version"
            );
        }
        assert_eq!(read_frames::<ToProxy>(&all[0].1[1..]), to_proxy());
        assert_eq!(read_frames::<ToFront>(&all[1].1[1..]), to_front());
    }
}
