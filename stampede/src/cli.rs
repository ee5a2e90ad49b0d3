//! The command line of `pmc-monitord`: that of `pegasus-monitord`, as far as it applies without HTCondor.

use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory as _, Parser};

use crate::client::ClientSettings;
use crate::destination::{UrlError, read_url};
use crate::notifications::Limits;
use crate::session::{Destination, Options};

/// Load a run into its STAMPEDE database.
///
/// Follows the log of a running workflow to its end. A restarted pmc-monitord continues where it stopped.
/// With -r, loads a finished run into a new database.
#[derive(Debug, Parser)]
#[command(name = "pmc-monitord", version)]
#[expect(clippy::struct_excessive_bools, reason = "one per option")]
pub struct Cli {
    /// Log of the run: SUBMIT_DIR/NAME.dag.dagman.out.
    log: PathBuf,
    /// Load the log from its beginning, and do not wait for new lines.
    #[arg(short, long)]
    pub replay: bool,
    /// Start a new process group.
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
    /// Name of the log of states, instead of jobstate.log.
    #[arg(short, long = "job", value_name = "FILE")]
    job: Option<PathBuf>,
    /// Directory for the log of states and the files monitord.*.
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Database: sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE. By default the property
    /// pegasus.catalog.workflow.url, else a file beside the log.
    #[arg(short, long, value_name = "URL", conflicts_with = "no_events")]
    dest: Option<String>,
    /// Properties to use instead of those of the run.
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Write the log of states, but no database.
    #[arg(long, alias = "no-database")]
    no_events: bool,
    /// Do not update the list of all workflows of this user, ~/.pegasus/workflow.db.
    #[arg(long)]
    no_dashboard: bool,
    /// Do not store the output of jobs.
    #[arg(long)]
    skip_stdout: bool,
    /// Send no notifications.
    #[arg(long, visible_alias = "no-notification")]
    no_notifications: bool,
    /// Commands of notifications at a time; 0 sends none [default: the property
    /// pegasus.monitord.notifications.max, else 10]
    #[arg(long, value_name = "N")]
    notifications_max: Option<usize>,
    /// Time limit of the commands of notifications; 0 is none [default: the property
    /// pegasus.monitord.notifications.timeout, else 0]
    #[arg(long, value_name = "SECONDS")]
    notifications_timeout: Option<u64>,
    /// Pause after each line of the log.
    #[arg(short = 'S', long = "sim", default_value_t = 0, value_name = "MILLISECONDS")]
    pause: u64,
    /// Print a summary at the end.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Do not load nested sub-workflows. Also with an absolute FILE of -j.
    #[arg(long)]
    no_recursive: bool,
    /// An option of pegasus-monitord without effect, like all that follow.
    #[arg(long, hide = true)]
    keep_state: bool,
    #[arg(long, hide = true)]
    db_stats: bool,
    #[arg(long, hide = true)]
    fast_start: bool,
    #[arg(short, long, hide = true)]
    force: bool,
}

/// Returns the definition of the command line, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

impl Cli {
    /// Converts the command line to options of a session. `home` is the home directory.
    ///
    /// # Errors
    /// The destination is not supported.
    pub fn options(&self, home: Option<PathBuf>, client: ClientSettings) -> Result<Options, UrlError> {
        let destination = match &self.dest {
            None if self.no_events => Destination::Nowhere,
            None => Destination::AsPlanned,
            Some(url) => read_url(url)?,
        };
        Ok(Options {
            log: self.log.clone(),
            converted: None,
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
            notifications: (!self.no_notifications && !self.replay).then(|| Limits {
                max: self.notifications_max,
                timeout: self.notifications_timeout.map(Duration::from_secs),
            }),
            flat: self.no_recursive || self.job.as_ref().is_some_and(|job| job.is_absolute()),
            pause: Duration::from_millis(self.pause),
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
            .map_err(|error| error.to_string())
    }

    #[test]
    fn options_select_the_destination() {
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
    fn invalid_options_are_refused() {
        assert!(
            options(&["-d", "amqp://h/x", "x"])
                .unwrap_err()
                .contains("only sqlite:///PATH and postgresql://")
        );
        for words in [
            &["-d", "sqlite:////a", "--no-events", "x"][..],
            &["--unknown", "x"],
            &[],
            &["x", "y"],
        ] {
            assert!(options(words).is_err(), "{words:?}");
        }
    }
}
