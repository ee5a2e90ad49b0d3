//! `pmc statistics` prints the same figures as `pegasus-statistics`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::support::command::Program;
use crate::support::pegasus::Monitored;
use crate::support::programs::{Build, venv_bin};

/// Returns the rows of a CSV file by their key columns, without titles and blank lines.
fn rows(path: &Path, key: &[usize]) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut found = BTreeMap::new();
    // Titles of pegasus-statistics continue on indented lines.
    let is_row = |line: &&str| line.contains(',') && !line.starts_with(['#', ' ', '\t']);
    for line in text.lines().filter(is_row) {
        let cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        let name: Vec<&str> = key
            .iter()
            .filter_map(|at| cells.get(*at).map(String::as_str))
            .collect();
        found.insert(name.join(" "), cells);
    }
    found
}

/// Returns whether two cells are equal as text, or as numbers to the third digit, with or without a percent
/// sign.
fn is_close(ours: &str, theirs: &str) -> bool {
    let number = |text: &str| text.trim_end_matches('%').parse::<f64>().ok();
    match (number(ours), number(theirs)) {
        (Some(a), Some(b)) => (a - b).abs() <= 0.006 + 1e-3 * b.abs(),
        _ => ours == theirs,
    }
}

#[track_caller]
fn compare(ours: &Path, theirs: &Path, name: &str, key: &[usize]) {
    let (ours, theirs) = (rows(&ours.join(name), key), rows(&theirs.join(name), key));
    for (row, cells) in &theirs {
        // Files of pegasus-statistics repeat each row for all workflows.
        if cells[0] == "ALL" {
            continue;
        }
        let own = ours.get(row).unwrap_or_else(|| panic!("{name}: no row {row}"));
        for (at, (mine, other)) in own.iter().zip(cells).enumerate() {
            assert!(
                is_close(mine, other),
                "{name}, {row}, column {at}: {mine} instead of {other}"
            );
        }
        assert_eq!(own.len(), cells.len(), "{name}, {row}");
    }
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn statistics_equal_those_of_pegasus() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let top = directory.path();
    let pmc = || Program::new(Build::Local.program("pmc")).in_directory(top);
    fs::create_dir(top.join("bin")).expect("a directory");
    for (name, script) in [("good", "sleep 0.2"), ("bad", "exit 3")] {
        use std::os::unix::fs::PermissionsExt as _;
        let path = top.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let transformation = |name: &str| {
        format!(
            "  - {{name: {name}, sites: [{{name: local, type: installed, pfn: \"${{PMC_WORKFLOW_DIR}}/bin/{name}\"}}]}}\n"
        )
    };
    let job = |id: &str, name: &str| format!("- {{type: job, id: {id}, name: {name}, uses: []}}\n");
    fs::write(
        top.join("workflow.yml"),
        format!(
            "pegasus: \"5.0.4\"\nname: mixed\ntransformationCatalog:\n  transformations:\n{}{}jobs:\n{}{}{}{}\
             jobDependencies:\n- {{id: C, children: [D]}}\n",
            transformation("good"),
            transformation("bad"),
            job("A", "good"),
            job("B", "good"),
            job("C", "bad"),
            job("D", "good"),
        ),
    )
    .expect("a workflow");
    assert_eq!(
        pmc()
            .args(["run", "-q", "--tries", "2", "workflow.yml"])
            .run()
            .code(),
        1
    );
    let submit = top.join("pmc-runs/mixed/run0001/submit");
    // Without a database, `pmc statistics` loads one.
    let fresh = top.join("fresh");
    let all = ["statistics", "--csv", "-s", "all", "-o"];
    pmc().args(all).arg(&fresh).arg(&submit).run().ok();
    let monitored = Monitored {
        submit: &submit,
        home: top,
    };
    // This replaces the log of states of the other loader.
    monitored.replay();
    let theirs = top.join("theirs");
    let bin = venv_bin();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    Program::new(bin.join("pegasus-statistics"))
        .args(["-s", "all", "-f", "csv", "-o"])
        .arg(&theirs)
        .arg(&submit)
        .env("PATH", path)
        .env("HOME", top)
        .run()
        .ok();
    let same = top.join("same");
    pmc().args(all).arg(&same).arg(&submit).run().ok();
    for ours in [&fresh, &same] {
        compare(ours, &theirs, "summary.csv", &[0]);
        compare(ours, &theirs, "workflow.csv", &[0, 2]);
        compare(ours, &theirs, "breakdown.csv", &[2, 3]);
        compare(ours, &theirs, "integrity.csv", &[2, 3]);
    }
    compare(&same, &theirs, "jobs.csv", &[2, 3]);
    // Times differ by a millisecond if a run begins and ends in the same second.
    let times = rows(&theirs.join("summary-time.csv"), &[0]);
    let own = rows(&same.join("summary.csv"), &[0]);
    for (name, cells) in times {
        if name != "workflow_wall_time" && name != "stat_type" {
            assert!(
                is_close(&own[&name][1], &cells[1]),
                "{name}: {:?} {cells:?}",
                own[&name]
            );
        }
    }
}
