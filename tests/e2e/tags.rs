//! Tags of jobs, from the site catalog to the task: ranks and agents give it what its tag requests, and its
//! expression counts for the next attempt.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::support::command::Program;
use crate::support::pegasus::only_file;
use crate::support::programs::{Build, PLAN_IN_SUBMIT_RUN};

const WORKFLOW: &str = "pegasus: \"5.0.4\"
name: tagged
transformationCatalog:
  transformations:
  - {name: shows, sites: [{name: local, type: installed, pfn: \"@DIR@/shows\"}]}
jobs:
- {type: job, id: A, name: shows, arguments: [A], uses: [], profiles: {pegasus: {tag: gpu}}}
- {type: job, id: B, name: shows, arguments: [B], uses: [], profiles: {pegasus: {tag: small}}}
- {type: job, id: C, name: shows, arguments: [C], uses: []}
";

const SITES: &str = "pegasus: \"5.0\"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: @DIR@/scratch, fileServers: [{url: \"file://@DIR@/scratch\", operation: all}]}
  x-tags:
  - {name: gpu, profiles: {pegasus: {gpus: 1, cores: 3}}}
  - {name: small, profiles: {pegasus: {memory: 100, memory.expr: \"pegasus_memory_mb * 3\"}}}
";

/// Notes what it was given. B fails with less than 300 MB.
const SHOWS: &str = "#!/bin/sh
set -- $1 $PMC_CPUS ${PMC_MEMORY:-0} $(echo \"$CUDA_VISIBLE_DEVICES\" | tr , '\\n' | grep -c .)
echo $* >>@DIR@/seen
[ $1 != B ] || [ $3 -ge 300 ]
";

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn tags_are_requests_of_ranks_and_agents() {
    for build in [Build::Agents, Build::OpenMpi, Build::Mpich] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        for (name, text) in [("workflow.yml", WORKFLOW), ("sites.yml", SITES), ("shows", SHOWS)] {
            let text = text.replace("@DIR@", &top.display().to_string());
            fs::write(top.join(name), text).expect("a file");
        }
        fs::set_permissions(top.join("shows"), fs::Permissions::from_mode(0o755)).expect("a mode");
        Program::new(build.program("pmc-plan"))
            .in_directory(top)
            .args(PLAN_IN_SUBMIT_RUN)
            .args([
                "-Dpegasus.catalog.site.file=sites.yml",
                "-Dpegasus.memory=1",
                "workflow.yml",
            ])
            .run()
            .ok();
        let submit = top.join("submit/run");
        let dag = only_file(&submit, ".dag");
        let result = build
            .executor_with(2)
            .args(["--host-cpus", "4", "--host-gpus", "2", "--host-memory", "1000"])
            .args(["--tries", "2", "--per-task-stdio"])
            .arg(dag.file_name().expect("a name"))
            .in_directory(&submit)
            .run()
            .ok();
        let seen = fs::read_to_string(top.join("seen")).expect("a file");
        let mut seen: Vec<&str> = seen.lines().collect();
        seen.sort_unstable();
        assert_eq!(
            seen,
            ["A 3 1 1", "B 1 100 0", "B 1 300 0", "C 1 1 0"],
            "{build:?}: {}",
            result.details()
        );
    }
}
