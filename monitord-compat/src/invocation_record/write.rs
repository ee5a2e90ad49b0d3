//! Writes the text of a record.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use chrono::{Datelike, Timelike};

use super::{
    ChecksummedFile, FileEntry, Identity, IdentityLines, Invocation, Job, JobIds, Limit, Machine,
    MachineFacts, MachineLines, Source, Stamp, Stat, StatLines, Status, Usage, VERSION,
};
use crate::yaml::{Emitter, KeyStyle};

/// Words that readers search for without parsing; see [`Emitter::with_guards`].
const SEARCHED_WORDS: &[&str] = &["raw:", "integrity_error:"];

impl Invocation<'_> {
    /// Writes the record.
    pub fn write_to(&self, out: impl Write) -> io::Result<()> {
        let mut out = Emitter::new(out).with_guards(SEARCHED_WORDS);
        out.raw(b"- invocation: True\n")?;
        out.nested(|out| self.fields(out))
    }

    fn fields<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        out.ready("version", VERSION.as_bytes())?;
        write_time(out, "start", &self.start, true)?;
        write_seconds(out, "duration", self.duration)?;
        let labels = [
            ("transformation", &self.transformation),
            ("derivation", &self.derivation),
            ("resource", &self.resource),
            ("wf-label", &self.wf_label),
            ("wf-stamp", &self.wf_stamp),
        ];
        for (key, value) in labels {
            if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
                out.quoted(KeyStyle::Auto, key.as_bytes(), value)?;
            }
        }
        debug_assert_eq!(out.indent(), IDENTITY_INDENT);
        out.raw(&self.identity.0)?;
        for (stage, job) in &self.jobs {
            out.section(stage.key())?;
            out.nested(|out| job.write(out))?;
        }
        out.section("jobids")?;
        out.nested(|out| self.job_ids.write(out))?;
        out.scalar("cwd", &self.cwd)?;
        out.section("usage")?;
        out.nested(|out| self.usage.write(out))?;
        if let Some(machine) = &self.machine {
            out.section("machine")?;
            out.nested(|out| machine.write(out))?;
        }
        out.section("files")?;
        out.nested(|out| self.write_files(out))?;
        if let Some(environment) = &self.environment {
            out.section("environment")?;
            out.nested(|out| {
                environment
                    .iter()
                    .try_for_each(|(name, value)| out.quoted(KeyStyle::Quoted, name, value))
            })?;
        }
        if let Some(limits) = &self.limits {
            out.section("limits")?;
            out.nested(|out| write_limits(out, limits))?;
        }
        Ok(())
    }

    fn write_files<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        let is_stream = |entry: &FileEntry<'_>| entry.lfn.is_none() && entry.key == b"stdin";
        let streams = self.files.iter().position(is_stream).unwrap_or(self.files.len());
        let (listed, rest) = self.files.split_at(streams);
        for entry in listed {
            entry.write_keyed(out)?;
        }
        out.raw(&self.integrity_data)?;
        rest.iter().try_for_each(|entry| entry.write_keyed(out))
    }
}

/// Blanks before the lines of [`IdentityLines`].
const IDENTITY_INDENT: usize = 2;

impl From<&Identity> for IdentityLines {
    fn from(identity: &Identity) -> Self {
        Self(lines(IDENTITY_INDENT, |out| identity.write(out)))
    }
}

/// Returns the text that `write` writes at this indentation.
fn lines(indent: usize, write: impl FnOnce(&mut Emitter<Vec<u8>>) -> io::Result<()>) -> Arc<[u8]> {
    let mut out = Emitter::new(Vec::with_capacity(512)).at(indent);
    // Writing to memory does not fail.
    let _ = write(&mut out);
    out.into_inner().into()
}

impl Identity {
    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        if let Some(interface) = &self.interface {
            out.scalar("interface", interface)?;
        }
        out.verbatim("hostaddr", &self.host_address)?;
        if let Some(name) = &self.host_name {
            out.scalar("hostname", name)?;
        }
        out.number("pid", self.pid)?;
        write_owner(
            out,
            self.uid,
            self.user.as_deref(),
            self.gid,
            self.group.as_deref(),
        )?;
        out.verbatim("umask", format_args!("0o0{:03o}", self.umask))
    }
}

impl Job {
    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        write_time(out, "start", &self.start, true)?;
        write_seconds(out, "duration", self.duration.max(Duration::from_millis(3)))?;
        if let Some(pid) = self.pid {
            out.number("pid", pid)?;
        }
        out.section("usage")?;
        out.nested(|out| self.usage.write(out))?;
        out.section("status")?;
        out.nested(|out| self.status.write(out))?;
        out.section("executable")?;
        out.nested(|out| self.executable.write(out))?;
        out.section("argument_vector")?;
        out.nested(|out| {
            self.arguments
                .iter()
                .try_for_each(|argument| out.item_quoted(argument))
        })?;
        out.section("procs")
    }
}

impl Usage {
    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        write_seconds(out, "utime", self.user_time)?;
        write_seconds(out, "stime", self.system_time)?;
        out.numbers(&[
            ("maxrss", self.max_rss_kib),
            ("minflt", self.minor_faults),
            ("majflt", self.major_faults),
            ("nswap", self.swaps),
            ("inblock", self.blocks_in),
            ("outblock", self.blocks_out),
            ("msgsnd", self.messages_sent),
            ("msgrcv", self.messages_received),
            ("nsignals", self.signals),
            ("nvcsw", self.voluntary_switches),
            ("nivcsw", self.involuntary_switches),
        ])
    }
}

impl Status {
    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        out.number("raw", self.raw())?;
        match self {
            Self::Exited { code } => out.number("regular_exitcode", *code),
            Self::Signalled { signal, name, core } => {
                out.verbatim("signalled_signal", signal)?;
                // Pegasus' kickstart writes the first, misspelt key; its parser reads the second.
                out.quoted(KeyStyle::Auto, b"singalled_name", name.as_bytes())?;
                out.quoted(KeyStyle::Auto, b"signalled_name", name.as_bytes())?;
                out.verbatim("corefile", core)
            }
            Self::Failed { errno, text, .. } => {
                out.verbatim("failure_error", format_args!("{errno}   {text}"))
            }
        }
    }
}

impl JobIds {
    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        if let Some(id) = &self.condor {
            out.scalar("condor", id)?;
        }
        if let Some(id) = &self.gram {
            out.scalar("gram", id)?;
        }
        if let Some((kind, id)) = &self.local {
            out.verbatim("lrmtype", kind)?;
            out.scalar("lrm", id)?;
        }
        Ok(())
    }
}

/// Blanks before the lines of [`MachineLines`].
const MACHINE_INDENT: usize = 4;

impl From<&MachineFacts> for MachineLines {
    fn from(facts: &MachineFacts) -> Self {
        Self {
            first: lines(MACHINE_INDENT, |out| facts.write_first(out)),
            processors: lines(MACHINE_INDENT, |out| facts.write_processors(out)),
        }
    }
}

impl MachineFacts {
    fn write_first<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        out.number("page-size", self.page_size)?;
        out.scalar("uname_system", &self.system)?;
        out.scalar("uname_nodename", &self.node_name)?;
        out.scalar("uname_release", &self.release)?;
        out.scalar("uname_machine", &self.architecture)
    }

    fn write_processors<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        out.number("cpu_count", self.cpu_count)?;
        out.number("cpu_speed", self.cpu_mhz)?;
        out.scalar("cpu_vendor", &self.cpu_vendor)?;
        out.scalar("cpu_model", &self.cpu_model)
    }
}

impl Machine {
    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        debug_assert_eq!(out.indent(), MACHINE_INDENT);
        out.raw(&self.facts.first)?;
        for (key, value) in ["ram_total", "ram_free", "ram_shared", "ram_buffer"]
            .into_iter()
            .zip(self.ram_kib)
        {
            out.number(key, value)?;
        }
        for (key, value) in ["swap_total", "swap_free"].into_iter().zip(self.swap_kib) {
            out.number(key, value)?;
        }
        out.raw(&self.facts.processors)?;
        for (key, value) in ["load_min1", "load_min5", "load_min15"]
            .into_iter()
            .zip(self.load)
        {
            write_load(out, key, value)?;
        }
        self.census
            .iter()
            .try_for_each(|(key, value)| out.verbatim(key, value))
    }
}

impl FileEntry<'_> {
    fn write_keyed<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        out.open(KeyStyle::Auto, &self.key)?;
        out.nested(|out| self.write(out))
    }

    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        if let Err(errno) = self.stat {
            out.verbatim("error", errno)?;
        }
        if let Some(lfn) = &self.lfn {
            out.quoted(KeyStyle::Auto, b"lfn", lfn)?;
        }
        if let Some(note) = self.note {
            out.verbatim("note", note)?;
        }
        match &self.source {
            Source::Name(name) => out.scalar("file_name", name)?,
            Source::Temporary { name, descriptor } => {
                out.scalar("temporary_name", name)?;
                out.number("descriptor", *descriptor)?;
            }
            Source::Descriptor(descriptor) => out.number("descriptor_number", *descriptor)?,
        }
        if let Ok(stat) = &self.stat {
            debug_assert_eq!(out.indent(), STAT_INDENT);
            out.raw(&stat.lines)?;
        }
        match &self.output {
            None => {}
            Some(ChecksummedFile::NotRegular) => out.verbatim("output", "True")?,
            Some(ChecksummedFile::Unreadable) => {
                out.verbatim("output", "True")?;
                out.verbatim("integrity_error", "failed creating a checksum")?;
            }
            Some(ChecksummedFile::Checksum { sha256, took }) => {
                out.verbatim("output", "True")?;
                out.quoted_if_number("sha256", sha256)?;
                out.verbatim("checksum_timing", format_args!("{:.2}", took.as_secs_f64()))?;
            }
        }
        if let Some(payload) = &self.payload {
            out.verbatim("data_truncated", payload.truncated)?;
            out.text("data", &payload.text)?;
        }
        Ok(())
    }
}

impl<W: Write> Emitter<W> {
    /// Quotes a checksum that looks like a number: all digits, or digits around one `e`.
    fn quoted_if_number(&mut self, key: &'static str, value: &str) -> io::Result<()> {
        let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
        if letters > 1 {
            self.verbatim(key, value)
        } else {
            self.quoted(KeyStyle::Auto, key.as_bytes(), value.as_bytes())
        }
    }
}

/// Blanks before the lines of [`StatLines`], both in `files` and in jobs.
const STAT_INDENT: usize = 6;

impl From<&Stat> for StatLines {
    fn from(stat: &Stat) -> Self {
        Self {
            mode: stat.mode,
            size: stat.size,
            lines: lines(STAT_INDENT, |out| stat.write(out)),
        }
    }
}

impl Stat {
    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        out.verbatim("mode", format_args!("0o{:o}", self.mode))?;
        out.numbers(&[
            ("size", self.size),
            ("inode", self.inode),
            ("nlink", self.links),
            ("blksize", self.block_size),
            ("blocks", self.blocks),
        ])?;
        write_time(out, "mtime", &self.modified, false)?;
        write_time(out, "atime", &self.accessed, false)?;
        write_time(out, "ctime", &self.changed, false)?;
        write_owner(
            out,
            self.uid,
            self.user.as_deref(),
            self.gid,
            self.group.as_deref(),
        )
    }
}

fn write_owner<W: Write>(
    out: &mut Emitter<W>,
    uid: u32,
    user: Option<&[u8]>,
    gid: u32,
    group: Option<&[u8]>,
) -> io::Result<()> {
    out.number("uid", uid)?;
    if let Some(user) = user {
        out.scalar("user", user)?;
    }
    out.number("gid", gid)?;
    if let Some(group) = group {
        out.scalar("group", group)?;
    }
    Ok(())
}

fn write_limits<W: Write>(out: &mut Emitter<W>, limits: &[Limit]) -> io::Result<()> {
    for (name, soft, hard) in limits {
        for (kind, value) in [("soft", soft), ("hard", hard)] {
            let key = format!("{name}_{kind}");
            match value {
                Some(value) => out.computed(&key, value)?,
                None => out.computed(&key, "unlimited")?,
            }
        }
    }
    Ok(())
}

/// Writes a time as `2026-11-21T07:13:11.630+05:30`, or without milliseconds. A record has about twenty
/// times. Formatting them by a pattern would take as long as all the rest.
fn write_time<W: Write>(
    out: &mut Emitter<W>,
    key: &'static str,
    stamp: &Stamp,
    milliseconds: bool,
) -> io::Result<()> {
    let local = stamp.naive_local();
    let offset = stamp.offset().local_minus_utc();
    let year = u32::try_from(local.year()).ok().filter(|year| *year <= 9999);
    // The pattern handles other years, odd offsets and leap seconds.
    let (Some(year), 0, ..1_000_000_000) = (year, offset % 60, local.nanosecond()) else {
        let pattern = if milliseconds {
            "%Y-%m-%dT%H:%M:%S%.3f%:z"
        } else {
            "%Y-%m-%dT%H:%M:%S%:z"
        };
        return out.verbatim(key, stamp.format(pattern));
    };
    let mut text = *b"0000-00-00T00:00:00.000+00:00";
    write_digits(&mut text[0..4], year);
    write_digits(&mut text[5..7], local.month());
    write_digits(&mut text[8..10], local.day());
    write_digits(&mut text[11..13], local.hour());
    write_digits(&mut text[14..16], local.minute());
    write_digits(&mut text[17..19], local.second());
    write_digits(&mut text[20..23], local.nanosecond() / 1_000_000);
    let minutes = offset.unsigned_abs() / 60;
    text[23] = if offset < 0 { b'-' } else { b'+' };
    write_digits(&mut text[24..26], minutes / 60);
    write_digits(&mut text[27..29], minutes % 60);
    if milliseconds {
        return out.ready(key, &text);
    }
    text.copy_within(23.., 19);
    out.ready(key, &text[..25])
}

/// Fills `digits` with the last decimal digits of a number.
fn write_digits(digits: &mut [u8], mut number: u32) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Writes a load average, given in parts of 65,536, with two decimals.
fn write_load<W: Write>(out: &mut Emitter<W>, key: &'static str, load: u64) -> io::Result<()> {
    out.verbatim(key, format_args!("{:.2}", load as f64 / 65536.0))
}

/// Writes seconds with three decimals.
fn write_seconds<W: Write>(out: &mut Emitter<W>, key: &'static str, time: Duration) -> io::Result<()> {
    out.verbatim(key, format_args!("{:.3}", time.as_secs_f64()))
}

#[cfg(test)]
mod tests;
