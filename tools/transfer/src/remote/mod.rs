//! Handlers of all protocols but those of local files.
//!
//! | protocols | carried out by |
//! |---|---|
//! | `http`, `https`, `webdav`, `webdavs` | a client for HTTP, in [`http`](self::http) |
//! | `s3`, `s3s` | the library `object_store` over the same client, in [`objects`](self::objects) |
//! | `gs` | the same, or `gsutil` |
//! | `scp`, `sftp`, `gsiscp` | `scp` and `ssh`, or those of the grid |
//! | `gsiftp`, `sshftp` | `gfal-copy`, else `globus-url-copy` |
//! | `root`, `srm`, `gsidavs` | the gfal tools |
//! | `go` | `pegasus-globus-online` |
//! | `irods` | the icommands |
//! | `osdf`, `pelican`, `stash` | `pelican`, else `stashcp` |
//! | `docker`, `shub`, `library` | `docker`; `apptainer`, else `singularity` |
//! | `ftp` | `curl`, else `wget` |
//!
//! Nothing is set up before it is needed: a run with local files alone costs no more than without this module.

mod credentials;
mod environment;
mod gs;
pub mod http;
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

/// The handlers of local files and of all protocols of this module.
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
