//! Runs with a transport that looks at each message.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::run;
use crate::interrupt::Interrupt;
use crate::options::{Options, Stdio};
use crate::protocol::{Outcome, Rank, Registration, TaskResult, ToMaster, ToWorker};
use crate::transport::{MasterTransport, Traffic, TransportError};

/// Workers that are done with a task when they get it.
struct DoneAtOnce {
    workers: u32,
    answers: VecDeque<(Rank, ToMaster)>,
    log: PathBuf,
    /// Tasks that the log did not name when they were sent.
    unsaid: Vec<String>,
}

impl DoneAtOnce {
    fn new(workers: u32, log: PathBuf) -> Self {
        let registration = |rank| {
            let registration = Registration {
                host: "n1".into(),
                memory_mb: 1000,
                threads: workers,
                cores: workers,
                sockets: 1,
                gpus: 0,
                away: false,
            };
            (Rank(rank), ToMaster::Register(registration))
        };
        Self {
            workers,
            answers: (1..=workers).map(registration).collect(),
            log,
            unsaid: Vec::new(),
        }
    }
}

impl MasterTransport for DoneAtOnce {
    fn workers(&self) -> u32 {
        self.workers
    }

    fn send(&mut self, to: Rank, message: ToWorker) -> Result<(), TransportError> {
        if let ToWorker::Run(assignment) = message {
            let name = String::from_utf8_lossy(&assignment.name).into_owned();
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            if !log.contains(&format!(" {name} SUBMIT ")) {
                self.unsaid.push(name);
            }
            let result = TaskResult::new(assignment.submit, Outcome::new(0, Duration::ZERO));
            self.answers.push_back((to, ToMaster::Finished(result)));
        }
        Ok(())
    }

    fn receive(&mut self, _timeout: Duration) -> Result<Option<(Rank, ToMaster)>, TransportError> {
        Ok(self.answers.pop_front())
    }

    fn supports_prefill(&self) -> bool {
        false
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn close(&mut self, _timeout: Duration) -> Vec<Rank> {
        Vec::new()
    }
}

/// Else the files of an attempt would have a number that readers of the log do not expect, if the master is
/// killed before it writes the log.
#[test]
fn no_attempt_begins_before_the_log_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(
        path("x.dag"),
        "TASK a x\nTASK b x\nTASK c x\nEDGE a b\nEDGE a c\n",
    )
    .unwrap();
    let mut options = Options::new(&path("x.dag"), "pmc".as_ref());
    options.stdio = Stdio::PerTask;
    options.jobstate_log = Some(path("jobstate.log"));
    let mut transport = DoneAtOnce::new(2, path("jobstate.log"));
    let summary = run(&mut transport, &options, &Interrupt::new(), &mut |_| {}).unwrap();
    assert!(summary.success());
    assert_eq!(transport.unsaid, Vec::<String>::new());
}
