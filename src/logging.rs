//! Log lines on stderr, as the original writes them: `[info] text`.
//!
//! All code logs with `tracing`; only programs call this module, which prints. `tracing` has no level above
//! error, so events with the target `fatal` are printed as fatal.

use std::fmt;
use std::io::Write as _;

use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Target of events that are printed as `[fatal]`.
pub const FATAL: &str = "fatal";

/// Prints to stderr. If that fails, there is no other place for a message.
pub fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints log lines of this process to stderr. `verbosity` is the number of `-v` minus the number of `-q`; 0
/// is the level info.
pub fn init(verbosity: i32) {
    let level = match verbosity {
        ..=-3 => LevelFilter::OFF,
        -2 => LevelFilter::ERROR,
        -1 => LevelFilter::WARN,
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        2.. => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .event_format(Plain)
        .finish();
    // Fails if there is a subscriber already, which then stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR if event.metadata().target() == FATAL => "fatal",
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        write!(writer, "[{level}] ")?;
        ctx.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
