//! The text of the record.

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
const SEARCHED: &[&str] = &["raw:", "integrity_error:"];

impl Invocation<'_> {
    /// Writes the record.
    pub fn write_to(&self, out: impl Write) -> io::Result<()> {
        let mut out = Emitter::new(out).with_guards(SEARCHED);
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

/// What is written, indented by so much.
fn lines(indent: usize, write: impl FnOnce(&mut Emitter<Vec<u8>>) -> io::Result<()>) -> Arc<[u8]> {
    let mut out = Emitter::new(Vec::with_capacity(512)).at(indent);
    // A vector takes everything.
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
        let counters = [
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
        ];
        counters
            .into_iter()
            .try_for_each(|(key, value)| out.number(key, value))
    }
}

impl Status {
    fn write<W: Write>(&self, out: &mut Emitter<W>) -> io::Result<()> {
        out.number("raw", self.raw())?;
        match self {
            Self::Exited { code } => out.number("regular_exitcode", *code),
            Self::Signalled { signal, name, core } => {
                out.verbatim("signalled_signal", signal)?;
                // The original writes the first, misspelt key; its parser looks for the second.
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
    /// A checksum may be all digits, or digits around one `e`: such a one is a number unless quoted.
    fn quoted_if_number(&mut self, key: &'static str, value: &str) -> io::Result<()> {
        let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
        if letters > 1 {
            self.verbatim(key, value)
        } else {
            self.quoted(KeyStyle::Auto, key.as_bytes(), value.as_bytes())
        }
    }
}

/// Blanks before the lines of [`StatLines`]: entries of `files` and programs of jobs are equally deep.
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
        let numbers = [
            ("size", self.size),
            ("inode", self.inode),
            ("nlink", self.links),
            ("blksize", self.block_size),
            ("blocks", self.blocks),
        ];
        numbers
            .into_iter()
            .try_for_each(|(key, value)| out.number(key, value))?;
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

/// A time as `2026-11-21T07:13:11.630+05:30`, or without the milliseconds. A record has some twenty, and formatting
/// them by a pattern takes as long as all the rest.
fn write_time<W: Write>(
    out: &mut Emitter<W>,
    key: &'static str,
    stamp: &Stamp,
    milliseconds: bool,
) -> io::Result<()> {
    let local = stamp.naive_local();
    let offset = stamp.offset().local_minus_utc();
    let year = u32::try_from(local.year()).ok().filter(|year| *year <= 9999);
    // The pattern knows what to do with other years, odd offsets and leap seconds.
    let (Some(year), 0, ..1_000_000_000) = (year, offset % 60, local.nanosecond()) else {
        let pattern = if milliseconds {
            "%Y-%m-%dT%H:%M:%S%.3f%:z"
        } else {
            "%Y-%m-%dT%H:%M:%S%:z"
        };
        return out.verbatim(key, stamp.format(pattern));
    };
    let mut text = *b"0000-00-00T00:00:00.000+00:00";
    put(&mut text[0..4], year);
    put(&mut text[5..7], local.month());
    put(&mut text[8..10], local.day());
    put(&mut text[11..13], local.hour());
    put(&mut text[14..16], local.minute());
    put(&mut text[17..19], local.second());
    put(&mut text[20..23], local.nanosecond() / 1_000_000);
    let minutes = offset.unsigned_abs() / 60;
    text[23] = if offset < 0 { b'-' } else { b'+' };
    put(&mut text[24..26], minutes / 60);
    put(&mut text[27..29], minutes % 60);
    if milliseconds {
        return out.ready(key, &text);
    }
    text.copy_within(23.., 19);
    out.ready(key, &text[..25])
}

/// The last decimal digits of a number, as many as there is room for.
fn put(digits: &mut [u8], mut number: u32) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// A load average, in parts of 65,536, with two decimal places.
fn write_load<W: Write>(out: &mut Emitter<W>, key: &'static str, load: u64) -> io::Result<()> {
    const ONE: u64 = 1 << 16;
    let (whole, beyond) = (load / ONE, load % ONE * 100);
    if beyond % ONE == ONE / 2 || whole >= 1 << 32 {
        // As a binary fraction is rounded.
        return out.verbatim(key, format_args!("{:.2}", load as f64 / ONE as f64));
    }
    let hundredths = whole * 100 + (beyond + ONE / 2) / ONE;
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(hundredths / 100).as_bytes();
    // Ten digits at most, the point and two more.
    let mut text = [b'.'; 13];
    text[..digits.len()].copy_from_slice(digits);
    let length = digits.len() + 3;
    put(&mut text[length - 2..length], (hundredths % 100) as u32);
    out.ready(key, &text[..length])
}

/// Seconds with three decimal places.
fn write_seconds<W: Write>(out: &mut Emitter<W>, key: &'static str, time: Duration) -> io::Result<()> {
    let beyond = time.subsec_nanos() % 1_000_000;
    if beyond == 500_000 || time.as_secs() >= 1 << 32 {
        // As the nearest binary fraction is rounded.
        return out.verbatim(key, format_args!("{:.3}", time.as_secs_f64()));
    }
    let whole =
        Duration::from_millis(u64::from(beyond > 500_000)) + (time - Duration::from_nanos(beyond.into()));
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(whole.as_secs()).as_bytes();
    // Ten digits at most, as checked above, the point and three more.
    let mut text = [b'.'; 14];
    text[..digits.len()].copy_from_slice(digits);
    let length = digits.len() + 4;
    put(&mut text[length - 3..length], whole.subsec_millis());
    out.ready(key, &text[..length])
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;
    use crate::invocation_record::{Payload, Stage};

    /// The value of the line `k: value`.
    fn line(write: impl Fn(&mut Emitter<Vec<u8>>) -> io::Result<()>) -> String {
        let mut out = Emitter::new(Vec::new());
        write(&mut out).unwrap();
        let line = String::from_utf8(out.into_inner()).unwrap();
        line.strip_prefix("k: ").unwrap().trim_end().to_owned()
    }

    proptest! {
        #[test]
        fn loads_are_rounded_as_floating_point_numbers(
            load in prop_oneof![0..1_u64 << 20, 0..1_u64 << 50, (0..1_u64 << 20).prop_map(|odd| odd * 8192)],
        ) {
            let expected = format!("{:.2}", load as f64 / 65536.0);
            prop_assert_eq!(line(|out| write_load(out, "k", load)), expected);
        }

        #[test]
        fn times_are_those_of_the_pattern(
            seconds in prop_oneof![0..4_000_000_000_i64, -100_000_000_000..300_000_000_000_i64],
            nanoseconds in 0..1_000_000_000_u32,
            offset in prop_oneof![(-14 * 4..14 * 4).prop_map(|quarter| quarter * 900), -80_000..80_000],
        ) {
            let zone = chrono::FixedOffset::east_opt(offset).unwrap();
            let stamp = DateTime::from_timestamp(seconds, nanoseconds).unwrap().with_timezone(&zone);
            let pattern = stamp.format("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string();
            prop_assert_eq!(line(|out| write_time(out, "k", &stamp, true)), pattern);
            let pattern = stamp.format("%Y-%m-%dT%H:%M:%S%:z").to_string();
            prop_assert_eq!(line(|out| write_time(out, "k", &stamp, false)), pattern);
        }

        #[test]
        fn durations_are_rounded_as_floating_point_numbers(
            seconds in prop_oneof![0..100_u64, 0..200_000_u64],
            micros in 0..1_000_000_u32,
            nanos in prop_oneof![Just(0), 0..1000_u32],
        ) {
            let duration = Duration::new(seconds, micros * 1000 + nanos);
            let expected = format!("{:.3}", duration.as_secs_f64());
            prop_assert_eq!(line(|out| write_seconds(out, "k", duration)), expected);
        }
    }

    fn stamp() -> Stamp {
        DateTime::parse_from_rfc3339("2026-11-21T07:13:11.6309+05:30").unwrap()
    }

    fn file(key: &str, source: Source) -> FileEntry<'static> {
        let stat = Stat {
            mode: 0o100_644,
            size: 5,
            inode: 7,
            links: 1,
            block_size: 4096,
            blocks: 8,
            modified: stamp(),
            accessed: stamp(),
            changed: stamp(),
            uid: 1000,
            user: Some(b"u".to_vec()),
            gid: 100,
            group: None,
        };
        let key = key.as_bytes().to_vec();
        FileEntry {
            key,
            lfn: None,
            note: None,
            source,
            stat: Ok((&stat).into()),
            output: None,
            payload: None,
        }
    }

    fn invocation() -> Invocation<'static> {
        Invocation {
            start: stamp(),
            duration: Duration::from_millis(8),
            transformation: Some(b"ns::tr:1.0".to_vec()),
            derivation: Some(b"ID1".to_vec()),
            resource: Some(Vec::new()),
            wf_label: None,
            wf_stamp: None,
            identity: (&Identity {
                host_address: "192.0.2.2".into(),
                umask: 0o22,
                pid: 9,
                user: Some(b"123".to_vec()),
                ..Identity::default()
            })
                .into(),
            jobs: vec![(
                Stage::Main,
                Job {
                    start: stamp(),
                    duration: Duration::ZERO,
                    pid: Some(10),
                    usage: Usage {
                        user_time: Duration::from_millis(3),
                        max_rss_kib: 1612,
                        ..Usage::default()
                    },
                    status: Status::Exited { code: 3 },
                    executable: file("", Source::Name(b"/usr/bin/a: b".to_vec())),
                    arguments: vec![b"-c".to_vec(), b"a \"b\"\\\n\xff".to_vec()],
                },
            )],
            job_ids: JobIds::default(),
            cwd: b"/scratch/run".to_vec(),
            usage: Usage::default(),
            machine: None,
            files: vec![
                file("*x", Source::Name(b"/f".to_vec())),
                file("stdin", Source::Descriptor(0)),
            ],
            integrity_data: Cow::Borrowed(b"    k:\n      size: 6\n"),
            environment: Some(vec![(b"A\"B".to_vec(), b"c\\d".to_vec())]),
            limits: Some(vec![("RLIMIT_CORE".into(), Some(0), None)]),
        }
    }

    fn text(invocation: &Invocation<'_>) -> String {
        let mut out = Vec::new();
        invocation.write_to(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_formatted_as_readers_expect() {
        let text = text(&invocation());
        for lines in [
            "- invocation: True\n  version: 3.0\n  start: 2026-11-21T07:13:11.630+05:30\n  duration: 0.008\n",
            "  derivation: \"ID1\"\n  hostaddr: 192.0.2.2\n  pid: 9\n  uid: 0\n  user: \"123\"\n  gid: 0\n  umask: 0o0022\n",
            "    duration: 0.003\n    pid: 10\n    usage:\n      utime: 0.003\n      stime: 0.000\n      maxrss: 1612\n",
            "    status:\n      raw: 768\n      regular_exitcode: 3\n    executable:\n      file_name: \"/usr/bin/a: b\"\n",
            "      mode: 0o100644\n      size: 5\n      inode: 7\n      nlink: 1\n      blksize: 4096\n      blocks: 8\n",
            "      mtime: 2026-11-21T07:13:11+05:30\n",
            "    argument_vector:\n      - \"-c\"\n      - \"a \\\"b\\\"\\\\\\n\u{fffd}\"\n    procs:\n  jobids:\n",
            "  files:\n    \"*x\":\n      file_name: /f\n",
            "      gid: 100\n    k:\n      size: 6\n    stdin:\n      descriptor_number: 0\n",
            "  environment:\n    \"A\\\"B\": \"c\\\\d\"\n  limits:\n    RLIMIT_CORE_soft: 0\n    RLIMIT_CORE_hard: unlimited\n",
        ] {
            assert!(text.contains(lines), "{lines}\nnot in\n{text}");
        }
        assert!(text.lines().skip(1).all(|line| line.starts_with("  ")));
    }

    #[test]
    fn statuses_are_encoded_like_wait_does() {
        let killed = Status::Signalled {
            signal: 11,
            name: "Segmentation fault".into(),
            core: true,
        };
        assert_eq!(killed.raw(), 139);
        let failed = Status::Failed {
            raw: -127,
            errno: 2,
            text: "No such file or directory".into(),
        };
        let mut invocation = invocation();
        for (status, lines) in [
            (
                killed,
                "raw: 139\n      signalled_signal: 11\n      singalled_name: \"Segmentation fault\"\n",
            ),
            (
                failed,
                "raw: -127\n      failure_error: 2   No such file or directory\n",
            ),
        ] {
            invocation.jobs[0].1.status = status;
            assert!(text(&invocation).contains(lines), "{lines}");
        }
    }

    #[test]
    fn outputs_have_checksums_and_streams_text() {
        let mut invocation = invocation();
        let checksum = |sha256: &str| {
            Some(ChecksummedFile::Checksum {
                sha256: sha256.into(),
                took: Duration::from_millis(14),
            })
        };
        invocation.files[0].output = checksum("5891b5b522d5df08");
        invocation.files[1].payload = Some(Payload {
            truncated: false,
            text: "a\n b\n".into(),
        });
        let plain = text(&invocation);
        assert!(
            plain.contains(
                "      output: True\n      sha256: 5891b5b522d5df08\n      checksum_timing: 0.01\n"
            )
        );
        assert!(
            plain.contains("      data_truncated: false\n      data: |\n        a\n         b\n"),
            "{plain}"
        );
        invocation.files[0].output = checksum("12e4");
        assert!(text(&invocation).contains("sha256: \"12e4\"\n"));
        invocation.files[0].output = Some(ChecksummedFile::Unreadable);
        assert!(text(&invocation).contains("integrity_error: failed creating a checksum\n"));
    }
}
