//! The executor does what the original did in the golden cases, under every transport.

use crate::support::golden::{Differences, cases, golden};
use crate::support::programs::{Flavour, python};

/// How the comparison tool starts the executor; it puts the number of ranks for `{np}`.
fn prefix(flavour: Flavour) -> String {
    let executor = flavour.program("pegasus-mpi-cluster");
    let executor = executor.display();
    match flavour {
        // One rank of the original is the master.
        Flavour::Local => {
            format!(
                "sh -c 'workers=$(($1 - 1)); shift; exec \"{executor}\" --workers $workers \"$@\"' sh {{np}}"
            )
        }
        Flavour::OpenMpi => format!("mpiexec.openmpi --oversubscribe -n {{np}} \"{executor}\""),
        Flavour::Mpich => format!("mpiexec.mpich -n {{np}} \"{executor}\""),
    }
}

fn check(flavour: Flavour) {
    let said = python()
        .arg("-I")
        .arg(golden("tools/run_case.py"))
        .arg("--pmc")
        .arg(prefix(flavour))
        .args(["--order", "loose", "--all"])
        .arg(golden("executor"))
        .limit(1200)
        .go();
    let names = cases("executor");
    // The table at the end: case, verdict, seconds, "s", what differs, separated by commas.
    let mut problems = Vec::new();
    let mut judged = 0;
    for line in said.stdout.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [case, verdict @ ("pass" | "FAIL"), _, "s", differing @ ..] = words.as_slice() {
            judged += 1;
            let differing = differing.join(" ");
            for check in differing.split(", ").filter(|_| *verdict == "FAIL") {
                problems.push(((*case).to_owned(), check.to_owned()));
            }
        }
    }
    assert_eq!(judged, names.len(), "cases judged: {}", said.account());
    let report = Differences::read("executor.differences").judge(flavour, &names, &problems);
    println!("{}", said.stdout);
    assert!(
        report.is_empty(),
        "unexpected:\n{report}\n(the differences are above)"
    );
}

#[test]
#[ignore = "needs Python: tests/run e2e"]
fn local_workers_do_what_the_original_did() {
    check(Flavour::Local);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn ranks_of_open_mpi_do_what_the_original_did() {
    check(Flavour::OpenMpi);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn ranks_of_mpich_do_what_the_original_did() {
    check(Flavour::Mpich);
}
