//! The connection of one process of a task.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pmc_checkpoint::Prefix;
use pmc_wire::checkpoint::{Figures, ToService, ToTask, VERSION, receive, send, send_descriptor};

use super::NodeService;
use super::attempt::{Attempt, OpenFile, Process, Refusal};
use crate::protocol::SubmitId;

/// How long a process waits for another one of its rank to close a file with the same prefix.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between two looks whether it has.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum ranks of a program.
const MAX_RANKS: u32 = 1 << 24;

/// Answers the messages of a process until it closes the connection.
pub(super) fn talk(service: &NodeService, stream: &UnixStream) -> io::Result<()> {
    let ToService::Hello {
        version,
        submit,
        rank,
        ranks,
    } = receive(stream)?
    else {
        return refuse(stream, "the first message is no greeting");
    };
    if version != VERSION {
        return refuse(stream, "this library is of another version than the executor");
    }
    if rank >= ranks || ranks > MAX_RANKS {
        return refuse(stream, &format!("there is no rank {rank} of {ranks}"));
    }
    let Some(attempt) = service.attempt(SubmitId(submit)) else {
        return refuse(stream, "the attempt has ended, or runs elsewhere");
    };
    match attempt.given() {
        Ok(given) => {
            service.note_use();
            send(
                stream,
                &ToTask::Ready {
                    given: given.unwrap_or(0),
                },
            )?;
        }
        Err(refusal) => return refuse(stream, &refusal.to_string()),
    }
    let mut connection = Connection {
        service,
        attempt: &attempt,
        process: Process { rank, ranks },
        written: BTreeMap::new(),
        read: BTreeMap::new(),
    };
    loop {
        match receive(stream) {
            Ok(message) => connection.answer(stream, message)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn refuse(stream: &UnixStream, reason: &str) -> io::Result<()> {
    let reason = reason.to_owned();
    send(stream, &ToTask::Refused { reason })
}

struct Connection<'a> {
    service: &'a NodeService,
    attempt: &'a Attempt,
    process: Process,
    /// Files that the process writes.
    written: BTreeMap<Prefix, OpenFile>,
    /// Series of the files that it reads.
    read: BTreeMap<Prefix, u64>,
}

impl Connection<'_> {
    fn answer(&mut self, stream: &UnixStream, message: ToService) -> io::Result<()> {
        let done = |result: Result<(), Refusal>| result.map(|()| ToTask::Done);
        let is = |result: Result<bool, Refusal>| result.map(|is| if is { ToTask::Yes } else { ToTask::No });
        let answer = match message {
            ToService::Hello { .. } => return refuse(stream, "there was a greeting already"),
            ToService::Create { prefix } => match self.create(&prefix) {
                Ok(file) => {
                    send(stream, &ToTask::Created { series: file.series })?;
                    return send_descriptor(stream, &file.file);
                }
                Err(refusal) => Err(refusal),
            },
            ToService::Open { prefix } => match self.open(&prefix) {
                Ok((file, opened)) => {
                    send(stream, &opened)?;
                    return send_descriptor(stream, &file);
                }
                Err(refusal) => Err(refusal),
            },
            ToService::Close {
                prefix,
                crc32,
                figures,
            } => done(self.close(&prefix, crc32, figures.plausible())),
            ToService::Read { prefix, figures } => done(self.note_read(&prefix, figures.plausible())),
            ToService::Damaged { prefix } => done(self.note_damage(&prefix)),
            ToService::IsDue => is(self.attempt.is_due(self.service.notice())),
            ToService::IsDraining => {
                let notice = self.service.notice();
                is(Ok(notice.drained.is_some()))
            }
            ToService::Finish => {
                self.attempt.finish();
                Ok(ToTask::Done)
            }
            ToService::Message { text } => done(self.attempt.set_message(&text)),
        };
        let refused = |refusal: Refusal| ToTask::Refused {
            reason: refusal.to_string(),
        };
        send(stream, &answer.unwrap_or_else(refused))
    }

    fn create(&mut self, prefix: &str) -> Result<&OpenFile, Refusal> {
        let prefix = Prefix::try_from(prefix)?;
        let end = Instant::now() + OPEN_TIMEOUT;
        let file = loop {
            match self.attempt.create(self.process, &prefix) {
                // A process that has just died may have had it open.
                Err(Refusal::IsOpen(_)) if !self.written.contains_key(&prefix) && Instant::now() < end => {
                    std::thread::sleep(LOOK_INTERVAL);
                }
                created => break created?,
            }
        };
        // The one that this replaces was closed.
        let files = &mut self.written;
        files.remove(&prefix);
        Ok(files.entry(prefix).or_insert(file))
    }

    fn close(&mut self, prefix: &str, crc32: Vec<u32>, figures: Figures) -> Result<(), Refusal> {
        let prefix = Prefix::try_from(prefix)?;
        let Some(file) = self.written.remove(&prefix) else {
            return Err(Refusal::NotOpen(prefix));
        };
        self.attempt.close(self.process, &prefix, &file, crc32, figures)
    }

    fn open(&mut self, prefix: &str) -> Result<(std::fs::File, ToTask), Refusal> {
        let prefix = Prefix::try_from(prefix)?;
        let (file, sidecar) = self.attempt.open(self.process, &prefix)?;
        let opened = ToTask::Opened {
            series: sidecar.series,
            bytes: sidecar.bytes,
            crc32: sidecar.crc32,
        };
        self.read.insert(prefix, sidecar.series);
        Ok((file, opened))
    }

    fn note_read(&mut self, prefix: &str, figures: Figures) -> Result<(), Refusal> {
        let prefix = Prefix::try_from(prefix)?;
        let Some(series) = self.read.remove(&prefix) else {
            return Err(Refusal::NotOpen(prefix));
        };
        self.attempt.note_read(self.process, &prefix, series, figures);
        Ok(())
    }

    fn note_damage(&mut self, prefix: &str) -> Result<(), Refusal> {
        let prefix = Prefix::try_from(prefix)?;
        match self.read.remove(&prefix) {
            Some(_) => self.attempt.note_damage(self.process, &prefix),
            None => Err(Refusal::NotOpen(prefix)),
        }
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        for (prefix, file) in &self.written {
            self.attempt.discard(self.process, prefix, file);
        }
    }
}
