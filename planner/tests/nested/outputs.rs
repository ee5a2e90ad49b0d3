//! Where the outputs of a sub-workflow go.

use super::*;

/// Destinations of the outputs of a planned sub-workflow, by logical name.
fn destinations(planned: &Prepared, base: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let Prepared::Planned(planned) = planned else {
        return Err("the plan is an old one".into());
    };
    let mut found = Vec::new();
    for entry in walkdir::WalkDir::new(&planned.submit_dir) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("stage_out_") && name.ends_with(".in") {
            let orders: serde_json::Value = serde_json::from_str(&fs::read_to_string(entry.path())?)?;
            for order in orders.as_array().into_iter().flatten() {
                let url = order["dest_urls"][0]["url"].as_str().unwrap_or_default();
                let url = url.replace(&format!("{}/", base.display()), "@");
                found.push(format!("{} {url}", order["lfn"].as_str().unwrap_or_default()));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[test]
fn the_output_map_of_a_user_stays_in_force_in_a_nested_workflow() -> Done {
    const MAPPER: &str = "-Dpegasus.dir.storage.mapper=Replica, -Dpegasus.dir.storage.mapper.replica=File, ";
    const FILE: &str = "-Dpegasus.dir.storage.mapper.replica.file=";
    let case = case(OUTER);
    let map = "more /results/more site=\"local\"\nend /results/end site=\"local\"\n";
    case.put("inner.map", map)
        .put("half.map", "more /results/more site=\"local\"\n");
    let scratch = "end file://@scratch/tester/pegasus/outer/run0001/./end";
    let both = ["end file:///results/end", scratch, "more file:///results/more"];
    let place = |name: &str| format!("{name} file://@out/{name}");
    let half = [scratch, "more file:///results/more"];
    let by_name = place("more");
    let by_name = [scratch, &by_name];
    let of_other = [scratch, "more file:///all/more"];
    for (arguments, outer, expected) in [
        // Relative names are those of the working directory of the outer planner.
        (format!("{MAPPER}{FILE}inner.map, --output-sites, local"), "", &both[..]),
        (format!("{MAPPER}{FILE}@DIR@/inner.map, --output-sites, local"), "", &both),
        (format!("{MAPPER}{FILE}inner.map"), "", &both),
        (format!("{MAPPER}{FILE}half.map, --output-sites, local"), "", &half),
        // The property of the outer workflow counts for all.
        ("--output-sites, local".into(), "inner.map", &both),
        // Without a map, or with one that does not know them, outputs go where others do.
        ("--output-sites, local".into(), "", &by_name),
        (
            "-Dpegasus.dir.storage.mapper=Fixed, '-Dpegasus.dir.storage.mapper.fixed.url=file:///all', --output-sites, local".into(),
            "",
            &of_other,
        ),
    ] {
        let arguments = arguments.replace("@DIR@", &case.path().display().to_string());
        case.put("workflow.yml", &OUTER.replace("--sites, local]", &format!("--sites, local, {arguments}]")));
        let properties = format!("pegasus.dir.storage.mapper = Replica\npegasus.dir.storage.mapper.replica = File\n\
             pegasus.dir.storage.mapper.replica.file = {outer}\n");
        case.put("pegasus.properties", if outer.is_empty() { "" } else { &properties });
        let _ = fs::remove_dir_all(case.path().join("submit"));
        let (plan, scratch) = with_made(&case)?;
        let planned = plan_child(&preparation(&plan, "pegasus-plan_S"), &scratch, "child")?;
        assert_eq!(destinations(&planned, case.path())?, expected, "{arguments} {outer}");
        // Another map is another plan.
        if arguments.contains("inner.map") {
            case.put("inner.map", &map.replace("/results/more", "/other/more"));
            let planned = plan_child(&preparation(&plan, "pegasus-plan_S"), &scratch, "child")?;
            assert!(destinations(&planned, case.path())?.contains(&"more file:///other/more".to_owned()));
            case.put("inner.map", map);
        }
    }
    Ok(())
}
