//! The record of an invocation.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use monitord_compat::invocation_record::{FileEntry, Identity, IdentityLines, Invocation, JobIds};
use nix::unistd::{getgid, getuid};
use pmc_secrets::{HIDDEN, SecretNames};

use super::session::Session;
use crate::stdio::Places;
use crate::{limits, payload, stat, stdio, usage};

/// Maximum bytes of a record that are gathered in memory before they are written.
const MAX_BUFFER: usize = 64 << 20;

/// Keys of `files` that are not files of the job.
const STREAMS: [&str; 6] = ["stdin", "stdout", "stderr", "metadata", "kickstart", "logfile"];

/// The result of an invocation.
#[derive(Debug)]
pub struct Report {
    /// The record.
    pub record: Invocation<'static>,
    /// The exit code.
    pub exit_code: u8,
    /// File to append the record to, instead of standard output.
    pub log: Option<File>,
    /// Peak resident memory of a job, KiB; 0 if none ran.
    pub peak_kib: u64,
}

impl Report {
    /// Writes the record to `out` in one piece, unless it is huge: other output must not get into it. Returns
    /// the number of bytes.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn write_to(&self, out: impl Write) -> io::Result<u64> {
        let mut buffer = CountingBuffer {
            out,
            text: Vec::with_capacity(8 << 10),
            written: 0,
        };
        self.record.write_to(&mut buffer)?;
        buffer.flush()?;
        Ok(buffer.written)
    }
}

/// Gathers bytes and counts those written.
struct CountingBuffer<W> {
    out: W,
    text: Vec<u8>,
    written: u64,
}

impl<W: Write> Write for CountingBuffer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > MAX_BUFFER && !self.text.is_empty() {
            self.flush()?;
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes).map(drop)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.text)?;
        self.written += self.text.len() as u64;
        self.text.clear();
        self.out.flush()
    }
}

/// Returns the size of a file in bytes; 0 if it is unknown.
fn size(status: &io::Result<Metadata>) -> u64 {
    status.as_ref().map_or(0, Metadata::len)
}

impl Session<'_, '_> {
    pub(super) fn report(mut self, exit_code: u8) -> Report {
        let failed = exit_code != 0 || self.jobs.iter().any(|(_, job)| job.status.raw() != 0);
        let peaks = self.jobs.iter().map(|(_, job)| job.usage.max_rss_kib);
        let peak_kib = peaks.max().unwrap_or(0);
        let long_form = failed || self.options.long_form;
        let integrity = self.integrity.file().metadata();
        let metadata = self.metadata.file().metadata();
        let mut integrity_data = self.integrity_data(size(&integrity));
        let only_streams = self.before.is_empty() && self.after.is_empty() && integrity_data.is_empty();
        let mut files = self.files(failed, long_form, &metadata);
        // Readers keep the last of equal keys, or refuse the record.
        if !only_streams {
            integrity_data.retain(|(key, _)| !STREAMS.contains(&key.as_str()));
            let mut seen: HashSet<&[u8]> = integrity_data.iter().map(|(key, _)| key.as_bytes()).collect();
            let mut keep: Vec<bool> = files.iter().rev().map(|entry| seen.insert(&entry.key)).collect();
            files.retain(|_| keep.pop().unwrap_or(true));
        }
        let integrity_data: String = integrity_data.into_iter().map(|(_, lines)| lines).collect();
        let options = self.options;
        let record = Invocation {
            start: stat::stamp_of(self.context.start.0),
            transformation: options.transformation.clone(),
            derivation: options.derivation.clone(),
            resource: options.resource.clone(),
            wf_label: options.label.clone(),
            wf_stamp: options.stamp.clone(),
            identity: self.identity(),
            jobs: std::mem::take(&mut self.jobs),
            job_ids: self.job_ids(),
            cwd: self.directory.as_os_str().as_bytes().to_vec(),
            usage: usage::own(self.context.usage_scope),
            machine: (!options.omit_machine).then(|| self.host.machine(long_form)),
            files,
            integrity_data: Cow::Owned(integrity_data.into_bytes()),
            environment: long_form.then(|| self.environment()),
            limits: long_form.then(limits::read),
            duration: self.context.start.1.elapsed(),
        };
        let cache = self.context.cache;
        cache.keep_names(self.names);
        for (purpose, mailbox, status) in [
            ("meta", self.metadata, metadata),
            ("integrity", self.integrity, integrity),
        ] {
            if let Ok(status) = status {
                cache.keep_mailbox(&self.temporary, purpose, mailbox, &status);
            }
        }
        Report {
            record,
            peak_kib,
            exit_code,
            log: self.log,
        }
    }

    /// Returns the integrity data of the job by key.
    fn integrity_data(&mut self, size: u64) -> Vec<(String, String)> {
        let data = payload::read_all(self.integrity.file(), size).unwrap_or_else(|error| {
            (self.notice)(&format!("WARNING: integrity data is left out: {error}"));
            Vec::new()
        });
        let parsed = payload::parse_integrity_data(&data);
        if parsed.dropped > 0 {
            (self.notice)(&format!(
                "WARNING: {} malformed entries of integrity data are left out",
                parsed.dropped
            ));
        }
        parsed.entries
    }

    fn files(
        &mut self,
        failed: bool,
        long_form: bool,
        written: &io::Result<Metadata>,
    ) -> Vec<FileEntry<'static>> {
        let mut files = std::mem::take(&mut self.before);
        files.append(&mut self.after);
        let (options, context, directory, names) =
            (self.options, &self.context, &self.directory, &mut self.names);
        let places = Places {
            directory,
            temporary: &self.temporary,
            cache: context.cache,
            in_memory: false,
        };
        files.push(stdio::input_entry(&options.stdin, context, directory, names));
        let limit = (failed || !options.quiet).then_some(options.payload_limit);
        for stream in self.streams.take().into_iter().flatten() {
            files.push(stream.finish(context, places, limit, names));
        }
        let (name, file) = (self.metadata.path(), self.metadata.file());
        let mut metadata = stat::temporary(b"metadata", name, file, written.as_ref(), names);
        metadata.payload = payload::read(file, size(written), None).ok().flatten();
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
        let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
        let identity = Identity {
            interface: self.host.interface.clone(),
            host_address: self.host.address.clone(),
            host_name: Some(self.host.name.clone()).filter(|name| !name.is_empty()),
            pid: std::process::id(),
            uid,
            user: self.names.user(uid),
            gid,
            group: self.names.group(gid),
            umask: self.context.umask,
        };
        IdentityLines::from(&identity)
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

    /// Returns the environment of the jobs, in the order of the texts `NAME=value`, without secrets.
    fn environment(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let more = self.context.environment.get(pmc_secrets::VARIABLE.as_bytes());
        let secrets = SecretNames::new(more.map(OsStr::from_bytes));
        let mut all: Vec<_> = self
            .context
            .environment
            .iter()
            .map(|(name, value)| {
                let value = if secrets.contain(name) {
                    HIDDEN.as_bytes()
                } else {
                    value
                };
                (name.to_vec(), value.to_vec())
            })
            .collect();
        all.sort_by(|a, b| {
            let text = |(name, value): &(Vec<u8>, Vec<u8>)| [name.as_slice(), b"=", value].concat();
            text(a).cmp(&text(b))
        });
        all
    }
}
