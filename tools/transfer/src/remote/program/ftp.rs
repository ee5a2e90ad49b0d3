//! Handler for `ftp` downloads with `curl`, else `wget`.

use std::sync::Arc;

use super::{Tool, download, temporary_file};
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Environment;
use crate::remote::http::{encode, of_url};

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
        let (_, login) = of_url(url, url.scheme());
        let host = url.host().rsplit('@').next().unwrap_or_default();
        let address = format!("{}://{host}{path}", url.scheme());
        download(context, pair, |path| {
            let mut tool = Tool::new(&program);
            // Other users can see arguments.
            let mut configuration = None;
            if program.ends_with("curl") {
                tool.args(["-s", "-S", "--fail", "--location", "-o"]).arg(path);
                if let Some((user, password)) = &login {
                    let login = format!("{user}:{password}");
                    let login = login
                        .replace('\\', "\\\\")
                        .replace('"', "\\\"")
                        .replace('\n', "\\n");
                    tool.args(["--config", "-"]);
                    tool.input = format!("user = \"{login}\"\n").into_bytes();
                }
            } else {
                tool.args(["-nv", "--timeout=300", "--tries=1", "-O"]).arg(path);
                if let Some((user, password)) = &login {
                    let lines = [user, password].map(|text| text.replace('\n', ""));
                    let text = format!("ftp_user = {}\nftp_password = {}\n", lines[0], lines[1]);
                    let file = temporary_file(context, ".wgetrc", text.as_bytes())?;
                    tool.arg("--config").arg(file.path());
                    configuration = Some(file);
                }
            }
            let done = tool.arg(address).run(&self.environment, context);
            drop(configuration);
            done.map(drop)
        })
    }
}
