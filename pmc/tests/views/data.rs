//! `pmc status --data` and the section `data` of `pmc statistics`.

use serde_json::Value;

use crate::support::Place;

#[test]
fn data_of_lite_jobs() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "exit 3");
    let mode = "-Dpegasus.data.configuration=nonsharedfs";
    place.run(["run", "-q", mode, "workflow.yml"]).code(1);
    place.script("bin/second", "sleep 0.1; cp mid.txt out.txt");
    place.run(["resume", "-q", "pmc-runs/chain"]).code(0);
    let rows = place.run(["statistics", "--json", "-s", "data", "pmc-runs/chain"]);
    let rows = rows.code(0).json();
    let rows = rows["data"].as_array().expect("attempts").clone();
    let second: Vec<&Value> = rows.iter().filter(|row| row["job"] == "second_B").collect();
    let tries: Vec<&Value> = second.iter().map(|row| &row["try"]).collect();
    assert_eq!(tries, [1, 2], "{rows:?}");
    let bytes = |row: &Value, key: &str| row[key].as_u64().expect("a number");
    let size = place.read("in.txt").len() as u64;
    // The failed attempt has delivered nothing.
    assert_eq!(bytes(second[0], "bytes_delivered"), 0);
    assert_eq!(bytes(second[1], "bytes_delivered"), size, "{rows:?}");
    assert!(bytes(second[1], "bytes_fetched") >= size, "{rows:?}");
    assert!(second[1]["run_seconds"].as_f64() >= Some(0.1), "{rows:?}");

    let status = place.run(["status", "--data", "--json", "pmc-runs/chain"]);
    let sum = &status.code(0).json()["data"];
    assert_eq!(sum["tries"], rows.len());
    for key in [
        "bytes_fetched",
        "bytes_cached",
        "bytes_from_peers",
        "bytes_delivered",
    ] {
        let all: u64 = rows.iter().map(|row| bytes(row, key)).sum();
        assert_eq!(sum[key], all, "{key}");
    }
    let text = place.run(["status", "--data", "pmc-runs/chain"]);
    assert!(
        text.code(0).stdout().contains("  4 attempts: "),
        "{}",
        text.stdout()
    );
    let text = place.run(["statistics", "-s", "data", "pmc-runs/chain"]);
    assert!(text.code(0).stdout().contains("\n  all  "), "{}", text.stdout());
    let rows = place.run(["statistics", "--csv", "-s", "data", "pmc-runs/chain"]);
    assert_eq!(rows.code(0).stdout().lines().count(), 5, "{}", rows.stdout());
}

#[test]
fn no_data_without_lite_jobs() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    place.run(["run", "-q", "workflow.yml"]).code(0);
    let text = place.run(["statistics", "-s", "data"]);
    assert!(
        text.code(0).stdout().contains("had a directory of its own"),
        "{}",
        text.stdout()
    );
    let text = place.run(["status", "--data"]);
    assert!(
        text.code(0).stdout().contains("No such job has ended"),
        "{}",
        text.stdout()
    );
}
