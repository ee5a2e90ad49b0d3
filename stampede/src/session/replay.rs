//! Loads a finished run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use chrono::Local;

use super::context::{MAX_BATCH, Session, report_truncated, write_error};
use super::nested::{self, Link, Waiting};
use super::{End, Notices, Options, Summary};
use crate::error::{LoadError, Notice};
use crate::loader::Loader;
use crate::log_reader::LogReader;
use crate::markers::rotate;
use crate::run::Run;
use crate::state_log::StateLog;

/// Loads a whole log into a new database, which appears when it is complete. The database, log of states and
/// log of an earlier loader are renamed.
///
/// # Errors
/// A file is missing, another loader is at work, or the disk is full.
pub fn replay(options: &Options, notice: Notices<'_>) -> Result<Summary, LoadError> {
    let mut run = Run::find(&options.log)?;
    if let Some(converted) = &options.converted {
        run.log.clone_from(converted);
    }
    let mut reader = LogReader::open(&run.log).map_err(|source| LoadError::Read {
        path: run.log.clone(),
        source,
    })?;
    let mut session = Session::new(options, run, notice)?;
    let state_log = session.state_log_path();
    for path in [&state_log, &session.markers.path("monitord.log")] {
        rotate(path).map_err(write_error(path))?;
    }
    session.mark_started(notice);
    let database = session.database().map(Path::to_owned);
    let part = database
        .as_ref()
        .map(|database| database.with_extension("db.part"));
    let remove_part = || {
        if let Some(part) = &part {
            let _ = fs::remove_file(part);
        }
    };
    remove_part();
    let loaded = load_log(&mut session, &mut reader, part.as_deref(), &state_log, notice);
    let (mut loader, end) = loaded.inspect_err(|_| remove_part())?;
    session.write_info(&loader, reader.line_number(), notice);
    let mut summary = session.summary(&loader, end);
    let states = loader.states().to_vec();
    let links = nested::links(&session, &mut loader, notice);
    loader.into_store().close()?;
    summary.jobs += load_nested(&session, links, part.as_deref(), notice).inspect_err(|_| remove_part())?;
    if let (Some(database), Some(part)) = (&database, &part) {
        let publish = || {
            pmc_files::open(part)?.sync_all()?;
            rotate(database)?;
            pmc_files::rename(part, database.file_name().unwrap_or_default())
        };
        publish().map_err(write_error(database))?;
    }
    session.update_dashboard(&states, true, notice);
    session.mark_done(notice);
    Ok(summary)
}

/// Loads sub-workflows, and those nested in them. Returns the number of attempts that ended.
fn load_nested(
    outer: &Session<'_>,
    links: Vec<Link>,
    part: Option<&Path>,
    notice: Notices<'_>,
) -> Result<u64, LoadError> {
    let mut waiting = Waiting::default();
    waiting.add(links);
    let mut seen = BTreeSet::from([outer.run.workflow.wf_uuid.clone()]);
    let mut jobs = 0;
    while let Some((log, links)) = waiting.next() {
        let opened = links.first().map_or_else(
            || Ok(None),
            |link| open_nested(outer, &log, &link.parent, &mut seen).map(Some),
        );
        let (mut session, mut reader) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => continue,
            Err(error) => {
                notice(Notice::Nested {
                    path: log,
                    reason: error.to_string(),
                });
                continue;
            }
        };
        let state_log = session.state_log_path();
        let (mut loader, _) = load_log(&mut session, &mut reader, part, &state_log, notice)?;
        for link in &links {
            loader.store().link(&link.parent, &link.job, link.seq)?;
        }
        loader.commit(reader.position().map_err(|source| session.read_error(source))?)?;
        jobs += loader.jobs_ended();
        waiting.add(nested::links(&session, &mut loader, notice));
        loader.into_store().close()?;
    }
    Ok(jobs)
}

/// Opens what must be readable before rows of a sub-workflow are written.
fn open_nested<'o>(
    outer: &Session<'o>,
    log: &Path,
    parent: &str,
    seen: &mut BTreeSet<String>,
) -> Result<(Session<'o>, LogReader), LoadError> {
    let session = Session::nested(outer, log, parent)?;
    let uuid = session.run.workflow.wf_uuid.clone();
    if !seen.insert(uuid.clone()) {
        let dir = session.run.dir;
        return Err(LoadError::Uuid { dir, uuid });
    }
    nested::check(&session)?;
    let reader = LogReader::open(&session.run.log).map_err(|source| session.read_error(source))?;
    let state_log = session.state_log_path();
    rotate(&state_log).map_err(write_error(&state_log))?;
    Ok((session, reader))
}

fn load_log(
    session: &mut Session<'_>,
    reader: &mut LogReader,
    part: Option<&Path>,
    state_log: &Path,
    notice: Notices<'_>,
) -> Result<(Loader, End), LoadError> {
    let store = session.create(part, notice)?;
    let log = StateLog::open(state_log, None).map_err(write_error(state_log))?;
    let mut loader = Loader::new(store, log, session.workflow())?;
    loader
        .log()
        .internal(Local::now().timestamp(), "MONITORD_STARTED", "");
    let mut number = 0;
    while let Some(line) = reader.next_line().map_err(|source| session.read_error(source))? {
        number += 1;
        session.load_line(&mut loader, line, number, notice)?;
        if number % MAX_BATCH == 0 {
            loader.log().flush().map_err(write_error(state_log))?;
        }
    }
    // The log does not grow any more, so its last line is complete without a line feed.
    if let Some(line) = reader.last_line() {
        session.load_line(&mut loader, line, number + 1, notice)?;
    }
    let end = if loader.is_running() || !loader.was_started() {
        let path = session.run.log.clone();
        notice(Notice::NoEnd { path });
        End::NoEnd
    } else {
        End::Complete
    };
    loader.insert_queued(notice)?;
    loader
        .log()
        .internal(Local::now().timestamp(), "MONITORD_FINISHED", "0");
    let position = reader.position().map_err(|source| session.read_error(source))?;
    loader.commit(position)?;
    report_truncated(&loader, notice);
    Ok((loader, end))
}
