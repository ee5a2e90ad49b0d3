//! Prints the output of a task.

use pmc_terminal::CopyWriter;

use super::Stream;
use super::decode::Decoder;
use super::tap::Tap;
use crate::cli;

/// Prints what a task wrote, without the records around it.
pub struct Show {
    decoder: Decoder,
    writers: Writers,
}

/// Where the streams go; `None` for nowhere.
pub struct Writers {
    out: Option<CopyWriter>,
    err: Option<CopyWriter>,
}

impl Show {
    pub fn new(arguments: &cli::Log, tap: Tap) -> Self {
        let writers = Writers::new(arguments.stdout, arguments.stderr);
        Self {
            decoder: Decoder::new(tap, writers.wanted()),
            writers,
        }
    }

    /// Prints what kickstart has captured since the last call. Returns whether there was anything.
    pub fn tap(&mut self) -> bool {
        let Self { decoder, writers } = self;
        decoder
            .tap()
            .poll(&mut |stream, bytes| writers.write(stream, bytes))
    }

    /// Takes the next bytes of a file.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let Self { decoder, writers } = self;
        decoder.push(stream, bytes, &mut |stream, bytes| writers.write(stream, bytes));
    }

    /// Takes the end of the files.
    pub fn finish(&mut self) {
        let Self { decoder, writers } = self;
        decoder.finish(&mut |stream, bytes| writers.write(stream, bytes));
    }

    /// Returns whether the executor's record of this task has come, which is the end of its output.
    pub fn has_record_of(&self, task: &str) -> bool {
        self.decoder.has_record_of(task)
    }

    /// Returns whether nobody reads what is printed.
    pub fn is_closed(&self) -> bool {
        self.writers.are_closed()
    }

    /// Ends the printed streams.
    pub fn end(self) {
        self.writers.end();
    }
}

impl Writers {
    /// Prints both streams where they belong, or one of them to standard output.
    pub fn new(only_out: bool, only_err: bool) -> Self {
        let (out, err) = match (only_out, only_err) {
            (true, false) => (Some(CopyWriter::to_stdout()), None),
            (false, true) => (None, Some(CopyWriter::to_stdout())),
            _ => (Some(CopyWriter::to_stdout()), Some(CopyWriter::to_stderr())),
        };
        Self { out, err }
    }

    /// Returns which streams are printed.
    pub fn wanted(&self) -> [bool; 2] {
        [self.out.is_some(), self.err.is_some()]
    }

    /// Writes what a task wrote to a stream.
    pub fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let to = match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        };
        if let Some(writer) = to
            && !bytes.is_empty()
        {
            writer.write(bytes);
        }
    }

    /// Returns whether nobody reads what is printed.
    pub fn are_closed(&self) -> bool {
        let writers = [&self.out, &self.err];
        !writers.into_iter().flatten().any(CopyWriter::is_open)
    }

    /// Returns whether nobody reads one of the printed streams.
    pub fn is_one_closed(&self) -> bool {
        let writers = [&self.out, &self.err];
        !writers.into_iter().flatten().all(CopyWriter::is_open)
    }

    /// Ends the printed streams.
    pub fn end(self) {
        [self.out, self.err]
            .into_iter()
            .flatten()
            .for_each(CopyWriter::end);
    }
}
