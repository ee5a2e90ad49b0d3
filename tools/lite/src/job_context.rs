//! What a job has from the process in which it runs: that of `pegasus-lite`, or a task server.

use std::borrow::Cow;
use std::path::Path;
use std::time::{Instant, SystemTime};

use pegasus_kickstart::context::Context;
use pegasus_kickstart::environment::Environment;
use pegasus_kickstart::machine::Host;

use crate::messages::Log;

/// The variable with the directory in which the job was started, before it went to its own: workflows use it
/// in arguments of jobs on the submit host.
const INITIAL_DIRECTORY: &[u8] = b"_PEGASUS_INITIAL_DIR";

/// What a job has from its process. The job changes no state of the process.
pub(crate) struct JobContext<'a> {
    /// Environment, streams, and the directory to which names on the command line are relative.
    pub(crate) context: Context<'a>,
    /// Standard error, for messages.
    pub(crate) log: Log,
    /// The host with its machine, if the process knows it.
    pub(crate) host: Option<&'a Host>,
}

impl<'a> JobContext<'a> {
    /// Returns the host, with its machine or without.
    pub(crate) fn host(&self, machine: bool) -> Cow<'_, Host> {
        match self.host {
            Some(host) => Cow::Borrowed(host),
            None => Cow::Owned(Host::gather(machine)),
        }
    }

    /// Returns the variables of a program that works in `directory`.
    pub(crate) fn environment_in(&self, directory: &Path) -> Environment {
        let mut environment = self.context.environment.clone();
        if environment.get(INITIAL_DIRECTORY).is_none() {
            environment.set(
                INITIAL_DIRECTORY,
                self.context.directory.as_os_str().as_encoded_bytes(),
            );
        }
        environment.set(b"PWD", directory.as_os_str().as_encoded_bytes());
        environment
    }

    /// Returns what kickstart inherits if it begins now, in `directory`.
    pub(crate) fn kickstart_in(&self, directory: &Path) -> Context<'a> {
        Context {
            start: (SystemTime::now(), Instant::now()),
            environment: self.environment_in(directory),
            directory: directory.to_owned(),
            is_process_directory: false,
            ..self.context.clone()
        }
    }
}
