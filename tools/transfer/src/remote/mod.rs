//! Handlers for all remote protocols.
//!
//! | protocols | implementation |
//! |---|---|
//! | `http`, `https`, `webdav`, `webdavs` | the HTTP client in [`http`] |
//! | `s3`, `s3s`, `gs` | requests of `objects` through that client, signed by `s3` and `gs` |
//! | `scp`, `sftp`, `gsiscp` | `scp` and `ssh`, or `gsiscp` and `gsissh` |
//! | `gsiftp`, `sshftp` | `gfal-copy`, else `globus-url-copy` |
//! | `root`, `srm`, `gsidavs` | the gfal tools |
//! | `go` | `pegasus-globus-online` |
//! | `irods` | the icommands |
//! | `osdf`, `pelican`, `stash` | `pelican`, else `stashcp` |
//! | `docker`; `shub`, `library`, `oras` | `docker`, else `podman`; `apptainer`, else `singularity` |
//! | `ftp` | `curl`, else `wget` |
//!
//! Everything is set up on first use, so a run with only local files pays nothing for this module.

mod credentials;
mod environment;
mod gs;
pub mod http;
mod local_side;
mod objects;
mod program;
mod s3;

use std::sync::Arc;

pub use environment::Environment;

use crate::cancel::Cancel;
use crate::protocol::{Handler, Registry};
use gs::Gs;
use http::{Client, Downloads, Http, Timeouts, Webdav};
use program::{Apptainer, Docker, Ftp, Gfal, Globus, GridFtp, Irods, Osdf, Scp};
use s3::S3;

/// Returns the handlers for local files and for all protocols of this module.
#[must_use]
pub fn registry(environment: Environment, timeouts: Timeouts, cancel: &Cancel) -> Registry {
    let environment = Arc::new(environment);
    let client = Arc::new(Client::new(Arc::clone(&environment), timeouts, cancel.clone()));
    let handlers: Vec<Box<dyn Handler>> = vec![
        Box::new(Http {
            environment: Arc::clone(&environment),
            client: Arc::clone(&client),
            downloads: Downloads::default(),
        }),
        Box::new(Webdav::new(Arc::clone(&environment), Arc::clone(&client))),
        Box::new(S3::new(Arc::clone(&environment), Arc::clone(&client))),
        Box::new(Gs::new(Arc::clone(&environment), Arc::clone(&client))),
        Box::new(GridFtp::new(Arc::clone(&environment))),
        Box::new(Ftp {
            environment: Arc::clone(&environment),
        }),
        Box::new(Irods::new(Arc::clone(&environment))),
        Box::new(Globus {
            environment: Arc::clone(&environment),
        }),
        Box::new(Gfal {
            environment: Arc::clone(&environment),
        }),
        Box::new(Scp::new(Arc::clone(&environment), false)),
        Box::new(Scp::new(Arc::clone(&environment), true)),
        Box::new(Osdf {
            environment: Arc::clone(&environment),
        }),
        Box::new(Docker {
            environment: Arc::clone(&environment),
        }),
        Box::new(Apptainer { environment }),
    ];
    Registry::with_local(handlers)
}
