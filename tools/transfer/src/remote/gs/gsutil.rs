//! Google Cloud Storage with `gsutil`, for PKCS#12 keys.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::NamedTempFile;

use crate::error::{Retry, TransferError};
use crate::protocol::{Context, Done, Pair};
use crate::remote::Environment;
use crate::remote::program::{Tool, download, temporary_file, upload_source, uploaded};
use crate::spec::Location;
use crate::url::Url;

/// The program with a configuration file for the key.
pub(super) struct Gsutil {
    environment: Arc<Environment>,
    program: PathBuf,
    configuration: NamedTempFile,
}

impl Gsutil {
    pub(super) fn new(
        environment: &Arc<Environment>,
        context: &Context<'_>,
        boto: &str,
        key: &Path,
    ) -> Result<Self, TransferError> {
        let text = with_key(boto, key);
        Ok(Self {
            environment: Arc::clone(environment),
            program: environment.require_program(&["gsutil"], "gs")?,
            configuration: temporary_file(context, ".boto", &text)?,
        })
    }

    fn tool(&self) -> Tool<'_> {
        let mut tool = Tool::new(&self.program);
        // gsutil ships with its own Python.
        tool.env("PYTHONPATH", "")
            .env("BOTO_CONFIG", self.configuration.path());
        tool
    }

    pub(super) fn copy(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (&pair.source.url, &pair.destination().url);
        let run = |from: OsString, to: OsString| {
            let mut tool = self.tool();
            tool.args(["-q", "cp"]).arg(from).arg(to);
            tool.run(&self.environment, context).map(drop)
        };
        if destination.is_local() {
            let from = address(source)?;
            return download(context, pair, |path| run(from, path.into()));
        }
        let to = address(destination)?;
        if !source.is_local() {
            run(address(source)?, to)?;
            return Ok(Done::default());
        }
        let (path, bytes) = upload_source(context, pair)?;
        run(literal(path.into_os_string())?, to)?;
        Ok(uploaded(bytes))
    }

    pub(super) fn make_bucket(&self, context: &Context<'_>, bucket: &str) -> Result<(), TransferError> {
        let mut tool = self.tool();
        tool.arg("mb").arg(format!("gs://{bucket}/"));
        let outcome = tool.outcome(&self.environment, context)?;
        if outcome.status.success() || outcome.output.contains("already") {
            return Ok(());
        }
        Err(tool.failure(&outcome, Retry::Later))
    }

    pub(super) fn remove(
        &self,
        context: &Context<'_>,
        place: &Location,
        recursive: bool,
    ) -> Result<(), TransferError> {
        let mut tool = self.tool();
        tool.arg("rm");
        if recursive {
            tool.arg("-r");
        }
        tool.arg(address(&place.url)?);
        let outcome = tool.outcome(&self.environment, context)?;
        if outcome.status.success() || outcome.output.contains("No URLs matched") {
            return Ok(());
        }
        Err(tool.failure(&outcome, Retry::Later))
    }
}

fn address(url: &Url) -> Result<OsString, TransferError> {
    literal(OsString::from_vec(url.to_bytes()))
}

/// Refuses names that `gsutil` would read as a pattern: it has no way to escape them.
fn literal(name: OsString) -> Result<OsString, TransferError> {
    if name.as_bytes().iter().any(|byte| b"*?[".contains(byte)) {
        return Err(TransferError::remote(
            "gsutil cannot transfer a file with '*', '?' or '[' in its name",
            Retry::Never,
        ));
    }
    Ok(name)
}

/// Returns the configuration with the key in the section `[Credentials]`.
fn with_key(boto: &str, key: &Path) -> Vec<u8> {
    let mut out = b"[Credentials]\ngs_service_key_file = ".to_vec();
    out.extend_from_slice(key.as_os_str().as_bytes());
    out.push(b'\n');
    let mut inside = false;
    let (mut credentials, mut others) = (String::new(), String::new());
    for line in boto.lines() {
        if line.trim_start().starts_with('[') {
            inside = line.trim() == "[Credentials]";
            if inside {
                continue;
            }
        }
        let replaced = inside && line.trim_start().starts_with("gs_service_key_file");
        if !replaced {
            let part = if inside { &mut credentials } else { &mut others };
            part.push_str(line);
            part.push('\n');
        }
    }
    out.extend_from_slice(credentials.as_bytes());
    out.extend_from_slice(others.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_replaces_the_one_in_credentials() {
        let boto = "[Boto]\nx = 1\n[Credentials]\ngs_service_key_file = old\ny = 2\n[Z]\n";
        assert_eq!(
            String::from_utf8_lossy(&with_key(boto, Path::new("/k"))),
            "[Credentials]\ngs_service_key_file = /k\ny = 2\n[Boto]\nx = 1\n[Z]\n"
        );
    }
}
