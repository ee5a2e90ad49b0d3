//! Carries the streams of a command on another host.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use pmc_wire::command::{self, Call, MAX_DATA, Stream, ToCaller, ToCommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Signals that go to the command.
const PASSED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// How a command has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this wait status.
    Status(i32),
    /// It has not run.
    Refused(String),
    /// That is unknown.
    Cut,
}

/// A command that was handed over.
pub(crate) struct Session {
    agent: UnixStream,
    say: Speaker,
    no_input: bool,
}

/// Sends frames to the command. All threads do.
#[derive(Clone)]
struct Speaker(Arc<Mutex<UnixStream>>);

impl Speaker {
    fn say(&self, message: &ToCommand) -> io::Result<()> {
        let agent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        command::send(&*agent, message)
    }
}

/// Writes a stream, in a thread that starts with the first bytes: many commands print nothing.
struct Writer<'a> {
    stream: Stream,
    into: BorrowedFd<'a>,
    say: Speaker,
    thread: Option<(Sender<Vec<u8>>, JoinHandle<()>)>,
}

impl<'a> Writer<'a> {
    fn new(stream: Stream, into: BorrowedFd<'a>, say: &Speaker) -> Self {
        Self {
            stream,
            into,
            say: say.clone(),
            thread: None,
        }
    }

    fn write(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        if self.thread.is_none() {
            self.thread = Some(self.start()?);
        }
        if let Some((data, _)) = &self.thread {
            // A thread that has ended needs nothing.
            let _ = data.send(bytes);
        }
        Ok(())
    }

    fn start(&self) -> io::Result<(Sender<Vec<u8>>, JoinHandle<()>)> {
        let (data, taken) = channel::<Vec<u8>>();
        let into = self.into.try_clone_to_owned()?;
        let (mut into, say, stream) = (File::from(into), self.say.clone(), self.stream);
        let write = move || {
            for bytes in taken {
                // If nobody reads it, the command goes on nevertheless.
                let _ = into.write_all(&bytes);
                // If the agent has gone, the session ends.
                let _ = say.say(&ToCommand::Taken(stream));
            }
        };
        let thread = std::thread::Builder::new().spawn(write)?;
        Ok((data, thread))
    }

    fn finish(self) {
        let Some((data, thread)) = self.thread else { return };
        drop(data);
        // Its panic was printed.
        let _ = thread.join();
    }
}

impl Session {
    pub(crate) fn begin(agent: UnixStream, call: &Call) -> io::Result<Self> {
        command::send(&agent, call)?;
        let say = Speaker(Arc::new(Mutex::new(agent.try_clone()?)));
        Ok(Self {
            agent,
            say,
            no_input: call.no_input,
        })
    }

    /// Carries the streams until the command has ended.
    pub(crate) fn run(self) -> io::Result<Ended> {
        self.pass_signals()?;
        let (out, err) = (io::stdout(), io::stderr());
        let mut out = Writer::new(Stream::Out, out.as_fd(), &self.say);
        let mut err = Writer::new(Stream::Err, err.as_fd(), &self.say);
        let (credit, credits) = channel();
        if !self.no_input {
            self.read_input(credits)?;
        }
        let mut agent = BufReader::new(&self.agent);
        let ended = loop {
            // Without a last word of the command, the connection was cut.
            let Ok(Some(message)) = command::receive::<ToCaller>(&mut agent) else {
                break Ended::Cut;
            };
            match message {
                ToCaller::Output(Stream::Out, bytes) => out.write(bytes)?,
                ToCaller::Output(Stream::Err, bytes) => err.write(bytes)?,
                // A thread that has ended needs nothing.
                ToCaller::Taken => drop(credit.send(())),
                ToCaller::Ended(status) => break Ended::Status(status),
                ToCaller::Refused(why) => break Ended::Refused(why),
            }
        };
        out.finish();
        err.finish();
        let _ = self.agent.shutdown(Shutdown::Both);
        Ok(ended)
    }

    /// Sends standard input, a frame for each one that was taken.
    fn read_input(&self, credits: Receiver<()>) -> io::Result<()> {
        let say = self.say.clone();
        let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let read = move || {
            let mut buffer = vec![0; MAX_DATA];
            loop {
                let length = match input.read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // What cannot be read has ended.
                    read => read.unwrap_or(0),
                };
                let bytes = buffer.get(..length).unwrap_or_default().to_vec();
                if say.say(&ToCommand::Input(bytes)).is_err() || length == 0 || credits.recv().is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().spawn(read)?;
        Ok(())
    }

    fn pass_signals(&self) -> io::Result<()> {
        let (mut signals, say) = (Signals::new(PASSED)?, self.say.clone());
        let pass = move || {
            for signal in signals.forever() {
                // If the agent has gone, the session ends.
                let _ = say.say(&ToCommand::Signal(signal));
            }
        };
        std::thread::Builder::new().spawn(pass)?;
        Ok(())
    }
}
