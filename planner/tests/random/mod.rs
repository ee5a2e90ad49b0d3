//! Random workflows: every file exists when it is read and is removed only after its last use.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::common::{Case, Plan};

/// A job of a random workflow: the raw files it reads, the outputs of earlier jobs it reads (modulo their
/// number), and whether each of its outputs is staged out and registered.
#[derive(Clone, Debug)]
struct Job {
    raw: Vec<u8>,
    made: Vec<u8>,
    outputs: Vec<(bool, bool)>,
}

fn job() -> impl Strategy<Value = Job> {
    (
        prop::collection::vec(0u8..4, 0..3),
        prop::collection::vec(any::<u8>(), 0..4),
        prop::collection::vec(any::<(bool, bool)>(), 0..3),
    )
        .prop_map(|(raw, made, outputs)| Job { raw, made, outputs })
}

/// The workflow as YAML, and for each output whether it is staged out.
fn workflow(jobs: &[Job]) -> (String, BTreeMap<String, bool>) {
    let mut text = String::from("pegasus: \"5.0\"\nname: random\njobs:\n");
    let mut made: BTreeMap<String, bool> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    for (n, job) in jobs.iter().enumerate() {
        let mut reads: BTreeSet<String> = job.raw.iter().map(|k| format!("raw{k}")).collect();
        if !order.is_empty() {
            reads.extend(
                job.made
                    .iter()
                    .map(|&k| order[usize::from(k) % order.len()].clone()),
            );
        }
        text.push_str(&format!("- type: job\n  id: J{n}\n  name: work\n  uses:\n"));
        for file in reads {
            text.push_str(&format!("  - {{lfn: {file}, type: input}}\n"));
        }
        for (k, (out, register)) in job.outputs.iter().enumerate() {
            text.push_str(&format!(
                "  - {{lfn: f{n}_{k}, type: output, stageOut: {out}, registerReplica: {register}}}\n"
            ));
            made.insert(format!("f{n}_{k}"), *out);
            order.push(format!("f{n}_{k}"));
        }
        if job.raw.is_empty() && job.made.is_empty() && job.outputs.is_empty() || text.ends_with("uses:\n") {
            text.truncate(text.len() - "  uses:\n".len());
        }
    }
    (text, made)
}

/// Names of the files that a task transfers or removes.
fn names(plan: &Plan, task: &str) -> Vec<String> {
    let orders = plan.orders(task);
    let entries = orders.as_array().expect("a list");
    entries
        .iter()
        .map(|entry| match entry["lfn"].as_str() {
            Some(lfn) => lfn.to_owned(),
            None => {
                let url = entry["target"]["url"].as_str().expect("a URL");
                url.rsplit("/./").next().expect("a name").to_owned()
            }
        })
        .collect()
}

fn list(plan: &Plan, task: &str, suffix: &str) -> Vec<String> {
    let path = plan.planned.submit_dir.join(format!("00/00/{task}{suffix}"));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| Some(line.split_once('=')?.0.to_owned()))
        .collect()
}

/// Jobs in a cluster, read from the comments of its list.
fn members(plan: &Plan, task: &str) -> Vec<String> {
    let path = plan.planned.submit_dir.join(format!("00/00/{task}.in"));
    let text = std::fs::read_to_string(path).expect("the list of a cluster");
    text.lines()
        .filter(|line| line.starts_with("#@"))
        .filter_map(|line| Some(format!("work_{}", line.split(' ').nth(3)?)))
        .collect()
}

/// Effects of all tasks on the files of the work directory.
#[derive(Default)]
struct Effects {
    reads: Vec<(usize, String)>,
    writes: BTreeMap<String, usize>,
    removes: BTreeMap<String, usize>,
    delivered: BTreeSet<String>,
}

/// Returns the ancestors of each task. Fails if a task precedes its parent.
fn ancestors(plan: &Plan, tasks: &[String]) -> Result<Vec<BTreeSet<usize>>, TestCaseError> {
    let number = numbers(tasks);
    // Tasks are in topological order, so one pass finds all ancestors.
    let mut ancestors: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); tasks.len()];
    for (n, task) in tasks.iter().enumerate() {
        let parents = plan
            .edges
            .iter()
            .filter(|(_, c)| c == task)
            .map(|(p, _)| number[p.as_str()]);
        for parent in parents {
            prop_assert!(parent < n, "{} stands after its child {task}", tasks[parent]);
            let mut all = ancestors[parent].clone();
            all.insert(parent);
            ancestors[n].extend(all);
        }
    }
    Ok(ancestors)
}

/// Returns the number of each task.
fn numbers(tasks: &[String]) -> BTreeMap<&str, usize> {
    tasks.iter().enumerate().map(|(n, t)| (t.as_str(), n)).collect()
}

/// Returns the effects of all tasks. Fails if a file is staged or removed twice.
fn effects(plan: &Plan, tasks: &[String]) -> Result<Effects, TestCaseError> {
    let mut effects = Effects::default();
    for (n, task) in tasks.iter().enumerate() {
        if task.starts_with("stage_in") {
            for file in names(plan, task) {
                prop_assert!(
                    effects.writes.insert(file.clone(), n).is_none(),
                    "{file} is staged twice"
                );
            }
        } else if task.starts_with("stage_out") {
            for file in names(plan, task) {
                effects.reads.push((n, file.clone()));
                effects.delivered.insert(file);
            }
        } else if task.starts_with("clean_up") {
            for file in names(plan, task) {
                prop_assert!(
                    effects.removes.insert(file.clone(), n).is_none(),
                    "{file} is removed twice"
                );
            }
        } else if task.starts_with("work_") {
            effects
                .reads
                .extend(list(plan, task, ".in.lof").into_iter().map(|file| (n, file)));
            for file in list(plan, task, ".out.lof") {
                effects.writes.insert(file, n);
            }
        } else if task.starts_with("merge_") {
            let mut produced = BTreeSet::new();
            for member in members(plan, task) {
                for file in list(plan, &member, ".in.lof") {
                    // Outputs of earlier jobs of the cluster exist.
                    if !produced.contains(&file) {
                        effects.reads.push((n, file));
                    }
                }
                for file in list(plan, &member, ".out.lof") {
                    produced.insert(file.clone());
                    effects.writes.insert(file, n);
                }
            }
        }
    }
    Ok(effects)
}

fn check(plan: &Plan, made: &BTreeMap<String, bool>, outputs: bool) -> Result<(), TestCaseError> {
    let tasks = plan.tasks();
    let number = numbers(&tasks);
    let ancestors = ancestors(plan, &tasks)?;
    let effects = effects(plan, &tasks)?;
    let create = number.get("create_dir_random_0_local").copied();
    let remove = number.get("cleanup_random_0_local").copied();
    for (reader, file) in &effects.reads {
        let writer = effects.writes.get(file);
        prop_assert!(
            writer.is_some_and(|w| ancestors[*reader].contains(w)),
            "{} reads {file}, which may not exist",
            tasks[*reader]
        );
        if let Some(remover) = effects.removes.get(file) {
            prop_assert!(
                ancestors[*remover].contains(reader),
                "{file} is removed before {}",
                tasks[*reader]
            );
        }
    }
    for (file, writer) in &effects.writes {
        prop_assert!(
            create.is_some_and(|c| ancestors[*writer].contains(&c)),
            "no directory for {file}"
        );
        if let Some(remover) = effects.removes.get(file) {
            prop_assert!(ancestors[*remover].contains(writer));
        }
        if let Some(remove) = remove {
            prop_assert!(
                ancestors[remove].contains(writer),
                "the directory is removed before {}",
                tasks[*writer]
            );
        }
        let staged_out = made.get(file).copied().unwrap_or(false);
        prop_assert_eq!(
            effects.delivered.contains(file),
            staged_out && outputs,
            "{} delivered",
            file
        );
        if staged_out && !outputs {
            prop_assert!(
                !effects.removes.contains_key(file),
                "{file} is an output, but removed"
            );
        }
    }
    if let Some(remove) = remove {
        for remover in effects.removes.values() {
            prop_assert!(ancestors[remove].contains(remover));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn files_exist_while_they_are_needed(
        jobs in prop::collection::vec(job(), 1..12),
        cleanup in prop::sample::select(vec!["none", "leaf", "inplace"]),
        refiner in prop::sample::select(vec!["BalancedCluster", "Cluster", "Basic", "Bundle"]),
        clusters in 1u32..4,
        outputs in any::<bool>(),
        cluster in prop::sample::select(vec!["", "--cluster horizontal", "--cluster whole"]),
    ) {
        let (text, made) = workflow(&jobs);
        let case = Case::new(&text);
        case.programs(&["work"]).replicas(&["raw0", "raw1", "raw2", "raw3"]);
        case.put(
            "pegasus.properties",
            &format!(
                "pegasus.transfer.refiner = {refiner}\npegasus.stagein.clusters = {clusters}\n\
                 pegasus.file.cleanup.clusters.num = {clusters}\npegasus.clusters.size = {clusters}\n"
            ),
        );
        let sites = if outputs { "--output-sites local" } else { "" };
        let line = format!("--sites local --dir submit --force --cleanup {cleanup} {cluster} {sites}");
        let plan = case.plan(&line).map_err(|e| TestCaseError::fail(e.to_string()))?;
        check(&plan, &made, outputs)?;
        let again = case.plan(&line).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let same = again.files().into_iter().map(|(name, text)| (name, text.replace("run0002", "run0001")));
        prop_assert_eq!(plan.files(), same.collect());
    }
}
