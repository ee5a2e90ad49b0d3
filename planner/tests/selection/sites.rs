//! Site selection.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Case, Plan};

/// Writes a site catalog with `local` and these sites; each has a work directory and a number of nodes.
fn sites(case: &Case, sites: &[(&str, u32)]) {
    let mut text = String::from("pegasus: \"5.0\"\nsites:\n");
    for (name, nodes) in [("local", 1)].iter().chain(sites) {
        let _ = write!(
            text,
            "- name: {name}\n  directories:\n  - {{type: sharedScratch, path: @DIR@/{name}, fileServers: [{{url: \
             \"file://@DIR@/{name}\"}}]}}\n  - {{type: localStorage, path: @DIR@/out, fileServers: [{{url: \
             \"file://@DIR@/out\"}}]}}\n  grids: [{{type: batch, contact: here, scheduler: slurm, jobtype: compute, \
             totalNodes: {nodes}}}]\n"
        );
    }
    case.put("sites.yml", &text);
}

/// Writes a transformation catalog: programs with the sites where they are installed and the run time there
/// (0: none).
fn programs(case: &Case, programs: &[(&str, &[(&str, u32)])]) {
    let mut text = String::from("pegasus: \"5.0\"\ntransformations:\n");
    for (name, sites) in programs {
        let _ = write!(text, "- name: {name}\n  sites:\n");
        for (site, seconds) in *sites {
            let _ = writeln!(
                text,
                "  - {{name: {site}, pfn: /opt/{site}/{name}, profiles: {}}}",
                {
                    match seconds {
                        0 => "{}".to_owned(),
                        s => format!("{{pegasus: {{runtime: {s}}}}}"),
                    }
                }
            );
        }
    }
    case.put("transformations.yml", &text);
}

/// A workflow of jobs (identifier, program, extra keys) and edges.
fn workflow(jobs: &[(&str, &str, &str)], edges: &[(&str, &str)]) -> Case {
    let mut text = String::from("pegasus: \"5.0\"\nname: w\njobs:\n");
    for (id, program, more) in jobs {
        let _ = writeln!(text, "- {{type: job, id: {id}, name: {program}{more}}}");
    }
    text.push_str("jobDependencies:\n");
    for (parent, child) in edges {
        let _ = writeln!(text, "- {{id: {parent}, children: [{child}]}}");
    }
    if edges.is_empty() {
        text.push_str("  []\n");
    }
    Case::new(&text)
}

/// Site of each compute job, by identifier.
fn placed(plan: &Plan) -> BTreeMap<String, String> {
    let mut placed = BTreeMap::new();
    for task in plan.tasks() {
        let words = plan.command(&task);
        let after = |flag: &str| {
            let at = words.iter().position(|w| w == flag);
            at.map(|n| words[n + 1].clone()).unwrap_or_default()
        };
        if after("-N") != "null" {
            placed.insert(after("-N"), after("-R"));
        }
    }
    placed
}

fn sites_of<'p>(placed: &'p BTreeMap<String, String>, ids: &[&str]) -> Vec<&'p str> {
    ids.iter().map(|id| placed[*id].as_str()).collect()
}

const TEN: [&str; 10] = ["J0", "J1", "J2", "J3", "J4", "J5", "J6", "J7", "J8", "J9"];

fn ten() -> Case {
    let jobs: Vec<(&str, &str, &str)> = TEN.iter().map(|id| (*id, "sim", "")).collect();
    let case = workflow(&jobs, &[]);
    sites(&case, &[("a", 1), ("b", 1)]);
    programs(&case, &[("sim", &[("a", 0), ("b", 0)])]);
    case
}

#[test]
fn without_a_selector_one_site_is_preferred() -> Result<(), Box<dyn std::error::Error>> {
    let case = workflow(&[("A", "x", ""), ("B", "y", "")], &[("A", "B")]);
    sites(&case, &[("a", 1), ("b", 1)]);
    programs(&case, &[("x", &[("a", 0), ("b", 0)]), ("y", &[("b", 0)])]);
    let plan = case.plan("--sites a,b")?;
    assert_eq!(sites_of(&placed(&plan), &["A", "B"]), ["b", "b"]);
    let notes = plan.planned.notes.join("\n");
    assert!(
        notes.contains("all jobs run on the site b, the first that can run each of them"),
        "{notes}"
    );
    programs(&case, &[("x", &[("a", 0)]), ("y", &[("b", 0)])]);
    let plan = case.plan("--sites a,b")?;
    assert_eq!(sites_of(&placed(&plan), &["A", "B"]), ["a", "b"]);
    let notes = plan.planned.notes.join("\n");
    assert!(notes.contains("no site can run all jobs"), "{notes}");
    assert!(notes.contains("jobs of the sites a, b run together"), "{notes}");
    Ok(())
}

#[test]
fn random_selection_depends_only_on_the_seed() -> Result<(), Box<dyn std::error::Error>> {
    let case = ten();
    let line = "--sites a,b -Dpegasus.selector.site=random";
    let plan = case.plan(line)?;
    let first = placed(&plan);
    assert_eq!(placed(&case.plan(line)?), first);
    assert_eq!(placed(&case.plan(&format!("{line} --seed 0"))?), first);
    for site in ["a", "b"] {
        assert!(first.values().any(|s| s == site), "{site} gets a job: {first:?}");
    }
    let others = ["1", "2", "3"].map(|seed| case.plan(&format!("{line} --seed {seed}")).map(|p| placed(&p)));
    assert!(
        others.into_iter().flatten().any(|p| p != first),
        "the seed counts"
    );
    let by_property = case.plan(&format!("{line} -Dpegasus.selector.site.seed=2"))?;
    assert_eq!(
        placed(&by_property),
        placed(&case.plan(&format!("{line} --seed 2"))?)
    );
    let notes = by_property.planned.notes.join("\n");
    assert!(notes.contains("site selection Random, seed 2: jobs "), "{notes}");
    assert!(case.plan(&format!("{line} --seed random")).is_ok());
    let message = case.fail(&format!("{line} --seed often"));
    assert!(
        message.contains("--seed: must be a whole number or the word random, not `often`"),
        "{message}"
    );
    Ok(())
}

#[test]
fn round_robin_takes_turns_on_each_level() -> Result<(), Box<dyn std::error::Error>> {
    let jobs = [
        ("A", "y", ""),
        ("B", "y", ""),
        ("C", "x", ""),
        ("D", "x", ""),
        ("E", "x", ""),
        ("F", "x", ""),
        ("G", "x", ""),
    ];
    let case = workflow(&jobs, &[("A", "F"), ("A", "G")]);
    sites(&case, &[("a", 1), ("b", 1)]);
    programs(&case, &[("x", &[("a", 0), ("b", 0)]), ("y", &[("a", 0)])]);
    let plan = case.plan("--sites a,b -Dpegasus.selector.site=RoundRobin")?;
    let placed = placed(&plan);
    // The first two can only run on a, so b catches up.
    assert_eq!(
        sites_of(&placed, &["A", "B", "C", "D", "E"]),
        ["a", "a", "b", "b", "a"]
    );
    assert_eq!(sites_of(&placed, &["F", "G"]), ["a", "b"]);
    let eight = ten().plan("--sites b,a -Dpegasus.selector.site=roundrobin")?;
    let expected = ["b", "a", "b", "a", "b", "a", "b", "a", "b", "a"];
    assert_eq!(sites_of(&self::placed(&eight), &TEN), expected);
    Ok(())
}

#[test]
fn a_group_runs_on_one_site_that_has_all_its_programs() -> Result<(), Box<dyn std::error::Error>> {
    let g = ", profiles: {pegasus: {group: g}}";
    let h = ", profiles: {pegasus: {group: h}}";
    let case = workflow(
        &[
            ("A", "x", g),
            ("B", "y", g),
            ("C", "x", h),
            ("D", "x", h),
            ("E", "x", h),
        ],
        &[],
    );
    sites(&case, &[("a", 1), ("b", 1), ("c", 1)]);
    programs(
        &case,
        &[("x", &[("a", 0), ("b", 0), ("c", 0)]), ("y", &[("c", 0)])],
    );
    for seed in 0..5 {
        let plan = case.plan(&format!(
            "--sites a,b,c -Dpegasus.selector.site=Group --seed {seed}"
        ))?;
        let placed = placed(&plan);
        assert_eq!(sites_of(&placed, &["A", "B"]), ["c", "c"]);
        assert_eq!(placed["C"], placed["D"]);
        assert_eq!(placed["C"], placed["E"]);
    }
    programs(&case, &[("x", &[("a", 0), ("b", 0)]), ("y", &[("c", 0)])]);
    let message = case.fail("--sites a,b,c -Dpegasus.selector.site=Group");
    assert!(
        message.contains("no site can run all 2 jobs of the group g"),
        "{message}"
    );
    let case = workflow(&[("A", "x", ", profiles: {pegasus: {group: default}}")], &[]);
    sites(&case, &[("a", 1)]);
    programs(&case, &[("x", &[("a", 0)])]);
    let message = case.fail("--sites a -Dpegasus.selector.site=Group");
    assert!(
        message.contains("the group name default is reserved"),
        "{message}"
    );
    Ok(())
}

#[test]
fn heft_chooses_the_site_where_a_job_ends_first() -> Result<(), Box<dyn std::error::Error>> {
    // Two roots, one processor per site: for the second, the slower site beats waiting.
    let case = workflow(&[("A", "x", ""), ("B", "x", ""), ("C", "y", "")], &[("A", "C")]);
    sites(&case, &[("fast", 1), ("slow", 4)]);
    programs(
        &case,
        &[
            ("x", &[("fast", 10), ("slow", 15)]),
            ("y", &[("fast", 30), ("slow", 29)]),
        ],
    );
    let plan = case.plan("--sites fast,slow -Dpegasus.selector.site=heft")?;
    // C ends at 10 + 30 on fast, at 10 + 2 + 29 on slow: moving the data costs more than it gains.
    assert_eq!(
        sites_of(&placed(&plan), &["A", "B", "C"]),
        ["fast", "slow", "fast"]
    );
    let notes = plan.planned.notes.join("\n");
    assert!(
        notes.contains("Heft expects the jobs alone to take 40 s"),
        "{notes}"
    );
    programs(
        &case,
        &[("x", &[("fast", 10), ("slow", 0)]), ("y", &[("fast", 0)])],
    );
    let message = case.fail("--sites fast,slow -Dpegasus.selector.site=Heft");
    assert!(
        message.contains("needs the profile pegasus::runtime of x on the site slow"),
        "{message}"
    );
    assert!(
        message.contains("needs the profile pegasus::runtime of y on the site fast"),
        "{message}"
    );
    assert_eq!(
        message.matches("of x on").count(),
        1,
        "one message a program: {message}"
    );
    Ok(())
}

/// Writes an external selector, a shell script.
fn script(case: &Case, text: &str) -> Result<(), std::io::Error> {
    case.put("select", &format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(case.path().join("select"), std::fs::Permissions::from_mode(0o755))
}

const CALLOUT: &str =
    "--sites a,b -Dpegasus.selector.site=NonJavaCallout -Dpegasus.selector.site.path=select";

#[test]
fn an_external_program_selects_sites() -> Result<(), Box<dyn std::error::Error>> {
    let jobs = [
        (
            "A",
            "ns.x",
            ", namespace: lab, version: '1', uses: [{lfn: in, type: input, size: 7}]",
        ),
        ("B", "y", ""),
    ];
    let case = workflow(&jobs, &[("A", "B")]);
    case.replicas(&["in"]);
    sites(&case, &[("a", 1), ("b", 1)]);
    case.put(
        "transformations.yml",
        "transformations:\n- {namespace: lab, name: ns.x, version: '1', sites: [{name: a, pfn: /x}, {name: b, pfn: \
         /x}]}\n- {name: y, sites: [{name: a, pfn: /y}, {name: b, pfn: /y}]}\n",
    );
    script(
        &case,
        "cp \"$1\" @DIR@/seen.$(sed -n 's/^job.id=//p' $1); env > @DIR@/environment; echo hello; \
         grep -q job.id=A $1 && echo SOLUTION:b:gate || echo SOLUTION:$OTHER",
    )?;
    let plan = case.plan(&format!("{CALLOUT} -Dpegasus.selector.site.env.OTHER=a"))?;
    assert_eq!(sites_of(&placed(&plan), &["A", "B"]), ["b", "a"]);
    let seen = std::fs::read_to_string(case.path().join("seen.A"))?;
    let lines: Vec<&str> = seen
        .lines()
        .filter(|line| !line.starts_with("wf.time="))
        .collect();
    assert_eq!(
        lines,
        [
            "version=2.0",
            "transformation=lab::ns.x:1",
            "derivation=null",
            "job.level=0",
            "job.id=A",
            "resource.id=a file://",
            "resource.id=a file://",
            "resource.id=b file://",
            "resource.id=b file://",
            "input.lfn=in 7",
            "wf.name=w",
            "wf.index=0",
            "wf.manager=dagman",
            "vo.name=NONE",
            "vo.group=NONE",
        ]
    );
    assert!(seen.contains("\nwf.time=20"), "{seen}");
    assert!(std::fs::read_to_string(case.path().join("seen.B"))?.contains("\njob.level=1\n"));
    let environment = std::fs::read_to_string(case.path().join("environment"))?;
    assert!(environment.contains("OTHER=a"), "{environment}");
    assert!(
        !environment.contains("CARGO"),
        "only what is meant for it: {environment}"
    );
    // A look at the plan shows what it has said, and does not start it.
    script(&case, "touch @DIR@/again; echo SOLUTION:a")?;
    let (text, _) = explain(&case, &plan, &["A", "B"])?;
    for site in ["b", "a"] {
        let reason = format!("{site}, chosen by the site selector NonJavaCallout among a, b");
        assert!(text.contains(&reason), "{text}");
    }
    let catalog = case.file("transformations.yml");
    case.put(
        "transformations.yml",
        &catalog.replace(", {name: b, pfn: /x}", ""),
    );
    let (_, message) = explain(&case, &plan, &["A"])?;
    assert!(
        message.contains("the plan names no site that can run it"),
        "{message}"
    );
    assert!(!case.path().join("again").exists());
    Ok(())
}

/// Runs `pmc-plan explain`. Returns what it prints, and its messages.
fn explain(case: &Case, plan: &Plan, jobs: &[&str]) -> Result<(String, String), std::io::Error> {
    let output = Command::new(testutils::programs::path("pmc-plan"))
        .arg("explain")
        .args(jobs)
        .arg(&plan.planned.submit_dir)
        .current_dir(case.path())
        .env("HOME", case.path())
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn a_failing_external_selector_fails_the_plan() -> Result<(), Box<dyn std::error::Error>> {
    let case = ten();
    for (text, expected) in [
        (
            "echo SOLUTION:c",
            "answers c, which cannot run it; sites that can are [a, b]",
        ),
        ("echo broken >&2; exit 4", "fails with exit status: 4: broken"),
        ("echo a", "prints no line SOLUTION:SITE"),
    ] {
        script(&case, text)?;
        let message = case.fail(CALLOUT);
        assert!(
            message.contains("the job J0 (sim): the site selector "),
            "{message}"
        );
        assert!(message.contains(expected), "{message}");
    }
    let message = case.fail("--sites a -Dpegasus.selector.site=NonJavaCallout");
    assert!(
        message.contains("needs the property pegasus.selector.site.path"),
        "{message}"
    );
    let message = case.fail(&format!(
        "{CALLOUT} -Dpegasus.selector.site.path=missing -Dpegasus.selector.site.timeout=x"
    ));
    assert!(
        message.contains("must name a program that can be executed"),
        "{message}"
    );
    assert!(message.contains("must be a whole number of seconds"), "{message}");
    let message = case.fail("--sites a -Dpegasus.selector.site=RoundRobbin");
    assert!(
        message.contains("did you mean RoundRobin? site selectors are First, Random"),
        "{message}"
    );
    Ok(())
}

#[test]
fn profiles_can_set_site_and_program() -> Result<(), Box<dyn std::error::Error>> {
    let jobs = [
        ("A", "x", ", profiles: {selector: {execution.site: b}}"),
        ("B", "none", ", profiles: {selector: {pfn: /own/program}}"),
        ("C", "x", ""),
    ];
    let case = workflow(&jobs, &[]);
    sites(&case, &[("a", 1), ("b", 1)]);
    programs(&case, &[("x", &[("a", 3), ("b", 3)])]);
    for selector in ["First", "RoundRobin", "Group"] {
        let plan = case.plan(&format!("--sites a -Dpegasus.selector.site={selector}"))?;
        assert_eq!(
            sites_of(&placed(&plan), &["A", "B", "C"]),
            ["b", "a", "a"],
            "{selector}"
        );
        assert_eq!(
            plan.command("none_B").last().map(String::as_str),
            Some("/own/program")
        );
    }
    Ok(())
}

#[test]
fn all_problems_with_sites_are_reported_at_once() {
    let jobs = [
        ("A", "sim", ", profiles: {selector: {execution.site: clusterr}}"),
        ("B", "sort", ""),
        ("C", "sorted", ""),
    ];
    let case = workflow(&jobs, &[]);
    sites(&case, &[("cluster", 1), ("archive", 1)]);
    programs(&case, &[("sorter", &[("cluster", 0)])]);
    let message = case.fail("--sites cluster");
    assert!(
        message.contains("pinned to the site clusterr, which is in no site catalog"),
        "{message}"
    );
    assert!(
        message.contains("did you mean cluster? sites are archive, cluster, local"),
        "{message}"
    );
    assert!(
        message.contains("entries for the transformation \"sort\""),
        "{message}"
    );
    assert!(
        message.contains("entries for the transformation \"sorted\""),
        "{message}"
    );
    let message =
        case.fail("--sites clster,local --output-sites archiv --staging-site cluster=archive,nowhere=local");
    for expected in [
        "Execution site clster not loaded into site store. Loaded sites are [archive, cluster, condorpool, local]\n  \
         hint: did you mean cluster?",
        "Output site archiv not loaded into site store.",
        "hint: did you mean archive?",
        "Execution site nowhere not loaded",
    ] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

/// A workflow as the tutorial of Pegasus has it: its program is on `condorpool`, and no catalog has sites.
fn pool() -> Case {
    let case = super::one_job();
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: x\n  sites: [{name: condorpool, type: installed, pfn: /bin/x}]\n",
    )
    .put(
        "replicas.yml",
        "pegasus: \"5.0\"\nreplicas:\n- lfn: in\n  pfns: [{site: condorpool, pfn: /data/in}]\n",
    );
    case
}

#[test]
fn undefined_sites_without_a_catalog_are_this_machine() -> Result<(), Box<dyn std::error::Error>> {
    let case = pool();
    std::fs::remove_file(case.path().join("sites.yml"))?;
    for (line, names) in [
        ("--dir submit", "site condorpool means"),
        ("--dir submit --sites local", "site condorpool means"),
        (
            "--dir submit --sites condorpool --output-sites local",
            "site condorpool means",
        ),
        (
            "--dir submit --sites condorpool --staging-site condorpool=local --output-sites CCG",
            "sites CCG, condorpool mean",
        ),
    ] {
        let plan = case.plan(line)?;
        assert!(plan.command("x_A").ends_with(&["/bin/x".to_owned()]), "{line}");
        assert_eq!(super::urls(&plan, "in"), ["/data/in"], "{line}");
        let warnings = plan.warnings();
        let warning = format!("without a site catalog, the {names} this machine");
        assert_eq!(warnings.iter().filter(|w| w.contains("this machine")).count(), 1);
        assert!(warnings.contains(&warning), "{line}: {warnings:?}");
    }
    Ok(())
}

#[test]
fn with_a_catalog_the_pool_of_htcondor_is_this_machine() -> Result<(), Box<dyn std::error::Error>> {
    let case = pool();
    let plan = case.plan("--dir submit --sites condorpool --staging-site local")?;
    let warning = "not in the site catalog, the site condorpool means this machine".to_owned();
    assert!(plan.warnings().contains(&warning), "{:?}", plan.warnings());
    assert!(
        plan.command("x_A")
            .contains(&"/opt/pegasus/bin/pegasus-kickstart".to_owned())
    );
    let message = case.fail("--dir submit --sites local --output-sites cluster");
    assert!(message.contains("Output site cluster not loaded"), "{message}");
    // The program of `local` is preferred, unless the other site is named.
    let text = case.file("transformations.yml");
    case.put(
        "transformations.yml",
        &text.replace("}]", "}, {name: local, type: installed, pfn: /opt/x}]"),
    );
    for (line, program) in [
        ("--dir submit --sites local", "/opt/x"),
        ("--dir submit --sites condorpool", "/bin/x"),
    ] {
        let plan = case.plan(line)?;
        assert!(plan.command("x_A").ends_with(&[program.to_owned()]), "{line}");
    }
    Ok(())
}

#[test]
fn a_named_catalog_may_be_missing() -> Result<(), Box<dyn std::error::Error>> {
    let case = pool();
    let plan = case.plan(
        "--dir submit --sites condorpool -Dpegasus.catalog.site.file=none.yml -Dpegasus.catalog.replica.file=rc \
         --input-dir data",
    );
    assert!(plan.is_err(), "there is no data yet");
    case.put("data/in", "x");
    let plan = case.plan(
        "--dir submit --sites condorpool -Dpegasus.catalog.site.file=none.yml -Dpegasus.catalog.replica.file=rc \
         --input-dir data",
    )?;
    for name in ["none.yml", "rc"] {
        let path = case.path().join(name).display().to_string();
        let warning = format!("{path}: no such catalog: the plan is made without it");
        assert!(plan.warnings().contains(&warning), "{:?}", plan.warnings());
    }
    let message =
        case.fail("--dir submit --sites condorpool -o cluster -Dpegasus.catalog.site.file=none.yml");
    assert!(message.contains("Output site cluster not loaded"), "{message}");
    let message = case.fail("--dir submit -Dpegasus.catalog.transformation.file=none.yml");
    assert!(message.contains("none.yml"), "{message}");
    Ok(())
}
