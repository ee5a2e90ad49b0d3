//! Rounds with a planned workflow: a part of it is disturbed, then it continues, then all of it is checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Damage;
use super::check::{self, CHAINS};
use super::place::{Place, Victim};

/// About the time of an undisturbed run, in milliseconds.
const RUN_MS: u64 = 1200;

/// Maximum disturbances of a round.
const MAX_FAULTS: u64 = 4;

/// Space on the small disk, in MiB: more than the executor's reserve of 8.
const SMALL_MIB: u64 = 24;

/// Maximum space that is left on the full disk, in bytes.
const MAX_FREE: u64 = 400 << 10;

/// Writes the workflow: chains of two jobs. The output of each names the jobs that made it.
pub(super) fn write_workflow(place: &Place) {
    place.write(
        "step",
        "#!/bin/sh\nset -e\nsleep 0.0$4\n{ cat \"$2\"; echo \"$1\"; } >\"$3\"\n",
    );
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.path("step"), executable).expect("a file");
    let mut inputs = String::new();
    let mut jobs = String::new();
    for n in 0..CHAINS {
        place.write(&format!("in{n}"), &format!("input {n}\n"));
        inputs +=
            &format!("  - {{lfn: in{n}, pfns: [{{site: local, pfn: \"${{PMC_WORKFLOW_DIR}}/in{n}\"}}]}}\n");
        for (job, from, to, kept) in [("A", "in", "mid", "false"), ("B", "mid", "out", "true")] {
            jobs += &format!(
                "- {{type: job, id: {job}{n}, name: step, arguments: [{job}{n}, {from}{n}, {to}{n}, \"{n}\"], \
                 uses: [{{lfn: {from}{n}, type: input}}, \
                 {{lfn: {to}{n}, type: output, stageOut: {kept}, registerReplica: {kept}}}]}}\n"
            );
        }
    }
    place.write(
        "workflow.yml",
        &format!(
            "pegasus: \"5.0.4\"\nname: crash\ntransformationCatalog:\n  transformations:\n  \
             - {{name: step, sites: [{{name: local, type: installed, pfn: \"${{PMC_WORKFLOW_DIR}}/step\"}}]}}\n\
             replicaCatalog:\n  replicas:\n{inputs}jobs:\n{jobs}"
        ),
    );
}

/// A workflow below a directory of the place, in any state.
struct Work {
    /// Directory of the runs, relative to the place.
    runs: &'static str,
    cleanup: &'static str,
    /// Kickstart and the tools are programs instead of parts of the task server.
    separate: bool,
}

impl Work {
    fn new(place: &mut Place, runs: &'static str) -> Self {
        write_workflow(place);
        Self {
            runs,
            cleanup: place.random.pick(&["leaf", "inplace", "none"]),
            separate: place.random.one_in(2),
        }
    }

    /// Returns the last run that can be resumed.
    fn planned(&self, place: &Place) -> Option<PathBuf> {
        let runs = place.path(self.runs).join("crash");
        let mut runs: Vec<PathBuf> = runs
            .read_dir()
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        runs.retain(|run| run.join("submit/crash-0.dag").exists());
        runs.sort();
        runs.pop()
    }

    /// Returns the arguments that begin or continue the workflow.
    fn arguments(&self, place: &Place) -> Vec<String> {
        let words: Vec<String> = match self.planned(place) {
            Some(run) => vec!["resume".into(), "-q".into(), "--stampede".into(), path(&run)],
            None => [
                "run",
                "-q",
                "--stampede",
                "--dir",
                self.runs,
                "--cleanup",
                self.cleanup,
                "workflow.yml",
            ]
            .map(str::to_owned)
            .to_vec(),
        };
        words
    }

    fn command(&self, place: &Place) -> Command {
        let mut command = place.command("pmc", self.arguments(place));
        if self.separate {
            command.env("PMC_KICKSTART", "exec");
        }
        command
    }

    /// Continues without faults, then checks everything.
    fn complete(&self, place: &mut Place) {
        let mut command = self.command(place);
        if !place.run(&mut command) {
            place.find(Damage::Lost, "the workflow cannot be completed");
            return;
        }
        let Some(run) = self.planned(place) else {
            place.find(Damage::Lost, "no run");
            return;
        };
        check::run(place, &run);
        self.sweep(place);
        check::runs(place, run.parent().expect("runs are in a directory"));
    }

    /// Starts another workflow, as a user would do later: it sweeps what was left before.
    fn sweep(&self, place: &mut Place) {
        place.age(&place.path(self.runs));
        let arguments = [
            "run",
            "-q",
            "--dir",
            self.runs,
            "--cleanup",
            "leaf",
            "workflow.yml",
        ];
        let mut command = place.command("pmc", arguments);
        if !place.run(&mut command) {
            place.find(Damage::Wrong, "the next workflow fails");
        }
    }
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Processes are killed.
pub(super) fn killed(place: &mut Place) {
    let work = Work::new(place, "runs");
    for _ in 0..=place.random.below(MAX_FAULTS) {
        let victim = place.random.pick(&[Victim::First, Victim::Below, Victim::All]);
        let mut command = work.command(place);
        if place.run_and_kill(&mut command, RUN_MS, victim) {
            break;
        }
    }
    work.complete(place);
}

/// The disk gets full at a random moment, and free again later.
pub(super) fn disk_full(place: &mut Place) {
    if !place.mount_small(SMALL_MIB) {
        return;
    }
    let work = Work::new(place, "small/runs");
    for _ in 0..=place.random.below(2) {
        let moment = place.moment(RUN_MS);
        let mut running = place.start(&mut work.command(place));
        let ended = running.wait(moment);
        fill(place);
        place.fault("disk full");
        let more = Duration::from_millis(500 + place.random.below(1500));
        match ended.or_else(|| running.wait(more)) {
            Some(status) => place.note_end(status),
            None if place.random.one_in(2) => place.kill(&mut running, Victim::First),
            None => {}
        }
        let _ = fs::remove_file(place.path("small/filler"));
        match running.wait(Duration::from_secs(120)) {
            Some(status) => place.note_end(status),
            None => {
                place.find(Damage::Wrong, "does not end although the disk is free again");
                place.kill(&mut running, Victim::All);
            }
        }
    }
    work.complete(place);
}

/// Fills the small disk but for some bytes.
fn fill(place: &mut Place) {
    let free = || {
        let data = nix::sys::statvfs::statvfs(&place.path("small")).expect("a file system");
        data.blocks_available().saturating_mul(data.fragment_size())
    };
    let (free, left) = (free(), place.random.below(MAX_FREE));
    let bytes = vec![0; usize::try_from(free.saturating_sub(left)).unwrap_or(0)];
    // What does not fit is not needed.
    let _ = fs::write(place.path("small/filler"), bytes);
}

/// The programs may open few files.
pub(super) fn few_descriptors(place: &mut Place) {
    let work = Work::new(place, "runs");
    for _ in 0..=place.random.below(MAX_FAULTS) {
        let limit = 4 + place.random.below(60);
        let arguments = work.arguments(place);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = place.limited(limit, "pmc", &arguments);
        place.fault("few descriptors");
        if place.run(&mut command) {
            break;
        }
    }
    work.complete(place);
}

/// A directory disappears at a random moment.
pub(super) fn directory_removed(place: &mut Place) {
    let work = Work::new(place, "runs");
    let moment = place.moment(RUN_MS);
    let mut running = place.start(&mut work.command(place));
    let ended = running.wait(moment);
    let run = work.planned(place);
    let needed = match (place.random.below(3), &run) {
        (0, Some(run)) => Some(run.join("scratch")),
        (1, Some(run)) => Some(run.clone()),
        _ => None,
    };
    let removed = needed.clone().unwrap_or_else(|| place.path("tmp"));
    remove(&removed);
    place.fault("directory removed");
    match ended.or_else(|| running.wait(Duration::from_secs(120))) {
        Some(status) => place.note_end(status),
        None => {
            place.find(Damage::Wrong, "does not end after a directory was removed");
            place.kill(&mut running, Victim::All);
        }
    }
    let _ = fs::create_dir(place.path("tmp"));
    if needed.is_some() {
        // What was in it is lost: the user starts anew.
        remove(&place.path("runs"));
    }
    work.complete(place);
}

/// Removes a directory in which programs may be creating files.
fn remove(directory: &Path) {
    for _ in 0..100 {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {}
            _ => return,
        }
    }
}
