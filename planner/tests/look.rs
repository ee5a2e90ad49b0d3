//! Plan summaries, explanations and pictures.

#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod common;

use std::process::Command;

use common::Case;

/// Job A makes `mid` from `in`, which has two replicas; B makes `end` from `mid`; the output of C exists
/// already.
const WORKFLOW: &str = r#"pegasus: "5.0"
name: two
jobs:
- type: job
  id: A
  name: work
  profiles: {pegasus: {runtime: 100, memory: 4096}}
  uses:
  - {lfn: in, type: input}
  - {lfn: mid, type: output, stageOut: false, registerReplica: false}
- type: job
  id: B
  name: work
  profiles: {pegasus: {runtime: 50}}
  uses:
  - {lfn: mid, type: input}
  - {lfn: end, type: output, size: 2048, stageOut: true, registerReplica: true}
- type: job
  id: C
  name: work
  uses:
  - {lfn: in, type: input}
  - {lfn: there, type: output, stageOut: true, registerReplica: false}
"#;

const LINE: &[&str] = &[
    "--sites",
    "local",
    "--output-sites",
    "local",
    "--dir",
    "submit",
    "--cleanup",
    "inplace",
];

fn case() -> Case {
    let case = Case::new(WORKFLOW);
    case.programs(&["work"]).put("data/in", "12345").put(
        "replicas.yml",
        "pegasus: \"5.0\"\nreplicas:\n- lfn: in\n  pfns: [{site: local, pfn: \"file://@DIR@/data/in\"}, {site: far, \
         pfn: \"http://far.example.org/in\"}]\n- lfn: there\n  pfns: [{site: local, pfn: /store/there}]\n",
    );
    case
}

/// Returns standard output, standard error, and whether the program succeeded.
fn run(case: &Case, arguments: &[&str]) -> (String, String, bool) {
    let out = Command::new(testutils::programs::path("pmc-plan"))
        .args(arguments)
        .current_dir(case.path())
        .env("HOME", case.path())
        .output()
        .expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(out.stdout), text(out.stderr), out.status.success())
}

fn line<'a>(more: &[&'a str]) -> Vec<&'a str> {
    LINE.iter().chain(more).copied().collect()
}

#[test]
fn a_dry_run_prints_a_summary_and_writes_no_files() {
    let case = case();
    let (out, _, ok) = run(&case, &line(&["--dry-run", "--nodes", "2", "--ppn", "4"]));
    assert!(ok);
    for part in [
        "two: ",
        "  compute       2\n",
        "  not run       1 (their outputs exist)\n",
        "  to stage in   1 files, 5 B\n",
        "Estimated time: 2 min 30 s on 2 nodes with 4 processes each",
        "run times of 2 of 2",
    ] {
        assert!(out.contains(part), "{part:?} is not in {out}");
    }
    assert!(!case.path().join("submit").exists());
    let (out, _, ok) = run(&case, &line(&["--dry-run", "--json"]));
    assert!(ok);
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["kinds"]["compute"], 2);
    assert_eq!(value["stage_in"]["bytes"], 5);
    assert_eq!(value["estimate"]["longest_chain_seconds"], 150.0);
}

#[test]
fn clusters_are_summarized_and_their_jobs_explained() {
    let case = case();
    let more = ["--cluster", "whole", "--dry-run"];
    let (out, err, ok) = run(&case, &line(&more));
    assert!(ok, "{err}");
    assert!(
        out.contains("  in clusters   2 jobs, 2 in each cluster\n"),
        "{out}"
    );
    let (out, _, ok) = run(&case, &line(&[&more[..], &["--json"]].concat()));
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(
        ok && value["clusters"]["jobs"] == 2 && value["clusters"]["largest"] == 2,
        "{out}"
    );
    let (out, err, ok) = run(
        &case,
        &line(&[
            "--cluster",
            "whole",
            "--explain",
            "B",
            "--explain",
            "merge_whole-wf",
        ]),
    );
    assert!(ok, "{err}");
    for part in [
        "work_B: runs work (job B, workflow.yml:11)",
        "cluster     merge_whole-wf",
        "mid: from merge_whole-wf",
        "end: ",
        "merge_whole-wf: ",
    ] {
        assert!(out.contains(part), "{part:?} is not in {out}");
    }
}

#[test]
fn a_dry_run_refuses_what_a_plan_refuses() {
    let case = case();
    let arguments = line(&["--dry-run", "-Dpegasus.pmc_request_cpus=-1"]);
    let (_, err, ok) = run(&case, &arguments);
    assert!(!ok && err.contains("cpu count -1"), "{err}");
}

#[test]
fn the_container_of_a_job_is_explained() {
    let case = case();
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: work\n  sites: [{name: local, type: installed, pfn: /bin/work, container: \
         box}]\ncontainers:\n- {name: box, type: docker, image: \"docker:///lab/work:1\", profiles: {pegasus: {cores: 3}}}\n",
    );
    let (text, err, ok) = run(&case, &line(&["--explain", "A"]));
    assert!(ok, "{err}");
    for part in [
        "container   box (docker), image docker:///lab/work:1 on CONTAINER_SITE",
        "cores       3, from the profile pegasus::cores of the container box",
        "box: from stage_in_",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn names_do_not_control_the_terminal() {
    let case = case();
    let hostile = WORKFLOW.replace("name: work", "name: \"wo\\e[2Jrk\"");
    case.put("workflow.yml", &hostile).put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: \"wo\\e[2Jrk\"\n  sites: [{name: local, type: installed, pfn: \
         \"/bin/wo\\ark\"}]\n",
    );
    let drawings = ["--dot", "--abstract-dot", "--svg", "--abstract-svg"];
    let mut words = line(&["--dry-run", "--explain", "A", "--explain", "C"]);
    words.extend(drawings.iter().flat_map(|option| [*option, &option[2..]]));
    let (out, err, ok) = run(&case, &words);
    assert!(ok && out.contains("wo\\u001b[2Jrk"), "{out}{err}");
    let mut texts = vec![out, err];
    for option in drawings {
        let path = case.path().join(&option[2..]);
        texts.push(std::fs::read_to_string(path).expect("a drawing"));
    }
    for text in texts {
        let control = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(control, None, "{text}");
    }
}

#[test]
fn explanations_before_and_after_planning_are_equal() {
    let case = case();
    let (before, _, ok) = run(&case, &line(&["--explain", "A", "--explain", "C"]));
    assert!(ok);
    for part in [
        "work_A: runs work (job A, workflow.yml:4)",
        "memory      4096 MiB, from the profile pegasus::memory of the job",
        "cores       1, the default",
        "in: from stage_in_remote_local_0_0, copied from file://",
        "else from http://far.example.org/in at far",
        "mid: removed by clean_up_local_level_4_0",
        "C (work): does not run",
        "there: exists at /store/there on local",
    ] {
        assert!(before.contains(part), "{part:?} is not in {before}");
    }
    let (_, _, ok) = run(&case, LINE);
    assert!(ok);
    let user = std::fs::read_dir(case.path().join("submit"))
        .expect("a directory")
        .next();
    let user = user.expect("an entry").expect("an entry").file_name();
    let dir = format!("submit/{}/pegasus/two/run0001", user.to_string_lossy());
    let (after, err, ok) = run(&case, &["explain", "A", "C", &dir]);
    assert!(ok, "{err}");
    assert_eq!(before, after);
    assert!(!err.contains("has changed"), "{err}");
    case.put("workflow.yml", &WORKFLOW.replace("4096", "8192"));
    let (after, err, ok) = run(&case, &["explain", "A", &dir]);
    assert!(ok && after.contains("8192 MiB"), "{after}");
    assert!(
        err.contains("workflow.yml has changed since the plan was made"),
        "{err}"
    );
    let (_, err, ok) = run(&case, &["explain", "work_AA", &dir]);
    assert!(!ok && err.contains("did you mean work_A?"), "{err}");
    let (_, err, ok) = run(&case, &["explain", "A"]);
    assert!(!ok && err.contains("is not a submit directory"), "{err}");
    for words in [
        &["explain", "submit"][..],
        &["explain", "A", "submit"],
        &["explain", "A", "no/submit"],
    ] {
        let (_, err, ok) = run(&case, words);
        let last = words.last().expect("a word");
        assert!(
            !ok && err.contains(&format!("{last} is not a submit directory of pmc-plan")),
            "{err}"
        );
    }
}

#[test]
fn workflows_are_drawn() {
    let case = case();
    let draw = |path: &std::path::Path| {
        let options = "--dry-run --dot e.dot --svg e.svg --abstract-dot a.dot --abstract-svg a.svg";
        let out = Command::new(testutils::programs::path("pmc-plan"))
            .args(line(&options.split(' ').collect::<Vec<_>>()))
            .current_dir(case.path())
            .env("HOME", case.path())
            .env("PATH", path)
            .output()
            .expect("the program runs");
        assert!(out.status.success(), "{out:?}");
    };
    let read = |name: &str| std::fs::read_to_string(case.path().join(name)).expect("a picture");
    // Without Graphviz, A and C form one group.
    draw(std::path::Path::new("/nonexistent"));
    assert!(read("e.dot").contains("stage_in_remote_local_0_0"));
    assert_eq!(read("a.dot").matches("->").count(), 1);
    assert_eq!(read("a.svg").matches("rx=\"5\"").count(), 2);
    assert!(read("e.svg").contains("pegasus::cleanup"));
    // A stub for Graphviz.
    let dot = case.path().join("bin/dot");
    case.put("bin/dot", "#!/bin/sh\necho \"$1\"; exec /bin/cat\n");
    std::fs::set_permissions(&dot, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    draw(&case.path().join("bin"));
    assert_eq!(read("a.svg"), format!("-Tsvg\n{}", read("a.dot")));
}

/// The properties beside a workflow or in a submit directory can be those of another user.
#[test]
fn looking_starts_no_program() {
    let case = case();
    let script = "#!/bin/sh\ntouch @DIR@/started\necho SOLUTION:local\n";
    case.put("select", script);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(case.path().join("select"), mode).expect("a script");
    let started = case.path().join("started");
    let selector = [
        "-Dpegasus.selector.site=NonJavaCallout",
        "-Dpegasus.selector.site.path=select",
    ];
    let (_, err, ok) = run(&case, &line(&selector));
    assert!(ok && started.exists(), "{err}");
    std::fs::remove_file(&started).expect("a file");
    let user = std::fs::read_dir(case.path().join("submit"))
        .expect("a directory")
        .next();
    let user = user.expect("an entry").expect("an entry").file_name();
    let dir = format!("submit/{}/pegasus/two/run0001", user.to_string_lossy());
    let dry_run = [selector[0], selector[1], "--dry-run"];
    let (_, err, ok) = run(&case, &line(&dry_run));
    assert!(!ok && err.contains("looking starts none"), "{err}");
    // The plan has the answers of the program.
    let (out, err, ok) = run(&case, &["explain", "A", &dir]);
    assert!(ok && out.contains("site        local"), "{out}{err}");
    assert!(!started.exists());
}
