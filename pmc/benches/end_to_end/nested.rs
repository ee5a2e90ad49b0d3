//! Sub-workflows that are planned during the run, beside one plan that holds the jobs of all.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Jobs of a sub-workflow.
const JOBS: usize = 100;
const ROUNDS: usize = 5;

const PROPERTIES: &str = "pegasus.catalog.site.file=sites.yml\npegasus.catalog.transformation.file=transformations.yml\n\
     pegasus.catalog.replica=YAML\npegasus.catalog.replica.file=replicas.yml\n\
     pegasus.data.configuration=sharedfs\n";

/// Prints the time of nested sub-workflows, the time of the one plan, and the median of the ratios.
pub fn compare(directory: &Path, workers: usize, sub_workflows: usize) {
    let mut rounds: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|round| {
            let time = |mode: &str| {
                let directory = directory.join(format!("{mode}{round}"));
                plan_and_run(&directory, mode, workers, sub_workflows).as_secs_f64()
            };
            (time("inline"), time("nested"))
        })
        .collect();
    rounds.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let (inline, nested) = rounds[rounds.len() / 2];
    println!(
        "{sub_workflows} sub-workflows of {JOBS} jobs: nested {nested:.3} s, one plan {inline:.3} s, ratio {:.2}",
        nested / inline
    );
}

fn plan_and_run(directory: &Path, mode: &str, workers: usize, sub_workflows: usize) -> Duration {
    write(directory, mode, sub_workflows).expect("the directory can be written");
    let start = Instant::now();
    let submit = super::plan_workflow(directory);
    super::execute(&super::dag(&submit), workers);
    start.elapsed()
}

fn write(directory: &Path, mode: &str, sub_workflows: usize) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let here = directory.display();
    let mut outer = String::from("pegasus: \"5.0\"\nname: outer\njobs:\n");
    let mut replicas = String::from("pegasus: \"5.0\"\nreplicas:\n");
    for number in 0..sub_workflows {
        let name = format!("inner{number}.yml");
        let _ = write!(
            outer,
            "- type: pegasusWorkflow\n  id: S{number}\n  file: {name}\n  arguments: []\n  \
             uses: [{{lfn: {name}, type: input}}]\n"
        );
        let _ = write!(
            replicas,
            "- lfn: {name}\n  pfns: [{{site: local, pfn: 'file://{here}/{name}'}}]\n"
        );
        let mut inner = format!("pegasus: \"5.0\"\nname: inner{number}\njobs:\n");
        for job in 0..JOBS {
            let _ = writeln!(
                inner,
                "- {{type: job, id: J{job}, name: nothing, arguments: [], uses: []}}"
            );
        }
        fs::write(directory.join(name), inner)?;
    }
    let transformations = "pegasus: \"5.0\"\ntransformations:\n- name: nothing\n  \
         sites: [{name: local, pfn: /bin/true, type: installed}]\n";
    let sites = format!(
        "pegasus: \"5.0\"\nsites:\n- name: local\n  directories:\n  \
         - {{type: sharedScratch, path: {here}/scratch, fileServers: [{{url: 'file://{here}/scratch', operation: all}}]}}\n  \
         - {{type: localStorage, path: {here}/outputs, fileServers: [{{url: 'file://{here}/outputs', operation: all}}]}}\n"
    );
    let properties = format!("{PROPERTIES}pegasus.subworkflow={mode}\n");
    for (name, text) in [
        ("workflow.yml", &*outer),
        ("replicas.yml", &replicas),
        ("transformations.yml", transformations),
        ("sites.yml", &sites),
        ("pegasus.properties", &properties),
    ] {
        fs::write(directory.join(name), text)?;
    }
    Ok(())
}
