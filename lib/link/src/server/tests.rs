//! Tests of what a master notes of connections.

use super::*;

struct Nothing;

impl Service for Nothing {
    fn join(&self, _: SessionId, _: &[u8]) -> Result<Vec<u8>, JoinError> {
        Ok(Vec::new())
    }
    fn joined(&self, _: SessionId) {}
    fn message(&self, _: SessionId, _: &[u8]) {}
    fn silent(&self, _: SessionId) {}
    fn back(&self, _: SessionId) {}
    fn lost(&self, _: SessionId) {}
    fn ended(&self, _: SessionId) {}
}

/// The answer of the master may not reach it: then it lives, and holds its lease.
#[test]
fn an_agent_that_has_got_no_answer_is_not_dead() {
    let hub = Hub::new(1, Timing::default());
    let hello = |resume| {
        let (version, body) = (VERSION, &[][..]);
        let bytes = frame::encode(&Hello {
            version,
            resume,
            body,
        });
        hub.hello(&bytes, &Nothing).ok().unwrap()
    };
    let has_died = || hub.table().sessions[&1].died_at.is_some();
    let mut agent = Session::new(Duration::ZERO);
    let first = hello(None);
    hub.closed(1, first.connection, true);
    // Without the answer, it has no tasks.
    assert!(has_died());
    for is_answered in [true, false, true] {
        let (epoch, session, expected) = (1, 1, agent.expected());
        let resume = Resume {
            epoch,
            session,
            expected,
            head: agent.head(),
        };
        let next = hello(Some(resume));
        if is_answered {
            let beat = agent.beat(Duration::ZERO);
            hub.receive(1, next.connection, &beat).unwrap();
        }
        hub.closed(1, next.connection, true);
        assert_eq!(has_died(), is_answered);
    }
}
