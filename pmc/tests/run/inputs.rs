//! What `pmc run` finds beside a workflow, and what it checks before it runs.

use std::path::Path;

use super::examples;
use super::support::{Finished, Place, bin};

#[test]
fn a_site_catalog_and_properties_of_a_cluster_are_respected() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt; pwd > \"$HERE/where\"");
    place.write(
        "sites.yml",
        "pegasus: \"5.0.4\"\nsites:\n- name: local\n  directories:\n  - type: sharedScratch\n    path: ${PMC_WORKFLOW_DIR}/fast\n    \
         fileServers: [{url: \"file://${PMC_WORKFLOW_DIR}/fast\", operation: all}]\n",
    );
    place.write(
        "pegasus.properties",
        "pegasus.code.generator = Condor\nenv.HERE = SOMEWHERE\n",
    );
    let here = format!("-Denv.HERE={}", place.path().display());
    let finished = place.run(["run", &here, "workflow.yml"]);
    finished.code(0);
    assert!(
        finished
            .stderr()
            .contains("pmc: pegasus.code.generator=Condor is ignored: it is PMC on one machine\n"),
        "{}",
        finished.stderr()
    );
    let scratch = place.read("where");
    let fast = place.path().join("fast/chain-0-").display().to_string();
    assert!(scratch.starts_with(&fast), "{scratch}");
    assert!(!Path::new(scratch.trim()).exists(), "scratch is removed");
    assert_eq!(place.read("pmc-runs/chain/latest/output/out.txt"), "something\n");
}

/// The workflow `chain` with its catalogs in files.
fn chain_with_catalogs(place: &Place) {
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    let text = place.read("workflow.yml");
    let (head, rest) = text.split_once("transformationCatalog:\n").expect("a catalog");
    let (programs, rest) = rest.split_once("replicaCatalog:\n").expect("a catalog");
    let (replicas, jobs) = rest.split_once("jobs:\n").expect("jobs");
    let unindented = |text: &str| {
        text.lines()
            .map(|line| format!("{}\n", &line[2..]))
            .collect::<String>()
    };
    place.write(
        "transformations.yml",
        &format!("pegasus: \"5.0\"\n{}", unindented(programs)),
    );
    place.write(
        "replicas.yml",
        &format!("pegasus: \"5.0\"\n{}", unindented(replicas)),
    );
    place.write("workflow.yml", &format!("{head}jobs:\n{jobs}"));
}

#[test]
fn run_and_plan_find_the_same_catalogs() {
    let place = Place::new();
    chain_with_catalogs(&place);
    place.write("elsewhere/note", "");
    let from = |arguments: &[&str]| {
        let mut command = place.pmc(arguments);
        Finished::from(
            command
                .current_dir(place.path().join("elsewhere"))
                .output()
                .expect("pmc runs"),
        )
    };
    from(&["run", "-q", "../workflow.yml"]).code(0);
    from(&["plan", "--dir", "plans", "-O", "out", "../workflow.yml"]).code(0);
    let dry = from(&["plan", "--dry-run", "-O", "out", "../workflow.yml"]);
    dry.code(0);
    assert!(dry.stdout().contains("3 compute"), "{}", dry.stdout());
    // Catalogs in the working directory come first, as in Pegasus.
    let other = place.read("replicas.yml").replace("in.txt", "none.txt");
    place.write("elsewhere/replicas.yml", &other);
    for arguments in [
        &["run", "../workflow.yml"] as &[&str],
        &["plan", "-O", "out", "../workflow.yml"],
    ] {
        let finished = from(arguments);
        assert!(finished.stderr().contains("lfn in.txt"), "{}", finished.stderr());
    }
}

#[test]
fn a_dry_run_writes_nothing_and_runs_are_explained() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    let dry = place.run(["run", "--dry-run", "workflow.yml"]);
    dry.code(0);
    assert!(dry.stdout().contains("3 compute"), "{}", dry.stdout());
    assert!(!place.path().join("pmc-runs").exists());
    place.run(["run", "-q", "workflow.yml"]).code(0);
    let figures = place.run(["explain", "pmc-runs/chain/run0001"]);
    figures.code(0);
    // The estimate and the counts are those of the dry run; only the directories may differ.
    assert_eq!(figures.stdout(), dry.stdout());
    for dir in [
        "pmc-runs/chain",
        "pmc-runs/chain/latest",
        "pmc-runs/chain/run0001/submit",
    ] {
        let job = place.run(["explain", "A", dir]);
        job.code(0);
        let text = job.stdout();
        assert!(
            text.starts_with("first_A: runs first (job A, workflow.yml:"),
            "{text}"
        );
    }
    let unknown = place.run(["explain", "nothing", "pmc-runs/chain"]);
    assert!(unknown.stderr().contains("nothing"), "{}", unknown.stderr());
}

#[test]
fn programs_and_inputs_are_checked_before_a_run() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    std::fs::remove_file(place.path().join("bin/first")).expect("it is there");
    std::fs::remove_file(place.path().join("in.txt")).expect("it is there");
    place.write("bin/alone", "");
    let path = place.path().join("bin/alone");
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("mode");
    let finished = place.run(["run", "workflow.yml"]);
    finished.code(3);
    let dir = place.path().display();
    assert_eq!(
        finished.stderr(),
        format!(
            "pmc: the program {dir}/bin/first does not exist: the job A runs it as first\n\
             the program {dir}/bin/alone is not executable: the job C runs it as alone\n\
             the input in.txt of the job A does not exist: there is no {dir}/in.txt\n"
        )
    );
    place.run(["run", "--no-check", "workflow.yml"]).code(1);
}

#[test]
fn the_tutorial_runs_without_a_site_catalog() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    let workflow = place
        .read("workflow.yml")
        .replace("name: local", "name: condorpool");
    place.write("workflow.yml", &workflow);
    let finished = place.run(["run", "workflow.yml"]);
    finished.code(0);
    let warning = "pmc: warning: without a site catalog, the site condorpool means this machine\n";
    assert!(finished.stderr().starts_with(warning), "{}", finished.stderr());
}

#[test]
fn inputs_and_programs_may_come_from_directories() {
    let place = Place::new();
    place.script("programs/double", "cat \"$1\" \"$1\" > two.txt");
    place.write("data/one.txt", "1\n");
    place.write(
        "workflow.yml",
        "pegasus: \"5.0.4\"\nname: directories\njobs:\n- type: job\n  id: A\n  name: double\n  arguments: [one.txt]\n  \
         uses: [{lfn: one.txt, type: input}, {lfn: two.txt, type: output, registerReplica: false}]\n",
    );
    place
        .run([
            "run",
            "-I",
            "data",
            "-t",
            "programs",
            "-O",
            "results",
            "workflow.yml",
        ])
        .code(0);
    assert_eq!(place.read("results/two.txt"), "1\n1\n");
}

#[test]
fn a_task_that_is_too_large_is_rejected_with_numbers() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    let workflow = place.read("workflow.yml");
    // Either name of the profile.
    for profile in ["memory", "pmc_request_memory"] {
        let profile = format!("id: C, profiles: {{pegasus: {{{profile}: 64000000}}}},");
        place.write("workflow.yml", &workflow.replace("id: C,", &profile));
        let finished = place.run(["run", "workflow.yml"]);
        finished.code(4);
        let stderr = finished.stderr();
        assert!(
            stderr.contains(
                "pmc: the task alone_C requests more than this machine has: 62500 GiB and 1 CPU of "
            ),
            "{stderr}"
        );
        assert!(stderr.contains("\n  hint: --host-memory"), "{stderr}");
    }
    place
        .run(["resume", "--host-memory", "64000000", "pmc-runs/chain"])
        .code(0);
}

#[test]
fn missing_programs_are_named() {
    let place = Place::new();
    place.chain("true", "true");
    let copy = place.path().join("pmc");
    std::fs::copy(bin().join("pmc"), &copy).expect("copy");
    let output = std::process::Command::new(&copy)
        .args(["run", "workflow.yml"])
        .current_dir(place.path())
        .env_clear()
        .output();
    let finished = Finished::from(output.expect("pmc runs"));
    finished.code(4);
    let stderr = finished.stderr();
    assert!(stderr.contains("pegasus-kickstart"), "{stderr}");
    assert!(
        stderr.contains("hint: it comes with pmc: install all programs"),
        "{stderr}"
    );
    assert!(!place.path().join("pmc-runs").exists());
}

#[test]
fn published_workflows_run_without_their_programs() {
    let place = Place::new();
    let synthetic = bin().join("examples/synthetic");
    let dax = examples().join("synthetic/survey.xml");
    let prepared = place.path().join("prepared");
    let prepare = std::process::Command::new(&synthetic)
        .args(["prepare", "--scale", "0.001", "--out"])
        .arg(&prepared)
        .arg("--dax")
        .arg(&dax)
        .output();
    Finished::from(prepare.expect("synthetic runs")).code(0);
    let finished = place.run([
        Path::new("run"),
        Path::new("--conf"),
        &prepared.join("pegasus.properties"),
        &dax,
    ]);
    finished.code(0);
    let check = std::process::Command::new(&synthetic)
        .args(["check", "--prepared"])
        .arg(&prepared)
        .output();
    let check = Finished::from(check.expect("synthetic runs"));
    check.code(0);
    assert_eq!(check.stdout(), "10 outputs, all with the expected sizes\n");
}
