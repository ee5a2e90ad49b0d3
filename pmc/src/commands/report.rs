//! `pmc report`: a run as one HTML file, as a trace, as provenance, or as an instance
//! of WfFormat.

mod data;
mod ro_crate;
mod trace;
mod wfformat;
mod workflow;

use std::fmt;
use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use pmc_files::Destination;
use pmc_monitor::events::Micros;
use pmc_monitor::history::History;
use pmc_monitor::timeline::Timeline;
use pmc_terminal::print;

use self::data::Verdict;

use crate::cli;
use crate::clock::now;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;

/// The page with placeholders for title and data.
const PAGE: &str = include_str!("../../templates/report.html");
/// File of the report unless the user names another.
const DEFAULT_OUTPUT: &str = "report.html";
const TITLE: &str = "{{TITLE}}";
const DATA: &str = "{{DATA}}";

/// Writes the report. Returns the exit code.
pub fn report(arguments: &cli::Report) -> Result<u8, Failure> {
    let named = layout::given_or_latest(arguments.dir.as_deref(), arguments.quiet);
    let dir = layout::find_run(&named)?;
    let history = History::open(dir).or_code(exit::NOT_RUN)?;
    let now = now();
    let default = Path::new(DEFAULT_OUTPUT);
    let output = match &arguments.output {
        Some(path) => Some(path.as_path()),
        None => (arguments.ro_crate.is_none() && arguments.wfformat.is_none()).then_some(default),
    };
    let verdict = output.map(|_| Verdict::of(&history));
    if let Some(path) = &arguments.ro_crate {
        ro_crate::write(&history, path)?;
    }
    if let Some(path) = &arguments.wfformat {
        let instance = wfformat::Instance::new(&history)?;
        write(path, |out| instance.write(now, out))?;
    }
    let history = history.with_nested(now);
    if let (Some(path), Some(verdict)) = (output, verdict) {
        write_page(&history, &verdict, now, path)?;
    }
    if let Some(path) = &arguments.trace {
        write(path, |out| trace::write(&history, now, out))?;
    }
    if !arguments.quiet {
        let others = [&arguments.trace, &arguments.ro_crate, &arguments.wfformat];
        for path in output
            .into_iter()
            .chain(others.into_iter().flatten().map(PathBuf::as_path))
        {
            print(&format!("{}\n", path.display()));
        }
    }
    Ok(exit::SUCCESS)
}

fn write_page(history: &History, verdict: &Verdict, now: Micros, path: &Path) -> Result<(), Failure> {
    let timeline = Timeline::new(history, now);
    let data = data::value(history, &timeline, verdict, now);
    let page = page(&history.dir.label, &data.to_string());
    write(path, |out| out.write_all(page.as_bytes()))
}

/// Fills in the page. The data cannot close the script element that holds it.
fn page(label: &str, data: &str) -> String {
    let mut page = String::with_capacity(PAGE.len() + data.len());
    let (head, rest) = PAGE.split_once(TITLE).unwrap_or((PAGE, ""));
    let (middle, tail) = rest.split_once(DATA).unwrap_or((rest, ""));
    let title = label
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    page.push_str(head);
    page.push_str(&title);
    page.push_str(middle);
    page.push_str(&data.replace('<', "\\u003c"));
    page.push_str(tail);
    page
}

/// Writes a file that appears when it is complete, instead of one that exists.
pub(super) fn replace(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let destination = Destination::new(path)?;
    let new = destination.replacement(".pmc-", 0o666)?;
    let mut out = BufWriter::with_capacity(1 << 16, new.file());
    content(&mut out)?;
    out.flush()?;
    drop(out);
    new.publish()
}

fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let failed = || Writing(path.display().to_string());
    replace(path, content).with_context(failed).or_code(exit::NOT_RUN)
}

/// Copies a file of the run to a new one, with its permissions.
fn copy(mut from: &fs::File, to: &Path) -> io::Result<u64> {
    let data = from.metadata()?;
    let mut new = fs::File::create_new(to)?;
    let bytes = io::copy(&mut Read::by_ref(&mut from).take(data.len()), &mut new)?;
    new.set_permissions(fs::Permissions::from_mode(data.permissions().mode() & 0o777))?;
    Ok(bytes)
}

#[derive(Debug)]
struct Writing(String);

impl fmt::Display for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn names_cannot_break_the_page() {
        let page = page("</title><b>", r#"{"a":"</script><script>alert(1)"}"#);
        assert!(page.contains("<title>&lt;/title&gt;&lt;b&gt;</title>"));
        assert!(page.contains(r#"{"a":"\u003c/script>\u003cscript>alert(1)"}"#));
        assert!(!page.contains(TITLE) && !page.contains(DATA));
    }

    #[test]
    fn only_the_script_of_the_page_may_run() {
        let script = PAGE
            .rsplit_once("<script>")
            .and_then(|(_, rest)| rest.split_once("</script>"))
            .map(|(script, _)| script)
            .expect("the script");
        let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(script));
        let policy = format!("script-src 'sha256-{hash}';");
        assert!(PAGE.contains(&policy), "templates/report.html needs {policy}");
    }

    #[test]
    fn the_page_loads_nothing() {
        for word in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!PAGE.contains(word), "{word}");
        }
    }
}
