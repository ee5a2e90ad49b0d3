//! The HTTP client, and handlers for `http`, `https` (downloads), `webdav` and `webdavs`.

mod address;
mod client;
mod download;
mod forward_proxy;
mod pace;
mod tls;
mod webdav;

use std::sync::Arc;

pub(crate) use address::{encode, of_url, split};
pub(crate) use client::{Client, Payload, Request, Response};
pub(crate) use download::{Dialect, Download, Downloads, HTTP, Opened, ResumePoint, open_download};
pub use pace::Timeouts;
pub(super) use webdav::Webdav;

use super::Environment;
use super::credentials::Credentials;
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::url::Url;

/// Handler for `http` and `https` downloads.
pub(super) struct Http {
    pub(super) environment: Arc<Environment>,
    pub(super) client: Arc<Client>,
    pub(super) downloads: Downloads,
}

impl Handler for Http {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!((from, to), ("http" | "https", "file"))
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let url = &pair.source.url;
        let access = Access::of(url, url.scheme(), self.environment.credentials()?);
        let request = |headers| {
            let mut request = access.request("GET");
            request.headers = headers;
            // After a failure, the proxy is left out: it may be the cause.
            request.proxied = pair.attempt == 1;
            Ok(request)
        };
        let download = Download::new(context, pair, access.address.clone());
        self.downloads.fetch(&download, &|resume| {
            open_download(&self.client, &HTTP, resume, request)
        })
    }
}

/// The address of a file, with credentials.
pub(super) struct Access {
    pub(super) address: String,
    secrets: Vec<(String, String)>,
    insecure: bool,
}

impl Access {
    /// Finds the access to a URL in the credentials file, in section `PROTOCOL://HOST` or `HOST`. `scheme` is
    /// the protocol of the connection: http or https.
    pub(super) fn of(url: &Url, scheme: &str, credentials: &Credentials) -> Self {
        let (address, user) = of_url(url, scheme);
        let host = split(&address).map_or_else(String::new, |(_, host, _)| host.to_owned());
        let with_scheme = format!("{}://{host}", url.scheme());
        let section = if credentials.has(&with_scheme) {
            with_scheme
        } else {
            host
        };
        let mut secrets: Vec<(String, String)> = credentials
            .options(&section)
            .filter_map(|(name, value)| Some((name.strip_prefix("header.")?.to_owned(), value.to_owned())))
            .collect();
        let login_of_section = || {
            let user = credentials.get(&section, "username")?;
            let password = credentials.get(&section, "password").unwrap_or_default();
            Some((user.to_owned(), password.to_owned()))
        };
        if let Some((user, password)) = user.or_else(login_of_section) {
            let login = address::basic_auth(&format!("{user}:{password}"));
            secrets.push(("authorization".to_owned(), login));
        }
        let insecure = credentials
            .get(&section, "insecure")
            .is_some_and(|value| ["1", "yes", "true", "on"].contains(&value.to_ascii_lowercase().as_str()));
        Self {
            address,
            secrets,
            insecure,
        }
    }

    /// Creates a request to the address.
    pub(super) fn request<'a>(&self, method: &'a str) -> Request<'a> {
        let mut request = Request::new(method, self.address.clone());
        request.secrets.clone_from(&self.secrets);
        request.insecure = self.insecure;
        request
    }

    /// Returns the same access for another address of the server.
    pub(super) fn at(&self, address: String) -> Self {
        Self {
            address,
            secrets: self.secrets.clone(),
            insecure: self.insecure,
        }
    }
}
