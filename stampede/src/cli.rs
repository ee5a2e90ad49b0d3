//! The command line of `pegasus-monitord`, as far as it applies to a run without HTCondor.

use std::path::PathBuf;
use std::time::Duration;

use crate::client::ClientSettings;
use crate::destination::read_url;
use crate::session::{Destination, Options};
use clap::Parser;

/// Loads a run into its STAMPEDE database.
///
/// Follows the log of a running workflow to its end and goes on where it stopped when it is started
/// again; with -r, loads a finished one anew.
#[derive(Debug, Parser)]
#[command(name = "pmc-monitord", version)]
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
pub struct Cli {
    /// Log of the run: SUBMIT_DIR/NAME.dag.dagman.out.
    log: PathBuf,
    /// Load what is there from its beginning, and do not wait for more.
    #[arg(short, long)]
    pub replay: bool,
    /// Lead a process group of its own.
    #[arg(short = 'N', long = "condor-daemon")]
    pub group: bool,
    /// Add this many seconds to the times of the log.
    #[arg(
        short,
        long,
        default_value_t = 0,
        allow_negative_numbers = true,
        value_name = "SECONDS"
    )]
    adjust: i64,
    /// Name of the log of states.
    #[arg(short, long = "job", value_name = "FILE")]
    job: Option<PathBuf>,
    /// Directory for the log of states and the files that begin with "monitord".
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// The database: sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE. Without it, what
    /// pegasus.catalog.workflow.url says, else a file beside the log.
    #[arg(short, long, value_name = "URL", conflicts_with = "no_events")]
    dest: Option<String>,
    /// Read the settings from this file, not from that of the run.
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Write the log of states only.
    #[arg(long, alias = "no-database")]
    no_events: bool,
    /// Leave the list of all workflows of this user, ~/.pegasus/workflow.db, alone.
    #[arg(long)]
    no_dashboard: bool,
    /// Leave out what jobs printed.
    #[arg(long)]
    skip_stdout: bool,
    /// Pause after each line of the log.
    #[arg(short = 'S', long = "sim", default_value_t = 0, value_name = "MILLISECONDS")]
    slowly: u64,
    /// Say at the end what was loaded.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Options of pegasus-monitord that change nothing here.
    #[arg(long, hide = true)]
    no_recursive: bool,
    #[arg(long, hide = true)]
    no_notifications: bool,
    #[arg(long, hide = true)]
    notifications_max: Option<i64>,
    #[arg(long, hide = true)]
    notifications_timeout: Option<i64>,
    #[arg(long, hide = true)]
    keep_state: bool,
    #[arg(long, hide = true)]
    db_stats: bool,
    #[arg(long, hide = true)]
    fast_start: bool,
    #[arg(short, long, hide = true)]
    force: bool,
}

impl Cli {
    /// What the options mean. `home` is the user's directory, `client` how to connect to servers.
    ///
    /// # Errors
    /// A destination that cannot be written.
    pub fn options(&self, home: Option<PathBuf>, client: ClientSettings) -> Result<Options, String> {
        let destination = match &self.dest {
            None if self.no_events => Destination::Nowhere,
            None => Destination::AsPlanned,
            Some(url) => read_url(url).map_err(|error| format!("--dest {error}"))?,
        };
        Ok(Options {
            log: self.log.clone(),
            adjust: self.adjust,
            output_dir: self.output_dir.clone(),
            state_log: self.job.clone(),
            destination,
            conf: self.conf.clone(),
            client,
            dashboard: home
                .filter(|_| !self.no_dashboard)
                .map(|home| home.join(".pegasus/workflow.db")),
            skip_output: self.skip_stdout,
            slowly: Duration::from_millis(self.slowly),
            lock: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Result<Options, String> {
        let cli = Cli::try_parse_from(std::iter::once("pmc-monitord").chain(words.iter().copied()));
        cli.map_err(|error| error.to_string())?
            .options(Some(PathBuf::from("/home/u")), ClientSettings::default())
    }

    #[test]
    fn destinations() {
        assert_eq!(
            options(&["-N", "-r", "x"]).unwrap().destination,
            Destination::AsPlanned
        );
        assert_eq!(
            options(&["x"]).unwrap().dashboard,
            Some(PathBuf::from("/home/u/.pegasus/workflow.db"))
        );
        let file = Destination::File(PathBuf::from("/a/b.db"));
        assert_eq!(
            options(&["-d", "sqlite:////a/b.db", "x"]).unwrap().destination,
            file
        );
        assert_eq!(
            options(&["--no-database", "x"]).unwrap().destination,
            Destination::Nowhere
        );
        assert_eq!(options(&["--no-dashboard", "x"]).unwrap().dashboard, None);
        assert_eq!(options(&["-a", "-3600", "x"]).unwrap().adjust, -3600);
    }

    #[test]
    fn what_is_refused() {
        assert!(
            options(&["-d", "amqp://h/x", "x"])
                .unwrap_err()
                .contains("only sqlite:///PATH and postgresql://")
        );
        for words in [
            &["-d", "sqlite:////a", "--no-events", "x"][..],
            &["--unheard-of", "x"],
            &[],
            &["x", "y"],
        ] {
            assert!(options(words).is_err(), "{words:?}");
        }
    }
}
