//! Plans of random workflows, executed on simulated file systems. In any order of jobs, every job finds its
//! inputs, the outputs match the abstract workflow, and the space used stays within its limit.

#[expect(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../common/mod.rs"]
mod common;
mod machine;
mod recipe;

use proptest::prelude::*;

use common::{Case, Plan};
use machine::Machine;
use recipe::{Recipe, recipe};

/// Planner settings.
#[derive(Clone, Debug)]
struct Choices {
    cleanup: &'static str,
    refiner: &'static str,
    directories: &'static str,
    /// Clustering technique (empty for none) and the aggregator.
    cluster: (&'static str, &'static str),
    /// Transfer and clean-up jobs of a level; also jobs of a cluster or clusters of a level.
    clusters: u32,
    by_number: bool,
    outputs: bool,
    /// Scope of data reuse, and whether `--force` disables it.
    reuse: (&'static str, bool),
    /// Link inputs that are on the site's file system.
    links: bool,
    /// Request that inputs bypass the work directory.
    bypass: bool,
    /// Space on each site, in eighths of the size of all files.
    eighths: u64,
}

fn choices() -> impl Strategy<Value = Choices> {
    (
        prop::sample::select(vec!["none", "leaf", "inplace", "constraint", "constraint"]),
        prop::sample::select(vec!["BalancedCluster", "Cluster", "Basic", "Bundle", "Empty"]),
        prop::sample::select(vec!["Minimal", "Tentacles", "HourGlass"]),
        (
            prop::sample::select(vec![
                "",
                "horizontal",
                "runtime",
                "label",
                "whole",
                "label,horizontal",
            ]),
            prop::sample::select(vec!["seqexec", "mpiexec"]),
        ),
        (1u32..4, any::<bool>()),
        prop::bool::weighted(0.8),
        (
            prop::sample::select(vec!["full", "partial", "none"]),
            prop::bool::weighted(0.3),
        ),
        (any::<bool>(), prop::bool::weighted(0.2)),
        1u64..9,
    )
        .prop_map(
            |(
                cleanup,
                refiner,
                directories,
                cluster,
                (clusters, by_number),
                outputs,
                reuse,
                (links, bypass),
                eighths,
            )| {
                Choices {
                    cleanup,
                    refiner,
                    directories,
                    cluster,
                    clusters,
                    by_number,
                    outputs,
                    reuse,
                    links,
                    bypass,
                    eighths,
                }
            },
        )
}

/// Plans with this space in bytes on each site.
fn plan(case: &Case, choices: &Choices, room: u64) -> Result<Plan, String> {
    let Choices {
        refiner,
        clusters,
        directories,
        cleanup,
        cluster: (technique, aggregator),
        reuse: (scope, force),
        links,
        bypass,
        ..
    } = choices;
    let by = if choices.by_number { "num" } else { "size" };
    case.put(
        "pegasus.properties",
        &format!(
            "pegasus.transfer.refiner = {refiner}\npegasus.stagein.clusters = {clusters}\n\
             pegasus.file.cleanup.clusters.num = {clusters}\npegasus.dir.create.strategy = {directories}\n\
             pegasus.file.cleanup.constraint.maxspace = {room}\n\
             pegasus.dir.submit.mapper.hashed.multiplier = 1\npegasus.clusters.{by} = {clusters}\n\
             pegasus.clusters.maxruntime = 60\npegasus.clusterer.job.aggregator = {aggregator}\n\
             pegasus.data.reuse.scope = {scope}\npegasus.transfer.links = {links}\n\
             pegasus.transfer.bypass.input.staging = {bypass}\n"
        ),
    );
    let outputs = if choices.outputs {
        "--output-sites local"
    } else {
        ""
    };
    let force = if *force { "--force" } else { "" };
    let cluster = match *technique {
        "" => String::new(),
        technique => format!("--cluster {technique}"),
    };
    case.plan(&format!(
        "--sites local,far --dir submit --cleanup {cleanup} {outputs} {force} {cluster}"
    ))
    .map_err(|e| e.to_string())
}

/// Space in bytes that an error message asks for.
fn required_space(message: &str) -> Option<u64> {
    let mut largest = None;
    for part in message.split(".maxspace to at least ").skip(1) {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        largest = largest.max(digits.parse().ok());
    }
    largest
}

fn check(recipe: &Recipe, choices: &Choices, turns: &[u16]) -> Result<(), TestCaseError> {
    let mut choices = choices.clone();
    // Without transfers no file reaches another site.
    if choices.refiner == "Empty" && !recipe.is_on_one_site() {
        choices.refiner = "Basic";
    }
    let choices = &choices;
    let is_moved = choices.refiner != "Empty";
    let case = Case::new(&recipe.yaml());
    case.put("sites.yml", recipe::SITES)
        .put("transformations.yml", recipe::PROGRAMS)
        .put("replicas.yml", &recipe.replicas());
    let mut room = (recipe.total() * choices.eighths / 8).max(1);
    let technique = choices.cluster.0;
    let plan = match plan(&case, choices, room) {
        Ok(plan) => plan,
        Err(message) if technique.contains("label") && message.contains("wait for each other") => {
            return Ok(());
        }
        Err(message) if technique == "whole" && !recipe.is_on_one_site() => {
            prop_assert!(message.contains("site"), "{message}");
            return Ok(());
        }
        Err(message) => {
            let required = required_space(&message);
            prop_assert!(choices.cleanup == "constraint" && required.is_some(), "{message}");
            room = required.unwrap_or_default();
            plan(&case, choices, room).map_err(TestCaseError::fail)?
        }
    };
    // Another start in the list of turns gives another order. From the second order on, tasks fail at first,
    // and the plan runs again from its rescue file until all tasks are done.
    for skip in 0..3 {
        let mut machine = Machine::new(recipe, &plan, case.path(), is_moved);
        machine.run(turns.iter().copied().cycle().skip(skip * 7), skip > 0)?;
        machine.compare_outputs(choices.outputs && is_moved, choices.cleanup)?;
        if choices.cleanup == "constraint" {
            for (site, peak) in machine.peaks() {
                prop_assert!(peak <= room, "{peak} bytes on {site}, {room} allowed");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_produces_the_outputs_of_the_workflow(
        recipe in recipe(),
        choices in choices(),
        turns in prop::collection::vec(any::<u16>(), 40..80),
    ) {
        check(&recipe, &choices, &turns)?;
    }
}
