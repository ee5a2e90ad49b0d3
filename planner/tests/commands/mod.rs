//! Arguments, environment and standard streams of programs.

use crate::common::Case;
use crate::{LINE, chain};

#[test]
fn environment_profiles_reach_the_job() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: first\n  profiles: {env: {WORD: a b, N: '1'}}\n  sites: \
         [{name: local, type: installed, pfn: /bin/first}]\n- name: second\n  sites: [{name: local, type: installed, \
         pfn: /bin/second}]\n",
    );
    let plan = case.plan(LINE)?;
    let words = plan.command("first_A");
    assert_eq!(
        words[..4],
        [
            "/usr/bin/env",
            "N=1",
            "WORD=a b",
            "/opt/pegasus/bin/pegasus-kickstart"
        ]
    );
    // The site's PEGASUS_HOME is for the planner only.
    assert_eq!(plan.command("second_B")[0], "/opt/pegasus/bin/pegasus-kickstart");
    Ok(())
}

#[test]
fn literal_arguments_arrive_unchanged() -> Result<(), Box<dyn std::error::Error>> {
    let case = Case::new(
        r#"pegasus: "5.0"
name: quotes
jobs:
- type: job
  id: A
  name: first
  arguments: ["two words", "", "it's", 'a"b', 'c\d', 1.50, "$HOME", "$(date) 5$", plain]
  uses: [{lfn: out, type: output}]
"#,
    );
    case.programs(&["first"]);
    let line = "--sites local --dir submit -Dpegasus.parser.arguments.split=false";
    let plan = case.plan(line)?;
    let words = plan.command("first_A");
    let at = words.iter().position(|w| w == "/bin/first").ok_or("no program")?;
    // Kickstart removes one layer of backslashes.
    assert_eq!(
        words[at + 1..],
        [
            "two words",
            "",
            r"it\'s",
            r#"a\"b"#,
            r"c\\d",
            "1.50",
            "$HOME",
            r"\$(date) 5\$",
            "plain"
        ]
    );
    case.put(
        "workflow.yml",
        "pegasus: \"5.0\"\nname: quotes\njobs:\n- {type: job, id: A, name: first, arguments: [\"a\\nb\"], uses: \
         [{lfn: out, type: output}]}\n",
    );
    let message = case.fail(line);
    assert!(
        message.contains("job A: argument 1 contains a line break"),
        "{message}"
    );
    Ok(())
}

#[test]
fn standard_streams_are_files_of_the_work_directory() -> Result<(), Box<dyn std::error::Error>> {
    let workflow = r#"pegasus: "5.0"
name: streams
jobs:
- type: job
  id: A
  name: first
  stdin: in
  stdout: log
  uses: [{lfn: in, type: input}, {lfn: log, type: output}]
"#;
    let case = Case::new(workflow);
    case.programs(&["first"]).replicas(&["in"]);
    let plan = case.plan("--sites local --dir submit")?;
    let words = plan.command("first_A");
    let scratch = case.path().join("scratch/tester/pegasus/streams/run0001");
    assert_eq!(
        words[1..3],
        ["-i".to_owned(), format!("{}/./in", scratch.display())]
    );
    assert!(words.windows(2).any(|w| w == ["-o", "log"]));
    // Without kickstart, a shell redirects the streams.
    case.put("pegasus.properties", "pegasus.gridstart = none\n");
    let plan = case.plan("--sites local --dir submit")?;
    let words = plan.command("first_A");
    assert_eq!(words[0], "/bin/sh");
    assert_eq!(words[2], "cd \"$0\" && exec \"$@\" <in >log");
    Ok(())
}
