//! `pmc run` with DAGMan files.

use crate::support::Place;

/// Shows its arguments, two variables, its directory and its input.
const SHOW: &str =
    r#"for a; do printf '[%s]' "$a"; done; echo " $ONE $TWO $(basename "$PWD")"; cat; echo problem >&2"#;

#[test]
fn jobs_run_as_their_submit_descriptions_say() {
    let place = Place::new();
    place.script("bin/show", SHOW);
    place.write("work/in.txt", "input\n");
    place.write(
        "new.sub",
        "executable = bin/show\n\
         arguments = \"plain 'two words' 'it''s' \"\"q\"\" $(state) back\\slash $HOME $$ '' $(DOLLAR)(x) 'a  b;c*'\"\n\
         environment = \"ONE='1 1' TWO=$(JOB)\"\n\
         initialdir = work\ninput = in.txt\noutput = $(JOB).$(Cluster).$(Process).out\nerror = $(JOB).err\n\
         request_cpus = 1\nrequest_memory = 16 MB\nlog = x.log\nqueue\n",
    );
    place.write(
        "w.dag",
        "# A comment\nJOB New new.sub\nVARS New state=\"W \\\"\\\"x\\\"\\\"\"\n\
         JOB Old {\n  executable = bin/show\n  arguments = one \\\"two\\\" 'three' \\\n    $ENV(HOME)\n\
         env = ONE=1;TWO=2 2\n  output = both\n  error = both\n}\nPARENT New CHILD Old\n",
    );
    let finished = place.run(["run", "w.dag"]);
    finished.code(0);
    assert_eq!(
        place.read("work/New.1.0.out"),
        "[plain][two words][it's][\"q\"][W][\"x\"][back\\slash][$HOME][$$][][$(x)][a  b;c*] 1 1 New work\ninput\n"
    );
    assert_eq!(place.read("work/New.err"), "problem\n");
    let here = place.path().display().to_string();
    let name = here.rsplit('/').next().unwrap_or_default();
    let expected = format!("[one][\"two\"]['three'][{here}] 1 2 2 {name}\nproblem\n");
    assert_eq!(place.read("both"), expected);
    let dag = place.read("pmc-runs/w/latest/submit/w-0.dag");
    assert!(dag.contains("TASK show_New -m 16 -c 1 "), "{dag}");
}

#[test]
fn scripts_run_around_jobs_and_decide() {
    let place = Place::new();
    place.script(
        "note",
        "echo \"$(basename \"$PWD\") $*\" >> \"$HOME/notes\"; test \"$1\" != fail",
    );
    place.script("sub/here", "echo \"here $*\" >> \"$HOME/notes\"");
    place.script("code", "exit $1");
    place.script("die", "kill -9 $$");
    place.write(
        "sub/job.sub",
        "executable = ../code\narguments = $(code:0)\nqueue\n",
    );
    place.write("die.sub", "executable = die\n");
    place.write(
        "w.dag",
        "JOB A job.sub DIR sub\nVARS A code=\"7\"\nSCRIPT PRE A here $NODE $MAX_RETRIES\n\
         SCRIPT POST A ../note post $RETURN $SUCCESS $PRE_SCRIPT_RETURN a;b\n\
         JOB B die.sub\nSCRIPT POST B ./note signal $RETURN $PRE_SCRIPT_RETURN\n\
         JOB C none NOOP\nSCRIPT PRE C note noop\nSCRIPT POST C note noop $RETURN\n\
         JOB D die.sub\nSCRIPT PRE D ./code 4\nSCRIPT POST D note never\nPRE_SKIP D 4\n\
         PARENT A CHILD B\nPARENT B CHILD C\nPARENT C CHILD D\n",
    );
    place.run(["run", "w.dag"]).code(0);
    let here = place.path().display().to_string();
    let name = here.rsplit('/').next().unwrap_or_default();
    assert_eq!(
        place.read("notes"),
        format!("here A 0\nsub post 7 False 0 a;b\n{name} signal -9 -1\n{name} noop\n{name} noop 0\n")
    );
    // A PRE script that fails keeps job and POST script from running.
    place.write(
        "v.dag",
        "JOB A die.sub\nSCRIPT PRE A note fail\nSCRIPT POST A note never\n",
    );
    place.run(["run", "v.dag"]).code(1);
    assert!(!place.read("notes").contains("never"));
}

#[test]
fn splices_sub_dags_and_limits_are_followed() {
    let place = Place::new();
    place.script("add", "echo \"$1\" >> \"$HOME/order\"");
    // Fails once.
    place.script(
        "once",
        "test -e \"$HOME/mark\" || { touch \"$HOME/mark\"; exit 3; }",
    );
    place.write(
        "add.sub",
        "executable = $ENV(HOME)/add\narguments = $(JOB)\nqueue\n",
    );
    place.write(
        "in/add.sub",
        "executable = ../add\narguments = in-$(JOB)\nqueue\n",
    );
    place.write(
        "in/x.dag",
        "JOB A add.sub\nJOB B add.sub\nPARENT A CHILD B\nCATEGORY B one\nMAXJOBS one 1\n",
    );
    place.write("low.dag", "JOB L add.sub\nJOB Gone missing.sub DONE\n");
    place.write(
        "w.dag",
        "JOB First add.sub\nSPLICE X in/x.dag DIR .\nSPLICE Y x.dag DIR in\nSUBDAG EXTERNAL S low.dag\n\
         JOB Last { \n executable = once\n}\nRETRY Last 1\nPRIORITY Last 5\n\
         PARENT First CHILD X\nPARENT X CHILD Y\nPARENT Y CHILD S\nPARENT S CHILD Last\n",
    );
    place.run(["run", "w.dag"]).code(0);
    assert_eq!(place.read("order"), "First\nX+A\nX+B\nin-Y+A\nin-Y+B\nS+L\n");
    let dag = place.read("pmc-runs/w/latest/submit/w-0.dag");
    for line in [
        "MAXJOBS x+one 1\n",
        "MAXJOBS y+one 1\n",
        "--category x+one ",
        "-p 5 -t 2 ",
    ] {
        assert!(dag.contains(line), "{line}: {dag}");
    }
}

#[test]
fn nodes_know_the_number_of_their_attempt() {
    let place = Place::new();
    place.script("work", "echo \"$0 $*\"; test \"$1\" = \"it's 2\"");
    place.script(
        "note",
        "echo \"$*\" >>\"$HOME/notes\"; test \"$1\" != post || test \"$2\" = 1",
    );
    place.write(
        "w.dag",
        "JOB A {\n executable = work\n arguments = \"'it''s $(RETRY)' $(n)\"\n n = 7$(retry)\n output = o.$(RETRY)\n}\n\
         RETRY A 3\n\
         JOB B {\n executable = note\n arguments = B\n}\nSCRIPT PRE B note pre $RETRY\nSCRIPT POST B note post $RETRY\n\
         RETRY B 1\nPARENT A CHILD B\n",
    );
    place.run(["run", "w.dag"]).code(0);
    let program = place.path().join("work").display().to_string();
    for n in 0..3 {
        assert_eq!(
            place.read(&format!("o.{n}")),
            format!("{program} it's {n} 7{n}\n")
        );
    }
    assert!(!place.path().join("o.3").exists());
    assert_eq!(place.read("notes"), "pre 0\nB\npost 0\npre 1\nB\npost 1\n");
}

#[test]
fn a_code_may_end_the_run() {
    let place = Place::new();
    place.script("code", "exit $1");
    place.write(
        "w.dag",
        "JOB A {\nexecutable = code\narguments = 9\n}\nRETRY A 5\nABORT-DAG-ON A 9 RETURN 4\n\
         JOB B {\nexecutable = code\n}\nPARENT A CHILD B\n",
    );
    let finished = place.run(["run", "w.dag"]);
    finished.code(4);
    assert!(
        finished.stdout().contains("1 failed, 2 not run"),
        "{}",
        finished.stdout()
    );
    assert_eq!(
        place
            .read("pmc-runs/w/latest/submit/jobstate.log")
            .matches("code_A EXECUTE")
            .count(),
        1
    );
}

#[test]
fn what_needs_htcondor_is_refused_with_file_and_line() {
    let place = Place::new();
    place.script("code", "exit $1");
    place.write("grid.sub", "executable = code\n\nuniverse = grid\nqueue\n");
    for (text, message) in [
        ("JOB A grid.sub\n", "grid.sub:3: universe = grid is not supported"),
        (
            "JOB A grid.sub DONE\nFINAL F x.sub\n",
            "w.dag:2: FINAL is not supported",
        ),
        ("JOBB A grid.sub\n", "w.dag:1: `JOBB` is no command of DAGMan"),
        ("JOB A none.sub\n", "w.dag:1: cannot read "),
        (
            "JOB A {\nexecutable = code\n}\nJOB B {\nexecutable = code\n}\nPARENT A CHILD B\nPARENT B CHILD A\n",
            "w.dag:",
        ),
    ] {
        place.write("w.dag", text);
        let finished = place.run(["run", "w.dag"]);
        finished.code(3);
        assert!(finished.stderr().contains(message), "{}", finished.stderr());
        assert!(!place.path().join("pmc-runs/w").exists(), "{text}");
    }
}

#[test]
fn arguments_are_exact_without_kickstart() {
    let place = Place::new();
    place.script("show", "for a; do printf '[%s]' \"$a\"; done");
    place.write(
        "w.dag",
        "JOB A {\nexecutable = show\narguments = \"'$HOME' 'a\\$b' ''''\"\noutput = out\n}\n",
    );
    for more in [
        "-Dpegasus.gridstart=none",
        "-Dpegasus.gridstart.invoke.always=true",
        "-q",
    ] {
        place.run(["run", more, "w.dag"]).code(0);
        assert_eq!(place.read("out"), "[$HOME][a\\$b][']", "{more}");
    }
}

#[test]
fn a_workflow_runs_dags() {
    let place = Place::new();
    place.chain("cat in.txt > mid.txt", "cat mid.txt > out.txt");
    let workflow = place.read("workflow.yml").replace(
        "- {type: job, id: C,",
        "- {type: condorWorkflow, id: D, file: d.dag, uses: [{lfn: d.dag, type: input}, {lfn: mid.txt, type: input}]}\n\
         - {type: condorWorkflow, id: T, file: t.dag, profiles: {dagman: {DIR: sub}}, uses: [{lfn: t.dag, type: input}]}\n\
         - {type: job, id: C,",
    );
    place.write(
        "workflow.yml",
        &format!("{workflow}jobDependencies: [{{id: D, children: [T]}}]\n"),
    );
    place.script("sub/show", "printf '[%s]' \"$@\" >> \"$HOME/notes\"");
    place.write(
        "d.dag",
        "JOB N {\n executable = sub/show\n arguments = \"'a $b' c\"\n}\n",
    );
    place.write("t.dag", "TASK a ./show 'x  $y'\nTASK b -t 2 sh -c 'test -e ../mark || { touch ../mark; exit 1; }'\nEDGE a b\n");
    place.run(["run", "workflow.yml", "--cleanup", "inplace"]).code(0);
    assert_eq!(place.read("notes"), "[a $b][c][x  $y]");
}
