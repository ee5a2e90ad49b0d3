//! Handler for `root`, `srm` and `gsidavs` with the gfal tools. They also serve `gsiftp`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use super::{Tool, download, file_address, upload_source, uploaded};
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Environment;
use crate::spec::Location;
use crate::url::Url;

pub(in crate::remote) struct Gfal {
    pub(in crate::remote) environment: Arc<Environment>,
}

/// Returns the URL as the tools expect it.
fn address(url: &Url) -> OsString {
    let bytes = url.to_bytes();
    OsString::from_vec(match bytes.strip_prefix(b"gsidavs") {
        Some(rest) => [b"davs", rest].concat(),
        None => bytes,
    })
}

impl Gfal {
    fn tool<T>(
        &self,
        name: &str,
        context: &Context<'_>,
        place: &Location,
        run: impl FnOnce(&mut Tool<'_>) -> Result<T, TransferError>,
    ) -> Result<T, TransferError> {
        let program = self.environment.require_program(&[name], place.url.scheme())?;
        let mut tool = Tool::new(&program);
        if let Some(proxy) = self
            .environment
            .key_file("X509_USER_PROXY", &place.site, context.observer)?
        {
            tool.env("X509_USER_PROXY", proxy);
        }
        run(&mut tool)
    }

    fn verbose(&self, tool: &mut Tool<'_>) {
        if self.environment.debug {
            tool.arg("-v");
        }
    }
}

impl Handler for Gfal {
    fn transfers(&self, from: &str, to: &str) -> bool {
        (self.manages(from) && to == "file") || (from == "file" && self.manages(to))
    }

    fn manages(&self, scheme: &str) -> bool {
        matches!(scheme, "root" | "srm" | "gsidavs")
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (pair.source, pair.destination());
        let copy = |place: &Location, from: OsString, to: OsString| {
            self.tool("gfal-copy", context, place, |tool| {
                tool.args(["-f", "-p", "-t", "7200", "-T", "7200"]);
                self.verbose(tool);
                tool.arg(from).arg(to);
                tool.run(&self.environment, context).map(drop)
            })
        };
        if destination.url.is_local() {
            download(context, pair, |path| {
                copy(source, address(&source.url), file_address(path)?.into())
            })
        } else if source.url.is_local() {
            let (path, bytes) = upload_source(context, pair)?;
            copy(
                destination,
                file_address(&path)?.into(),
                address(&destination.url),
            )?;
            Ok(uploaded(bytes))
        } else {
            copy(source, address(&source.url), address(&destination.url))?;
            Ok(Done::default())
        }
    }

    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        self.tool("gfal-mkdir", context, place, |tool| {
            tool.arg("-p");
            self.verbose(tool);
            tool.arg(address(&place.url));
            tool.run(&self.environment, context).map(drop)
        })
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        self.tool("gfal-rm", context, place, |tool| {
            self.verbose(tool);
            if recursive {
                tool.arg("-r");
            }
            tool.arg(address(&place.url));
            // gfal-rm also fails for missing files, so its exit status is ignored.
            tool.outcome(&self.environment, context).map(drop)
        })
    }
}
