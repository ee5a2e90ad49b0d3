//! Handler for `go`: transfers between Globus endpoints with `pegasus-globus-online`.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Tool, temporary_file};
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Environment;
use crate::remote::credentials::Credentials;
use crate::spec::Location;

const PROGRAM: &str = "pegasus-globus-online";

pub(in crate::remote) struct Globus {
    pub(in crate::remote) environment: Arc<Environment>,
}

impl Globus {
    /// Runs the program with a specification plus the tokens of `~/.pegasus/globus.conf`.
    fn run(&self, context: &Context<'_>, action: &str, mut spec: Value) -> Result<(), TransferError> {
        let program = self.environment.require_program(&[PROGRAM], "go")?;
        let home = self.environment.variable("HOME").unwrap_or_default();
        let path = Path::new(home).join(".pegasus/globus.conf");
        let tokens = Credentials::read(&path)?;
        let missing = |what: &str| {
            TransferError::Credentials(format!("{}: no {what} in [oauth]", crate::shown::path(&path)))
        };
        let token = |name: &str| tokens.get("oauth", name);
        spec["client_id"] = token("client_id").ok_or_else(|| missing("client_id"))?.into();
        let (access, refresh) = (token("transfer_at"), token("transfer_rt"));
        if access.or(refresh).is_none() {
            return Err(missing("transfer_at or transfer_rt"));
        }
        let expiry: i64 = token("transfer_at_exp")
            .and_then(|expiry| expiry.parse().ok())
            .unwrap_or(0);
        spec["transfer_at"] = access.into();
        spec["transfer_rt"] = refresh.into();
        spec["transfer_at_exp"] = expiry.into();
        let file = temporary_file(context, ".json", spec.to_string().as_bytes())?;
        let mut tool = Tool::new(&program);
        tool.arg(action).arg("--file").arg(file.path());
        if self.environment.debug {
            tool.arg("--debug");
        }
        tool.run(&self.environment, context).map(drop)
    }
}

/// Returns the path as text: Globus takes only UTF-8 names.
fn path(place: &Location) -> String {
    place.url.path().to_string_lossy().into_owned()
}

impl Handler for Globus {
    fn transfers(&self, from: &str, to: &str) -> bool {
        (from, to) == ("go", "go")
    }

    fn manages(&self, scheme: &str) -> bool {
        scheme == "go"
    }

    fn set_size(&self) -> usize {
        1000
    }

    fn transfer_set(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        let Some(first) = pairs.first() else {
            return Vec::new();
        };
        let files: Vec<Value> = pairs
            .iter()
            .map(|pair| json!({"src": path(pair.source), "dst": path(pair.destination())}))
            .collect();
        let spec = json!({
            "src_endpoint": first.source.url.host(),
            "dst_endpoint": first.destination().url.host(),
            "files": files,
        });
        let result = self.run(context, "--transfer", spec);
        // Globus transfers all files or reports one failure.
        pairs
            .iter()
            .map(|_| copy_result(&result).map(|()| Done::default()))
            .collect()
    }

    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        let spec = json!({"endpoint": place.url.host(), "files": [path(place)]});
        self.run(context, "--mkdir", spec)
    }

    fn remove_set(
        &self,
        context: &Context<'_>,
        places: &[&Location],
        recursive: bool,
    ) -> Vec<Result<(), TransferError>> {
        let Some(first) = places.first() else {
            return Vec::new();
        };
        let files: Vec<String> = places.iter().map(|place| path(place)).collect();
        let spec = json!({"endpoint": first.url.host(), "recursive": recursive, "files": files});
        let result = self.run(context, "--remove", spec);
        places.iter().map(|_| copy_result(&result)).collect()
    }
}

/// Copies the result of the whole set for one of its entries.
fn copy_result(result: &Result<(), TransferError>) -> Result<(), TransferError> {
    result.as_ref().copied().map_err(|error| TransferError::External {
        program: PROGRAM.to_owned(),
        message: error.to_string(),
        retry: error.retry(),
    })
}
