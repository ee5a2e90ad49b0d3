//! Transfers between two remote places, through a temporary local file.

use std::time::{Instant, SystemTime};

use super::Engine;
use crate::error::TransferError;
use crate::protocol::{Handler, Pair};
use crate::spec::{Location, Transfer};
use crate::url::Url;

/// Site label of the temporary file.
const HERE: &str = "local";

impl Engine<'_> {
    /// Brings the source here with `first`, and from here to the destination with `second`. Each half counts as
    /// an attempt of its own in the record and the statistics.
    pub(super) fn staged(
        &self,
        pair: &Pair<'_>,
        first: &dyn Handler,
        second: &dyn Handler,
    ) -> Result<(), TransferError> {
        let directory = tempfile::Builder::new()
            .prefix("pegasus-transfer-")
            .tempdir_in(&self.settings.temporary)
            .map_err(|error| TransferError::io("create a directory in", &self.settings.temporary, error))?;
        let here = Location {
            site: HERE.to_owned(),
            url: Url::file(directory.path().join("data")),
            image: pair.destination().image.clone(),
        };
        let fetch = Transfer {
            destination: here.clone(),
            verify_checksum: false,
            ..pair.transfer.clone()
        };
        let mut destination = pair.destination().clone();
        if destination.url.scheme() == "symlink" {
            destination.url = Url::file(destination.url.path().to_owned());
        }
        let bring = Transfer {
            sources: vec![here.clone()],
            destination,
            generate_checksum: false,
            ..pair.transfer.clone()
        };
        self.half(&fetch, pair.source, pair.attempt, first)?;
        self.half(&bring, &here, pair.attempt, second)
    }

    fn half(
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
            .transfer(&self.copying(), std::slice::from_ref(&pair))
            .pop();
        let result = result.unwrap_or(Err(TransferError::Skipped("its handler gave no answer")));
        self.finish(&pair, result, start)
    }
}
