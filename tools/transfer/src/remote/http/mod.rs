//! `http` and `https` (downloads), `webdav` and `webdavs`.

mod address;
mod client;
mod download;
mod forward_proxy;
mod tls;
mod webdav;

use std::sync::Arc;

pub(crate) use address::{encode, of_url, split};
pub use client::Timeouts;
pub(crate) use client::{Client, Payload, Request, Response};
pub(crate) use download::{Download, Downloads, Opened, RemoteBody, Rest, open};
pub(super) use webdav::Webdav;

use super::Environment;
use super::credentials::Credentials;
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::url::Url;

/// Downloads.
pub(super) struct Http {
    pub(super) environment: Arc<Environment>,
    pub(super) client: Arc<Client>,
    pub(super) downloads: Downloads,
}

impl Handler for Http {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!((from, to), ("http" | "https", "file"))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn transfer(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        pairs
            .iter()
            .map(|pair| self.transfer_one(context, pair))
            .collect()
    }
}

impl Http {
    fn transfer_one(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let url = &pair.source.url;
        let access = Access::of(url, url.scheme(), self.environment.credentials()?);
        let request = |headers| {
            let mut request = access.request("GET");
            request.headers = headers;
            // The proxy may be what is wrong.
            request.proxied = pair.attempt == 1;
            Ok(request)
        };
        let download = Download {
            name: &access.address,
            destination: &context.path(&pair.destination().url),
            hash: pair.transfer.generate_checksum,
            cancel: context.cancel,
        };
        self.downloads.fetch(&download, &|rest| {
            open(&self.client, rest, Response::failure, request)
        })
    }
}

/// Where a file is, and what opens the door.
pub(super) struct Access {
    pub(super) address: String,
    secrets: Vec<(String, String)>,
    insecure: bool,
}

impl Access {
    /// For a URL whose `scheme` on the wire is http or https. The section of the credentials file is named
    /// by the protocol of the URL and the host, or by the host.
    pub(super) fn of(url: &Url, scheme: &str, credentials: &Credentials) -> Self {
        let (address, user) = of_url(url, scheme);
        let host = split(&address).map_or_else(String::new, |(_, host, _)| host.to_owned());
        let own = format!("{}://{host}", url.scheme());
        let section = if credentials.has(&own) { own } else { host };
        let mut secrets: Vec<(String, String)> = credentials
            .options(&section)
            .filter_map(|(name, value)| Some((name.strip_prefix("header.")?.to_owned(), value.to_owned())))
            .collect();
        let of_file = || {
            let user = credentials.get(&section, "username")?;
            let password = credentials.get(&section, "password").unwrap_or_default();
            Some((user.to_owned(), password.to_owned()))
        };
        if let Some((user, password)) = user.or_else(of_file) {
            let login = address::basic(&format!("{user}:{password}"));
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

    /// A request for it.
    pub(super) fn request<'a>(&self, method: &'a str) -> Request<'a> {
        let mut request = Request::new(method, self.address.clone());
        request.secrets.clone_from(&self.secrets);
        request.insecure = self.insecure;
        request
    }

    /// The same door, another address behind it.
    pub(super) fn at(&self, address: String) -> Self {
        Self {
            address,
            secrets: self.secrets.clone(),
            insecure: self.insecure,
        }
    }
}
