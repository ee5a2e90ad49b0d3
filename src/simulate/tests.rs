//! Makespans that can be counted by hand, and what losses cost.

use super::*;

fn cluster(nodes: u32, slots: u32) -> Cluster {
    let node = |number| {
        let registration = Registration {
            host: format!("n{number}"),
            memory_mb: 1000,
            threads: slots,
            cores: slots,
            sockets: 1,
            gpus: 0,
            away: false,
        };
        (registration, slots)
    };
    Cluster {
        nodes: (0..nodes).map(node).collect(),
        overhead: Duration::ZERO,
        losses: None,
        saving: None,
    }
}

fn dag(text: &str) -> Arc<Dag> {
    Arc::new(Dag::parse(text.as_bytes().to_vec()).unwrap())
}

fn workload(dag: &Arc<Dag>, seconds: &dyn Fn(TaskId) -> Duration) -> Workload {
    Workload {
        dag: Arc::clone(dag),
        times: dag.ids().map(seconds).collect(),
        nested: BTreeMap::new(),
    }
}

fn simulate(
    dag: &Arc<Dag>,
    cluster: &Cluster,
    seconds: &dyn Fn(TaskId) -> Duration,
) -> Result<Simulated, SimulationError> {
    super::simulate(&workload(dag, seconds), cluster)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn a_diamond_takes_its_longest_path() {
    let dag = dag("TASK a x\nTASK b x\nTASK c x\nTASK d x\nEDGE a b\nEDGE a c\nEDGE b d\nEDGE c d\n");
    let times = |task: TaskId| seconds([10, 20, 5, 1][task.index()]);
    let two = simulate(&dag, &cluster(1, 2), &times).unwrap();
    assert_eq!((two.makespan, two.busy), (seconds(31), seconds(36)));
    assert!((two.utilisation() - 36.0 / 62.0).abs() < 1e-9);
    assert!((two.node_hours() - 31.0 / 3600.0).abs() < 1e-9);
    let one = simulate(&dag, &cluster(1, 1), &times).unwrap();
    assert_eq!(one.makespan, seconds(36));
    let slow = Cluster {
        overhead: seconds(1),
        ..cluster(2, 1)
    };
    assert_eq!(simulate(&dag, &slow, &times).unwrap().makespan, seconds(34));
}

#[test]
fn tasks_of_sub_workflows_share_the_slots() {
    let text = "TASK a x\nSUBDAG EXTERNAL s s.dag\nTASK z x\nEDGE a s\nEDGE s z\n";
    let outer = dag(text);
    let inner = dag("TASK a x\nTASK b x\nSUBDAG EXTERNAL t t.dag\nEDGE b t\n");
    let last = dag("TASK a x\n");
    let ten = |_: TaskId| seconds(10);
    let mut run = workload(&outer, &ten);
    let sub = outer.find(b"s").unwrap();
    let mut nested = workload(&inner, &ten);
    nested
        .nested
        .insert(inner.find(b"t").unwrap(), workload(&last, &ten));
    run.nested.insert(sub, nested);
    assert_eq!(run.tasks(), 7);
    let one = super::simulate(&run, &cluster(1, 1)).unwrap();
    assert_eq!((one.makespan, one.busy), (seconds(50), seconds(50)));
    let two = super::simulate(&run, &cluster(1, 2)).unwrap();
    assert_eq!((two.makespan, two.busy), (seconds(40), seconds(50)));
    run.nested.clear();
    assert_eq!(
        super::simulate(&run, &cluster(1, 1)).unwrap().makespan,
        seconds(20)
    );
}

#[test]
fn tasks_over_several_nodes_have_all_of_them_at_one_moment() {
    // The large one comes first when `a` has ended. `c` ends in time beside it, `d` would not.
    let text = "TASK a -p 9 -e 10 x\nTASK b -p 9 -e 50 x\nTASK big -N 2 -p 5 x\nTASK c -e 40 x\nTASK d -e 45 x\nEDGE a big\n";
    let times = |task: TaskId| seconds([10, 50, 100, 40, 45][task.index()]);
    let ran = simulate(&dag(text), &cluster(2, 1), &times).unwrap();
    assert_eq!(ran.makespan, seconds(195), "a, c and b; then big; then d");
    assert_eq!(ran.busy, seconds(345), "`big` holds both nodes");
    let refused = simulate(&dag("TASK big -N 3 x\n"), &cluster(2, 1), &|_| seconds(1));
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, "Task big needs 3 nodes, 2 are there");
}

#[test]
fn requests_limit_what_runs_at_a_time() {
    let dag = dag("TASK a -m 600 x\nTASK b -m 600 x\nTASK c -m 300 x\n");
    let ran = simulate(&dag, &cluster(1, 4), &|_| seconds(10)).unwrap();
    assert_eq!(ran.makespan, seconds(20));
    let refused = simulate(&dag, &cluster(0, 4), &|_| seconds(10));
    assert!(refused.is_err());
}

#[test]
fn runs_that_cannot_end_are_refused() {
    let circle = dag("TASK a x\nTASK b x\nEDGE a b\nEDGE b a\n");
    let error = simulate(&circle, &cluster(1, 1), &|_| seconds(1)).unwrap_err();
    assert_eq!(error, SimulationError::Incomplete { left: 2, tasks: 2 });
    let large = dag("TASK a -m 1001 x\n");
    let error = simulate(&large, &cluster(1, 1), &|_| seconds(1)).unwrap_err();
    assert!(matches!(error, SimulationError::Refused(_)));
    let losing = |per_hour| Cluster {
        losses: Some(Losses {
            per_hour,
            replacement: seconds(1),
            seed: 1,
        }),
        ..cluster(2, 1)
    };
    let error = simulate(&large, &losing(0.1), &|_| seconds(1)).unwrap_err();
    assert_eq!(error, SimulationError::Incomplete { left: 1, tasks: 1 });
    let error = simulate(&dag("TASK a x\n"), &losing(1e6), &|_| seconds(3600)).unwrap_err();
    assert!(matches!(error, SimulationError::Endless(_)));
}

#[test]
fn losses_cost_time() {
    let text: String = (0..400).map(|n| format!("TASK t{n} x\n")).collect();
    let dag = dag(&text);
    let mut four = cluster(4, 1);
    let calm = simulate(&dag, &four, &|_| seconds(60)).unwrap();
    assert_eq!((calm.makespan, calm.lost_attempts), (seconds(6000), 0));
    let mut makespans = Duration::ZERO;
    let mut lost = 0;
    for seed in 0..50 {
        four.losses = Some(Losses {
            per_hour: 6.0,
            replacement: seconds(30),
            seed,
        });
        let ran = simulate(&dag, &four, &|_| seconds(60)).unwrap();
        assert_eq!(
            ran,
            simulate(&dag, &four, &|_| seconds(60)).unwrap(),
            "the seed decides"
        );
        assert_eq!(ran.busy, calm.busy, "each task ends once");
        makespans += ran.makespan;
        lost += ran.lost_attempts;
    }
    // Each node loses about 10 tasks of 30 s on average, and 30 s until its replacement, in 100 minutes.
    let mean = makespans.as_secs_f64() / 50.0;
    assert!((6500.0..6900.0).contains(&mean), "{mean}");
    assert!((1900..2500).contains(&lost), "{lost}");
}

#[test]
fn saved_work_outlives_the_loss_of_a_node() {
    let text: String = (0..40).map(|n| format!("TASK t{n} x\n")).collect();
    let dag = dag(&text);
    let mut four = cluster(4, 1);
    four.saving = Some(Saving {
        every: seconds(60),
        cost: seconds(1),
    });
    let calm = simulate(&dag, &four, &|_| seconds(600)).unwrap();
    assert_eq!((calm.makespan, calm.saving_time), (seconds(6090), seconds(360)));
    assert_eq!((calm.busy, calm.lost), (seconds(24_000), Duration::ZERO));
    let mut times = [Duration::ZERO; 2];
    for seed in 0..20 {
        four.losses = Some(Losses {
            per_hour: 6.0,
            replacement: seconds(30),
            seed,
        });
        let saving = simulate(&dag, &four, &|_| seconds(600)).unwrap();
        assert_eq!(saving.busy, calm.busy, "each task ends once");
        // Less than from one save to the next one, and the save.
        assert!(saving.lost <= seconds(61) * saving.lost_attempts as u32);
        times[0] += saving.makespan;
        let without = Cluster {
            saving: None,
            ..four.clone()
        };
        times[1] += simulate(&dag, &without, &|_| seconds(600)).unwrap().makespan;
    }
    let [with, without] = times.map(|time| time.as_secs_f64() / 20.0);
    assert!(with < 7500.0 && without > 9000.0, "{with} {without}");
}
