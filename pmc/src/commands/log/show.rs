//! Prints the output of a task.

use monitord_compat::record_reader::Record;
use pmc_monitor::task_output::{Piece, Splitter};
use pmc_terminal::{CopyWriter, message};

use crate::cli;

/// A file of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// That of standard output, which also holds the records.
    Out,
    /// That of standard error.
    Err,
}

/// Prints what a task wrote, without the records around it.
pub struct Show {
    splitter: Splitter,
    printer: Printer,
}

/// Where the streams go; `None` for nowhere.
struct Printer {
    out: Option<CopyWriter>,
    err: Option<CopyWriter>,
    /// Name of the task in the last record of the executor.
    ended: Option<String>,
}

impl Show {
    pub fn new(arguments: &cli::Log) -> Self {
        let (out, err) = match (arguments.stdout, arguments.stderr) {
            (true, _) => (Some(CopyWriter::to_stdout()), None),
            (_, true) => (None, Some(CopyWriter::to_stdout())),
            _ => (Some(CopyWriter::to_stdout()), Some(CopyWriter::to_stderr())),
        };
        Self {
            splitter: Splitter::default(),
            printer: Printer {
                out,
                err,
                ended: None,
            },
        }
    }

    /// Takes the next bytes of a file.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let printer = &mut self.printer;
        match stream {
            Stream::Out => self.splitter.push(bytes, |piece| printer.piece(piece)),
            Stream::Err => write(&mut printer.err, bytes),
        }
    }

    /// Takes the end of the files.
    pub fn finish(&mut self) {
        let printer = &mut self.printer;
        std::mem::take(&mut self.splitter).finish(|piece| printer.piece(piece));
    }

    /// Returns whether the executor's record of this task has come, which is the end of its output.
    pub fn has_record_of(&self, task: &str) -> bool {
        self.printer.ended.as_deref() == Some(task)
    }

    /// Returns whether nobody reads what is printed.
    pub fn is_closed(&self) -> bool {
        let writers = [&self.printer.out, &self.printer.err];
        !writers.into_iter().flatten().any(CopyWriter::is_open)
    }

    /// Ends the printed streams.
    pub fn end(self) {
        [self.printer.out, self.printer.err]
            .into_iter()
            .flatten()
            .for_each(CopyWriter::end);
    }
}

impl Printer {
    fn piece(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Text(text) => write(&mut self.out, text),
            Piece::Record(record) => self.record(&record),
            Piece::LargeRecord => message("pmc: a record of kickstart is too large to be shown"),
            Piece::Task(task) => self.ended = task.name,
        }
    }

    fn record(&mut self, record: &Record) {
        let streams = [
            (&mut self.out, &record.stdout, "output"),
            (&mut self.err, &record.stderr, "error"),
        ];
        for ((to, captured, name), file) in streams.into_iter().zip(&record.streams) {
            if to.is_none() {
                continue;
            }
            if let Some(path) = &file.name {
                message(format!(
                    "pmc: standard {name} of the program went to the file {path}"
                ));
            }
            let Some(text) = captured else { continue };
            if file.is_truncated {
                let all = file
                    .size
                    .map_or_else(String::new, |size| format!(" of {size} bytes"));
                message(format!(
                    "pmc: kickstart has kept only the end of standard {name}{all}"
                ));
            }
            write(to, text.as_bytes());
        }
    }
}

fn write(to: &mut Option<CopyWriter>, bytes: &[u8]) {
    if let Some(writer) = to
        && !bytes.is_empty()
    {
        writer.write(bytes);
    }
}
