//! The record of an invocation that has ended.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use monitord_compat::invocation_record::{FileEntry, Identity, IdentityLines, Invocation, JobIds};
use nix::unistd::{getgid, getuid};

use super::Session;
use crate::spares::State;
use crate::{limits, payload, stat, stdio, usage};

/// The largest part of a record that is gathered in memory so as to be written at once, bytes.
const WRITE_AT_ONCE: usize = 64 << 20;

/// Keys of `files` that are not files of the job.
const STREAMS: [&str; 6] = ["stdin", "stdout", "stderr", "metadata", "kickstart", "logfile"];

/// What one invocation came to.
#[derive(Debug)]
pub struct Report {
    /// The record.
    pub record: Invocation<'static>,
    /// The exit code.
    pub exit_code: u8,
    /// File the record is to be appended to instead of standard output.
    pub log: Option<File>,
}

impl Report {
    /// Writes the record to `out` in one piece, unless it is huge: other output must not get into it. It is
    /// gathered in `text`, which is empty. Gives the number of bytes.
    pub fn write_to(&self, out: impl Write, text: &mut Vec<u8>) -> io::Result<u64> {
        let mut gathered = Gathered {
            out,
            text,
            written: 0,
        };
        self.record.write_to(&mut gathered)?;
        gathered.flush()?;
        Ok(gathered.written)
    }
}

/// Gathers bytes and counts them on their way.
struct Gathered<'t, W> {
    out: W,
    text: &'t mut Vec<u8>,
    written: u64,
}

impl<W: Write> Write for Gathered<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > WRITE_AT_ONCE && !self.text.is_empty() {
            self.flush()?;
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes).map(drop)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(self.text)?;
        self.written += self.text.len() as u64;
        self.text.clear();
        self.out.flush()
    }
}

impl Session<'_, '_> {
    pub(super) fn report(mut self, exit_code: u8) -> Report {
        let failed = exit_code != 0 || self.jobs.iter().any(|(_, job)| job.status.raw() != 0);
        let long_form = failed || self.options.long_form;
        let spares = self.context.spares;
        let integrity = spares.look_into(&self.integrity);
        let metadata = spares.look_into(&self.metadata);
        let mut integrity_data = self.integrity_data(&integrity);
        let only_streams = self.before.is_empty() && self.after.is_empty() && integrity_data.is_empty();
        let mut files = self.files(failed, long_form, &metadata);
        // Readers keep the last of equal keys, or refuse the record.
        if !only_streams {
            integrity_data.retain(|(key, _)| !STREAMS.contains(&key.as_str()));
            let mut taken: HashSet<&[u8]> = integrity_data.iter().map(|(key, _)| key.as_bytes()).collect();
            let kept = files.iter().rev().map(|entry| taken.insert(&entry.key));
            let mut kept: Vec<bool> = kept.collect();
            files.retain(|_| kept.pop().unwrap_or(true));
        }
        let integrity_data: String = integrity_data.into_iter().map(|(_, lines)| lines).collect();
        let owned = |text: &Option<Vec<u8>>| text.clone();
        let record = Invocation {
            start: stat::stamp_of(self.context.began.0),
            transformation: owned(&self.options.transformation),
            derivation: owned(&self.options.derivation),
            resource: owned(&self.options.resource),
            wf_label: owned(&self.options.label),
            wf_stamp: owned(&self.options.stamp),
            identity: self.identity(),
            jobs: std::mem::take(&mut self.jobs),
            job_ids: self.job_ids(),
            cwd: self.directory.as_os_str().as_bytes().to_vec(),
            usage: usage::own(self.context.own_usage),
            machine: (!self.options.omit_machine).then(|| self.host.machine(long_form)),
            files,
            integrity_data: Cow::Owned(integrity_data.into_bytes()),
            environment: long_form.then(|| self.environment()),
            limits: long_form.then(limits::read),
            duration: self.context.began.1.elapsed(),
        };
        spares.keep_names(self.names);
        spares.keep_mailbox(&self.temporary, "meta", self.metadata, &metadata);
        spares.keep_mailbox(&self.temporary, "integrity", self.integrity, &integrity);
        Report {
            record,
            exit_code,
            log: self.log,
        }
    }

    /// What the job left, by key.
    fn integrity_data(&mut self, state: &State) -> Vec<(String, String)> {
        let data = payload::read_all(self.integrity.file(), state.size()).unwrap_or_default();
        let found = payload::integrity_data(&data);
        if found.dropped > 0 {
            (self.notice)(&format!(
                "WARNING: {} malformed entries of integrity data are left out",
                found.dropped
            ));
        }
        found.entries
    }

    fn files(&mut self, failed: bool, long_form: bool, state: &State) -> Vec<FileEntry<'static>> {
        let mut files = std::mem::take(&mut self.before);
        files.append(&mut self.after);
        let (options, context, directory, names) =
            (self.options, &self.context, &self.directory, &mut self.names);
        files.push(stdio::input_entry(&options.stdin, context, directory, names));
        let limit = (failed || !options.quiet).then_some(options.payload_limit);
        for stream in self.streams.take().into_iter().flatten() {
            files.push(stream.finish(context, directory, &self.temporary, limit, names));
        }
        let (name, file) = (self.metadata.path(), self.metadata.file());
        let mut metadata = stat::temporary(b"metadata", name, file, state.status(), names);
        metadata.payload = payload::read(file, state.size(), None).ok().flatten();
        files.push(metadata);
        if long_form {
            let mut program = stat::named(b"kickstart", &context.program, directory, names);
            if matches!(program.stat, Err(libc::ENOENT)) {
                program.note = Some("ignore error - it is just a warning");
            }
            files.push(program);
            files.push(match (&self.log, &options.log) {
                (Some(_), Some(log)) => stat::named(b"logfile", log, directory, names),
                _ => stat::descriptor(b"logfile", 1, context.stdout, names),
            });
        }
        files
    }

    fn identity(&mut self) -> IdentityLines {
        self.context.spares.identity(|| self.host_and_owner())
    }

    fn host_and_owner(&mut self) -> Identity {
        let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
        Identity {
            interface: self.host.interface.clone(),
            host_address: self.host.address.clone(),
            host_name: Some(self.host.name.clone()).filter(|name| !name.is_empty()),
            pid: std::process::id(),
            uid,
            user: self.names.user(uid),
            gid,
            group: self.names.group(gid),
            umask: self.context.umask,
        }
    }

    fn job_ids(&self) -> JobIds {
        const LOCAL: [(&str, &[&str]); 5] = [
            ("slurm", &["SLURM_JOBID", "SLURM_JOB_ID"]),
            ("cobalt", &["COBALT_JOBID"]),
            ("sge", &["JOB_ID"]),
            ("lsf", &["LSB_JOBID"]),
            ("pbs", &["PBS_JOBID"]),
        ];
        let id = |name: &str| self.context.environment.get(name.as_bytes()).map(<[u8]>::to_vec);
        JobIds {
            condor: id("CONDOR_JOBID"),
            gram: id("GLOBUS_GRAM_JOB_CONTACT"),
            local: LOCAL
                .iter()
                .find_map(|(kind, variables)| Some((*kind, variables.iter().find_map(|name| id(name))?))),
        }
    }

    /// The environment of the jobs, in the order of `NAME=value`.
    fn environment(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all: Vec<_> = self
            .context
            .environment
            .iter()
            .map(|(name, value)| (name.to_vec(), value.to_vec()))
            .collect();
        all.sort_by(|a, b| {
            let text = |(name, value): &(Vec<u8>, Vec<u8>)| [name.as_slice(), b"=", value].concat();
            text(a).cmp(&text(b))
        });
        all
    }
}
