use proptest::prelude::*;

use super::*;

fn one(text: &str) -> Command {
    let mut all = parse(text).map_err(|(_, kind)| kind.to_string()).unwrap();
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0).command
}

fn set(node: &str, setting: Setting) -> Command {
    Command::Set(Some(node.to_owned()), setting)
}

#[test]
fn commands_are_read() {
    let entry = Entry {
        name: "A".to_owned(),
        content: Submit::Named("a b.sub".to_owned()),
        directory: Some("d".to_owned()),
        noop: true,
        done: false,
    };
    assert_eq!(one("job A \"a b.sub\" noop Dir d"), Command::Job(entry));
    assert_eq!(one("Retry A 3"), set("A", Setting::Retry(3, None)));
    assert_eq!(
        one("RETRY A 3 unless-exit 2"),
        set("A", Setting::Retry(3, Some(2)))
    );
    assert_eq!(
        one("PRIORITY all_nodes -3"),
        Command::Set(None, Setting::Priority(-3))
    );
    let abort = AbortOn {
        code: 10,
        exit: Some(1),
    };
    assert_eq!(
        one("ABORT-DAG-ON A 10 RETURN 1"),
        set("A", Setting::AbortOn(abort))
    );
    let words = ["pre.sh", "$NODE", "\"x\""].map(str::to_owned).to_vec();
    assert_eq!(
        one("SCRIPT PRE A pre.sh  $NODE \"x\""),
        set("A", Setting::Pre(words))
    );
    let (a, b) = (vec!["a".to_owned()], vec!["b".to_owned(), "c".to_owned()]);
    assert_eq!(one("parent a child b c"), Command::Edges(a, b));
}

#[test]
fn macros_of_the_manual_are_read() {
    for (text, expected) in [
        (r#"VARS A first="Alberto Contador""#, "Alberto Contador"),
        (
            r#"VARS A second="\"\"Andy\tSchleck\"\"""#,
            "\"\"Andy\\tSchleck\"\"",
        ),
        (r#"VARS A third = "Lance\\ Armstrong""#, "Lance\\ Armstrong"),
        (r#"VARS A misc="!@#$%^&*()_-=+=[]{}?/""#, "!@#$%^&*()_-=+=[]{}?/"),
    ] {
        let Command::Set(_, Setting::Vars(pairs, false)) = one(text) else {
            panic!("{text}");
        };
        assert_eq!(pairs[0].1, expected);
    }
    let two = one("VARS A APPEND X=\"1\" y=\"\"");
    let pairs = [("x", "1"), ("y", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(two, set("A", Setting::Vars(pairs.to_vec(), true)));
}

#[test]
fn inline_descriptions_are_read() {
    let commands =
        parse("JOB A {\n executable = x\n # }\n}\nSUBMIT-DESCRIPTION d @=end\n a = }\n@end\n").unwrap();
    assert_eq!(commands.iter().map(|at| at.line).collect::<Vec<_>>(), [1, 5]);
    let Command::Job(entry) = &commands[0].command else {
        panic!()
    };
    let Submit::Inline(description) = &entry.content else {
        panic!()
    };
    assert_eq!(description.get("executable").unwrap().line, 2);
}

#[test]
fn what_is_wrong_has_its_line() {
    for (text, line) in [
        ("JOB A a.sub\nFINAL F f.sub", 2),
        ("JOB A", 1),
        ("JOB A a.sub DIRR x", 1),
        ("JOB A+B a.sub", 1),
        ("JOB parent a.sub", 1),
        ("JOB A {\nexecutable x\n}", 2),
        ("\nJOB A {\nexecutable = x\n", 2),
        ("SUBDAG A a.dag", 1),
        ("SPLICE A a.dag NOOP", 1),
        ("PARENT A B", 1),
        ("PARENT CHILD B", 1),
        ("RETRY A x", 1),
        ("RETRY A 3 UNLESS-EXIT", 1),
        ("RETRY A 3 UNLESS-EXIT -9", 1),
        ("RETRY A 3 2", 1),
        ("JOB A {\nexecutable = x\nqueue y in (a\n}", 3),
        ("ABORT-DAG-ON A 256", 1),
        ("VARS A x=1", 1),
        ("VARS A x=\"1", 1),
        ("SCRIPT PRE A", 1),
        ("SCRIPT DEFER 1 2 PRE A x", 1),
        ("MAXJOBS a -1", 1),
        ("JOBB A a.sub", 1),
        ("WEAK PARENT a CHILD b", 1),
    ] {
        assert_eq!(parse(text).unwrap_err().0, line, "{text}");
    }
}

#[test]
fn commands_for_reports_are_ignored() {
    let text = "CONFIG a.config\ndot a.dot UPDATE\nNODE_STATUS_FILE a.status 30 ALWAYS-UPDATE\n\
                Jobstate_Log a.log\nSAVE_POINT_FILE A\nSET_JOB_ATTR x = \"y\"\nNODE A a.sub";
    let commands = parse(text).unwrap();
    let ignored: Vec<_> = commands
        .iter()
        .map_while(|located| match located.command {
            Command::Ignored(name, _) => Some(name),
            _ => None,
        })
        .collect();
    let names = [
        "CONFIG",
        "DOT",
        "NODE_STATUS_FILE",
        "JOBSTATE_LOG",
        "SAVE_POINT_FILE",
        "SET_JOB_ATTR",
    ];
    assert_eq!(ignored, names);
    assert!(matches!(&commands[6].command, Command::Job(entry) if entry.name == "A"));
    assert!(is_dagman("NODE A a.sub") && is_dagman("DOT a.dot"));
}

#[test]
fn dagman_files_are_known_by_their_commands() {
    for text in [
        "# c\n\nJob A a.sub",
        "CONFIG x",
        "MAXJOBS a 2\nJOB a b",
        "REJECT",
        "parent a child b",
    ] {
        assert!(is_dagman(text), "{text}");
    }
    for text in [
        "",
        "pegasus: 5.0",
        "---\njobs:",
        "<adag>",
        "TASK a /bin/true",
        "MAXJOBS a 2\nTASK a -c 1 x",
        "job",
        "JOBS a b",
    ] {
        assert!(!is_dagman(text), "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(
        text in "((JOB|VARS|SCRIPT|PRE|A|RETRY|=|\"|\\\\|\\{|\\}|\n| |SPLICE|PARENT|CHILD|1|@=|[a-c])*)"
    ) {
        let _ = (parse(&text), is_dagman(&text));
    }
}
