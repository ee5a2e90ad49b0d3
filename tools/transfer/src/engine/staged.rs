//! Transfers between two remote locations, through a temporary local file.

use std::time::{Instant, SystemTime};

use super::Engine;
use crate::error::TransferError;
use crate::protocol::{Handler, Pair};
use crate::spec::{Location, Transfer};
use crate::url::Url;

/// Site label of the temporary file.
const LOCAL_SITE: &str = "local";

impl Engine<'_> {
    /// Downloads the source with `first`, then uploads the temporary file with `second`. The record and the
    /// statistics count each half as one attempt.
    pub(super) fn transfer_staged(
        &self,
        pair: &Pair<'_>,
        first: &dyn Handler,
        second: &dyn Handler,
    ) -> Result<(), TransferError> {
        let directory = tempfile::Builder::new()
            .prefix("pegasus-transfer-")
            .tempdir_in(&self.settings.temporary)
            .map_err(|error| TransferError::io("create a directory in", &self.settings.temporary, error))?;
        let temporary_file = Location {
            site: LOCAL_SITE.to_owned(),
            url: Url::file(directory.path().join("data")),
            image: pair.destination().image.clone(),
        };
        let download = Transfer {
            destination: temporary_file.clone(),
            verify_checksum: false,
            ..pair.transfer.clone()
        };
        let mut destination = pair.destination().clone();
        if destination.url.scheme() == "symlink" {
            destination.url = Url::file(destination.url.path().to_owned());
        }
        let upload = Transfer {
            sources: vec![temporary_file.clone()],
            destination,
            generate_checksum: false,
            ..pair.transfer.clone()
        };
        self.transfer_half(&download, pair.source, pair.attempt, first)?;
        self.transfer_half(&upload, &temporary_file, pair.attempt, second)
    }

    fn transfer_half(
        &self,
        transfer: &Transfer,
        source: &Location,
        attempt: u32,
        handler: &dyn Handler,
    ) -> Result<(), TransferError> {
        let pair = Pair {
            transfer,
            source,
            attempt,
        };
        let start = (SystemTime::now(), Instant::now());
        let result = handler
            .transfer_set(&self.copy_context(), std::slice::from_ref(&pair))
            .pop();
        let result = result.unwrap_or(Err(TransferError::Skipped(super::NO_RESULT)));
        self.finish_attempt(&pair, result, start)
    }
}
