//! Command lines and their requests.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::request::{BatchOptions, CleanupStrategy};

fn environment() -> Environment {
    Environment {
        is_of_other: false,
        variables: BTreeMap::new(),
        working_dir: "/w".into(),
        user: "tester".into(),
        host: "here".into(),
        own_bin: None,
        now: chrono::DateTime::UNIX_EPOCH.fixed_offset(),
        uuid: "u".into(),
    }
}

fn request(line: &str) -> Result<Request, String> {
    let arguments: Vec<String> = std::iter::once("pmc-plan")
        .chain(line.split_whitespace())
        .map(str::to_owned)
        .collect();
    match parse(&arguments, environment()).map_err(|e| e.to_string())? {
        Invocation::Plan(request, _) => Ok(*request),
        Invocation::Text(text) => Err(text),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn options_and_the_workflow_may_be_mixed() {
    let r = request(
        "-Dpegasus.a=1 --conf p --sites a,b w.yml -D env.X=y --dir ./submit/ --output-sites=local -Xmx1g -r",
    )
    .expect("a good line");
    assert_eq!(r.workflow, Path::new("/w/w.yml"));
    assert_eq!(r.defines, ["pegasus.a=1", "env.X=y"]);
    assert_eq!(r.sites, ["a", "b"]);
    assert_eq!(r.output_sites, ["local"]);
    assert_eq!(r.dir, Path::new("/w/submit"));
    assert_eq!(r.random_dir, Some(None));
    assert_eq!(
        request("").expect("defaults").workflow,
        Path::new("/w/workflow.yml")
    );
}

#[test]
fn batch_options_have_the_names_of_both_schedulers() {
    let r =
        request("--nodes 4 --ppn 16 --walltime 2:30:00 --partition fast --project p1").expect("a good line");
    assert_eq!(
        r.batch,
        BatchOptions {
            nodes: Some(4),
            tasks_per_node: Some(16),
            walltime: Some(150),
            queue: Some("fast".into()),
            account: Some("p1".into()),
            ..BatchOptions::default()
        }
    );
    assert_eq!(
        request("--ntasks-per-node 8 --queue q")
            .expect("a good line")
            .batch
            .tasks_per_node,
        Some(8)
    );
    for bad in ["--nodes 0", "--walltime never", "--walltime 0"] {
        assert!(request(bad).is_err(), "{bad}");
    }
}

#[test]
fn lines_that_mean_nothing_are_refused() {
    for (line, word) in [
        ("a.yml b.yml", "one workflow"),
        ("a.yml --dax b.yml", "twice"),
        ("--cleanup sometimes", "sometimes"),
        ("--batch sge", "known are torque, slurm"),
        ("--drain soon", "--drain"),
        ("--node-memory 3K", "--node-memory"),
        ("--frobnicate", "frobnicate"),
        ("--basename a/b", "slashes"),
    ] {
        let message = request(line).expect_err(line);
        assert!(message.contains(word), "{line}: {message}");
    }
}

#[test]
fn clean_up_can_be_switched_off_both_ways() {
    for line in ["--cleanup none", "--nocleanup", "-n"] {
        assert_eq!(request(line).expect(line).cleanup, Some(CleanupStrategy::None));
    }
    assert_eq!(
        request("--cleanup leaf").expect("leaf").cleanup,
        Some(CleanupStrategy::Leaf)
    );
}

#[test]
fn every_option_of_the_original_is_taken() {
    let r = request(
        "--dax w.yml --conf p -Da.b=c -Xmx1g -s a --staging-site a=a -o local -O out -I in -t progs -c c.txt \
         --inherited-rc-files i.txt -R run0001 -f --force-replan -C label,horizontal --cleanup leaf --dir d \
         --relative-dir r --relative-submit-dir q --randomdir=x -b base -j pre -F nodatabase -F grid=v --rescue 3 -J -vv \
         -z -m map.txt",
    )
    .expect("a good line");
    let warned: Vec<&str> = r.warnings.iter().filter_map(|w| w.split(' ').next()).collect();
    assert_eq!(warned, ["--forward", "--rescue"]);
    assert!(r.deferred && r.force_replan && r.output_map.as_deref() == Some(Path::new("/w/map.txt")));
    assert!(
        r.warnings[0].contains("--forward nodatabase --forward grid=v has"),
        "{:?}",
        r.warnings
    );
    assert_eq!(r.defines[0], "a.b=c");
    assert_eq!(r.defines.len(), 1, "the map is no property: {:?}", r.defines);
    assert!(request("w.yml").expect("a good line").warnings.is_empty());
    let message = request("-m map.txt").expect_err("a map without --deferred");
    assert!(message.contains("--deferred"), "{message}");
}
