//! Checksums and the record after each attempt of a transfer.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;

use super::settings::random_below;
use super::{Engine, lock};
use crate::error::TransferError;
use crate::integrity::{self, Checksums};
use crate::local;
use crate::observer::Event;
use crate::protocol::{Done, Pair};
use crate::report::Attempt;
use crate::shown;
use crate::spec::{Location, Transfer};
use crate::url::Url;

impl Engine<'_> {
    /// Publishes and verifies checksums after an attempt, and records it.
    pub(super) fn finish_attempt(
        &self,
        pair: &Pair<'_>,
        result: Result<Done, TransferError>,
        (start, clock): (SystemTime, Instant),
    ) -> Result<(), TransferError> {
        let (from, to) = (pair.source, pair.destination());
        if pair.transfer.optional
            && let Err(error @ (TransferError::SourceMissing(_) | TransferError::LinkSourceMissing(_))) =
                &result
        {
            let detail = format!("{error}; the file is optional, so nothing is transferred");
            self.observer.event(&Event::Detail(detail));
            return Ok(());
        }
        let result = result.and_then(|done| {
            self.corrupt(pair, &done);
            if pair.transfer.generate_checksum {
                self.publish_checksum(pair, &done, clock.elapsed());
            }
            if pair.transfer.verify_checksum {
                self.verify(pair.transfer, &done)?;
            }
            Ok(done)
        });
        let attempt = Attempt {
            source: from.url.shown(),
            source_site: from.site.clone(),
            destination: to.url.shown(),
            destination_site: to.site.clone(),
            lfn: String::from_utf8_lossy(&pair.transfer.lfn).into_owned(),
            success: result.is_ok(),
            start,
            duration: clock.elapsed(),
            bytes: result.as_ref().ok().and_then(|done| done.bytes).unwrap_or(0),
            local: from.url.is_local() || to.url.is_local(),
        };
        self.observer
            .event(&Event::Transfer(&attempt, result.as_ref().err()));
        lock(&self.report).attempts.push(attempt);
        result.map(drop)
    }

    /// Publishes the checksum of a local source, else of the destination; once per logical name. A failure
    /// gives a warning only.
    fn publish_checksum(&self, pair: &Pair<'_>, done: &Done, took: Duration) {
        let destination = pair.destination();
        let copy = done
            .path
            .clone()
            .unwrap_or_else(|| self.context.path(&destination.url));
        let source = self.context.path(&pair.source.url);
        // A moved file is at its destination.
        let path = if pair.source.url.is_local() && source.exists() {
            source
        } else {
            copy
        };
        let lfn = if pair.transfer.lfn.is_empty() {
            destination
                .url
                .path()
                .file_name()
                .unwrap_or_default()
                .as_encoded_bytes()
                .to_vec()
        } else {
            pair.transfer.lfn.clone()
        };
        if !lock(&self.published).insert(lfn.clone()) {
            return;
        }
        let clock = Instant::now();
        let hashed = match done.sha256 {
            Some(sha256) => Ok(Some((sha256, took))),
            None => local::hash_path(&path, self.context.cancel)
                .map(|hash| hash.map(|sha256| (sha256, clock.elapsed()))),
        };
        let warn = |message: String| {
            let name = shown::bytes(&lfn);
            self.observer.event(&Event::Warning(format!(
                "no checksum of {name} is published: {message}"
            )));
        };
        let (sha256, took) = match hashed {
            Ok(Some(hashed)) => hashed,
            Ok(None) => return warn("it is a directory".to_owned()),
            Err(error) => return warn(error.to_string()),
        };
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) => return warn(error.to_string()),
        };
        let published = (lfn.clone(), integrity::hex(&sha256));
        lock(&self.report).published.push(published);
        let block = integrity::record(&lfn, &path, &meta, &sha256, took);
        match &self.settings.integrity_data {
            Some(file) => {
                if let Err(error) = integrity::append(file, &block) {
                    warn(format!("{}: {error}", shown::path(file)));
                }
            }
            None => self.observer.event(&Event::Checksum(&block)),
        }
    }

    /// Returns the known checksums: those in the metadata files of the settings, else those in the metadata
    /// files of the working directory.
    fn known(&self) -> Result<&Checksums, TransferError> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let mut known = Checksums::new();
        for file in &self.settings.known_checksums {
            let read = integrity::read_metadata(file);
            known.extend(read.map_err(|error| TransferError::io("read the checksums in", file, error))?);
        }
        if self.settings.known_checksums.is_empty() {
            known = integrity::known_checksums(self.context.base.unwrap_or(Path::new(".")));
        }
        Ok(self.known.get_or_init(|| known))
    }

    /// Compares the copy with the known checksum.
    fn verify(&self, transfer: &Transfer, done: &Done) -> Result<(), TransferError> {
        let known = self.known()?;
        let destination = &transfer.destination;
        let (_fetched, path) = if destination.url.is_local() {
            let path = done.path.clone();
            (None, path.unwrap_or_else(|| self.context.path(&destination.url)))
        } else {
            match self.fetch_back(transfer)? {
                Some((directory, path)) => (Some(directory), path),
                None => return Ok(()),
            }
        };
        let clock = Instant::now();
        let result = integrity::verify(&transfer.lfn, &path, known, self.context.cancel);
        if !matches!(result, Err(TransferError::ChecksumUnknown(_))) {
            lock(&self.report)
                .checks
                .add(&transfer.linkage, result.is_ok(), clock.elapsed());
        }
        result
    }

    /// Downloads a remote destination into a temporary directory; `None` if its protocol has no downloads.
    fn fetch_back(&self, transfer: &Transfer) -> Result<Option<(TempDir, PathBuf)>, TransferError> {
        let remote = &transfer.destination;
        let Some(handler) = self.registry.for_download(remote.url.scheme()) else {
            self.observer.event(&Event::Warning(format!(
                "{} cannot be verified: its protocol cannot be read",
                remote.url.shown()
            )));
            return Ok(None);
        };
        let directory = tempfile::Builder::new()
            .prefix("pegasus-transfer-")
            .tempdir_in(&self.settings.temporary)
            .map_err(|error| TransferError::io("create a directory in", &self.settings.temporary, error))?;
        let path = directory.path().join("data");
        let back = Transfer {
            sources: vec![remote.clone()],
            destination: Location {
                site: "local".to_owned(),
                url: Url::file(path.clone()),
                image: None,
            },
            generate_checksum: false,
            verify_checksum: false,
            ..transfer.clone()
        };
        let pair = Pair {
            transfer: &back,
            source: remote,
            attempt: 1,
        };
        let answer = handler.transfer_set(&self.copy_context(), &[pair]).pop();
        answer.unwrap_or(Err(TransferError::Skipped(super::NO_RESULT)))?;
        Ok(Some((directory, path)))
    }

    /// Corrupts some copies; a hook for tests.
    fn corrupt(&self, pair: &Pair<'_>, done: &Done) {
        if self.settings.error_rate == 0 || random_below(100) >= u32::from(self.settings.error_rate) {
            return;
        }
        if pair.destination().url.scheme() != "file" {
            return;
        }
        let path = done
            .path
            .clone()
            .unwrap_or_else(|| self.context.path(&pair.destination().url));
        let corrupted = fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| {
                std::io::Write::write_all(&mut file, b"spoilt by PEGASUS_TRANSFER_ERROR_RATE")
            });
        let outcome = if corrupted.is_ok() {
            "was spoilt"
        } else {
            "could not be spoilt"
        };
        let name = shown::path(&path);
        self.observer.event(&Event::Warning(format!(
            "PEGASUS_TRANSFER_ERROR_RATE: {name} {outcome}"
        )));
    }
}
