//! Random workflows: every job is in the plan once, clusters respect their limits, and every dependency is
//! kept.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{LINE, case, events, job};
use crate::common::Plan;

/// A job: the earlier jobs it reads from (modulo their number), whether it is a `sim`, its label, its run
/// time.
type RandomJob = (Vec<u8>, bool, Option<u8>, u8);

fn random_job() -> impl Strategy<Value = RandomJob> {
    (
        prop::collection::vec(any::<u8>(), 0..3),
        any::<bool>(),
        prop::option::of(0u8..3),
        0u8..60,
    )
}

/// Numbers of the jobs that each job reads from.
fn parents(jobs: &[RandomJob]) -> Vec<BTreeSet<usize>> {
    jobs.iter()
        .enumerate()
        .map(|(n, (reads, ..))| {
            reads
                .iter()
                .filter(|_| n > 0)
                .map(|&k| usize::from(k) % n)
                .collect()
        })
        .collect()
}

fn level_of(parents: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut levels = vec![0; parents.len()];
    for n in 0..parents.len() {
        levels[n] = parents[n].iter().map(|&p| levels[p] + 1).max().unwrap_or(0);
    }
    levels
}

/// The job of the plan that runs each job of the workflow.
fn containers(plan: &Plan, jobs: usize) -> Result<Vec<String>, TestCaseError> {
    let mut containers: BTreeMap<String, String> = BTreeMap::new();
    for pair in events(plan, "wf.map.task_job", &["job.id", "task.id"]) {
        prop_assert!(
            containers.insert(pair[1].clone(), pair[0].clone()).is_none(),
            "{} is in the plan twice",
            pair[1]
        );
    }
    prop_assert_eq!(containers.len(), jobs);
    Ok((0..jobs).map(|n| containers[&format!("J{n}")].clone()).collect())
}

/// Fails unless every dependency is an edge of the plan or an order inside one cluster.
fn check_order(plan: &Plan, containers: &[String], parents: &[BTreeSet<usize>]) -> Result<(), TestCaseError> {
    let tasks = plan.tasks();
    let place: BTreeMap<&str, usize> = tasks.iter().enumerate().map(|(n, t)| (t.as_str(), n)).collect();
    let mut above: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); tasks.len()];
    for (n, task) in tasks.iter().enumerate() {
        for (parent, _) in plan.edges.iter().filter(|(_, child)| child == task) {
            let parent = place[parent.as_str()];
            prop_assert!(parent < n, "{task} stands before its parent");
            let mut all = above[parent].clone();
            all.insert(parent);
            above[n].extend(all);
        }
    }
    for (n, parents) in parents.iter().enumerate() {
        for &parent in parents {
            let (from, to) = (&containers[parent], &containers[n]);
            if from != to {
                prop_assert!(
                    above[place[to.as_str()]].contains(&place[from.as_str()]),
                    "{to} does not wait for {from}"
                );
                continue;
            }
            let list = plan.file(&format!("00/00/{to}.in"));
            let at = |job: usize| list.find(&format!("J{job} \n"));
            prop_assert!(
                at(parent).is_some() && at(parent) < at(n),
                "J{parent} after J{n} in {to}"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_job_is_in_the_plan_once(
        jobs in prop::collection::vec(random_job(), 1..14),
        technique in prop::sample::select(vec!["horizontal", "runtime", "label", "whole", "horizontal,label", "label,runtime"]),
        number in 1usize..4,
        by_number in any::<bool>(),
        aggregator in prop::sample::select(vec!["seqexec", "mpiexec"]),
    ) {
        let parents = parents(&jobs);
        let texts: Vec<String> = jobs
            .iter()
            .enumerate()
            .map(|(n, (_, sim, label, runtime))| {
                let files: Vec<String> = parents[n].iter().map(|p| format!("outJ{p}")).collect();
                let mut files: Vec<&str> = files.iter().map(String::as_str).collect();
                files.push("raw");
                let key = if by_number { "num" } else { "size" };
                let mut profiles = format!("clusters.{key}: {number}, runtime: {runtime}, clusters.maxruntime: 70");
                if let Some(label) = label {
                    profiles.push_str(&format!(", label: l{label}"));
                }
                job(&format!("J{n}"), if *sim { "sim" } else { "collect" }, &files, &profiles)
            })
            .collect();
        let case = case(&texts);
        let line = format!("{LINE} --cluster {technique} -Dpegasus.clusterer.job.aggregator={aggregator}");
        let plan = match case.plan(&line) {
            Ok(plan) => plan,
            // Labels may put clusters in a cycle; no other failure is allowed.
            Err(e) => {
                prop_assert!(technique.contains("label") && e.to_string().contains("wait for each other"), "{e}");
                return Ok(());
            }
        };
        let containers = containers(&plan, jobs.len())?;
        check_order(&plan, &containers, &parents)?;
        let levels = level_of(&parents);
        let mut together: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (n, home) in containers.iter().enumerate() {
            together.entry(home).or_default().push(n);
        }
        for (home, members) in &together {
            let first = members[0];
            if matches!(technique, "horizontal" | "runtime") {
                prop_assert!(members.iter().all(|&n| levels[n] == levels[first]), "{home} spans levels");
                prop_assert!(members.iter().all(|&n| jobs[n].1 == jobs[first].1), "{home} mixes programs");
            }
            if technique == "horizontal" && !by_number {
                prop_assert!(members.len() <= number, "{home} is too large");
            }
            if technique == "runtime" && members.len() > 1 {
                prop_assert!(members.iter().map(|&n| u32::from(jobs[n].3)).sum::<u32>() <= 70);
            }
            if technique == "label" {
                prop_assert!(members.iter().all(|&n| jobs[n].2 == jobs[first].2), "{home} mixes labels");
            }
        }
        if technique == "label" {
            let homes_of = |label: u8| -> BTreeSet<&String> {
                (0..jobs.len()).filter(|&n| jobs[n].2 == Some(label)).map(|n| &containers[n]).collect()
            };
            for label in 0..3 {
                prop_assert!(homes_of(label).len() <= 1, "a label in two clusters");
            }
        }
        if technique == "whole" {
            prop_assert_eq!(together.len(), 1);
        }
    }
}
