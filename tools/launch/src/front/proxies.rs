//! The proxies, as the front end has them.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmc_wire::command::receive;

use super::hosts::AvailableHosts;
use super::{Event, spawn};
use crate::error::LaunchError;
use crate::frames::{ToProxy, send};
use crate::world::World;
use crate::{NAME, PROXY};

/// The program that starts commands on other hosts of a task.
const RSH: &str = "pmc-rsh";

/// Time for a proxy to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most bytes of messages of a proxy that are kept.
const MAX_SAID: usize = 4096;

pub(super) struct Proxies {
    all: Vec<Proxy>,
    has_warned: bool,
}

struct Proxy {
    /// `None` if it is simulated.
    child: Option<Child>,
    input: Option<Box<dyn Write + Send>>,
    reader: Option<JoinHandle<()>>,
    /// What it has written to standard error.
    said: Arc<Mutex<String>>,
}

impl Proxies {
    /// Starts a proxy on each host that has ranks.
    ///
    /// # Errors
    /// A process cannot be started.
    pub(super) fn start(
        world: &World,
        surroundings: &AvailableHosts,
        events: &Sender<Event>,
    ) -> Result<Self, LaunchError> {
        // Beside this program, whichever of ours that is.
        let own_program = std::env::current_exe()?.with_file_name(NAME);
        let own_name = nix::unistd::gethostname().ok();
        let mut all = Self {
            all: Vec::new(),
            has_warned: false,
        };
        for (number, host) in world.hosts.iter().enumerate() {
            let is_here = !surroundings.is_task || own_name.as_ref().is_some_and(|own| **own == *host.name);
            let mut command = match is_here {
                true => {
                    let mut command = Command::new(&own_program);
                    command.args([PROXY, env!("CARGO_PKG_VERSION")]);
                    command
                }
                false => {
                    let beside = own_program.with_file_name(RSH);
                    let rsh = if beside.is_file() {
                        beside.as_path()
                    } else {
                        Path::new(RSH)
                    };
                    let mut command = Command::new(rsh);
                    let program = pmc_dag::words::quote(own_program.as_os_str().as_bytes());
                    let program = String::from_utf8_lossy(&program).into_owned();
                    command.args([&host.name, "exec", &program, PROXY, env!("CARGO_PKG_VERSION")]);
                    command
                }
            };
            // Interrupts of a terminal are for the front end: it passes them on.
            command.process_group(0);
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let child = command.spawn().map_err(|error| {
                let program = command.get_program().to_string_lossy().into_owned();
                LaunchError::Failed(format!("{program}: {}", pmc_dag::reason(&error)))
            })?;
            all.all.push(Proxy::of_child(number, child, events)?);
        }
        Ok(all)
    }

    /// Those at the other ends of these streams.
    #[cfg(test)]
    pub(super) fn simulated(
        streams: Vec<std::os::unix::net::UnixStream>,
        events: &Sender<Event>,
    ) -> io::Result<Self> {
        let proxy = |(number, stream): (usize, std::os::unix::net::UnixStream)| {
            let output = stream.try_clone()?;
            let mut proxy = Proxy::new(number, Some(output), None::<io::Empty>, events)?;
            proxy.input = Some(Box::new(stream));
            Ok(proxy)
        };
        let all: io::Result<Vec<Proxy>> = streams.into_iter().enumerate().map(proxy).collect();
        Ok(Self {
            all: all?,
            has_warned: false,
        })
    }

    /// Says something to one; one that has gone hears nothing.
    pub(super) fn say(&mut self, number: usize, message: &ToProxy) {
        if let Some(proxy) = self.all.get_mut(number)
            && let Some(input) = &mut proxy.input
            && send(input, message).is_err()
        {
            proxy.input = None;
        }
    }

    pub(super) fn say_all(&mut self, message: &ToProxy) {
        for number in 0..self.all.len() {
            self.say(number, message);
        }
    }

    /// Warns once if a host has other groups than this one.
    pub(super) fn note_groups(&mut self, number: usize, groups: &[u32], world: &World) {
        let own = nix::unistd::getgroups().unwrap_or_default();
        let mut own: Vec<u32> = own.iter().map(|group| group.as_raw()).collect();
        own.sort_unstable();
        if own != groups && !std::mem::replace(&mut self.has_warned, true) {
            let name = world.hosts.get(number).map_or("", |host| &host.name);
            pmc_terminal::message(format_args!(
                "Warning: you have other groups on {name} than here: ranks may not read the same files"
            ));
        }
    }

    /// What a proxy, or what should have started it, has said.
    pub(super) fn said(&self, number: usize) -> String {
        let said = self.all.get(number).map(|proxy| {
            let said = proxy.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.trim_end().to_owned()
        });
        said.unwrap_or_default()
    }

    /// Lets all end, with what they have started. Hosts that do not answer are given up if `at_once`.
    pub(super) fn end(&mut self, at_once: bool) {
        self.say_all(&ToProxy::Done);
        for proxy in &mut self.all {
            proxy.input = None;
            let until = Instant::now() + PATIENCE;
            if let Some(child) = &mut proxy.child {
                while at_once && matches!(child.try_wait(), Ok(None)) {
                    if Instant::now() > until {
                        // Its host ends what it has started, once it hears of it.
                        let _ = child.kill();
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            if let Some(reader) = proxy.reader.take() {
                let _ = reader.join();
            }
            if let Some(child) = &mut proxy.child {
                let _ = child.wait();
            }
        }
    }
}

impl Proxy {
    fn of_child(number: usize, mut child: Child, events: &Sender<Event>) -> io::Result<Self> {
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let input = child.stdin.take();
        let mut proxy = Self::new(number, output, errors, events)?;
        proxy.input = input.map(|input| Box::new(input) as Box<dyn Write + Send>);
        proxy.child = Some(child);
        Ok(proxy)
    }

    /// One that is heard, and hears nothing yet.
    fn new(
        number: usize,
        output: Option<impl Read + Send + 'static>,
        errors: Option<impl Read + Send + 'static>,
        events: &Sender<Event>,
    ) -> io::Result<Self> {
        let said = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&said);
        let complaints = spawn("messages", move || {
            for line in errors
                .into_iter()
                .flat_map(|errors| BufReader::new(errors).lines())
            {
                let Ok(line) = line else { return };
                let mut said = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if said.len() < MAX_SAID {
                    said.push_str(&line);
                    said.push('\n');
                }
            }
        })?;
        let events = events.clone();
        let reader = spawn("proxy", move || {
            if let Some(mut output) = output {
                while let Ok(Some(message)) = receive(&mut output) {
                    if events.send(Event::Proxy(number, Some(message))).is_err() {
                        return;
                    }
                }
            }
            // What it has said is complete before its end is known.
            let _ = complaints.join();
            let _ = events.send(Event::Proxy(number, None));
        })?;
        Ok(Self {
            child: None,
            input: None,
            reader: Some(reader),
            said,
        })
    }
}
