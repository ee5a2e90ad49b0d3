//! Workflows that their planner fetches from a server.

use super::*;

#[test]
fn a_planner_fetches_its_workflow_from_a_server() -> Done {
    const HUB: &str = "- name: hub\n  directories:\n  \
         - {type: sharedScratch, path: /stage, fileServers: [{url: 'webdav://hub/stage', operation: all}]}\n";
    let options = format!("{LINE} -Dpegasus.data.configuration=nonsharedfs --staging-site local=hub");
    // Before version 5.0.4, nothing says what is read for planning.
    for (version, fetched) in [("5.0.4", &["made.yml"][..]), ("5.0.3", &["made.yml", "mid"])] {
        let case = case(&OUTER.replace("\"5.0\"", &format!("\"{version}\"")));
        case.put("sites.yml", &format!("{}{HUB}", case.file("sites.yml")));
        let plan = case.plan(&options)?;
        let words = plan.command("pegasus-plan_S");
        assert!(words[0].ends_with("/pegasus-lite"), "{words:?}");
        let description: serde_json::Value = serde_json::from_str(&fs::read_to_string(&words[1])?)?;
        let files = description["stage_in"].as_array().expect("files").iter();
        let names: Vec<_> = files.map(|file| file["lfn"].as_str().expect("a name")).collect();
        assert_eq!(names, fetched);
        let run = description["run"]["kickstart"].as_array().expect("a command");
        assert_eq!(run.last().and_then(|word| word.as_str()), Some("made.yml"));
        assert!(!run.contains(&"-w".into()), "{run:?}");
        assert!(description.get("stage_out").is_none() && description.get("checksum_file").is_none());
        let verified = description["verify"].as_array().expect("checksums");
        assert_eq!(verified.len(), fetched.len());
        // It makes the plan where the DAG is.
        let task = plan
            .dag
            .ids()
            .find(|task| plan.dag.name(*task) == b"pegasus-plan_S");
        assert!(!plan.dag.request(task.expect("the task")).anywhere);
    }
    Ok(())
}

#[test]
fn a_fetched_workflow_has_the_same_plan_wherever_it_is() -> Done {
    let case = case(OUTER);
    let (plan, scratch) = with_made(&case)?;
    let words = preparation(&plan, "pegasus-plan_S");
    assert!(matches!(
        plan_child(&words, &scratch, "child")?,
        Prepared::Planned(_)
    ));
    let other = case.path().join("other");
    fs::create_dir(&other)?;
    fs::write(other.join("made.yml"), MADE)?;
    assert!(matches!(plan_child(&words, &other, "child")?, Prepared::Kept(_)));
    Ok(())
}
