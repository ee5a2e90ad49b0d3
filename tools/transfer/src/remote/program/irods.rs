//! Handler for `irods` with the icommands.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Tool, download, upload_source, uploaded};
use crate::error::TransferError;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Environment;
use crate::remote::credentials::MAX_CREDENTIALS;
use crate::spec::Location;

/// Exit status of `irm` for a missing file.
const NOT_FOUND: i32 = 3;

pub(in crate::remote) struct Irods {
    environment: Arc<Environment>,
    /// Held while logging in.
    login: Mutex<()>,
}

/// Environment of the icommands.
struct Session {
    environment: PathBuf,
    authentication: PathBuf,
    ticket: Option<String>,
}

impl Irods {
    pub(in crate::remote) fn new(environment: Arc<Environment>) -> Self {
        Self {
            environment,
            login: Mutex::new(()),
        }
    }

    /// Logs in with the password in the site's environment file, once for each working directory.
    fn session(&self, context: &Context<'_>, site: &str) -> Result<Session, TransferError> {
        let _guard = self.login.lock().unwrap_or_else(PoisonError::into_inner);
        const NAME: &str = "IRODS_ENVIRONMENT_FILE";
        let environment = self
            .environment
            .key_file(NAME, site, context.observer)?
            .ok_or_else(|| {
                TransferError::Credentials(format!(
                    "irods URLs need {NAME}_{site} or {NAME}, which is not set"
                ))
            })?;
        let text = pmc_files::read(&environment, MAX_CREDENTIALS);
        let text = text.map_err(|error| TransferError::io("read", &environment, error))?;
        let text = String::from_utf8_lossy(&text);
        let password = value(&text, &["irodspassword", "irods_password"]).ok_or_else(|| {
            TransferError::Credentials(format!("{}: no irodsPassword", crate::shown::path(&environment)))
        })?;
        let base = context.base.unwrap_or(Path::new("."));
        let authentication = std::path::absolute(base.join(".irodsA"))
            .map_err(|error| TransferError::io("find", base, error))?;
        let session = Session {
            environment,
            authentication,
            ticket: value(&text, &["irodsticket", "irods_ticket"]),
        };
        if !session.authentication.exists() {
            let program = self.environment.require_program(&["iinit"], "irods")?;
            let mut tool = Tool::new(&program);
            session.prepare(&mut tool);
            tool.input = format!("{password}\n").into_bytes();
            tool.limit = Duration::from_secs(5 * 60);
            tool.run(&self.environment, context)?;
        }
        Ok(session)
    }

    fn run(
        &self,
        context: &Context<'_>,
        session: &Session,
        program: &str,
        arguments: &[OsString],
    ) -> Result<(), TransferError> {
        let program = self.environment.require_program(&[program], "irods")?;
        let mut tool = Tool::new(&program);
        session.prepare(&mut tool);
        tool.args(arguments);
        tool.run(&self.environment, context).map(drop)
    }
}

impl Session {
    fn prepare(&self, tool: &mut Tool<'_>) {
        tool.env("IRODS_ENVIRONMENT_FILE", &self.environment)
            .env("IRODS_AUTHENTICATION_FILE", &self.authentication);
        if let Some(ticket) = &self.ticket {
            tool.env("IRODS_TICKET", ticket).hide(ticket);
        }
    }

    fn ticket_arguments(&self) -> Vec<OsString> {
        match &self.ticket {
            Some(ticket) => vec!["-t".into(), ticket.into()],
            None => Vec::new(),
        }
    }
}

/// Returns a value of an environment file: a JSON object, or lines `name: value`.
fn value(text: &str, names: &[&str]) -> Option<String> {
    if let Ok(serde_json::Value::Object(all)) = serde_json::from_str(text) {
        let found = all
            .iter()
            .find(|(name, _)| names.contains(&name.to_ascii_lowercase().as_str()));
        return found.and_then(|(_, value)| Some(value.as_str()?.to_owned()));
    }
    let unquote = |text: &str| {
        text.trim_matches(|c: char| c.is_whitespace() || "'\",".contains(c))
            .to_owned()
    };
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| names.contains(&unquote(name).to_ascii_lowercase().as_str()))
        .map(|(_, value)| unquote(value))
        .next_back()
}

impl Handler for Irods {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!((from, to), ("irods", "file") | ("file", "irods"))
    }

    fn manages(&self, scheme: &str) -> bool {
        scheme == "irods"
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (pair.source, pair.destination());
        let is_download = destination.url.is_local();
        let remote = if is_download { source } else { destination };
        let session = self.session(context, &remote.site)?;
        let mut options: Vec<OsString> = ["-v", "-f", "-T", "-K", "-N", "4"].map(OsString::from).into();
        // After two failures, any resource with the file will do.
        if !remote.url.host().is_empty() && pair.attempt <= 2 {
            options.extend(["-R".into(), remote.url.host().into()]);
        }
        if let Some(ticket) = &session.ticket {
            options.extend(["-t".into(), ticket.into()]);
        }
        if is_download {
            return download(context, pair, |path| {
                options.extend([source.url.path().into(), path.into()]);
                self.run(context, &session, "iget", &options)
            });
        }
        let (path, bytes) = upload_source(context, pair)?;
        if let Some(parent) = destination.url.path().parent() {
            // If this fails, the upload fails too and reports why.
            let _ = self.run(context, &session, "imkdir", &["-p".into(), parent.into()]);
        }
        options.extend([path.into(), destination.url.path().into()]);
        self.run(context, &session, "iput", &options)?;
        Ok(uploaded(bytes))
    }

    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        let session = self.session(context, &place.site)?;
        let mut arguments = session.ticket_arguments();
        arguments.extend(["-p".into(), place.url.path().into()]);
        self.run(context, &session, "imkdir", &arguments)
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        let session = self.session(context, &place.site)?;
        let program = self.environment.require_program(&["irm"], "irods")?;
        let mut tool = Tool::new(&program);
        session.prepare(&mut tool);
        tool.arg("-f");
        if recursive {
            tool.arg("-r");
        }
        tool.args(session.ticket_arguments()).arg(place.url.path());
        let outcome = tool.outcome(&self.environment, context)?;
        if outcome.status.success() || outcome.status.code() == Some(NOT_FOUND) {
            return Ok(());
        }
        Err(tool.failure(&outcome, crate::error::Retry::Later))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_json_and_lines() {
        let json = "{\n  \"irods_host\": \"h\",\n  \"irodsPassword\": \"p:w\",\n}\n";
        assert_eq!(value(json, &["irodspassword"]).as_deref(), Some("p:w"));
        assert_eq!(
            value("irodsTicket: 'T'\n", &["irodsticket"]).as_deref(),
            Some("T")
        );
        assert_eq!(value(json, &["none"]), None);
        let valid = "{\"irods_password\": \"p}\\\"\" }";
        assert_eq!(value(valid, &["irods_password"]).as_deref(), Some("p}\""));
    }
}
