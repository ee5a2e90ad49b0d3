//! `pmc resume` after edits: what it notices, what `--replan` and `--rerun` run again.
#![expect(clippy::panic, reason = "tests")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{Finished, Place, bin};

/// Writes the workflow `chain` of [`Place::chain`], whose jobs note their starts in `ran`.
fn chain(place: &Place) {
    place.chain("", "");
    let note = |name: &str, rest: &str| {
        let log = place.path().join("ran");
        place.script(
            &format!("bin/{name}"),
            &format!("echo {name} >> {}\n{rest}", log.display()),
        );
    };
    note("first", "cp in.txt mid.txt");
    note("second", "cp mid.txt out.txt");
    note("alone", "echo alone > alone.txt");
}

/// Returns the jobs that ran since the last call, sorted.
fn ran(place: &Place) -> Vec<String> {
    let path = place.path().join("ran");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(&path);
    let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
    names.sort();
    names
}

fn pmc_plan(place: &Place, arguments: &[&str]) -> Finished {
    let mut command = Command::new(bin().join("pmc-plan"));
    command.args(arguments).current_dir(place.path()).env_clear();
    command.env("PATH", "/usr/bin:/bin").env("HOME", place.path());
    Finished::from(command.output().expect("pmc-plan runs"))
}

const RUN: &str = "pmc-runs/chain/run0001";

#[test]
fn an_edited_input_makes_only_its_readers_run_again() {
    let place = Place::new();
    chain(&place);
    // Both inputs come by the same stage-in job.
    let text = place.read("workflow.yml");
    let text = text
        .replace(
            "  replicas:\n",
            "  replicas:\n  - {lfn: b.txt, pfns: [{site: local, pfn: \"${PMC_WORKFLOW_DIR}/b.txt\"}]}\n",
        )
        .replace(
            "name: alone, uses: [",
            "name: alone, uses: [{lfn: b.txt, type: input}, ",
        );
    place.write("workflow.yml", &text);
    place.write("b.txt", "b\n");
    place
        .run(["run", "-q", "--cleanup", "none", "workflow.yml"])
        .code(0);
    assert_eq!(ran(&place), ["alone", "first", "second"]);

    place.write("in.txt", "something else\n");
    let resumed = place.run(["resume", RUN]);
    resumed.code(0);
    let stderr = resumed.stderr();
    assert!(
        stderr.contains("changed since the plan was made: ")
            && stderr.contains("in.txt (2 done tasks used it"),
        "{stderr}"
    );
    assert_eq!(ran(&place), [""; 0], "the plan stays as it was");

    let replanned = place.run(["resume", "--replan", RUN]);
    replanned.code(0);
    assert_eq!(ran(&place), ["first", "second"], "{}", replanned.stderr());
    assert_eq!(place.read(&format!("{RUN}/output/out.txt")), "something else\n");
    // The old plan is kept, and nothing is left to do.
    assert!(place.path().join(RUN).join("submit/replaced/001").is_dir());
    let once_more = place.run(["resume", "--replan", RUN]);
    once_more.code(0);
    assert!(
        once_more.stderr().contains("7 of 7 tasks stay done"),
        "{}",
        once_more.stderr()
    );
    assert_eq!(ran(&place), [""; 0]);
}

/// A task goes on from its checkpoints in the next run, but not under a new plan.
#[test]
fn checkpoints_of_an_old_plan_are_not_used() {
    let place = Place::new();
    chain(&place);
    let pmc = format!("{} checkpoint", bin().join("pmc").display());
    place.script(
        "bin/second",
        &format!("{pmc} get state out.txt && exit 0\n{pmc} put state mid.txt\nexit 3"),
    );
    place.run(["run", "-q", "workflow.yml"]).code(1);
    place.write("in.txt", "something else\n");
    let replanned = place.run(["resume", "--replan", RUN]);
    replanned.code(1);
    let said = "their checkpoints were those of the old plan\n";
    assert!(replanned.stderr().contains(said), "{}", replanned.stderr());
    place.run(["resume", RUN]).code(0);
    assert_eq!(place.read(&format!("{RUN}/output/out.txt")), "something else\n");
}

#[test]
fn a_repaired_program_is_not_run_again_after_it_succeeded() {
    let place = Place::new();
    chain(&place);
    place.script("bin/second", "exit 3");
    place.run(["run", "-q", "workflow.yml"]).code(1);
    place.script("bin/second", "cp mid.txt out.txt");
    let resumed = place.run(["resume", RUN]);
    resumed.code(0);
    assert!(!resumed.stderr().contains("changed"), "{}", resumed.stderr());
    let replanned = place.run(["resume", "--replan", RUN]);
    replanned.code(0);
    assert!(
        replanned.stderr().contains("8 of 8 tasks stay done"),
        "{}",
        replanned.stderr()
    );
}

#[test]
fn a_clean_up_that_was_killed_after_its_removal_runs_again() {
    let place = Place::new();
    chain(&place);
    place
        .run(["run", "-q", "--cleanup", "leaf", "workflow.yml"])
        .code(0);
    assert!(!place.path().join(RUN).join("work").join("mid.txt").exists());
    // As if the executor had been killed before it noted the end of this job.
    let rescue = format!("{RUN}/submit/chain-0.dag.rescue");
    let text = place.read(&rescue);
    let left = text.replace("\nDONE cleanup_chain_0_local", "");
    assert_ne!(left, text);
    place.write(&rescue, &left);
    let resumed = place.run(["resume", RUN]);
    resumed.code(0);
    assert!(place.read(&rescue).contains("\nDONE cleanup_chain_0_local"));
}

#[test]
fn a_plan_whose_end_is_missing_runs_only_on_request() {
    let place = Place::new();
    chain(&place);
    place.script("bin/second", "exit 3");
    place.run(["run", "-q", "workflow.yml"]).code(1);
    place.script("bin/second", "cp mid.txt out.txt");
    let dag = format!("{RUN}/submit/chain-0.dag");
    let text = place.read(&dag);
    // Cut off in the middle of the last line.
    let end = text.rfind("\n#+ end ").expect("the plan has a last line") + 5;
    place.write(&dag, &text[..end]);

    let refused = place.run(["resume", RUN]);
    refused.code(4);
    assert!(
        refused.stderr().contains("with --accept-incomplete"),
        "{}",
        refused.stderr()
    );
    let accepted = place.run(["resume", "--accept-incomplete", RUN]);
    accepted.code(0);
    assert!(
        accepted.stderr().contains("the end is missing"),
        "{}",
        accepted.stderr()
    );
    assert_eq!(place.read(&format!("{RUN}/output/out.txt")), "something\n");

    place.run(["resume", "--replan", RUN]).code(0);
    assert_eq!(place.read(&dag), text, "the new plan is complete");
    place.write(&dag, "");
    place.run(["resume", RUN]).code(4);
}

#[test]
fn ends_that_a_killed_run_did_not_log_are_added() {
    let place = Place::new();
    chain(&place);
    place.run(["run", "-q", "workflow.yml"]).code(0);
    // As if the executor had been killed after the record in the rescue file.
    for log in ["chain-0.dag.dagman.out", "jobstate.log"] {
        let log = format!("{RUN}/submit/{log}");
        let text = place.read(&log);
        let last = text
            .lines()
            .position(|line| line.contains("cleanup_chain_0_local") && line.contains("EXECUTE"))
            .expect("the last job was logged");
        let kept: Vec<&str> = text.lines().take(last + 1).collect();
        place.write(&log, &format!("{}\n", kept.join("\n")));
    }
    let resumed = place.run(["resume", "--stampede", RUN]);
    resumed.code(0);
    let statistics = place.run(["statistics", "--json", RUN]);
    let jobs = &statistics.json()["summary"]["jobs"];
    assert_eq!(
        (&jobs["succeeded"], &jobs["incomplete"], &jobs["total"]),
        (&8.into(), &0.into(), &8.into()),
        "{jobs}"
    );
    // Now nothing is left, so nothing is added.
    let log = || place.read(&format!("{RUN}/submit/chain-0.dag.dagman.out"));
    let before = log();
    place.run(["resume", "--stampede", RUN]).code(0);
    assert_eq!(log(), before);
    let states = place.read(&format!("{RUN}/submit/jobstate.log"));
    assert_eq!(states.matches(" JOB_SUCCESS 0 ").count(), 8, "{states}");
}

#[test]
fn a_database_that_a_killed_run_did_not_write_is_completed() {
    let place = Place::new();
    chain(&place);
    place.run(["run", "-q", "workflow.yml"]).code(0);
    place.run(["resume", "--stampede", RUN]).code(0);
    let database = format!("{RUN}/submit/chain-0.stampede.db");
    assert!(place.path().join(&database).exists(), "{database}");
    let statistics = place.run(["statistics", "--json", RUN]);
    assert_eq!(statistics.json()["summary"]["jobs"]["succeeded"], 8);
}

#[test]
fn jobs_run_again_with_what_they_need() {
    let place = Place::new();
    chain(&place);
    place.run(["run", "-q", "workflow.yml"]).code(0);
    ran(&place);
    // The work directory is gone: `mid.txt` is made again.
    place.run(["resume", "-q", "--rerun", "B", RUN]).code(0);
    assert_eq!(ran(&place), ["first", "second"]);
    place.run(["resume", "-q", "--rerun", "alone_C", RUN]).code(0);
    assert_eq!(ran(&place), ["alone"]);
    place.run(["resume", "-q", "--rerun", "A,C", RUN]).code(0);
    assert_eq!(ran(&place), ["alone", "first"]);
    let all = place.run(["resume", "-q", "--rerun", "A", "--with-dependents", RUN]);
    all.code(0);
    assert_eq!(ran(&place), ["first", "second"]);
    let unknown = place.run(["resume", "--rerun", "Z", RUN]);
    unknown.code(2);
    assert!(
        unknown.stderr().contains("there is no job Z"),
        "{}",
        unknown.stderr()
    );
}

#[test]
fn an_edited_workflow_is_planned_again() {
    let place = Place::new();
    chain(&place);
    place.script("bin/second", "exit 3");
    place.run(["run", "-q", "workflow.yml"]).code(1);
    ran(&place);
    let text = place.read("workflow.yml");
    let from = text.find("- {type: job, id: B").expect("B");
    let to = text.find("- {type: job, id: C").expect("C");
    let other = "- {type: job, id: D, name: first, uses: [{lfn: mid.txt, type: input}, {lfn: in.txt, type: \
                 input}, {lfn: more.txt, type: output, registerReplica: false}]}\n";
    place.write(
        "workflow.yml",
        &format!("{}{}{other}", &text[..from], &text[to..]),
    );
    let refused = place.run(["resume", "--rerun", "A", RUN]);
    refused.code(3);
    assert!(
        refused.stderr().contains("--replan takes the changes"),
        "{}",
        refused.stderr()
    );
    // The job D reads what A made, and does it once more by its script.
    let log = place.path().join("ran").display().to_string();
    place.script(
        "bin/first",
        &format!("echo first >> {log}; cp in.txt mid.txt; cp in.txt more.txt"),
    );
    let replanned = place.run(["resume", "--replan", "--json", RUN]);
    replanned.code(0);
    assert_eq!(ran(&place), ["first", "first"], "{}", replanned.stderr());
    let json = replanned.json();
    assert_eq!(json["tasks"]["total"], json["tasks"]["done"], "{json}");
    assert_eq!(json["tasks"]["by_kind"]["compute"]["total"], 3);

    // Monitoring knows the job that has gone, since the log has it.
    let status = place.run(["status", "--json", RUN]).json();
    assert_eq!(status["tasks"]["total"], json["tasks"]["total"], "{status}");
    let statistics = place.run(["statistics", "--json", RUN]).json();
    let jobs = &statistics["summary"]["jobs"];
    assert_eq!(
        (&jobs["failed"], &jobs["incomplete"]),
        (&1.into(), &0.into()),
        "{statistics}"
    );
}

#[test]
fn a_changed_order_is_kept_by_edges() {
    let place = Place::new();
    chain(&place);
    // B reads what was staged in, too. The edge from the stage-in job to it is superfluous, as A is between.
    let text = place.read("workflow.yml");
    let text = text.replace(
        "name: second, uses: [",
        "name: second, uses: [{lfn: in.txt, type: input}, ",
    );
    place.write("workflow.yml", &text);
    place
        .run(["run", "-q", "--cleanup", "none", "workflow.yml"])
        .code(0);
    ran(&place);
    std::fs::remove_file(place.path().join(RUN).join("scratch/in.txt")).expect("it is there");
    place.run(["resume", "-q", "--rerun", "B", RUN]).code(0);
    assert_eq!(ran(&place), ["second"], "A stays done");
    let dag = place.read(&format!("{RUN}/submit/chain-0.dag"));
    assert!(dag.contains("EDGE stage_in_local_local_0_0 second_B\n"), "{dag}");
}

#[test]
fn a_replacement_that_was_cut_off_is_finished_by_the_next_command() {
    let place = Place::new();
    chain(&place);
    place.run(["run", "-q", "workflow.yml"]).code(0);
    ran(&place);
    let submit = place.path().join(RUN).join("submit");
    // As if the planner had been killed after the new plan counted: its rescue file says that nothing is
    // done.
    let new = submit.join(".replan/new");
    std::fs::create_dir_all(&new).expect("directory");
    std::fs::copy(submit.join("chain-0.dag"), new.join("chain-0.dag")).expect("copy");
    std::fs::write(new.join("chain-0.dag.rescue"), "").expect("file");
    place.run(["resume", "-q", RUN]).code(0);
    assert_eq!(ran(&place), ["alone", "first", "second"]);
    assert!(!submit.join(".replan").exists());
    assert!(submit.join("replaced/001/chain-0.dag.rescue").is_file());
}

#[test]
fn a_plan_for_a_cluster_is_submitted_again() {
    let place = Place::new();
    chain(&place);
    let planned = pmc_plan(
        &place,
        &[
            "--sites",
            "local",
            "--output-sites",
            "local",
            "--output-dir",
            "results",
            "--batch",
            "slurm",
            "--dir",
            ".",
            "--relative-submit-dir",
            "plan",
            "workflow.yml",
        ],
    );
    planned.code(0);
    assert!(
        planned
            .stdout()
            .contains("pegasus-mpi-cluster --monitord-hack --per-task-stdio "),
        "{}",
        planned.stdout()
    );
    let script = Path::new("plan/chain-0.sbatch");
    let command = format!("sbatch {}", place.path().join(script).display());
    let refused = place.run(["resume", "plan"]);
    refused.code(4);
    assert!(refused.stderr().contains(&command), "{}", refused.stderr());
    let status = place.run(["status", "plan"]).stdout();
    assert!(status.contains(&format!("start    {command}\n")), "{status}");
    place.script("bin/second", "exit 3");
    place.run(["resume", "-q", "--here", "plan"]).code(1);
    let analyzer = place.run(["analyzer", "plan"]).stdout();
    assert!(analyzer.contains(&format!("resume    {command}\n")), "{analyzer}");
    // Planning again does not run it here.
    ran(&place);
    let replanned = place.run(["resume", "--replan", "plan"]);
    replanned.code(0);
    assert!(replanned.stdout().contains(&command), "{}", replanned.stdout());
    assert_eq!(ran(&place), [""; 0]);
}
