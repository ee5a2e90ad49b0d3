//! The DAG reader: which input it accepts, which it refuses, and that it finds all edges.

#![expect(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use pmc_dag::{Dag, DagError, Gang, Layout, TaskId};
use proptest::prelude::*;

fn read(text: &str) -> Dag {
    Dag::parse(text.as_bytes().to_vec()).unwrap()
}

fn refuse(text: &str) -> DagError {
    Dag::parse(text.as_bytes().to_vec()).unwrap_err()
}

fn command(dag: &Dag, name: &str) -> String {
    let task = dag.find(name.as_bytes()).unwrap();
    String::from_utf8(dag.task(task).command.to_vec()).unwrap()
}

fn children(dag: &Dag, name: &str) -> Vec<String> {
    let task = dag.find(name.as_bytes()).unwrap();
    dag.children(task)
        .iter()
        .map(|child| String::from_utf8_lossy(dag.name(*child)).into_owned())
        .collect()
}

#[test]
fn sub_workflows_are_tasks() {
    let dag = read(concat!(
        "#+ The last line of the complete file is \"#+ end TASKS EDGES\".\n",
        "TASK a -m 5 /bin/true\n",
        "#@ 2 pegasus::plan ID2\n",
        "SUBDAG EXTERNAL s sub/s.dag DIR sub\n",
        "TASK b /bin/true\n",
        "SUBDAG EXTERNAL t /x/t.dag\n",
        "SCRIPT PRE s -m 5 -t 3 /bin/plan s\n",
        "EDGE a s\nEDGE s b\nEDGE b t\n#+ end 4 3\n",
    ));
    assert_eq!(dag.len(), 4);
    let [a, s, t] = [b"a", b"s", b"t"].map(|name| dag.find(name).unwrap());
    assert_eq!(dag.subdag(a), None);
    assert_eq!(dag.subdag_ids().collect::<Vec<_>>(), [s, t]);
    let sub = dag.subdag(s).unwrap();
    assert_eq!(
        (sub.dag, sub.directory, sub.is_prepared),
        (&b"sub/s.dag"[..], Some(&b"sub"[..]), true)
    );
    let sub = dag.subdag(t).unwrap();
    assert_eq!(
        (sub.dag, sub.directory, sub.is_prepared),
        (&b"/x/t.dag"[..], None, false)
    );
    assert_eq!(
        (command(&dag, "s"), command(&dag, "t")),
        ("/bin/plan s".to_owned(), String::new())
    );
    assert_eq!((dag.tries(s), dag.memory_mb(s), dag.tries(t)), (Some(3), 5, None));
    assert_eq!(dag.task(s).id, Some(&b"2"[..]));
    assert_eq!(
        (children(&dag, "a"), children(&dag, "s")),
        (vec!["s".to_owned()], vec!["b".to_owned()])
    );
}

#[test]
fn mistakes_in_sub_workflows_are_refused() {
    for (text, line, message) in [
        (
            "SUBDAG EXTERNAL s\n",
            1,
            "Invalid SUBDAG record: SUBDAG EXTERNAL s",
        ),
        ("SCRIPT POST s x\n", 1, "Invalid SCRIPT record: SCRIPT POST s x"),
        (
            "TASK a x\nSCRIPT PRE a x\n",
            2,
            "No SUBDAG before this line has the name a",
        ),
        (
            "SUBDAG EXTERNAL s s.dag\nSCRIPT PRE s -m 5\n",
            2,
            "Missing program for task s",
        ),
        (
            "SUBDAG EXTERNAL s s.dag\nSCRIPT PRE s -m x y\n",
            2,
            "Invalid memory requirement 'x'",
        ),
        (
            "SUBDAG EXTERNAL s s.dag\nSCRIPT PRE s x\nSCRIPT PRE s x\n",
            3,
            "has two SCRIPT PRE lines",
        ),
        (
            "SUBDAG EXTERNAL s s.dag\nSCRIPT PRE s --category c x\n",
            2,
            "--max-plans",
        ),
        ("TASK s x\n\nSUBDAG EXTERNAL s s.dag\n", 3, "Duplicate task: s"),
    ] {
        let error = refuse(text);
        assert_eq!(error.line(), Some(line), "{text}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn blanks_comments_and_longer_keywords_are_accepted() {
    let dag = read(concat!(
        "# a comment in the first column\n   # and one that is not\n \t \r\n\n",
        "TASK plain /bin/echo plain\n",
        "  TASK indented /bin/echo indented  \n",
        "TASK\ttabbed\t/bin/echo\ttabbed\targs\n",
        "TASK   spaced    /bin/echo    many     blanks   \n",
        "TASK crlf /bin/echo carriage return\r\n",
        "TASKS plural /bin/echo plural keyword\n",
        "EDGE plain indented\n",
        "\tEDGE \t indented \t tabbed \t\n",
        "EDGES tabbed spaced\n",
        "#EDGE crlf plain\n",
        "TASK last /bin/echo last # not a comment\n",
        "EDGE plain last",
    ));
    assert_eq!(dag.len(), 7);
    assert_eq!(dag.edge_count(), 4);
    assert_eq!(command(&dag, "indented"), "/bin/echo indented");
    assert_eq!(command(&dag, "tabbed"), "/bin/echo\ttabbed\targs");
    assert_eq!(command(&dag, "spaced"), "/bin/echo    many     blanks");
    assert_eq!(command(&dag, "crlf"), "/bin/echo carriage return");
    assert_eq!(command(&dag, "plural"), "/bin/echo plural keyword");
    assert_eq!(command(&dag, "last"), "/bin/echo last # not a comment");
    assert_eq!(children(&dag, "plain"), ["indented", "last"]);
    assert_eq!(children(&dag, "tabbed"), ["spaced"]);
    assert_eq!(dag.find(b"missing"), None);
}

#[test]
fn an_empty_file_has_no_tasks() {
    for text in ["", "\n", "\n# nothing\n\n"] {
        let dag = read(text);
        assert!(dag.is_empty());
        assert_eq!(dag.find(b""), None);
    }
}

#[test]
fn all_options_are_read() {
    let task = |options: &str| {
        let dag = read(&format!("TASK t {options} /bin/x -m 9"));
        let task = dag.task(TaskId(0));
        assert_eq!(task.command, b"/bin/x -m 9");
        (task.memory_mb, task.cpus, task.tries, task.priority)
    };
    assert_eq!(task(""), (0, 1, None, 0));
    assert_eq!(task("-m 100 -c 2 -t 3 -p -4"), (100, 2, Some(3), -4));
    assert_eq!(
        task("--request-memory 100 --request-cpus 2 --tries 0 --priority 5"),
        (100, 2, Some(0), 5)
    );
    for (text, memory) in [
        ("0.1", 1),
        ("99.5", 100),
        ("1e3", 1000),
        ("12MB", 12),
        ("0", 0),
        ("-0", 0),
        ("16777217", 16_777_216),
    ] {
        assert_eq!(task(&format!("-m {text}")).0, memory, "{text}");
    }
    assert_eq!(task("-c 0.5").1, 1);
    assert_eq!(task("-c 0").1, 0);
    assert_eq!(task("-p 7x").3, 7);
    assert_eq!(task("-m 1 -m 2 -m 3.5").0, 4, "the last one wins");
    assert_eq!(task("\"-m\" '44'").0, 44, "options may be quoted");
}

#[test]
fn forwards_are_sorted_and_the_last_value_wins() {
    let dag = read("TASK t -f B=/b -f A=/a=x -F s=d -f B=/c '-F' 'r=a b' -F =e --pipe-forward C= /bin/x");
    let task = dag.task(TaskId(0));
    let pair = |a: &str, b: &str| (a.as_bytes().to_vec(), b.as_bytes().to_vec());
    assert_eq!(
        task.pipe_forwards,
        [pair("A", "/a=x"), pair("B", "/c"), pair("C", "")]
    );
    assert_eq!(
        task.file_forwards,
        [pair("", "e"), pair("r", "a b"), pair("s", "d")]
    );
}

#[test]
fn identifiers_belong_to_the_next_task_only() {
    let dag = read(concat!(
        "#@ 17 some::transformation:1.0 ID0000017 \nTASK a x\nTASK b x\n",
        "#@ 18 overwritten ID\n#@ 19 last ID\n# comment\nEDGE a b\nTASK c x\n",
        "#@ abc not a number\nTASK d x\n#@x 20 y z\nTASK e x\n",
    ));
    let ids: Vec<_> = dag.ids().map(|task| dag.task(task).id).collect();
    let expected: [Option<&[u8]>; 5] = [Some(b"17"), None, Some(b"19"), Some(b"abc"), Some(b"20")];
    assert_eq!(ids, expected);
    let transformations: Vec<_> = dag.ids().map(|task| dag.transformation(task)).collect();
    let expected: [Option<&[u8]>; 5] = [
        Some(b"some::transformation:1.0"),
        None,
        Some(b"last"),
        Some(b"not"),
        Some(b"y"),
    ];
    assert_eq!(transformations, expected);
    let blanks = read("#@  3 \t a:1.0  ID \r\nTASK a -e 5 x\nTASK b -e 0.5 x\n");
    assert_eq!(blanks.transformation(TaskId(0)), Some(&b"a:1.0"[..]));
    assert_eq!(blanks.expected_time(TaskId(0)), Some(Duration::from_secs(5)));
    assert_eq!(blanks.longest_expected_time(), Some(Duration::from_secs(5)));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn error_messages_are_those_of_the_original() {
    let cases = [
        (
            "TASK one /bin/true\nTASK one /bin/echo again",
            "Duplicate task: one",
            2,
        ),
        ("TASK one /bin/true\n\nEDGE one two", "No such task: two\n", 3),
        ("TASK one /bin/true\nEDGE zero one", "No such task: zero\n", 2),
        (
            "TASK one x\nTASK two x\nEDGE one two three",
            "No such task: two three\n",
            3,
        ),
        ("EDGE one two\nTASK one x\nTASK two x", "No such task: one\n", 1),
        (
            "TASK one /bin/true\n  EDGE one \r",
            "Invalid EDGE record: EDGE one\n",
            2,
        ),
        ("TASK one", "Invalid TASK record: TASK one\n", 1),
        ("TASK", "Invalid TASK record: TASK\n", 1),
        ("TASK one -x 5 /bin/true", "Invalid argument '-x' for task one", 1),
        ("TASK one - /bin/true", "Invalid argument '-' for task one", 1),
        (
            "TASK one -m lots /bin/true",
            "Invalid memory requirement 'lots' for task one",
            1,
        ),
        (
            "TASK one -m '' /bin/true",
            "Invalid memory requirement '' for task one",
            1,
        ),
        (
            "TASK one -m inf /bin/true",
            "Invalid memory requirement 'inf' for task one",
            1,
        ),
        (
            "TASK one -m nan /bin/true",
            "Invalid memory requirement 'nan' for task one",
            1,
        ),
        (
            "TASK one -m 1e10 /bin/true",
            "Invalid memory requirement '1e10' for task one",
            1,
        ),
        (
            "TASK one -m 4294967296 /bin/true",
            "Invalid memory requirement '4294967296' for task one",
            1,
        ),
        (
            "TASK one -m -1 /bin/true",
            "Negative memory requirement not allowed for task one",
            1,
        ),
        (
            "TASK one -c -0.5 /bin/true",
            "Negative CPU requirement not allowed for task one",
            1,
        ),
        (
            "TASK one -g many /bin/true",
            "Invalid GPU requirement 'many' for task one",
            1,
        ),
        (
            "TASK one -c few /bin/true",
            "Invalid CPU requirement 'few' for task one",
            1,
        ),
        (
            "TASK one -t -1 /bin/true",
            "Negative tries not allowed for task one",
            1,
        ),
        (
            "TASK one -t often /bin/true",
            "Invalid tries 'often' for task one",
            1,
        ),
        (
            "TASK one -p high /bin/true",
            "Invalid priority 'high' for task one",
            1,
        ),
        ("TASK one -m", "-m/--request-memory requires N for task one", 1),
        (
            "TASK one -f NOEQUALS /bin/true",
            "-f/--pipe-forward format should be VAR=PATH for task one: NOEQUALS",
            1,
        ),
        (
            "TASK one -F noequals /bin/true",
            "-F/--file-forward format should be SRC=DEST for task one: noequals",
            1,
        ),
        ("JOB one one.sub", "Invalid DAG record: JOB one one.sub", 1),
        ("task one /bin/true", "Invalid DAG record: task one /bin/true", 1),
        (
            "#@ 1 toofew\nTASK one /bin/true",
            "Invalid #@ record: #@ 1 toofew\n",
            1,
        ),
        ("#@\n", "Invalid #@ record: #@\n", 1),
        ("TASK one -m 5", "Missing program for task one", 1),
        ("TASK one -m '5 /bin/true", "Missing program for task one", 1),
        ("TASK one \u{b}", "Missing program for task one", 1),
    ];
    for (text, message, line) in cases {
        let error = refuse(text);
        assert_eq!(error.to_string(), message, "{text:?}");
        assert_eq!(error.line(), Some(line), "{text:?}");
    }
}

/// Names are looked up later than they are read. Still, the first invalid line is reported.
#[test]
fn the_first_of_several_errors_is_reported() {
    let many: String = (0..200).map(|task| format!("TASK t{task} x\n")).collect();
    let edges: String = (1..200).map(|task| format!("EDGE t0 t{task}\n")).collect();
    let cases = [
        ("TASK a x\nTASK a x\nJOB\n".to_owned(), "Duplicate task: a", 2),
        (
            "TASK a x\nTASK a x\nTASK b -x y\n".to_owned(),
            "Duplicate task: a",
            2,
        ),
        ("TASK a x\nTASK a -x y\n".to_owned(), "Duplicate task: a", 2),
        (
            "TASK a x\nEDGE a b\nTASK b x\nJOB\n".to_owned(),
            "No such task: b\n",
            2,
        ),
        ("TASK a x\nEDGE a b\nEDGE a\n".to_owned(), "No such task: b\n", 2),
        (format!("{many}TASK t7 x\nTASK u x\n"), "Duplicate task: t7", 201),
        (
            format!("{many}{edges}EDGE t0 t200\n{edges}TASK t200 x\n"),
            "No such task: t200\n",
            400,
        ),
    ];
    for (text, message, line) in cases {
        let error = refuse(&text);
        assert_eq!((error.to_string().as_str(), error.line()), (message, Some(line)));
    }
    let dag = read(&format!("{many}{edges}TASK late x\nEDGE late t0\nEDGE t5 late"));
    assert_eq!((dag.len(), dag.edge_count()), (201, 201));
}

#[test]
fn an_unreadable_file_is_reported_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing.dag");
    let error = Dag::open(&path).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "Error opening DAG file: {}: No such file or directory",
            path.display()
        )
    );
    assert_eq!(error.line(), None);
    std::fs::write(&path, "TASK a /bin/true\n").unwrap();
    assert_eq!(Dag::open(&path).unwrap().len(), 1);
}

#[test]
fn lines_may_be_long() {
    let name = "n".repeat(5000);
    let argument = "a".repeat(200_000);
    let dag = read(&format!(
        "#{argument}\nTASK {name} /bin/echo {argument}\nTASK b x\nEDGE {name} b\n"
    ));
    assert_eq!(command(&dag, &name).len(), 10 + argument.len());
    assert_eq!(children(&dag, &name), ["b"]);
}

#[test]
fn tasks_are_sorted_by_the_bytes_of_their_names() {
    let names = [
        "x_10",
        "x_9",
        "x_",
        "x_aaaaaaaab",
        "x_aaaaaaaaa",
        "x_aaaaaaaa",
        "x_B",
        "x_\u{e9}",
    ];
    let text: String = names.iter().map(|name| format!("TASK {name} x\n")).collect();
    let dag = read(&text);
    let mut tasks: Vec<TaskId> = dag.ids().collect();
    dag.sort_by_name(&mut tasks);
    let sorted: Vec<_> = tasks.iter().map(|task| dag.name(*task).to_vec()).collect();
    let mut expected: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    expected.sort();
    assert_eq!(sorted, expected);
    dag.sort_by_name(&mut []);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Dag::parse(text);
    }

    #[test]
    fn arbitrary_records_do_not_panic(
        lines in proptest::collection::vec("(TASK|EDGE|#@|DONE)?[ \t]?[ab]?[ \t]?(-[mctpfF])?[ '\"=0-9.\\\\ab-]{0,12}", 0..12)
    ) {
        if let Ok(dag) = Dag::parse(lines.join("\n").into_bytes()) {
            for task in dag.ids() {
                prop_assert_eq!(dag.find(dag.name(task)), Some(task));
                prop_assert!(!dag.task(task).command.is_empty());
            }
        }
    }

    #[test]
    fn edges_are_those_of_the_file(
        tasks in 1_usize..40,
        edges in proptest::collection::vec((0_usize..40, 0_usize..40), 0..200),
    ) {
        let mut text: String = (0..tasks).map(|task| format!("TASK task{task} x\n")).collect();
        let mut expected: BTreeMap<usize, Vec<TaskId>> = BTreeMap::new();
        let mut parents: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (parent, child) in edges {
            let (parent, child) = (parent % tasks, child % tasks);
            text += &format!("EDGE task{parent} task{child}\n");
            if parents.entry(child).or_default().insert(parent) {
                expected.entry(parent).or_default().push(TaskId(child as u32));
            }
        }
        let dag = read(&text);
        for task in 0..tasks {
            let id = TaskId(task as u32);
            prop_assert_eq!(dag.children(id), expected.get(&task).map_or(&[][..], Vec::as_slice));
            prop_assert_eq!(dag.parent_count(id) as usize, parents.get(&task).map_or(0, BTreeSet::len));
        }
    }
}

#[test]
fn categories_have_limits() {
    let dag = read(concat!(
        "TASK a --category db /bin/a\nMAXJOBS db 4\nTASK b -c 2 --category 'two words' /bin/b\n",
        "TASK c --category free --abort-on 3=0 /bin/c\nMAXJOBS 'two words' 1\nTASK d /bin/d\n",
        "MAXJOBS unused 9\nMAXJOBS db 2\nTASK e --category db -p 1 /bin/e\n",
    ));
    let category = |name: &str| dag.category(dag.find(name.as_bytes()).unwrap()).map(|id| id.0);
    let mut changed =
        read("TASK a -m 1 /bin/a\nTASK b --category x /bin/b\nTASK c --category y /bin/c\nMAXJOBS y 9\n");
    let limits = [("y", 2), ("x", 3), ("none", 4), ("", 5)];
    let limit =
        |(name, limit): (&str, u32)| changed.limit_category(name.as_bytes(), NonZeroU32::new(limit).unwrap());
    assert_eq!(limits.map(limit), [true, true, false, false]);
    let of = |name: &str| {
        changed
            .category(changed.find(name.as_bytes()).unwrap())
            .map(|id| changed.category_limits()[id.index()])
    };
    assert_eq!(["a", "b", "c"].map(of), [None, Some(3), Some(2)]);
    assert_eq!(dag.category_limits(), [2, 1, 9]);
    assert_eq!(
        ["a", "b", "c", "d", "e"].map(category),
        [Some(0), Some(1), None, None, Some(0)]
    );
    let abort_on = dag.abort_on(dag.find(b"c").unwrap()).unwrap();
    assert_eq!((abort_on.code, abort_on.exit), (3, 0));
    assert_eq!(dag.abort_on(dag.find(b"d").unwrap()), None);
    for line in [
        "MAXJOBS",
        "MAXJOBS db",
        "MAXJOBS db 0",
        "MAXJOBS db -1",
        "MAXJOBS db two",
        "MAXJOBS db 1 2",
    ] {
        assert_eq!(
            refuse(line).to_string(),
            format!("Invalid MAXJOBS record: {line}: it needs a category and a number above 0")
        );
    }
    assert_eq!(
        refuse("TASK a --io pipes /bin/a").to_string(),
        "Invalid way of the output 'pipes' for task a"
    );
    let dag = read("TASK a --io relay /bin/a\nTASK b --io files /bin/a\nTASK c /bin/a\n");
    let has_relay = |name: &[u8]| dag.task(dag.find(name).unwrap()).relay;
    assert_eq!([&b"a"[..], b"b", b"c"].map(has_relay), [true, false, false]);
    assert_eq!(
        refuse("TASK a --stdin '' /bin/a").to_string(),
        "Invalid standard input '' for task a"
    );
    assert_eq!(
        refuse("TASK a --abort-on no /bin/a").to_string(),
        "Invalid abort code 'no' for task a"
    );
    assert_eq!(
        refuse("TASK a --category '' /bin/a").to_string(),
        "Invalid category '' for task a"
    );
}

#[test]
fn all_tasks_may_have_a_limit() {
    let mut dag = read("TASK a --category x /bin/a\nMAXJOBS * 4\nMAXJOBS x 2\nMAXJOBS * 3\n");
    assert_eq!((dag.max_jobs(), dag.category_limits()), (Some(3), &[2][..]));
    assert!(dag.limit_category(b"*", NonZeroU32::MIN));
    assert_eq!(dag.max_jobs(), Some(1));
    assert_eq!(read("TASK a /bin/a\n").max_jobs(), None);
}

#[test]
fn tasks_over_several_hosts_share_their_needs() {
    let dag = read(
        "TASK a -N 2 -c 3 x\nTASK b --nodes 2 -m 5 x\nTASK c x\nTASK d --ranks 8 --ranks-per-node 4 --exclusive x\n\
         TASK e --on 'n[1-3]' -N 3 pegasus-lite a\nTASK f --on n1 x\n",
    );
    let gangs: Vec<Option<&Gang>> = dag.ids().map(|task| dag.gang(task)).collect();
    let gang = |layout, exclusive, on: &[&str]| Gang {
        layout,
        exclusive,
        on: on.iter().map(|name| (*name).to_owned()).collect(),
    };
    let two = gang(Layout::Spread { nodes: 2, ranks: 2 }, false, &[]);
    let filled = gang(
        Layout::Filled {
            ranks: 8,
            per_node: 4,
        },
        true,
        &[],
    );
    let three = gang(Layout::Spread { nodes: 3, ranks: 3 }, false, &["n1", "n2", "n3"]);
    let one = gang(Layout::Spread { nodes: 1, ranks: 1 }, false, &["n1"]);
    let expected = [
        Some(&two),
        Some(&two),
        None,
        Some(&filled),
        Some(&three),
        Some(&one),
    ];
    assert_eq!(gangs, expected);
    assert_eq!(dag.gangs().len(), 4);
    let ids: Vec<_> = dag.option_sets().filter_map(|set| set.gang).collect();
    assert_eq!(ids.len(), 5, "a and b have different requests, and the same need");
    assert!(
        !dag.request(TaskId(4)).anywhere,
        "its hosts have the directory in common"
    );
}

#[test]
fn needs_that_contradict_each_other_are_refused_with_their_line() {
    for (options, message) in [
        ("-N 0", "Invalid number of nodes '0' for task t"),
        ("-N 4294967296", "Invalid number of nodes '4294967296' for task t"),
        ("-N", "-N/--nodes requires N for task t"),
        ("--ranks -3 x", "Invalid number of ranks '-3' for task t"),
        ("--ranks 0 x", "Invalid number of ranks '0' for task t"),
        (
            "--ranks 4294967296 x",
            "Invalid number of ranks '4294967296' for task t",
        ),
        (
            "-N 3 --ranks 2 x",
            "Options of task t do not go together: it has fewer ranks than nodes: 2 ranks on 3 nodes",
        ),
        (
            "-N 3 --ranks 8 --ranks-per-node 4 x",
            "Options of task t do not go together: 8 ranks with 4 on each node are not 3 nodes",
        ),
        (
            "-N 3 --on n[1-2] x",
            "Options of task t do not go together: it needs 3 nodes, and --on names 2",
        ),
    ] {
        let error = Dag::parse(format!("# first\nTASK t {options}\n").into_bytes()).unwrap_err();
        assert_eq!(
            (error.line(), error.to_string().as_str()),
            (Some(2), message),
            "{options}"
        );
    }
    let script = "SUBDAG EXTERNAL s s.dag\nSCRIPT PRE s -N 2 x\n";
    let error = Dag::parse(script.into()).unwrap_err();
    assert_eq!(error.line(), Some(2));
}
