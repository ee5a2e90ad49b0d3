//! Guests: workflows that tools hand to the run.
//!
//! A guest joins the run as a sub-workflow does, but it is not part of another workflow. It takes its share
//! of the slots, listens on a socket of its own, and has its own lock, logs and rescue file. So it is shown,
//! drained and resumed by itself.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;

use pmc_control::{Answer, FIRST_WEIGHT};
use pmc_files::OFlags;

use super::setup::serve;
use super::subworkflows::{GUEST_DEPTH, Order, Origin, Refusal, Subworkflows, options_for, real_path};
use super::{Run, RunError, error};
use crate::control::{Reply, Server};
use crate::options::{Options, Stdio, folder, with_suffix};
use crate::scheduler::{Event, SegmentId, Summary};
use crate::transport::{MasterTransport, agents};

/// Longest path in the note of a guest.
const MAX_NOTE: u64 = 64 << 10;

/// A workflow that a tool hands over.
pub(super) struct Submission {
    /// Its weight; the first workflow has [`FIRST_WEIGHT`].
    pub(super) weight: u32,
    pub(super) answer: SyncSender<Reply>,
}

impl Submission {
    /// Answers the tool with the reason why the workflow cannot join.
    pub(super) fn refuse(&self, refusal: &Refusal) {
        self.answer(Answer::Refused(refusal.describe()));
    }

    fn answer(&self, answer: Answer) {
        // A tool that has gone needs no answer.
        let _ = self.answer.send(Reply::Answer(answer));
    }
}

/// A guest that has joined.
pub(super) struct Guest {
    pub(super) _server: Option<Server>,
    /// It has a note for the next run.
    has_note: bool,
}

/// Options for a guest: those of the run, with its own files, which are written in any case.
fn options_of_guest(options: &Options, dag: &Path) -> Options {
    let own = options_for(options, dag, false);
    Options {
        accept_incomplete: false,
        lock: true,
        dagman_log: Some(with_suffix(dag, ".dagman.out")),
        jobstate_log: Some(folder(dag).join("jobstate.log")),
        resource_log: Some(with_suffix(dag, ".resource")),
        ..own
    }
}

impl Subworkflows {
    /// Has the DAG of a guest opened, if the run can take it. The tool gets its answer when it has joined.
    pub(super) fn submit<T: MasterTransport>(
        &mut self,
        run: &Run<'_, T>,
        dag: &Path,
        submission: Submission,
    ) {
        let refusal = if run.options.serve.is_some() {
            Refusal::Serving
        } else if let Stdio::Merged { .. } = run.options.stdio {
            Refusal::Merged
        } else if !run.master.has_started() {
            Refusal::NotStarted
        } else if run.is_ending() {
            Refusal::Ending
        } else if !self.has_room(GUEST_DEPTH) {
            Refusal::NoRoom
        } else {
            let name = dag.file_name().unwrap_or_default().to_string_lossy();
            self.may_join = true;
            self.push(Order {
                label: format!("{name}/"),
                directory: folder(dag).to_owned(),
                depth: GUEST_DEPTH,
                options: options_of_guest(run.options, dag),
                may_lose: run.out.transport.is_dynamic(),
                is_prepared: false,
                host: real_path(&run.options.dag),
                origin: Origin::Tool(submission),
            });
            return;
        };
        submission.refuse(&refusal);
    }

    /// Lets tools reach a guest that has joined, notes it for views and for the next run, and tells the tool
    /// that handed it over.
    pub(super) fn joined<T: MasterTransport>(
        &self,
        run: &mut Run<'_, T>,
        at: usize,
        order: &Order,
        submission: &Submission,
    ) {
        let dag = &order.options.dag;
        // Nothing of the guest runs yet.
        let nodes = run.master.node_statuses();
        run.out.dags.root.logs.share_resources_of(&nodes);
        let control = self.control.of_guest(at as u32);
        let has_note = order.may_lose;
        let notes = list(&run.options.dag, dag, submission.weight);
        let notes = notes.and_then(|()| match has_note {
            true => note_host(dag, &order.host),
            false => Ok(()),
        });
        if let Err(error) = notes {
            tracing::warn!(
                "The workflow {} is not noted: {}",
                dag.display(),
                pmc_dag::reason(&error)
            );
        }
        let server = serve(
            &control,
            true,
            (&order.options, run.options.batch_job.as_ref()),
            run.interrupt,
        );
        let Some(Some(joined)) = run.out.dags.joined.get_mut(at) else {
            return;
        };
        let tasks = joined.run.dag.len();
        joined.guest = Some(Guest {
            _server: server,
            has_note,
        });
        let weight = f64::from(submission.weight) / f64::from(FIRST_WEIGHT);
        let tasks = if tasks == 1 {
            "1 task".to_owned()
        } else {
            format!("{tasks} tasks")
        };
        let text = format!(
            "{} runs now with {}: {tasks}, weight {weight}",
            dag.display(),
            run.options.dag.display()
        );
        tracing::info!("Workflow {text}");
        submission.answer(Answer::Done(text));
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Starts no more tasks of a guest.
    pub(super) fn drain_guest(&mut self, at: usize, after: Option<u64>) -> Result<Answer, RunError> {
        if after.is_some_and(|seconds| seconds > 0) {
            let reason =
                "a workflow that was handed to another run can only be drained at once (without --in)";
            return Ok(Answer::Refused(reason.to_owned()));
        }
        let share = self.master.share_of_segment(SegmentId(at as u32));
        if !self.master.is_drained(share) {
            if let Some(Some(joined)) = self.out.dags.joined.get(at) {
                tracing::info!("Asked to drain workflow {}", joined.run.shown());
            }
            self.handle(Event::DrainShare(share))?;
        }
        let running = self.master.running_of(share);
        Ok(Answer::Done(format!(
            "no more of its tasks start; it ends when the {running} that run have ended"
        )))
    }

    /// True if a DAG that has joined belongs to a guest that was drained, and has not failed.
    pub(super) fn was_stopped(&self, segment: SegmentId, summary: &Summary) -> bool {
        let share = self.master.share_of_segment(segment);
        self.master.is_drained(share) && !summary.success && summary.failed_tasks == 0
    }
}

impl Guest {
    /// Removes what told the next run where its tasks might still run.
    pub(super) fn leave(&self, dag: &Path) {
        if self.has_note {
            let _ = fs::remove_file(with_suffix(dag, ".host"));
        }
    }
}

/// Notes the DAG of the run that a guest has joined.
fn note_host(dag: &Path, host: &Path) -> io::Result<()> {
    let mut note = pmc_files::create_anew(&with_suffix(dag, ".host"))?;
    note.write_all(host.as_os_str().as_bytes())
}

/// Adds a guest to the list of those of a DAG, for views: a line of JSON for each.
fn list(host: &Path, dag: &Path, weight: u32) -> io::Result<()> {
    let line = serde_json::json!({
        "dag": dag.to_str(),
        "weight": f64::from(weight) / f64::from(FIRST_WEIGHT),
    });
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let mut file = pmc_files::open_output(&with_suffix(host, ".guests"), flags, 0o666)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Refuses a run while agents of another one, which was killed, may run its tasks. `own` is the DAG file of
/// the run that wants to take them, without links.
pub(super) fn refuse_if_host_is_left(options: &Options, own: &Path) -> Result<(), RunError> {
    let failed = |error| RunError::system("Unable to read where the workflow ran", error);
    let host = match pmc_files::read(&with_suffix(&options.dag, ".host"), MAX_NOTE) {
        Ok(path) => PathBuf::from(OsStr::from_bytes(&path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if host == own {
        // This run ends what is left of them, before it starts any.
        return Ok(());
    }
    let hosts = agents::left(&host).map_err(failed)?;
    if hosts.is_empty() {
        return Ok(());
    }
    let kind = error::Kind::HostLeft {
        hosts: hosts.into_iter().collect::<Vec<_>>().join(", "),
        dag: options.dag.display().to_string(),
        host: host.display().to_string(),
    };
    Err(kind.into())
}
