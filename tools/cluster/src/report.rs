//! Writes output of commands, records and progress.

use std::fs::File;
use std::io::{self, Seek as _, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, FixedOffset};
use monitord_compat::sequence_record::{Place, SummaryRecord, TaskRecord};

/// Destinations of output, records and progress.
pub struct Report {
    out: Mutex<Out>,
    progress: Option<Progress>,
}

struct Out {
    output: Box<dyn Write + Send>,
    /// `None` means to `output`.
    records: Option<File>,
    error: Option<io::Error>,
}

/// The file of `-R`. Several programs may share it: each line is written in one piece.
pub struct Progress {
    file: File,
    head: String,
}

impl Progress {
    /// Writes to a file that is open for appending. Each line names the host and this process.
    #[must_use]
    pub fn new(file: File, host: &str, pid: u32) -> Self {
        Self {
            file,
            head: format!("host={host} cluster={pid}"),
        }
    }
}

impl Report {
    /// `output` receives what commands print and, without a file for records, the records.
    #[must_use]
    pub fn new(output: Box<dyn Write + Send>, records: Option<File>, progress: Option<Progress>) -> Self {
        Self {
            out: Mutex::new(Out {
                output,
                records,
                error: None,
            }),
            progress,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the start of a command.
    pub fn command_started(&self, place: Place, at: DateTime<FixedOffset>, pid: u32, app: &[u8]) {
        self.progress(place, at, &format!("event=start pid={pid}"), app);
    }

    /// Writes the captured output of a command and its record in one piece.
    pub fn command_ended(&self, task: &TaskRecord<'_>, printed: Option<File>) {
        let end = task.start + chrono::Duration::from_std(task.duration).unwrap_or_default();
        let what = format!(
            "event=end pid={} status={} duration={:.3}",
            task.pid,
            task.status,
            task.duration.as_secs_f64()
        );
        self.progress(task.place, end, &what, task.app);
        let mut record = Vec::new();
        task.write(&mut record);
        let mut out = self.lock();
        let result = printed
            .map_or(Ok(()), |file| copy(file, &mut out.output))
            .and_then(|()| out.record(&record));
        out.keep_error(result);
    }

    /// Writes the summary.
    pub fn summary(&self, summary: &SummaryRecord<'_>) {
        let mut record = Vec::new();
        summary.write(&mut record);
        let mut out = self.lock();
        let result = out.record(&record);
        out.keep_error(result);
    }

    /// Writes a line for debugging. Readers of records skip it.
    pub fn debug(&self, text: &str) {
        let mut out = self.lock();
        let result = out
            .output
            .write_all(format!("# pegasus-cluster: {text}\n").as_bytes())
            .and_then(|()| out.output.flush());
        out.keep_error(result);
    }

    /// Takes the first error of writing.
    pub fn error(&self) -> Option<io::Error> {
        self.lock().error.take()
    }

    fn progress(&self, place: Place, at: DateTime<FixedOffset>, what: &str, app: &[u8]) {
        let Some(progress) = &self.progress else { return };
        let id = match place {
            Place::Setup => "id=setup".to_owned(),
            Place::Cleanup => "id=cleanup".to_owned(),
            Place::Listed { number, line } => format!("id={number} line={line}"),
        };
        let line = format!(
            "{} {} {id} {what} app=\"{}\"\n",
            at.format("%Y-%m-%dT%H:%M:%S%.3f%:z"),
            progress.head,
            String::from_utf8_lossy(app).escape_default()
        );
        // Progress is optional: a full disk does not stop the work.
        let _ = (&progress.file).write_all(line.as_bytes());
    }
}

impl Out {
    fn record(&mut self, record: &[u8]) -> io::Result<()> {
        match &mut self.records {
            Some(file) => file.write_all(record),
            None => {
                self.output.write_all(record)?;
                self.output.flush()
            }
        }
    }

    fn keep_error(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }
}

/// Copies a whole file. Ends its last line, so that a record starts a line.
fn copy(mut file: File, out: &mut dyn Write) -> io::Result<()> {
    struct Last<'w>(&'w mut dyn Write, u8);
    impl Write for Last<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = self.0.write(bytes)?;
            if let Some(&last) = bytes[..n].last() {
                self.1 = last;
            }
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }
    file.rewind()?;
    let mut out = Last(out, b'\n');
    io::copy(&mut file, &mut out)?;
    if out.1 != b'\n' {
        out.write_all(b"\n")?;
    }
    Ok(())
}
