//! Gangs in a sub-workflow: the log of resources of each DAG is about its own tasks.

use std::collections::BTreeMap;
use std::fs;

use super::{Mpi, Scene};

/// The lines of each host, without their times.
fn lines(log: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in log.lines() {
        let (_, rest) = line.split_once(',').expect("a time");
        let (free, host) = rest.rsplit_once(',').expect("a host");
        hosts.entry(host).or_default().push(free);
    }
    hosts
}

#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn a_gang_of_a_sub_workflow_takes_hosts_in_the_log_of_its_dag() {
    // A gang is done when its command has ended, and its hosts come back later. The last tasks take whole
    // hosts, so they begin when all are back.
    let dag = "SUBDAG EXTERNAL s sub/s.dag DIR sub\nTASK plain --on n3 /bin/sleep 2\n";
    let mut scene = Scene::new(Mpi::debian("mpicc.openmpi"), dag);
    fs::create_dir(scene.path("sub")).expect("a directory");
    let inner = "TASK gang --on n[1-2] -N 2 -m 100 /bin/sleep 0.5\n\
                 TASK fails -N 2 --on n[1-2] -t 2 -m 100 \
                 /bin/sh -c 'test -e once || { touch once; exit 1; }'\n\
                 TASK after1 --on n1 -c 2 -m 50 /bin/true\nTASK after2 --on n2 -c 2 -m 50 /bin/true\n\
                 EDGE gang fails\nEDGE fails after1\nEDGE fails after2\n";
    fs::write(scene.path("sub/s.dag"), inner).expect("a DAG");
    scene.start();
    scene.succeed();
    let (inner, outer) = (scene.text("sub/s.dag.resource"), scene.text("x.dag.resource"));
    assert!(!outer.contains('='), "{outer}");
    let hosts = lines(&inner);
    for host in ["n1", "n2"] {
        let of_host = &hosts[host];
        let last = of_host.last().map(|last| last.replace('=', ""));
        assert_eq!(last.as_deref(), Some("2,2,1000"), "{inner}");
        assert!(of_host.contains(&"=1,=1,=900"), "{inner}");
    }
    assert!(
        hosts.values().flatten().all(|free| !free.starts_with("3,")),
        "{inner}"
    );
}
