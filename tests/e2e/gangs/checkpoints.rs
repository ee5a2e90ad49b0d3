//! Ranks of one task on several nodes save their state, and go on together when one of the nodes is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{Mpi, NODES, Scene, output, pmc_launch};
use crate::checkpoints::{RANKS, compile};
use crate::support::programs::Build;

/// Number of sidecars below a directory that belong to a series.
fn sidecars(directory: &Path, series: &str) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let count = entries.map(|entry| {
        let path = entry.path();
        let is_of_series = directory.file_name().is_some_and(|name| name == series);
        let is_sidecar = path.extension().is_some_and(|ending| ending == "json");
        match path.is_dir() {
            true => sidecars(&path, series),
            false => usize::from(is_of_series && is_sidecar),
        }
    });
    count.sum()
}

impl Scene {
    /// The same on the disks of all nodes, or in the store beside the DAG file.
    fn saved(&self, series: &str) -> usize {
        match self.has_disks {
            true => NODES
                .iter()
                .map(|name| sidecars(&self.path(&format!("disk-{name}")), series))
                .sum(),
            false => sidecars(&self.path("x.dag.checkpoints"), series),
        }
    }

    /// Runs the task `ring`. When its series with this number has this number of files, the second of its
    /// nodes is lost.
    fn lose_node_after(&mut self, series: &str, files: usize) {
        for name in NODES {
            fs::create_dir(self.path(&format!("disk-{name}"))).expect("a directory");
        }
        self.start();
        // On nodes, each file has a second place.
        let files = if self.has_disks { 2 * files } else { files };
        self.wait_for("a safe series", |scene| scene.saved(series) == files);
        drop(self.nodes.remove(1));
        fs::write(self.path("go"), "").expect("a file");
        self.succeed();
        let is_left = |name: &str| {
            let entries = fs::read_dir(self.path(name)).into_iter().flatten();
            entries.count() > 0
        };
        self.wait_for("nothing is left", |_| !is_left("disk-n1") && !is_left("disk-n3"));
        assert!(!is_left("x.dag.checkpoints"), "{}", self.said());
    }
}

/// The program waits after its fourth series.
fn ranks_go_on(has_disks: bool) {
    let dag = "TASK ring -N 2 --ranks-per-node 2 -m 100 mpirun.openmpi ./ranks\n";
    let mut scene = Scene::new(Mpi::debian("mpicc.openmpi"), dag);
    scene.has_disks = has_disks;
    let wait = "usleep(10000); while (particles > 20 && access(\"go\", F_OK)) usleep(10000);";
    let program = RANKS.replace("usleep(50000);", wait);
    assert!(program.contains(wait));
    fs::write(scene.path("ranks.c"), program).expect("a source");
    let (source, program) = (scene.path("ranks.c"), scene.path("ranks"));
    compile(&["mpicc.openmpi"], &source, "tcsio", &program);
    // Two files of each of four ranks.
    scene.lose_node_after("4", 8);
    let output = output(scene.folder.path(), "ring");
    let is_right = output.contains("begins after 20\n") && output.contains("The sum is 400\n");
    assert!(is_right, "{output}\n{}", scene.said());
}

#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn ranks_on_several_nodes_save_on_their_disks() {
    ranks_go_on(true);
}

#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn ranks_on_several_nodes_save_in_the_shared_directory() {
    ranks_go_on(false);
}

/// Each rank saves something, and waits for its end. The next attempt gets it.
const SCRIPT: &str = r#"#!/bin/sh
rank=${PMI_RANK:-$PMC_LAUNCH_RANK}
if @PMC@ checkpoint get state got.$rank; then
    echo "rank $rank goes on from $(cat got.$rank)"
    exit 0
fi
echo "the state of $rank" >new.$rank
@PMC@ checkpoint put state new.$rank || exit 3
while :; do sleep 1; done
"#;

#[test]
#[ignore = "needs network namespaces and MPICH: tests/run e2e"]
fn launchers_lead_ranks_to_the_service_of_their_node() {
    let own = pmc_launch();
    for launcher in ["mpiexec.mpich", own.as_str()] {
        let dag = format!("TASK ring -N 2 --ranks-per-node 2 -m 100 {launcher} ./script\n");
        let mut scene = Scene::new(Mpi::debian("mpicc.mpich"), &dag);
        scene.has_disks = true;
        let pmc = Build::Local.program("pmc").display().to_string();
        fs::write(scene.path("script"), SCRIPT.replace("@PMC@", &pmc)).expect("a script");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(scene.path("script"), mode).expect("a mode");
        scene.lose_node_after("1", 4);
        let output = output(scene.folder.path(), "ring");
        for rank in 0..4 {
            let said = format!("rank {rank} goes on from the state of {rank}\n");
            assert!(output.contains(&said), "{launcher}: {output}\n{}", scene.said());
        }
    }
}
