//! Plans whose files are in object stores.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;

use common::Case;

#[test]
fn a_plan_that_stages_by_s3_without_object_stores_is_warned_of() -> Result<(), Box<dyn std::error::Error>> {
    let case = Case::new(
        "pegasus: \"5.0\"\nname: w\njobs:\n- {type: job, id: A, name: first, uses: [{lfn: in, type: input}]}\n",
    );
    case.programs(&["first"]);
    let replicas = |url: &str| {
        let text =
            format!("pegasus: \"5.0\"\nreplicas:\n- lfn: in\n  pfns: [{{site: store, pfn: \"{url}\"}}]\n");
        case.put("replicas.yml", &text);
    };
    let warnings = |dir: &str| -> Result<Vec<String>, pmc_plan::error::PlanError> {
        Ok(case
            .plan(&format!("--sites local --output-sites local --dir {dir}"))?
            .warnings())
    };
    let said = "/opt/pegasus/bin/pegasus-transfer was built without the feature object-stores";
    for (number, url) in ["s3://me@cloud/bucket/in", "gs://bucket/in"].iter().enumerate() {
        replicas(url);
        let found = warnings(&format!("submit{number}"))?;
        let is_there = found.iter().any(|warning| warning.contains(said));
        assert_eq!(is_there, !cfg!(feature = "object-stores"), "{url}: {found:?}");
    }
    replicas("http://web.example.org/in");
    let found = warnings("other")?;
    assert!(!found.iter().any(|warning| warning.contains(said)), "{found:?}");
    Ok(())
}
