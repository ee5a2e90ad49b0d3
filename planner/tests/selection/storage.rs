//! Locations of outputs on the output sites.

use super::one_job;
use crate::common::{Case, Plan};

/// Destinations of all stage-out tasks, by logical name.
fn destinations(plan: &Plan) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for task in plan.tasks().iter().filter(|task| task.starts_with("stage_out_")) {
        for order in plan.orders(task).as_array().into_iter().flatten() {
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            found.push((text(&order["lfn"]), text(&order["dest_urls"][0]["url"])));
        }
    }
    found.sort();
    found
}

fn outputs(count: usize) -> Case {
    let mut text =
        String::from("pegasus: \"5.0\"\nname: w\njobs:\n- type: job\n  id: A\n  name: x\n  uses:\n");
    for n in 0..count {
        text.push_str(&format!(
            "  - {{lfn: out{n:04}, type: output, stageOut: true, registerReplica: true}}\n"
        ));
    }
    let case = Case::new(&text);
    case.programs(&["x"]);
    case
}

const LINE: &str = "--sites local --output-sites local";

#[test]
fn many_outputs_are_spread_over_directories() -> Result<(), Box<dyn std::error::Error>> {
    let case = outputs(14);
    let out = format!("file://{}/out", case.path().display());
    let plan = case.plan(&format!("{LINE} -Dpegasus.dir.storage.mapper=Hashed"))?;
    assert_eq!(
        destinations(&plan)[3],
        ("out0003".into(), format!("{out}/out0003"))
    );
    let case = outputs(300);
    let out = format!("file://{}/out", case.path().display());
    let plan = case.plan(&format!("{LINE} -Dpegasus.dir.storage.mapper=hashed"))?;
    let found = destinations(&plan);
    assert_eq!(found[0].1, format!("{out}/000/out0000"));
    assert_eq!(found[223].1, format!("{out}/000/out0223"));
    assert_eq!(found[224].1, format!("{out}/001/out0224"));
    let registered = plan.file("00/00/register_local_0_0.in");
    assert!(
        registered.contains(&format!("out0299 {out}/001/out0299 site=\"local\"")),
        "{registered}"
    );
    Ok(())
}

#[test]
fn a_catalog_may_set_output_locations() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    case.replicas(&["in"]);
    let line = format!(
        "{LINE} -Dpegasus.dir.storage.mapper=Replica -Dpegasus.dir.storage.mapper.replica.file=map.rc"
    );
    case.put(
        "map.rc",
        "e(.*) /results/[1]/[0] site=\"local\" regex=\"true\"\ne(.*) /wrong site=\"other\" regex=\"true\"\n",
    );
    let plan = case.plan(&line)?;
    assert_eq!(
        destinations(&plan),
        [("end".into(), "file:///results/nd/end".into())]
    );
    assert!(
        plan.file("00/00/register_local_0_0.in")
            .starts_with("end file:///results/nd/end site=\"local\"")
    );
    case.put("map.rc", "end /a/end site=\"local\"\nend /b/end site=\"local\"\n");
    let plan = case.plan(&line)?;
    assert_eq!(
        destinations(&plan),
        [
            ("end".into(), "file:///a/end".into()),
            ("end".into(), "file:///b/end".into())
        ]
    );
    case.put("map.rc", "other /a/end site=\"local\"\n");
    let message = case.fail(&line);
    assert!(
        message.contains("the output end has no location on the site local in the catalog of pegasus.dir.storage.mapper.replica.file"),
        "{message}"
    );
    // With this setting the output stays in the work directory, which must stay, too.
    let plan = case.plan(&format!(
        "{line} -Dpegasus.dir.storage.mapper.replica.disable.exceptions=true"
    ))?;
    assert!(destinations(&plan).is_empty());
    assert!(
        !plan.tasks().iter().any(|task| task.starts_with("cleanup_")),
        "{:?}",
        plan.tasks()
    );
    let warnings = plan.warnings().join("\n");
    assert!(
        warnings.contains("1 outputs stay in the work directory"),
        "{warnings}"
    );
    Ok(())
}

#[test]
fn invalid_mapper_settings_are_refused() {
    let case = one_job();
    case.replicas(&["in"]);
    for (settings, expected) in [
        (
            "=Hashd",
            "did you mean Hashed? mappers are Flat, Fixed, Hashed, Replica",
        ),
        (
            "=Fixed",
            "needs the property pegasus.dir.storage.mapper.fixed.url",
        ),
        (
            "=Replica",
            "needs the property pegasus.dir.storage.mapper.replica.file",
        ),
        (
            "=Replica -Dpegasus.dir.storage.mapper.replica.file=none.rc",
            "none.rc: cannot be read",
        ),
    ] {
        let message = case.fail(&format!("{LINE} -Dpegasus.dir.storage.mapper{settings}"));
        assert!(message.contains(expected), "{settings}: {message}");
    }
}

#[test]
fn deep_storage_has_the_directory_of_the_run() -> Result<(), Box<dyn std::error::Error>> {
    let case = outputs(1);
    let out = format!("file://{}/out", case.path().display());
    for (line, directory) in [
        ("--dir submit", "tester/pegasus/w/run0001"),
        ("--dir submit --randomdir=r", "tester/pegasus/w/run0002"),
        ("--dir submit --relative-dir X/Y", "X/Y"),
        ("--dir submit --relative-submit-dir S", "S"),
        (
            "--dir submit --relative-dir X --relative-submit-dir T --randomdir=r",
            "X",
        ),
    ] {
        let plan = case.plan(&format!("{LINE} -Dpegasus.dir.storage.deep=true {line}"))?;
        assert_eq!(
            destinations(&plan)[0].1,
            format!("{out}/{directory}/out0000"),
            "{line}"
        );
    }
    Ok(())
}
