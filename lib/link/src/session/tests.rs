//! Simulates two sides over connections that are cut, overlap and stall.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use testutils::Random;

use super::*;
use crate::Timing;

/// A connection: frames on their way. The reader sees them in order, up to a cut.
#[derive(Default)]
struct Wire {
    to_master: VecDeque<Bytes>,
    to_agent: VecDeque<Bytes>,
    /// Nothing gets through any more in these directions, but nobody knows.
    deaf: [bool; 2],
}

struct World {
    random: Random,
    now: Duration,
    agent: Session,
    master: Session,
    /// The newest is last. Frames of older ones are ignored by a side that knows a newer one.
    wires: Vec<Wire>,
    /// Numbers of messages to the agent and to the master.
    sent: [u64; 2],
    got: [u64; 2],
    timing: Timing,
    /// The agent has ended its tasks.
    agent_gave_up: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            random: Random(seed),
            now: Duration::ZERO,
            agent: Session::new(Duration::ZERO),
            master: Session::new(Duration::ZERO),
            wires: Vec::new(),
            sent: [0; 2],
            got: [0; 2],
            timing: Timing::default(),
            agent_gave_up: false,
        };
        world.connect();
        world
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.random.one_in(one_in)
    }

    /// What the handshake does, in one step.
    fn connect(&mut self) {
        let (to_agent, to_master) = (self.agent.head(), self.master.head());
        self.master.note(to_agent, self.now).unwrap();
        self.agent.note(to_master, self.now).unwrap();
        // The master's answer names the heartbeat that it has just heard.
        self.agent.note(self.master.head(), self.now).unwrap();
        let wire = Wire {
            to_master: self.agent.resume(self.master.expected()).unwrap().into(),
            to_agent: self.master.resume(self.agent.expected()).unwrap().into(),
            deaf: [false; 2],
        };
        self.wires.push(wire);
    }

    fn put(&mut self, to_master: bool, frame: Bytes) {
        let Some(wire) = self.wires.last_mut() else { return };
        if to_master {
            wire.to_master.push_back(frame);
        } else {
            wire.to_agent.push_back(frame);
        }
    }

    fn deliver(&mut self, to_master: bool, frame: &Bytes) {
        let side = if to_master {
            &mut self.master
        } else {
            &mut self.agent
        };
        let got = &mut self.got[usize::from(to_master)];
        let echo = side.echo();
        if let Received::Message(body) = side.receive(frame, self.now).unwrap() {
            assert_eq!(
                body.as_ref(),
                got.to_le_bytes(),
                "each message comes once, in order"
            );
            *got += 1;
        }
        if to_master && side.echo() != echo {
            let answer = self.master.alive();
            self.put(false, answer);
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(400));
        match self.random.below(12) {
            0..=2 => {
                let to_master = self.chance(2);
                let number = &mut self.sent[usize::from(to_master)];
                let body = Bytes::copy_from_slice(&number.to_le_bytes());
                *number += 1;
                let side = if to_master {
                    &mut self.agent
                } else {
                    &mut self.master
                };
                let frame = side.send(body);
                self.put(to_master, frame);
            }
            3 => {
                let frame = self.agent.beat(self.now);
                self.put(true, frame);
            }
            4 => {
                let some = self.random.below(3);
                self.agent.settle(some);
                self.master.settle(some);
            }
            5 if self.chance(6) => self.wires.clear(),
            6 if self.chance(4) => self.connect(),
            7 if self.chance(4) => {
                let direction = self.random.index(2);
                if let Some(wire) = self.wires.last_mut() {
                    wire.deaf[direction] = true;
                }
            }
            _ => self.carry(),
        }
        // Only the newest connection counts.
        let older = self.wires.len().saturating_sub(1);
        self.wires.drain(..older);
        self.check_lease();
    }

    fn carry(&mut self) {
        for direction in [0, 1] {
            let Some(wire) = self.wires.last_mut() else { return };
            let queue = if direction == 0 {
                &mut wire.to_agent
            } else {
                &mut wire.to_master
            };
            if wire.deaf[direction] {
                continue;
            }
            if let Some(frame) = queue.pop_front() {
                self.deliver(direction == 1, &frame);
                // A replayed frame changes nothing.
                if self.chance(3) {
                    let side = if direction == 1 {
                        &mut self.master
                    } else {
                        &mut self.agent
                    };
                    let (heard, again) = (side.heard_at, side.receive(&frame, self.now).unwrap());
                    assert_eq!(again, Received::Nothing);
                    assert_eq!(side.heard_at, heard);
                }
            }
        }
    }

    /// The master never gives an agent up whose lease holds.
    fn check_lease(&mut self) {
        let Timing { lease, .. } = self.timing;
        let agent_holds = self.now <= self.agent.leased_at() + lease && !self.agent_gave_up;
        let master_gave_up = self.now > self.master.heard_at() + self.timing.until_lost();
        assert!(!(agent_holds && master_gave_up), "at {:?}", self.now);
        self.agent_gave_up |= !agent_holds;
    }

    /// Everything that was sent arrives when the connection holds at last.
    fn finish(&mut self) {
        self.wires.clear();
        self.connect();
        while self
            .wires
            .iter()
            .any(|wire| !wire.to_agent.is_empty() || !wire.to_master.is_empty())
        {
            self.carry();
        }
        assert_eq!(self.sent, self.got);
        for side in [&mut self.agent, &mut self.master] {
            side.settle(u64::MAX);
        }
        let (agent, master) = (self.agent.alive(), self.master.alive());
        self.deliver(true, &agent);
        self.deliver(false, &master);
        assert_eq!(
            self.agent.unsettled().count() + self.master.unsettled().count(),
            0
        );
    }
}

#[test]
fn messages_arrive_once_and_leases_hold_over_all_cuts() {
    for seed in 0..500 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
        }
        world.finish();
    }
}

#[test]
fn a_half_open_connection_gives_no_lease() {
    let mut agent = Session::new(Duration::ZERO);
    let master = Session::new(Duration::ZERO);
    let second = Duration::from_secs(1);
    for beat in 1..40 {
        // The master does not hear the agent, but the agent hears the master.
        let _ = agent.beat(second * beat);
        agent.receive(&master.alive(), second * beat).unwrap();
    }
    assert_eq!(agent.heard_at(), second * 39);
    assert_eq!(agent.leased_at(), Duration::ZERO);
}

#[test]
fn torn_and_replayed_frames_change_nothing() {
    let (mut agent, mut master) = (Session::new(Duration::ZERO), Session::new(Duration::ZERO));
    let frame = agent.send(Bytes::from_static(b"a message"));
    for end in 0..frame.len() {
        let torn = master.receive(&frame.slice(..end), Duration::ZERO);
        assert!(matches!(torn, Err(SessionError::Damaged(_))), "{end}: {torn:?}");
    }
    let longer = Bytes::from([&frame[..], b"x"].concat());
    let received = master.receive(&longer, Duration::ZERO);
    assert!(matches!(received, Err(SessionError::Damaged(_))), "{received:?}");
    assert_eq!(master.expected(), 0);
    let received = master.receive(&frame, Duration::ZERO);
    assert_eq!(received, Ok(Received::Message(Bytes::from_static(b"a message"))));
    assert_eq!(master.receive(&frame, Duration::ZERO), Ok(Received::Nothing));
    assert_eq!(master.expected(), 1);
}

#[test]
fn a_missing_message_is_noticed() {
    let (mut agent, mut master) = (Session::new(Duration::ZERO), Session::new(Duration::ZERO));
    let _ = agent.send(Bytes::from_static(b"a"));
    let second = agent.send(Bytes::from_static(b"b"));
    assert_eq!(
        master.receive(&second, Duration::ZERO),
        Err(SessionError::Gap {
            found: 1,
            expected: 0
        })
    );
    assert_eq!(agent.resume(0).unwrap().len(), 2);
    assert_eq!(agent.resume(3), Err(SessionError::Unknown));
    // A frame of another session.
    let mut other = Session::new(Duration::ZERO);
    let _ = other.beat(Duration::ZERO);
    master.receive(&other.alive(), Duration::ZERO).unwrap();
    assert_eq!(
        agent.receive(
            &frame::encode(&Frame::Alive {
                head: Head {
                    beat: 0,
                    echo: 7,
                    settled: 0
                }
            }),
            Duration::ZERO
        ),
        Err(SessionError::Unknown)
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(frames in vec(vec(any::<u8>(), 0..40), 0..20)) {
        let mut session = Session::new(Duration::ZERO);
        let _ = session.send(Bytes::from_static(b"x"));
        for frame in frames {
            let _ = session.receive(&frame.into(), Duration::ZERO);
        }
        let _ = session.resume(0);
    }
}
