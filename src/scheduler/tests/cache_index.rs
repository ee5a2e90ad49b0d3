//! Tasks that follow their data.

use std::fmt::Write as _;

use super::*;
use crate::protocol::CacheNews;

const MB: u64 = 1 << 20;

/// Starts a run whose workers are on these hosts, each of which says what it holds before the first task.
fn run(text: &str, hosts: &[(&str, &[(&str, u64)])]) -> Run {
    let workers = hosts.len() as u32;
    let mut run = Run {
        master: Master::new(dag(text), DoneSet::new(), Workers::Fixed(workers), ONE_ATTEMPT),
        log: Log::default(),
    };
    for (rank, (host, _)) in (1..).zip(hosts) {
        run.register(rank, host).unwrap();
    }
    run.start().unwrap();
    for (rank, (_, files)) in (1..).zip(hosts) {
        for (name, bytes) in *files {
            run.say(rank, has(name, *bytes));
        }
    }
    run.log.lines.clear();
    run.schedule();
    run
}

fn has(name: &str, bytes: u64) -> CacheNews {
    let name = name.to_owned();
    CacheNews::Has { name, bytes }
}

impl Run {
    fn say(&mut self, rank: u32, news: CacheNews) {
        let event = Event::Cache(Rank(rank), news);
        self.master.handle(event, &mut self.log).unwrap();
    }

    /// Names of tasks and the workers that they have started on, since the last call.
    fn started(&mut self) -> Vec<String> {
        let started = self.take("started ");
        let name = |line: &String| {
            let words: Vec<&str> = line.split(' ').collect();
            let task = TaskId(words[0].parse().unwrap());
            let name = String::from_utf8_lossy(self.master.dag().name(task)).into_owned();
            format!("{name} on {}", words[3])
        };
        started.iter().map(name).collect()
    }
}

#[test]
fn a_task_starts_where_most_bytes_are() {
    let text = "#inputs small large\nTASK a x\n#inputs large small\nTASK b x\n";
    let hosts: [(&str, &[(&str, u64)]); 3] = [
        ("f", &[]),
        ("g", &[("small", 1)]),
        ("h", &[("large", MB), ("none", 9 * MB)]),
    ];
    let mut run = run(text, &hosts);
    assert_eq!(run.started(), ["a on 3", "b on 2"]);
}

#[test]
fn a_task_starts_elsewhere_at_once_if_the_best_host_has_no_room() {
    let text = "#inputs f\nTASK a x\n#inputs f\nTASK b x\n";
    let mut run = run(text, &[("g", &[]), ("h", &[("f", MB)])]);
    assert_eq!(run.started(), ["a on 2", "b on 1"]);
}

#[test]
fn a_task_starts_again_where_it_has_saved_its_state() {
    let text = "#inputs f\nTASK a -t 9 x\nTASK b x\n";
    let mut run = run(text, &[("g", &[("f", 1)]), ("h", &[]), ("i", &[])]);
    assert_eq!(run.started(), ["a on 1", "b on 2"]);
    run.master.note_saved(TaskId(0), MB, &[Rank(1), Rank(3)]);
    run.master.check_holdings().unwrap();
    // A copy was lost. The task fails, and avoids its host at first.
    run.master.note_saved(TaskId(0), 2 * MB, &[Rank(3)]);
    run.end(2, 2, 0);
    run.end(1, 1, 256);
    assert_eq!(run.started(), ["a on 3"]);
    run.end(3, 3, 0);
    run.master.check_holdings().unwrap();
}

#[test]
fn a_host_gets_the_task_whose_inputs_it_holds() {
    let text = "TASK 0 -p 9 x\nTASK 1 -p 9 x\n#inputs f\nTASK a x\n#inputs new\nTASK b x\n\
                #inputs g new\nTASK c x\n#inputs g\nTASK d x\n#inputs g\nTASK e -p 1 x\n";
    let mut run = run(text, &[("g", &[("g", MB)]), ("h", &[("f", MB)])]);
    assert_eq!(run.started(), ["0 on 1", "1 on 2"]);
    // The priority counts first, then what need not be fetched, then the order.
    for (rank, submit, expected) in [
        (1, 1, "e on 1"),
        (1, 7, "c on 1"),
        (1, 5, "d on 1"),
        (1, 6, "b on 1"),
        (2, 2, "a on 2"),
    ] {
        run.end(rank, submit, 0);
        assert_eq!(run.started(), [expected]);
    }
}

#[test]
fn a_task_is_overtaken_a_limited_number_of_times() {
    let mut text = String::from("TASK 0 -p 9 x\nTASK 1 -p 9 x\n#inputs f\nTASK a x\n");
    for n in 0..100 {
        let _ = writeln!(text, "#inputs g\nTASK b{n:03} x");
    }
    let mut run = run(&text, &[("g", &[("g", MB)]), ("h", &[("f", MB)])]);
    run.take("");
    run.end(1, 1, 0);
    for before in 0..64 {
        assert_eq!(run.started(), [format!("b{before:03} on 1")]);
        run.end(1, before + 4, 0);
    }
    assert_eq!(run.started(), ["a on 1"]);
}

#[test]
fn a_host_holds_what_its_tasks_have_read() {
    // Without an agent that says it.
    let text = "#inputs f\nTASK a x\n#inputs bad\nTASK b x\n#inputs bad\nTASK c x\n#inputs f\nTASK d x\n\
                TASK e x\n";
    let mut run = run(text, &[("g", &[]), ("h", &[])]);
    assert_eq!(run.started(), ["a on 1", "b on 2"]);
    run.end(1, 1, 0);
    assert_eq!(
        run.started(),
        ["d on 1"],
        "what c reads is on its way to the other host"
    );
    run.end(2, 2, 256);
    assert_eq!(run.started(), ["c on 2"]);
    run.end(2, 3, 256);
    assert_eq!(run.started(), ["e on 2"]);
    let lacks = |task| [0, 1].map(|host| run.master.lacks_inputs(host, TaskId(task)));
    assert_eq!(lacks(0), [false, true]);
    assert_eq!(
        lacks(1),
        [false, false],
        "a task that failed may not have read it"
    );
}

#[test]
fn an_agent_says_what_its_host_holds() {
    let text = "#inputs f\nTASK a x\n#inputs f\nTASK b x\n#inputs g\nTASK c x\n";
    let mut run = run(text, &[("g", &[]), ("h", &[("g", MB)])]);
    assert_eq!(run.started(), ["a on 1", "c on 2"], "f is on its way to g");
    let lacks = |run: &Run, task| {
        let lacks = |host| run.master.lacks_inputs(host, TaskId(task));
        [lacks(0), lacks(1)]
    };
    assert_eq!(lacks(&run, 0), [false, true]);
    assert_eq!(lacks(&run, 2), [true, false]);
    run.say(2, CacheNews::Begins);
    assert_eq!(
        lacks(&run, 2),
        [false, false],
        "it comes from the staging site anyway"
    );
    run.say(2, has("f", 1));
    assert_eq!(lacks(&run, 0), [false, false]);
    run.end(1, 1, 256);
    assert_eq!(run.started(), ["b on 1"]);
    assert_eq!(lacks(&run, 0), [false, false], "it is on its way again");
    run.end(1, 2, 256);
    assert_eq!(
        lacks(&run, 0),
        [true, false],
        "a task that failed may not have read it"
    );
}

#[test]
fn tasks_that_start_at_the_same_time_share_what_they_fetch() {
    let mut text = String::new();
    for group in ["f", "g", "h"] {
        for n in 0..4 {
            let _ = writeln!(text, "#inputs all {group}\nTASK {group}{n} x");
        }
    }
    let hosts: [(&str, &[(&str, u64)]); 6] = ["1", "2", "3", "1", "2", "3"].map(|host| (host, &[][..]));
    let mut grouped = run(&text, &hosts);
    let expected = ["f0 on 1", "g0 on 2", "h0 on 3", "f1 on 4", "g1 on 5", "h1 on 6"];
    assert_eq!(grouped.started(), expected);
    // A wide level of tasks that read the same is spread over the hosts.
    let text = "#inputs all\nTASK a x\n#inputs all\nTASK b x\n#inputs all\nTASK c x\n";
    let mut wide = run(text, &hosts);
    assert_eq!(wide.started(), ["a on 1", "b on 2", "c on 3"]);
}
