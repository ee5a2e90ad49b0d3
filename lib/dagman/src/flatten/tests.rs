use proptest::prelude::*;

use super::*;
use crate::model::Word;

/// Reads `/d/top.dag` from these files below `/d`.
fn read_from(files: &[(&str, &str)]) -> Result<Dag, String> {
    let load = |path: &Path| {
        let name = path.to_str().unwrap();
        let found = files.iter().find(|(file, _)| format!("/d/{file}") == name);
        found
            .map(|(_, text)| (*text).to_owned())
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    };
    let context = Context {
        directory: Path::new("/d"),
        load: &load,
        environment: &|_| None,
    };
    read(Path::new("/d/top.dag"), context).map_err(|error| error.to_string())
}

const SUBMIT: (&str, &str) = (
    "s.sub",
    "executable = /bin/echo\narguments = $(JOB) $(x:-) $(Cluster)\nqueue\n",
);

/// Names of the edges of a DAG.
fn edges(dag: &Dag) -> Vec<String> {
    let name = |n: u32| dag.nodes[n as usize].name.as_str();
    dag.edges
        .iter()
        .map(|&(p, c)| format!("{} {}", name(p), name(c)))
        .collect()
}

fn arguments(node: &Node) -> Vec<&str> {
    let Work::Job(job) = &node.work else {
        return Vec::new();
    };
    job.arguments.iter().map(String::as_str).collect()
}

#[test]
fn the_diamond_of_the_manual() {
    let top = "JOB A s.sub\nPARENT A CHILD B C\nJOB B s.sub\nJOB C s.sub\nJOB D s.sub\nPARENT B C CHILD D\n\
               RETRY C 3\nVARS all_nodes x=\"$(JOB)!\"\nVARS B X=\"b\"\nPRIORITY C 7\nMAXJOBS net 2\nCATEGORY B net\n";
    let dag = read_from(&[("top.dag", top), SUBMIT]).unwrap();
    assert_eq!(edges(&dag), ["A B", "A C", "B D", "C D"]);
    assert_eq!(arguments(&dag.nodes[0]), ["A", "A!", "1"]);
    assert_eq!(arguments(&dag.nodes[1]), ["B", "b", "2"]);
    assert_eq!(
        (dag.nodes[2].retries, dag.nodes[2].priority, dag.nodes[2].line),
        (Some(3), Some(7), 4)
    );
    assert_eq!(dag.nodes[1].category.as_deref(), Some("net"));
    assert_eq!(dag.max_jobs["net"], 2);
}

#[test]
fn splices_are_put_in_place() {
    let x = "JOB A s.sub\nJOB B s.sub DIR in\nJOB C s.sub\nPARENT A B CHILD C\nCATEGORY A catX\nCATEGORY B +catY\n\
             MAXJOBS catX 5\nMAXJOBS +catY 1\n";
    let top = "JOB A s.sub\nSPLICE X x.dag\nSPLICE Y x.dag DIR sub\nPARENT A CHILD X\nPARENT X CHILD Y\n\
               PARENT X+A CHILD Y+C\nMAXJOBS X+catX 10\nMAXJOBS +catY 2\n";
    let files = [
        ("top.dag", top),
        ("x.dag", x),
        ("sub/x.dag", x),
        SUBMIT,
        ("in/s.sub", SUBMIT.1),
        ("sub/s.sub", SUBMIT.1),
        ("sub/in/s.sub", SUBMIT.1),
    ];
    let dag = read_from(&files).unwrap();
    assert_eq!(
        edges(&dag),
        [
            "A X+A", "A X+B", "X+A X+C", "X+A Y+C", "X+B X+C", "X+C Y+A", "X+C Y+B", "Y+A Y+C", "Y+B Y+C"
        ]
    );
    assert_eq!(dag.nodes[5].directory, Path::new("/d/sub/in"));
    assert_eq!(arguments(&dag.nodes[5]), ["Y+B", "-", "6"]);
    let limits: Vec<_> = dag
        .max_jobs
        .iter()
        .map(|(name, limit)| (name.as_str(), *limit))
        .collect();
    assert_eq!(limits, [("+catY", 2), ("X+catX", 10), ("Y+catX", 5)]);
    assert_eq!(dag.nodes[2].category.as_deref(), Some("+catY"));
}

#[test]
fn sub_dags_are_put_in_place() {
    let low = "JOB A s.sub\nJOB B s.sub\nPRIORITY A 10\nCATEGORY B +c\nMAXJOBS +c 1\n";
    let top = "SUBDAG EXTERNAL B low.dag\nPRIORITY B 100\nJOB N x.sub NOOP\nSUBDAG EXTERNAL E none.dag NOOP\n\
               PARENT B CHILD E\nPARENT E CHILD N\nRETRY B 0\n";
    let dag = read_from(&[("top.dag", top), ("low.dag", low), SUBMIT]).unwrap();
    let priorities: Vec<_> = dag.nodes.iter().map(|node| node.priority).collect();
    assert_eq!(priorities, [Some(110), Some(100), None, None]);
    assert_eq!(dag.nodes[1].category.as_deref(), Some("B++c"));
    assert_eq!(dag.max_jobs["B++c"], 1);
    assert_eq!(edges(&dag), ["B+A E", "B+B E", "E N"]);
    for more in [
        "RETRY B 1",
        "SCRIPT PRE B x",
        "ABORT-DAG-ON B 1",
        "VARS B x=\"1\"",
    ] {
        let top = format!("{top}{more}\n");
        let error = read_from(&[("top.dag", &top), ("low.dag", low), SUBMIT]).unwrap_err();
        assert!(error.starts_with("/d/top.dag:8: this command for B"), "{error}");
    }
    let low = "JOB A s.sub\nABORT-DAG-ON A 3\n";
    let error = read_from(&[("top.dag", top), ("low.dag", low), SUBMIT]).unwrap_err();
    assert!(error.starts_with("/d/low.dag:2: ABORT-DAG-ON"), "{error}");
}

#[test]
fn nodes_that_are_done_are_left_out() {
    let top = "JOB A s.sub DONE\nJOB B s.sub\nJOB C missing.sub\nJOB D s.sub\nDONE C\nPARENT A B CHILD C\n\
               PARENT B C CHILD D\n";
    let dag = read_from(&[("top.dag", top), SUBMIT]).unwrap();
    assert_eq!((edges(&dag), dag.done), (vec!["B D".to_owned()], 2));
}

#[test]
fn descriptions_may_be_inline_or_included() {
    let top = "INCLUDE nodes.inc\nSUBMIT-DESCRIPTION one {\n executable = bin/one\n priority = 1\n}\n\
               JOB B {\n executable = /bin/b\n priority = 2\n}\nPRIORITY A 5\n";
    let dag = read_from(&[("top.dag", top), ("nodes.inc", "JOB A one\n")]).unwrap();
    let Work::Job(job) = &dag.nodes[0].work else {
        panic!()
    };
    assert_eq!(
        (job.program.as_path(), dag.nodes[0].priority),
        (Path::new("/d/bin/one"), Some(5))
    );
    assert_eq!(dag.nodes[1].priority, Some(2));
}

#[test]
fn scripts_get_their_macros() {
    let top = "JOB A s.sub\nRETRY A 2\nSCRIPT PRE A pre $NODE x$NODE $Money $MAX_RETRIES\n\
               SCRIPT POST A post $RETURN $SUCCESS $PRE_SCRIPT_RETURN\nPRE_SKIP A 4\nABORT-DAG-ON A 9 RETURN 0\n";
    let dag = read_from(&[("top.dag", top), SUBMIT]).unwrap();
    let text = |text: &str| Word::Text(text.to_owned());
    let node = &dag.nodes[0];
    let pre = node.pre.as_ref().unwrap();
    assert_eq!(
        pre.arguments,
        [text("A"), text("x$NODE"), text("$Money"), text("2")]
    );
    let post = node.post.as_ref().unwrap();
    assert_eq!(
        post.arguments,
        [Word::Return, Word::Success, Word::PreScriptReturn]
    );
    assert_eq!(
        (node.pre_skip, node.abort_on.map(|on| (on.code, on.exit))),
        (Some(4), Some((9, Some(0))))
    );
    let counted = read_from(&[("top.dag", &format!("{top}SCRIPT POST A post $RETRY\n")), SUBMIT]).unwrap();
    let post = counted.nodes[0].post.as_ref().unwrap();
    assert_eq!(post.arguments, [Word::Retry]);
    for macro_of_dagman in ["$JOBID", "$DAG_STATUS"] {
        let top = format!("{top}SCRIPT POST A post {macro_of_dagman}\n");
        assert!(
            read_from(&[("top.dag", &top), SUBMIT]).is_err(),
            "{macro_of_dagman}"
        );
    }
}

#[test]
fn a_node_may_have_several_jobs() {
    let several = (
        "n.sub",
        "executable = /bin/echo\narguments = $(Cluster).$(Process) $(x) $(step) $(Row)\nqueue $(n) x in (p q)\n",
    );
    let top = "JOB A s.sub\nJOB B n.sub\nVARS B n=\"2\"\nJOB C n.sub\nVARS C n=\"1\"\nRETRY B 3 UNLESS-EXIT 7\n\
               PARENT A CHILD B\nPARENT B CHILD C\nCATEGORY B k\n";
    let dag = read_from(&[("top.dag", top), several, SUBMIT]).unwrap();
    let names: Vec<_> = dag.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["A", "B.0", "C.0", "B.1", "B.2", "B.3", "C.1"]);
    assert_eq!(arguments(&dag.nodes[1]), ["2.0", "p", "0", "0"]);
    assert_eq!(arguments(&dag.nodes[5]), ["2.3", "q", "1", "1"]);
    assert_eq!(arguments(&dag.nodes[6]), ["3.1", "q", "0", "1"]);
    for node in [1, 3, 4, 5] {
        let node = &dag.nodes[node];
        assert_eq!(
            (node.retries, node.unless_exit),
            (Some(3), Some(7)),
            "{}",
            node.name
        );
        assert_eq!(node.category.as_deref(), Some("k"));
    }
    assert_eq!(dag.edges.len(), 4 + 4 * 2);
    assert!(
        edges(&dag).iter().any(|edge| edge == "B.2 C.1"),
        "{:?}",
        edges(&dag)
    );
}

#[test]
fn nodes_with_several_jobs_are_in_splices() {
    let inner = "JOB A s2.sub\nJOB B s.sub\nPARENT A CHILD B\n";
    let top = "SPLICE X x.dag\nJOB C s.sub\nPARENT C CHILD X\nPARENT X+A CHILD D\nJOB D s.sub\n";
    let several = ("s2.sub", "executable = x\nqueue word, rest from words.txt\n");
    let words = ("words.txt", "# two\n a, b c\n\nd\r\n");
    let dag = read_from(&[("top.dag", top), ("x.dag", inner), several, words, SUBMIT]).unwrap();
    assert_eq!(
        edges(&dag),
        [
            "X+A.0 X+B",
            "X+A.0 D",
            "X+A.1 X+B",
            "X+A.1 D",
            "C X+A.0",
            "C X+A.1"
        ]
    );
}

#[test]
fn numbers_of_jobs_are_checked() {
    for (queue, script, message) in [
        (
            "queue 0",
            "",
            "/d/n.sub:2: queue = 0: the number of jobs must be a whole number from 1",
        ),
        ("queue $(x)", "", "/d/n.sub:2: queue = : the number"),
        (
            "queue 3000000000",
            "",
            "/d/n.sub:2: the DAG has more than 1048576 jobs",
        ),
        (
            "queue 99999999999",
            "",
            "/d/n.sub:2: queue = 99999999999: the number",
        ),
        ("queue x in ()", "", "/d/n.sub:2: queue = : there is no item"),
        ("queue x from none", "", "/d/n.sub:2: cannot read /d/none: "),
        ("queue x in (a", "", "/d/n.sub:2: queue = (: the list has no end"),
        (
            "queue 2",
            "SCRIPT POST A x",
            "/d/top.dag:1: a script of A, which has 2 jobs, is not supported",
        ),
        ("queue 1", "SCRIPT POST A x", ""),
    ] {
        let top = format!("JOB A n.sub\n{script}");
        let submit = format!("executable = x\n{queue}");
        let read = read_from(&[("top.dag", &top), ("n.sub", &submit)]);
        match message {
            "" => assert!(read.is_ok(), "{queue}"),
            _ => {
                let error = read.unwrap_err();
                assert!(error.starts_with(message), "{error}");
            }
        }
    }
    // The edges between them.
    let top = "JOB A n.sub\nJOB B n.sub\nPARENT A CHILD B";
    let error = read_from(&[("top.dag", top), ("n.sub", "executable = x\nqueue 9000")]).unwrap_err();
    assert!(
        error.starts_with("/d/top.dag:1: the DAG has more than"),
        "{error}"
    );
}

#[test]
fn problems_name_file_and_line() {
    for (top, message) in [
        ("JOB A none.sub", "/d/top.dag:1: cannot read /d/none.sub: "),
        (
            "JOB A s.sub\nJOB A s.sub",
            "/d/top.dag:2: the name A is used twice",
        ),
        (
            "JOB A s.sub\nPARENT A CHILD B",
            "/d/top.dag:2: there is no node B",
        ),
        ("JOB A s.sub\nRETRY B 1", "/d/top.dag:2: there is no node B"),
        (
            "JOB A s.sub\nSPLICE B top.dag",
            "/d/top.dag:2: /d/top.dag is part of itself",
        ),
        (
            "JOB A s.sub\nINCLUDE top.dag",
            "/d/top.dag:2: /d/top.dag is part of itself",
        ),
        ("# none", "/d/top.dag:1: /d/top.dag has no node"),
        ("JOB A bad.sub", "/d/bad.sub:2: universe = grid is not supported"),
        (
            "JOB A {\nexecutable = x\nhold = true\n}",
            "/d/top.dag:3: hold = true is not supported",
        ),
        (
            "JOB A {\nx = y\n}",
            "/d/top.dag:1: the submit description of the node A has no executable",
        ),
    ] {
        let bad = ("bad.sub", "executable = x\nuniverse = grid\nqueue");
        let error = read_from(&[("top.dag", top), SUBMIT, bad]).unwrap_err();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn what_is_ignored_is_said_once() {
    let submit = ("s.sub", "executable = x\nrequirements = Memory > 1\nqueue");
    let dag = read_from(&[("top.dag", "JOB A s.sub\nJOB B s.sub\nDOT x"), submit]).unwrap();
    let ignored: Vec<_> = dag.ignored.iter().map(|one| (one.line, one.command)).collect();
    assert_eq!(ignored, [(2, "requirements"), (3, "DOT")]);
}

proptest! {
    #[test]
    fn edges_are_between_nodes(commands in proptest::collection::vec(
        "JOB [A-D] s.sub( DONE)?|PARENT [A-DS] CHILD [A-DS]|SPLICE S x.dag|SUBDAG EXTERNAL S x.dag|DONE [A-D]\
         |RETRY [A-D] [01]|PRIORITY S 2",
        0..12,
    )) {
        let top = commands.join("\n");
        let files = [("top.dag", top.as_str()), ("x.dag", "JOB A s.sub\nJOB B s.sub\nPARENT A CHILD B"), SUBMIT];
        if let Ok(dag) = read_from(&files) {
            let nodes = dag.nodes.len() as u32;
            prop_assert!(dag.edges.iter().all(|&(p, c)| p < nodes && c < nodes));
            prop_assert!(dag.edges.is_sorted_by(|a, b| a < b));
            let jobs = commands.iter().filter(|command| command.starts_with("JOB")).count();
            let splices = commands.iter().filter(|command| command.starts_with('S')).count();
            prop_assert_eq!(dag.nodes.len() + dag.done, jobs + 2 * splices);
        }
    }
}

/// Small files that multiply. Each is refused at once, with its file and line.
#[test]
fn bombs_are_refused() {
    let includes: Vec<(String, String)> = (0..27)
        .map(|n| {
            let next = if n == 26 {
                "JOB A s.sub\n".to_owned()
            } else {
                format!("INCLUDE {}.dag\n", n + 1).repeat(2)
            };
            (
                if n == 0 {
                    "top.dag".to_owned()
                } else {
                    format!("{n}.dag")
                },
                next,
            )
        })
        .collect();
    let splices: Vec<(String, String)> = (0..5)
        .map(|n| {
            let line = |k: usize| match n {
                4 => format!("JOB {k} s.sub\n"),
                _ => format!("SPLICE {k} {}.dag\n", n + 1),
            };
            let text = (0..64).map(line).collect();
            (
                if n == 0 {
                    "top.dag".to_owned()
                } else {
                    format!("{n}.dag")
                },
                text,
            )
        })
        .collect();
    let large = "x".repeat(1 << 18);
    let queue = vec![
        ("top.dag".to_owned(), "JOB A q.sub\n".to_owned()),
        (
            "q.sub".to_owned(),
            format!("executable = /bin/x\narguments = {large}\nqueue 100000\n"),
        ),
    ];
    let items = vec![
        ("top.dag".to_owned(), "JOB A q.sub\n".to_owned()),
        (
            "q.sub".to_owned(),
            format!("executable = /bin/x\nqueue 100000 in ({large})\n"),
        ),
    ];
    let long_names = vec![
        ("top.dag".to_owned(), format!("SPLICE {large} 1.dag\n")),
        (
            "1.dag".to_owned(),
            (0..4096).map(|n| format!("JOB {n} s.sub\n")).collect(),
        ),
    ];
    for (files, expected) in [
        (includes, "INCLUDE, SPLICE, SUBDAG"),
        (splices, "the DAG has more than"),
        (queue, "q.sub:2: the DAG has more than"),
        (items, "q.sub:2: the DAG has more than"),
        (long_names, "bytes of text"),
    ] {
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str()))
            .chain([SUBMIT])
            .collect();
        let start = std::time::Instant::now();
        let error = read_from(&files).unwrap_err();
        assert!(
            error.contains(expected) && error.contains(".dag:") | error.contains(".sub:"),
            "{error:.200}"
        );
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    }
}
