//! Handler of local files: `file`, `symlink` and `moveto`.

use super::{Context, Done, Handler, Pair, stays};
use crate::error::TransferError;
use crate::local::{self, CopyOptions};
use crate::spec::Location;

pub(super) struct Local;

impl Handler for Local {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!(
            (from, to),
            ("file", "file") | ("file", "symlink") | ("symlink", "symlink") | ("file", "moveto")
        )
    }

    fn manages(&self, scheme: &str) -> bool {
        matches!(scheme, "file" | "symlink")
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (
            context.path(&pair.source.url),
            context.path(&pair.destination().url),
        );
        let options = CopyOptions {
            hash: pair.transfer.generate_checksum,
            cancel: context.cancel.clone(),
        };
        match pair.destination().url.scheme() {
            "file" if !context.symlink => {
                let copied = local::copy_path(&source, &destination, &options)?;
                Ok(Done {
                    bytes: Some(copied.bytes),
                    sha256: copied.sha256,
                    path: Some(copied.path),
                })
            }
            "moveto" => {
                let moved = local::move_path(&source, &destination, &options)?;
                Ok(Done {
                    bytes: Some(moved.bytes),
                    sha256: moved.sha256,
                    path: Some(moved.path),
                })
            }
            _ => {
                let bytes = local::symlink(&source, &destination, pair.transfer.verify_symlink_source)?;
                Ok(Done {
                    bytes: Some(bytes),
                    ..Done::default()
                })
            }
        }
    }

    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        local::make_directory(&context.path(&place.url))
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        let removed = local::remove(
            &context.path(&place.url),
            recursive && place.url.scheme() == "file",
        );
        match removed {
            Err(TransferError::IsADirectory(_)) if context.keeps_directories => {
                let reason = "it is a directory, and only files were to be removed";
                stays(context, place, reason);
                Ok(())
            }
            result => result,
        }
    }
}
