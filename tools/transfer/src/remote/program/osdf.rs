//! Handler for `osdf`, `pelican` and `stash` with `pelican`, else `stashcp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use super::{Tool, download, upload_source, uploaded};
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair, stays};
use crate::remote::Environment;
use crate::spec::Location;

pub(in crate::remote) struct Osdf {
    pub(in crate::remote) environment: Arc<Environment>,
}

impl Osdf {
    fn copy(
        &self,
        context: &Context<'_>,
        scheme: &str,
        from: &OsStr,
        to: &OsStr,
    ) -> Result<(), TransferError> {
        let program = self
            .environment
            .require_program(&["pelican", "stashcp"], scheme)?;
        let mut tool = Tool::new(&program);
        if program.file_name() == Some(OsStr::new("pelican")) {
            tool.args(["object", "copy"]);
        }
        tool.env("http_proxy", "").arg(from).arg(to);
        tool.run(&self.environment, context).map(drop)
    }
}

impl Handler for Osdf {
    fn transfers(&self, from: &str, to: &str) -> bool {
        (self.manages(from) && to == "file") || (from == "file" && self.manages(to))
    }

    fn manages(&self, scheme: &str) -> bool {
        matches!(scheme, "osdf" | "pelican" | "stash")
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (&pair.source.url, &pair.destination().url);
        if destination.is_local() {
            let from = OsString::from_vec(source.to_bytes());
            download(context, pair, |path| {
                self.copy(context, source.scheme(), &from, path.as_os_str())
            })
        } else {
            let (path, bytes) = upload_source(context, pair)?;
            let to = OsString::from_vec(destination.to_bytes());
            self.copy(context, destination.scheme(), path.as_os_str(), &to)?;
            Ok(uploaded(bytes))
        }
    }

    /// Does nothing: uploads make directories.
    fn make_directory(&self, _: &Context<'_>, _: &Location) -> Result<(), TransferError> {
        Ok(())
    }

    /// Empties the object, as objects cannot be removed. Directories stay.
    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        if recursive {
            stays(context, place, "directories of the OSDF cannot be removed");
            return Ok(());
        }
        let to = OsString::from_vec(place.url.to_bytes());
        self.copy(
            context,
            place.url.scheme(),
            Path::new("/dev/null").as_os_str(),
            &to,
        )
    }
}
