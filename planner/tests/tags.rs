//! Tags of jobs, and expressions for the requests of their next attempts.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;

use std::error::Error;

use common::{Case, Plan};

const LINE: &str = "--sites hpc --output-sites local --dir submit";

type Outcome = Result<(), Box<dyn Error>>;

/// Two jobs without files on a site with tags. `more` are the profiles of the first.
fn case(more: &str) -> Case {
    let case = Case::new(&format!(
        "pegasus: \"5.0\"\nname: two\njobs:\n- {{type: job, id: A, name: first, uses: [], profiles: {{{more}}}}}\n\
         - {{type: job, id: B, name: second, uses: []}}\n"
    ));
    case.put(
        "sites.yml",
        "sites:\n- name: local\n  directories:\n  - {type: sharedScratch, path: /tmp/scratch}\n  - {type: localStorage, path: \
         /tmp/storage}\n- name: hpc\n  directories:\n  - {type: sharedScratch, path: /tmp/scratch-hpc}\n  profiles: \
         {pegasus: {cores: 2, memory: 100}}\n  x-tags:\n  - {name: gpu, profiles: {pegasus: {gpus: 1, cores: 4}}}\n  \
         - {name: cpu, profiles: {pegasus: {cores: 1}}}\n",
    );
    case
}

fn transformations(of_second: &str) -> String {
    let entry = |name: &str, profiles: &str| {
        format!("- name: {name}\n  sites: [{{name: hpc, type: installed, pfn: /bin/{name}}}]\n{profiles}")
    };
    format!(
        "transformations:\n{}{}",
        entry("first", ""),
        entry("second", of_second)
    )
}

/// The options of a task line.
fn options(plan: &Plan, task: &str) -> String {
    let dag = std::fs::read_to_string(&plan.planned.dag).expect("a DAG");
    let start = format!("TASK {task} ");
    let line = dag
        .lines()
        .find_map(|line| line.strip_prefix(&start))
        .expect(task);
    line.split(" /").next().unwrap_or_default().trim().to_owned()
}

#[test]
fn a_tag_brings_the_profiles_of_its_entry_in_the_site_catalog() -> Outcome {
    for (profiles, first) in [
        ("pegasus: {tag: gpu}", "-m 100 -c 4 -g 1"),
        ("pegasus: {tag: cpu}", "-m 100 -c 1"),
        // Those of the site win over the job, and a tag without an entry has none.
        ("pegasus: {tag: gpu, cores: 8}", "-m 100 -c 4 -g 1"),
        ("pegasus: {tag: other}", "-m 100 -c 2"),
        ("", "-m 100 -c 2"),
    ] {
        let case = case(profiles);
        // A tag of the program is none of the job.
        case.put(
            "transformations.yml",
            &transformations("  profiles: {pegasus: {tag: gpu}}\n"),
        );
        let plan = case.plan(LINE)?;
        assert_eq!(options(&plan, "first_A"), first, "{profiles}");
        assert_eq!(options(&plan, "second_B"), "-m 100 -c 2", "{profiles}");
    }
    // The program wins over the tag.
    let case = case("pegasus: {tag: gpu}");
    case.put(
        "transformations.yml",
        &transformations("").replace(
            "/bin/first}]\n",
            "/bin/first}]\n  profiles: {pegasus: {cores: 7}}\n",
        ),
    );
    assert_eq!(options(&case.plan(LINE)?, "first_A"), "-m 100 -c 7 -g 1");
    Ok(())
}

#[test]
fn expressions_become_task_options_with_the_values_that_they_need() -> Outcome {
    let case = case(
        "pegasus: {memory.expr: \"pegasus_memory_mb * 2 if pegasus_site == 'hpc' else 1\", cores.expr: '3', \
         runtime.expr: pegasus_job_runtime + 60, runtime: '100', queue.expr: \"'long'\"}",
    );
    case.put("transformations.yml", &transformations(""));
    let plan = case.plan(LINE)?;
    let first = options(&plan, "first_A");
    let words = pmc_dag::words::split(first.as_bytes());
    let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
    assert_eq!(
        words,
        [
            "-m",
            "100",
            "-c",
            "2",
            "-e",
            "100",
            "--request-expression",
            "cores=3",
            "--request-expression",
            "memory=pegasus_memory_mb * 2 if pegasus_site == 'hpc' else 1",
            "--request-expression",
            "runtime=pegasus_job_runtime + 60",
            "--expression-value",
            "pegasus_site=hpc",
            "--expression-value",
            "pegasus_job_runtime=100",
        ]
    );
    assert_eq!(options(&plan, "second_B"), "-m 100 -c 2");
    let about_queue =
        |warning: &&String| warning.contains("pegasus::queue.expr has no effect: all tasks run in one");
    assert_eq!(plan.warnings().iter().filter(about_queue).count(), 1);
    Ok(())
}

#[test]
fn an_expression_that_cannot_be_evaluated_is_warned_of_at_planning() -> Outcome {
    let case = case(
        "pegasus: {memory.expr: pegasus_memory_mb *, cores.expr: pegasus_core + 1, gpus.expr: hostaddr}",
    );
    case.put("transformations.yml", &transformations(""));
    let warnings = case.plan(LINE)?.warnings();
    for expected in [
        "pegasus::memory.expr will be skipped: syntax error: unexpected end of input, expected expression",
        "pegasus::cores.expr will be skipped: there is no variable `pegasus_core`",
        "pegasus::gpus.expr will be skipped: the variable `hostaddr` has no value in this run",
    ] {
        let all: Vec<_> = warnings
            .iter()
            .filter(|warning| warning.contains(expected))
            .collect();
        assert_eq!(all.len(), 1, "{warnings:#?}");
    }
    Ok(())
}
