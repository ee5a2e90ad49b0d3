//! Containers of transformation catalogs.

use std::fmt;

use pmc_job_files::ContainerKind;

use crate::profiles::Profiles;

/// Site of an image without a site, if it is no local file.
const IMAGE_SITE: &str = "CONTAINER_SITE";

/// Suffixes of images that Apptainer and Singularity read.
const SUFFIXES: [&str; 10] = [
    ".sif", ".simg", ".img", ".sqsh", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".cpio", ".cpio.gz",
];

/// An image and how programs run in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    /// Name in the catalog.
    pub name: String,
    /// Program that runs the image.
    pub kind: ContainerKind,
    /// URL of the image.
    pub image: String,
    /// Site of the image.
    pub image_site: String,
    /// Directories of the node in the container, `HERE:THERE[:OPTIONS]`.
    pub mounts: Vec<String>,
    /// Jobs fetch the image from its own location.
    pub bypass: bool,
    /// SHA-256 of the image.
    pub sha256: Option<String>,
    /// Profiles of jobs in the container.
    pub profiles: Profiles,
    /// Name of the file with the image in the directory of a job; that of the image for shifter.
    pub lfn: String,
}

impl Container {
    /// Returns whether the image is a file that jobs fetch.
    pub(crate) fn has_file(&self) -> bool {
        self.kind != ContainerKind::Shifter
    }
}

/// An image that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadImage {
    /// Neither a path nor a URL.
    NoUrl(String),
    /// A URL with nothing behind the host.
    NoPath(String),
    /// No suffix of an image.
    Suffix { url: String, suffix: String },
}

impl fmt::Display for BadImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadImage::NoUrl(url) => write!(f, "the image `{url}` is neither an absolute path nor a URL"),
            BadImage::NoPath(url) => write!(f, "Unable to parse URL `{url}`: it has no path behind the host"),
            BadImage::Suffix { url, suffix } => {
                write!(f, "Invalid suffix `{suffix}` determined for the image `{url}`")
            }
        }
    }
}

impl BadImage {
    /// Returns what to do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            BadImage::NoUrl(_) => {
                "for example docker:///library/busybox, http://HOST/base.sif, /path/base.sif".into()
            }
            BadImage::NoPath(url) => {
                let (scheme, name) = url.split_once("://").unwrap_or(("docker", url));
                format!("write {scheme}:///{name}")
            }
            BadImage::Suffix { .. } => format!(
                "the suffix begins at the first dot of the file name; rename the image to end with one of {}, without another \
                 dot",
                SUFFIXES.join(" ")
            ),
        }
    }
}

/// A container while its catalog is read.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) kind: Option<ContainerKind>,
    pub(crate) image: String,
    pub(crate) image_site: Option<String>,
    pub(crate) mounts: Vec<String>,
    pub(crate) bypass: bool,
    pub(crate) sha256: Option<String>,
    pub(crate) profiles: Profiles,
}

impl Draft {
    /// Completes the container, `None` without a type.
    ///
    /// # Errors
    /// An image that cannot be used.
    pub(crate) fn finish(self) -> Result<Option<Container>, BadImage> {
        let Some(kind) = self.kind else { return Ok(None) };
        let image = match self.image.starts_with('/') {
            true => format!("file://{}", self.image),
            false => self.image,
        };
        let lfn = image_lfn(kind, &self.name, &image)?;
        let default = if image.starts_with("file://") {
            "local"
        } else {
            IMAGE_SITE
        };
        Ok(Some(Container {
            name: self.name,
            kind,
            image_site: self.image_site.unwrap_or_else(|| default.to_owned()),
            image,
            mounts: self.mounts,
            bypass: self.bypass,
            sha256: self.sha256,
            profiles: self.profiles,
            lfn,
        }))
    }
}

/// Returns the logical name of an image.
fn image_lfn(kind: ContainerKind, name: &str, url: &str) -> Result<String, BadImage> {
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| BadImage::NoUrl(url.to_owned()))?;
    let path = rest
        .split_once('/')
        .map(|(_, path)| path)
        .filter(|path| !path.is_empty())
        .ok_or_else(|| BadImage::NoPath(url.to_owned()))?;
    let file = path.rsplit('/').next().unwrap_or(path);
    Ok(match kind {
        ContainerKind::Docker | ContainerKind::Podman => name.to_owned(),
        ContainerKind::Singularity if matches!(scheme, "shub" | "docker") => format!("{name}.simg"),
        ContainerKind::Singularity if file.contains(':') => name.to_owned(),
        ContainerKind::Singularity => match file.find('.') {
            None => name.to_owned(),
            Some(dot) if SUFFIXES.contains(&&file[dot..]) => format!("{name}{}", &file[dot..]),
            Some(dot) => {
                return Err(BadImage::Suffix {
                    suffix: file[dot..].to_owned(),
                    url: url.to_owned(),
                });
            }
        },
        ContainerKind::Shifter => {
            let image = rest.trim_start_matches('/');
            match scheme {
                "shifter" => image.to_owned(),
                scheme => format!("{scheme}:{image}"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lfn(kind: &str, url: &str) -> Result<String, String> {
        let kind = ContainerKind::parse(kind).expect("a known type");
        image_lfn(kind, "box", url).map_err(|error| error.to_string())
    }

    #[test]
    fn images_have_the_names_of_the_specification() {
        for (kind, url, name) in [
            ("docker", "docker:///library/busybox:1.36", "box"),
            ("podman", "http://host/a.tar.gz", "box"),
            ("singularity", "docker://busybox/base", "box.simg"),
            ("singularity", "shub://user/image", "box.simg"),
            ("apptainer", "library://me/default/pick:1.0", "box"),
            ("singularity", "oras://host/base", "box"),
            ("singularity", "file:///cvmfs/host/uniq:latest", "box"),
            ("singularity", "http://host/tools/base.sif", "box.sif"),
            ("singularity", "http://host/base.tar.gz", "box.tar.gz"),
            ("shifter", "shifter:///docker/centos:7", "docker/centos:7"),
            ("shifter", "docker:///centos:7", "docker:centos:7"),
        ] {
            assert_eq!(lfn(kind, url).as_deref(), Ok(name), "{kind} {url}");
        }
    }

    #[test]
    fn unusable_images_are_refused() {
        for (kind, url, message) in [
            (
                "singularity",
                "http://host/base-1.2.sif",
                "Invalid suffix `.2.sif`",
            ),
            ("docker", "docker://busybox:1.36", "Unable to parse URL"),
            ("docker", "docker://busybox/", "Unable to parse URL"),
            ("docker", "busybox", "neither an absolute path nor a URL"),
        ] {
            let error = lfn(kind, url).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
