//! Handler for `ftp` downloads with `curl`, else `wget`.

use std::sync::Arc;

use super::{Tool, download};
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Environment;
use crate::remote::http::encode;

pub(in crate::remote) struct Ftp {
    pub(in crate::remote) environment: Arc<Environment>,
}

impl Handler for Ftp {
    fn transfers(&self, from: &str, to: &str) -> bool {
        (from, to) == ("ftp", "file")
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let url = &pair.source.url;
        let program = self
            .environment
            .require_program(&["curl", "wget"], url.scheme())?;
        let path = encode(url.path().as_os_str().as_encoded_bytes(), true);
        let address = format!("{}://{}{path}", url.scheme(), url.host());
        download(context, pair, |path| {
            let mut tool = Tool::new(&program);
            if program.ends_with("curl") {
                tool.args(["-s", "-S", "--fail", "--location", "-o"]).arg(path);
            } else {
                tool.args(["-nv", "--timeout=300", "--tries=1", "-O"]).arg(path);
            }
            tool.arg(address).run(&self.environment, context).map(drop)
        })
    }
}
