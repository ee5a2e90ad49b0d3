//! Handlers for container images: `docker`, `shub`, `library` and `oras`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use super::{Tool, download, not_an_option};
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Environment;
use crate::url::Url;

/// Docker images with `docker`, else `podman`.
pub(in crate::remote) struct Docker {
    pub(in crate::remote) environment: Arc<Environment>,
}

/// Apptainer and Singularity images with `apptainer`, else `singularity`.
pub(in crate::remote) struct Apptainer {
    pub(in crate::remote) environment: Arc<Environment>,
}

/// Returns the name of an image: the URL without scheme and leading slashes.
fn image(url: &Url) -> Result<OsString, TransferError> {
    let name = [url.host().as_bytes(), url.path().as_os_str().as_bytes()].concat();
    let start = name.iter().position(|byte| *byte != b'/').unwrap_or(name.len());
    let name = &name[start..];
    not_an_option(&String::from_utf8_lossy(name), "name of an image")?;
    Ok(OsString::from_vec(name.to_vec()))
}

/// Returns the name of an image with its registry. Docker takes its own one for granted, podman does not.
fn with_registry(image: OsString) -> OsString {
    let first = image
        .as_bytes()
        .split(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    let is_host = first.len() < image.len() && (first.contains(&b'.') || first.contains(&b':'));
    if is_host || first == b"localhost" {
        return image;
    }
    let mut full = OsString::from("docker.io/");
    full.push(image);
    full
}

impl Handler for Docker {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!((from, to), ("docker", "file" | "file::docker"))
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let program = self
            .environment
            .require_program(&["docker", "podman"], "docker")?;
        let mut image = image(&pair.source.url)?;
        if program.ends_with("podman") {
            image = with_registry(image);
        }
        download(context, pair, |path| {
            let mut pull = Tool::new(&program);
            pull.arg("pull").arg(&image);
            pull.run(&self.environment, context)?;
            let mut save = Tool::new(&program);
            save.arg("save").arg("-o").arg(path).arg(&image);
            save.run(&self.environment, context).map(drop)
        })
    }
}

impl Handler for Apptainer {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!(
            (from, to),
            ("shub" | "library" | "oras", "file" | "file::singularity") | ("docker", "file::singularity")
        )
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let url = &pair.source.url;
        let program = self
            .environment
            .require_program(&["apptainer", "singularity"], url.scheme())?;
        download(context, pair, |path| {
            let mut tool = Tool::new(&program);
            tool.args(["pull", "--allow-unauthenticated"])
                .arg(path)
                .arg(OsStr::from_bytes(&url.to_bytes()));
            tool.run(&self.environment, context).map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_named_for_podman() {
        for (image, full) in [
            ("library/busybox:1.36", "docker.io/library/busybox:1.36"),
            ("busybox:1.36", "docker.io/busybox:1.36"),
            ("ghcr.io/a/b", "ghcr.io/a/b"),
            ("host:5000/a", "host:5000/a"),
            ("localhost/a", "localhost/a"),
        ] {
            assert_eq!(with_registry(image.into()), OsStr::new(full));
        }
    }
}
