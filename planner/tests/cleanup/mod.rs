//! Files that clean-up removes, and files that stay.

use crate::common::Case;
use crate::{LINE, chain};

#[test]
fn each_clean_up_strategy_removes_its_files() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    let count = |line: &str, prefix: &str| -> Result<usize, Box<dyn std::error::Error>> {
        let plan = case.plan(&format!("{LINE} {line}"))?;
        Ok(plan.tasks().iter().filter(|t| t.starts_with(prefix)).count())
    };
    assert_eq!(count("--cleanup none", "clean")?, 0);
    assert_eq!(count("--nocleanup", "clean")?, 0);
    assert_eq!(count("--cleanup leaf", "clean_up")?, 0);
    assert_eq!(count("--cleanup leaf", "cleanup")?, 1);
    assert_eq!(count("--cleanup inplace", "clean_up")?, 3);
    let plan = case.plan(&format!("{LINE} --cleanup leaf"))?;
    assert!(plan.has_edge("stage_out_local_local_1_0", "cleanup_chain_0_local"));
    assert!(plan.has_edge("register_local_1_0", "cleanup_chain_0_local"));
    Ok(())
}

#[test]
fn without_an_output_site_outputs_stay() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    let plan = case.plan("--sites local --dir submit")?;
    assert!(
        !plan
            .tasks()
            .iter()
            .any(|t| t.starts_with("stage_out") || t.starts_with("register"))
    );
    let removed: Vec<String> = plan
        .tasks()
        .iter()
        .filter(|t| t.starts_with("clean_up"))
        .map(|t| plan.orders(t).to_string())
        .collect();
    assert!(
        removed.iter().all(|orders| !orders.contains("/./end")),
        "{removed:?}"
    );
    Ok(())
}

/// `open` makes four pieces, four jobs turn each into a small file, `close` joins these.
fn tight() -> Case {
    let mut text = String::from(
        "pegasus: \"5.0\"\nname: tight\njobs:\n- type: job\n  id: O\n  name: work\n  uses:\n  \
         - {lfn: in, type: input, size: 400}\n",
    );
    for k in 0..4 {
        text.push_str(&format!(
            "  - {{lfn: piece{k}, type: output, size: 1000, stageOut: false, registerReplica: false}}\n"
        ));
    }
    for k in 0..4 {
        text.push_str(&format!(
            "- type: job\n  id: P{k}\n  name: work\n  uses:\n  - {{lfn: piece{k}, type: input}}\n  \
             - {{lfn: out{k}, type: output, size: 500, stageOut: false, registerReplica: false}}\n"
        ));
    }
    text.push_str("- type: job\n  id: C\n  name: work\n  uses:\n");
    for k in 0..4 {
        text.push_str(&format!("  - {{lfn: out{k}, type: input}}\n"));
    }
    text.push_str("  - {lfn: end, type: output, size: 2000, stageOut: true, registerReplica: true}\n");
    let case = Case::new(&text);
    case.programs(&["work"]).replicas(&["in"]);
    case
}

const TIGHT: &str = "--sites local --output-sites local --dir submit --cleanup constraint";

#[test]
fn a_limit_on_space_delays_jobs() -> Result<(), Box<dyn std::error::Error>> {
    let case = tight();
    let plan = case.plan(&format!(
        "{TIGHT} -D pegasus.file.cleanup.constraint.maxspace=6000"
    ))?;
    let removed = |task: &str| -> Vec<String> {
        let orders = plan.orders(task);
        let urls = orders.as_array().expect("a list").iter();
        urls.map(|o| {
            o["target"]["url"]
                .as_str()
                .expect("a URL")
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect()
    };
    // All pieces and three small files leave no room for the fourth; the last job needs 2000 more.
    assert_eq!(removed("clean_up_local_space_0"), ["in"]);
    assert!(plan.has_edge("work_O", "clean_up_local_space_0"));
    assert_eq!(removed("clean_up_local_space_1"), ["piece0", "piece1"]);
    assert!(plan.has_edge("clean_up_local_space_0", "clean_up_local_space_1"));
    assert!(plan.has_edge("clean_up_local_space_1", "work_C"));
    assert_eq!(plan.planned.counts.cleanup, 3);
    // With enough room, no file is removed before the end.
    let plan = case.plan(&format!(
        "{TIGHT} -D pegasus.file.cleanup.constraint.maxspace=8400"
    ))?;
    assert_eq!(plan.planned.counts.cleanup, 1);
    Ok(())
}

#[test]
fn too_little_space_is_refused_with_the_space_needed() -> Result<(), Box<dyn std::error::Error>> {
    let case = tight();
    let message = case.fail(&format!(
        "{TIGHT} -D pegasus.file.cleanup.constraint.local.maxspace=4K"
    ));
    for part in [
        "local",
        "4096 bytes",
        "4500 bytes",
        "work_P0",
        "local.maxspace to at least 4500",
    ] {
        assert!(message.contains(part), "{message}");
    }
    case.plan(&format!(
        "{TIGHT} -D pegasus.file.cleanup.constraint.local.maxspace=4500"
    ))?;
    let message = case.fail(&format!(
        "{TIGHT} -D pegasus.file.cleanup.constraint.maxspace=some"
    ));
    assert!(message.contains("must be a number of bytes"), "{message}");
    case.put(
        "sizes.csv",
        "in,1\npiece0,2\npiece1,2\npiece2,2\npiece3,2\nend,1\n",
    );
    case.plan(&format!(
        "{TIGHT} -D pegasus.file.cleanup.constraint.maxspace=2011 -D pegasus.file.cleanup.constraint.csv=sizes.csv"
    ))?;
    Ok(())
}

#[test]
fn files_can_be_excluded_from_clean_up() -> Result<(), Box<dyn std::error::Error>> {
    let line = "--sites local --output-sites local --dir submit -D pegasus.file.cleanup.exclude=mid,*.log";
    let case = chain();
    let plan = case.plan(line)?;
    let all: String = plan
        .files()
        .into_values()
        .filter(|text| text.contains("\"remove\""))
        .collect();
    assert!(all.contains("/in\"") && !all.contains("/mid\""), "{all}");
    assert!(
        !plan.tasks().iter().any(|task| task.starts_with("cleanup_")),
        "the directory is removed"
    );
    Ok(())
}
