//! Replica selectors.

use super::{one_job, sources, urls};
use crate::common::Case;

/// One job whose input has replicas of every kind.
fn many_replicas() -> Case {
    let case = one_job();
    case.put(
        "replicas.yml",
        "replicas:\n- lfn: in\n  pfns:\n  - {site: web, pfn: 'http://web.example.org/in'}\n  - {site: local, pfn: \
         'gsiftp://local.example.org/in'}\n  - {site: tape, pfn: 'gsiftp://tape.example.org/in'}\n  - {site: other, pfn: \
         'file:///other/in'}\n  - {site: local, pfn: 'file:///data/in'}\n  - {pfn: 'http://nowhere.example.org/in'}\n",
    );
    case
}

fn short(found: &[(String, String, u64)]) -> Vec<(&str, &str, u64)> {
    found
        .iter()
        .map(|(site, url, priority)| {
            (
                site.as_str(),
                url.split(':').next().unwrap_or_default(),
                *priority,
            )
        })
        .collect()
}

#[test]
fn by_default_local_files_come_first_then_replicas_of_the_site() -> Result<(), Box<dyn std::error::Error>> {
    let case = many_replicas();
    let plan = case.plan("--sites local")?;
    let found = sources(&plan, "in");
    let expected = [
        ("local", "file", 100),
        ("local", "gsiftp", 50),
        ("web", "http", 10),
        ("tape", "gsiftp", 10),
    ];
    assert_eq!(short(&found), expected);
    let warnings = plan.warnings().join("\n");
    assert!(
        warnings.contains("1 locations of inputs name no site and are not used, for example http://nowhere"),
        "{warnings}"
    );
    Ok(())
}

#[test]
fn patterns_rank_replicas() -> Result<(), Box<dyn std::error::Error>> {
    let case = many_replicas();
    let plan = case.plan(
        "--sites local -Dpegasus.selector.replica=Regex -Dpegasus.selector.replica.regex.rank.1=http://.* \
         -Dpegasus.selector.replica.regex.rank.3=file:///data/.*",
    )?;
    let found = sources(&plan, "in");
    assert_eq!(short(&found), [("web", "http", 200), ("local", "file", 0)]);
    let warnings = plan.warnings().join("\n");
    assert!(
        warnings.contains("3 locations of inputs are not used"),
        "{warnings}"
    );
    assert!(
        warnings.contains("pegasus.selector.replica.regex.rank.N"),
        "{warnings}"
    );
    let message = many_replicas().fail(
        "--sites local -Dpegasus.selector.replica=Regex -Dpegasus.selector.replica.regex.rank.1=ftp://.*",
    );
    assert!(message.contains("for lfn in for job x_A"), "{message}");
    assert!(
        message.contains("takes locations only that match a pattern"),
        "{message}"
    );
    Ok(())
}

#[test]
fn patterns_may_use_lookaround() -> Result<(), Box<dyn std::error::Error>> {
    let case = many_replicas();
    let plan = case.plan(
        "--sites local -Dpegasus.selector.replica=Regex \
         -Dpegasus.selector.replica.regex.rank.1=(?!http)[a-z]*://(?!tape).*",
    )?;
    let found = sources(&plan, "in");
    assert_eq!(short(&found), [("local", "gsiftp", 0), ("local", "file", 0)]);
    // Patterns in a catalog may do so, too, and keep their order.
    let case = one_job();
    case.put(
        "rc.txt",
        "o(?!n).* file:///no/[0] site=\"local\" regex=\"true\"\n(i)(?=n).* file:///yes/[1]/[0] site=\"local\" \
         regex=\"true\"\ni.* file:///late/[0] site=\"local\" regex=\"true\"\n",
    );
    let plan = case.plan("--sites local -Dpegasus.catalog.replica.file=rc.txt")?;
    assert_eq!(urls(&plan, "in"), ["file:///yes/i/in"]);
    Ok(())
}

#[test]
fn sites_can_be_preferred_and_ignored() -> Result<(), Box<dyn std::error::Error>> {
    let selector = "--sites local -Dpegasus.selector.replica=Restricted";
    let case = many_replicas();
    let plan = case.plan(&format!(
        "{selector} -Dpegasus.selector.replica.*.ignore.stagein.sites=local,web \
         -Dpegasus.selector.replica.local.prefer.stagein.sites=tape"
    ))?;
    assert_eq!(short(&sources(&plan, "in")), [("tape", "gsiftp", 50)]);
    let case = many_replicas();
    let plan = case.plan(&format!(
        "{selector} -Dpegasus.selector.replica.local.prefer.stagein.sites=tape"
    ))?;
    let found = sources(&plan, "in");
    let expected = [
        ("local", "file", 100),
        ("tape", "gsiftp", 50),
        ("web", "http", 10),
        ("local", "gsiftp", 10),
    ];
    assert_eq!(short(&found), expected);
    let message = many_replicas().fail(&format!(
        "{selector} -Dpegasus.selector.replica.*.ignore.stagein.sites=*"
    ));
    assert!(message.contains("leaves out the sites of"), "{message}");
    Ok(())
}

#[test]
fn the_selector_local_takes_those_of_the_site_or_one() -> Result<(), Box<dyn std::error::Error>> {
    let case = many_replicas();
    let plan = case.plan("--sites local -Dpegasus.selector.replica=local")?;
    let found = sources(&plan, "in");
    // 0 means no priority.
    assert_eq!(short(&found), [("local", "gsiftp", 0), ("local", "file", 0)]);
    case.put(
        "replicas.yml",
        "replicas:\n- {lfn: in, pfns: [{site: web, pfn: 'http://w/in'}, {site: tape, pfn: 'gsiftp://t/in'}]}\n",
    );
    let plan = case.plan("--sites local -Dpegasus.selector.replica=local")?;
    assert_eq!(short(&sources(&plan, "in")), [("web", "http", 0)]);
    Ok(())
}

#[test]
fn the_first_source_with_a_file_wins() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    case.replicas(&["in"]);
    case.put("low.rc", "in file:///inherited/in site=\"local\"\n");
    case.put("high.cache", "in file:///cached/in site=\"local\"\n");
    case.put("inputs/in", "");
    let inputs = format!("file://{}/inputs/in", case.path().display());
    for (line, expected) in [
        ("", vec!["/data/in"]),
        ("--inherited-rc-files low.rc", vec!["file:///inherited/in"]),
        ("--inherited-rc-files low.rc -I inputs", vec![inputs.as_str()]),
        (
            "--inherited-rc-files low.rc -I inputs -c high.cache",
            vec!["file:///cached/in"],
        ),
        (
            "-c high.cache -Dpegasus.catalog.replica.cache.asrc=true",
            vec!["file:///cached/in", "/data/in"],
        ),
    ] {
        let plan = case.plan(&format!("--sites local {line}"))?;
        assert_eq!(urls(&plan, "in"), expected, "{line}");
    }
    Ok(())
}

#[test]
fn equal_replicas_are_listed_once() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    case.put(
        "replicas.yml",
        "pegasus: \"5.0\"\nreplicas:\n- lfn: in\n  pfns: [{site: local, pfn: /data/in}, {site: local, pfn: /copy/in}, \
         {site: local, pfn: /data/in}]\n",
    );
    let mut found = urls(&case.plan("--sites local")?, "in");
    found.sort();
    assert_eq!(found, ["/copy/in", "/data/in"]);
    case.put(
        "a.cache",
        "in /data/in site=\"local\"\nin /data/in site=\"local\"\n",
    );
    assert_eq!(urls(&case.plan("--sites local -c a.cache")?, "in").len(), 1);
    Ok(())
}

#[test]
fn metadata_beside_a_cache_file_is_used() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    case.put("a.cache", "in file:///cached/in site=\"local\" size=\"3\"\n");
    case.put(
        "a.cache.meta",
        "[{\"_id\": \"in\", \"_type\": \"file\", \"_attributes\": {\"size\": 9, \"checksum.type\": \"sha256\", \
         \"checksum.value\": \"abc\"}}]\n[{\"_id\": \"other\", \"_attributes\": {}}]\n",
    );
    let plan = case.plan("--sites local -c a.cache")?;
    let order = &plan.orders("stage_in_remote_local_0_0")[0];
    assert_eq!(order["attributes"]["checksum.value"], "abc");
    assert_eq!(
        order["attributes"]["size"], "3",
        "what the cache file says itself stays"
    );
    assert!(order["generate_checksum"].is_null(), "the checksum is known");
    case.put("a.cache.meta", "[{\"_id\": 1}]");
    let message = case.fail("--sites local -c a.cache");
    assert!(
        message.contains("a.cache.meta:1:10: not a metadata file"),
        "{message}"
    );
    Ok(())
}
