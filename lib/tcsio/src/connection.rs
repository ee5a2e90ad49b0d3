//! The connection of a process with the node service of its worker, and the files that it gets from there.

use std::fs::File;
use std::io::{self, Read, Seek as _, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use pmc_checkpoint::{BlockSums, verify};
use pmc_wire::checkpoint::{
    Figures, ToService, ToTask, VARIABLE, VERSION, errors, parse_address, receive, receive_descriptor, send,
};
use pmc_wire::peers;

use crate::Process;

/// Why something did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no service.
    #[error("this is no task of a run: {VARIABLE} is not set")]
    NoRun,
    /// The variable has another form.
    #[error("{VARIABLE} is {0:?}, not NAME:NUMBER")]
    Variable(String),
    /// The service cannot be reached, or has gone.
    #[error("the run cannot be reached: {0}")]
    Service(io::Error),
    /// The service cannot do that.
    #[error("{0}")]
    Refused(String),
    /// The service is of another version.
    #[error("the run is of another version than this program")]
    Answer,
    /// A file cannot be read or written.
    #[error("the checkpoint file cannot be used: {0}")]
    File(io::Error),
    /// A file is not what was saved.
    #[error("the checkpoint file {prefix} of series {series} is damaged")]
    Damaged {
        /// Its prefix.
        prefix: String,
        /// Its series.
        series: u64,
    },
}

/// The series from which an attempt goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given(pub Option<u64>);

/// A connection with the node service.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    given: Given,
}

/// A file that is written.
#[derive(Debug)]
pub struct Writing {
    prefix: String,
    series: u64,
    file: File,
    sums: BlockSums,
    figures: Figures,
}

/// A file that is read.
#[derive(Debug)]
pub struct Reading {
    prefix: String,
    series: u64,
    file: File,
    bytes: u64,
    figures: Figures,
}

impl Connection {
    /// Connects with the service that the value of the variable [`VARIABLE`] names.
    ///
    /// # Errors
    /// There is none, it refuses, or belongs to another user.
    pub fn open(address: Option<&str>, process: Process) -> Result<Self, ClientError> {
        let address = address.ok_or(ClientError::NoRun)?;
        let (name, submit) =
            parse_address(address).ok_or_else(|| ClientError::Variable(address.to_owned()))?;
        let stream = peers::connect(name).map_err(ClientError::Service)?;
        let mut connection = Self {
            stream,
            given: Given(None),
        };
        let Process { rank, ranks } = process;
        let hello = ToService::Hello {
            version: VERSION,
            submit,
            rank,
            ranks,
        };
        match connection.ask(&hello)? {
            ToTask::Ready { given } => connection.given = Given(Some(given).filter(|given| *given > 0)),
            _ => return Err(ClientError::Answer),
        }
        Ok(connection)
    }

    /// Returns the series from which the attempt goes on.
    #[must_use]
    pub fn given(&self) -> Option<u64> {
        self.given.0
    }

    fn ask(&self, message: &ToService) -> Result<ToTask, ClientError> {
        send(&self.stream, message).map_err(ClientError::Service)?;
        match receive(&self.stream).map_err(ClientError::Service)? {
            ToTask::Refused { reason } => Err(ClientError::Refused(reason)),
            answer => Ok(answer),
        }
    }

    fn is(&self, question: &ToService) -> Result<bool, ClientError> {
        match self.ask(question)? {
            ToTask::Yes => Ok(true),
            ToTask::No => Ok(false),
            _ => Err(ClientError::Answer),
        }
    }

    fn tell(&self, message: &ToService) -> Result<(), ClientError> {
        match self.ask(message)? {
            ToTask::Done => Ok(()),
            _ => Err(ClientError::Answer),
        }
    }

    /// Returns whether the task is to save its state now.
    ///
    /// # Errors
    /// The service does not say.
    pub fn is_due(&self) -> Result<bool, ClientError> {
        self.is(&ToService::IsDue)
    }

    /// Returns whether the run was asked to drain.
    ///
    /// # Errors
    /// The service does not say.
    pub fn is_draining(&self) -> Result<bool, ClientError> {
        self.is(&ToService::IsDraining)
    }

    /// Waits until what was saved is safe, but not for long.
    ///
    /// # Errors
    /// The service does not answer.
    pub fn finish(&self) -> Result<(), ClientError> {
        self.tell(&ToService::Finish)
    }

    /// Says something about the progress of the task.
    ///
    /// # Errors
    /// The service does not take it.
    pub fn message(&self, text: String) -> Result<(), ClientError> {
        self.tell(&ToService::Message { text })
    }

    /// Creates the file with this prefix of the next series.
    ///
    /// # Errors
    /// It is open already, there is no room, or this is no prefix.
    pub fn create(&self, prefix: &str) -> Result<Writing, ClientError> {
        let begin = Instant::now();
        let create = ToService::Create {
            prefix: prefix.to_owned(),
        };
        let ToTask::Created { series } = self.ask(&create)? else {
            return Err(ClientError::Answer);
        };
        let file = receive_descriptor(&self.stream).map_err(ClientError::Service)?;
        Ok(Writing {
            prefix: prefix.to_owned(),
            series,
            file: file.into(),
            sums: BlockSums::default(),
            figures: Figures {
                open: begin.elapsed().as_secs_f64(),
                ..Figures::default()
            },
        })
    }

    /// Lets a file count that was written.
    ///
    /// # Errors
    /// It does not count: an error has occurred before, or now.
    pub fn close(&self, file: Writing) -> Result<(), ClientError> {
        let Writing {
            prefix,
            sums,
            mut figures,
            ..
        } = file;
        figures.bytes = sums.bytes();
        self.tell(&ToService::Close {
            prefix,
            crc32: sums.finish(),
            figures,
        })
    }

    /// Opens the file with this prefix from the series that the attempt is given, and checks all its bytes.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn open_given(&self, prefix: &str) -> Result<Reading, ClientError> {
        let begin = Instant::now();
        let open = ToService::Open {
            prefix: prefix.to_owned(),
        };
        let ToTask::Opened { series, bytes, crc32 } = self.ask(&open)? else {
            return Err(ClientError::Answer);
        };
        let mut file = File::from(receive_descriptor(&self.stream).map_err(ClientError::Service)?);
        let prefix = prefix.to_owned();
        // A file that cannot be read is as good as one with other bytes.
        if !verify(&file, bytes, &crc32).unwrap_or(false) {
            let damaged = ToService::Damaged {
                prefix: prefix.clone(),
            };
            self.tell(&damaged)?;
            return Err(ClientError::Damaged { prefix, series });
        }
        file.rewind().map_err(ClientError::File)?;
        Ok(Reading {
            prefix,
            series,
            file,
            bytes,
            figures: Figures {
                open: begin.elapsed().as_secs_f64(),
                ..Figures::default()
            },
        })
    }

    /// Says what was read of a file.
    ///
    /// # Errors
    /// The service does not take it.
    pub fn end_reading(&self, file: Reading) -> Result<(), ClientError> {
        let Reading { prefix, figures, .. } = file;
        self.tell(&ToService::Read { prefix, figures })
    }
}

impl Writing {
    /// Number of the series.
    #[must_use]
    pub fn series(&self) -> u64 {
        self.series
    }

    /// The prefix of the file.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Appends bytes. After an error, the file never counts.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let begin = Instant::now();
        let written = self.file.write_all(bytes);
        if written.is_err() {
            self.figures.errors |= errors::WRITE;
        } else {
            self.sums.add(bytes);
        }
        self.figures.write += begin.elapsed().as_secs_f64();
        written.map_err(ClientError::File)
    }

    /// Lets the file never count: it is closed with an error.
    pub fn spoil(&mut self) {
        self.figures.errors |= errors::WRITE;
    }

    /// Copies all that was written.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn copy_to(&mut self, to: &mut impl Write) -> io::Result<u64> {
        self.file.rewind()?;
        io::copy(&mut self.file, to)
    }

    /// Notes seconds that closing takes beside what the service does.
    pub fn add_close_time(&mut self, seconds: f64) {
        self.figures.close += seconds;
    }
}

impl Reading {
    /// Number of the series.
    #[must_use]
    pub fn series(&self) -> u64 {
        self.series
    }

    /// The prefix of the file.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills a buffer with the next bytes.
    ///
    /// # Errors
    /// The file has fewer bytes left, or cannot be read.
    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ClientError> {
        let begin = Instant::now();
        let read = self.file.read_exact(buffer);
        match &read {
            Ok(()) => self.figures.bytes += buffer.len() as u64,
            Err(_) => self.figures.errors |= errors::READ,
        }
        self.figures.read += begin.elapsed().as_secs_f64();
        read.map_err(ClientError::File)
    }

    /// Copies all bytes that are left.
    ///
    /// # Errors
    /// They cannot be copied.
    pub fn copy_to(&mut self, to: &mut impl Write) -> io::Result<u64> {
        let begin = Instant::now();
        let copied = io::copy(&mut self.file, to)?;
        self.figures.bytes += copied;
        self.figures.read += begin.elapsed().as_secs_f64();
        Ok(copied)
    }
}
