use super::*;
use crate::model::{Arguments, Job};

fn parsed(content: &str) -> Result<Workflow, String> {
    let path = Path::new("/data/job.toml");
    read(path, content, Path::new("/data"), &ReadOptions::default()).map_err(|error| error.to_string())
}

fn command(job: &Job) -> &str {
    let Arguments::Exact(words) = &job.arguments else {
        panic!("the words are exact");
    };
    words.iter().last().expect("a command")
}

const VARIABLES: &str = "export HQ_JOB_ID=1 HQ_TASK_ID=";

#[test]
fn tasks_have_requests_and_dependencies() {
    let workflow = parsed(
        "name = \"test job\"\nmax_fails = 11\n\n[[task]]\nid = 10\ncommand = [\"/bin/bash\", \"-c\", \"echo $ABC\"]\n\
         env = { \"ABC\" = \"1 2\" }\nstdin = \"Hello\"\nstdout = \"out/%{TASK_ID}\"\ntime_limit = \"1m 10s\"\n\
         priority = -1\n[[task.request]]\nresources = { \"cpus\" = \"4 compact!\", \"gpus\" = 2, \"mem\" = 1.5 }\n\
         time_request = \"10s\"\n[[task]]\nid = 3\ncommand = [\"true\"]\ndeps = [10]\n[[task]]\ncommand = [\"w\"]\n",
    )
    .unwrap();
    let [first, second, third] = &workflow.jobs[..] else {
        panic!("three jobs");
    };
    assert_eq!(
        (first.id.as_str(), second.id.as_str(), third.id.as_str()),
        ("10", "3", "11")
    );
    assert_eq!(
        command(first),
        format!(
            "mkdir -p out && {VARIABLES}10 HQ_INSTANCE_ID=0 HQ_SUBMIT_DIR=/data ABC='1 2' && printf %s Hello | \
             /bin/bash -c 'echo $ABC' > out/10"
        )
    );
    assert!(command(second).ends_with(" && exec true"), "{}", command(second));
    let of = |key| first.profiles.get(Namespace::Pegasus, key).map(str::to_owned);
    assert_eq!(
        [
            of("cores"),
            of("gpus"),
            of("memory"),
            of("runtime"),
            of("pmc_task_arguments")
        ],
        [Some("4"), Some("2"), Some("2"), Some("10"), Some("-T 70")].map(|value| value.map(str::to_owned))
    );
    assert_eq!(first.profiles.get(Namespace::Dagman, "priority"), Some("-1"));
    let edges: Vec<_> = workflow
        .edges
        .iter()
        .map(|(a, b)| (a.index(), b.index()))
        .collect();
    assert_eq!(edges, [(0, 1)]);
    assert_eq!(workflow.warnings.len(), 1);
    assert!(workflow.warnings[0].message.contains("max_fails"));
}

#[test]
fn arrays_are_many_tasks() {
    let workflow = parsed(
        "[[array]]\nids = \"1,5-9:2\"\ncommand = [\"a\"]\ncwd = \"/w/%{TASK_ID}\"\n\
         [[array]]\nentries = [\"One\", \"Two words\"]\ncommand = [\"b\"]\nstderr = \"none\"\n",
    )
    .unwrap();
    let ids: Vec<_> = workflow.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, ["1", "5", "7", "9", "10", "11"]);
    let jobs = &workflow.jobs[..];
    assert!(command(&jobs[1]).starts_with("mkdir -p /w/5 && cd /w/5 && export "));
    assert!(command(&jobs[5]).contains(" HQ_ENTRY='Two words' && exec b 2> /dev/null"));
}

#[test]
fn wrong_files_are_refused_with_their_line() {
    let task = "[[task]]\ncommand = [\"a\"]\n";
    for (text, message) in [
        (
            "",
            "/data/job.toml: a job file of HyperQueue needs [[task]] or [[array]]",
        ),
        ("[[task]\n", "/data/job.toml:1:"),
        (
            "\n[[task]]\ncomand = [\"a\"]\n",
            "/data/job.toml:3:1: unknown field `comand`",
        ),
        (
            "[[task]]\ncommand = []\n",
            "/data/job.toml:1:1: task 0: the command is empty",
        ),
        (
            &format!("{task}id = 4\n{task}id = 4\n"),
            "/data/job.toml:4:1: task 4: another task has this id",
        ),
        (
            &format!("{task}deps = [7]\n"),
            "deps of the task 0: no task has the id 7",
        ),
        (
            &format!("{task}time_limit = \"soon\"\n"),
            "the time `soon` makes no sense",
        ),
        (
            &format!("{task}env = {{ \"A B\" = \"\" }}\n"),
            "the variable `A B` of env",
        ),
        (
            &format!("{task}[[task.request]]\nn_nodes = 2\n"),
            "tasks over several nodes",
        ),
        (
            &format!("{task}[[task.request]]\nresources = {{ cpus = \"all\" }}\n"),
            "cpus = all: a number is needed",
        ),
        (
            &format!("{task}entries = [\"a\"]\n"),
            "job.toml:1:1: ids and entries are keys of [[array]]",
        ),
        (
            "[[array]]\nids = 1\ndeps = [1]\ncommand = [\"a\"]\n",
            "job.toml:1:1: id and deps are keys of [[task]]",
        ),
        (
            "[[array]]\nids = \"1-3\"\nentries = [\"a\"]\ncommand = [\"a\"]\n",
            "3 ids for 1 entries",
        ),
        (
            "[[array]]\nids = \"0-4294967295\"\ncommand = [\"a\"]\n",
            "more than 10000000 tasks",
        ),
    ] {
        let error = parsed(text).expect_err(text);
        assert!(error.contains(message), "{text}: {error}");
    }
}

#[test]
fn times_have_units() {
    for (text, expected) in [
        ("90", 90),
        ("1h 10m 5s", 4205),
        ("01:10:05", 4205),
        ("1.5m", 90),
        ("200ms", 1),
    ] {
        assert_eq!(seconds(text), Ok(expected), "{text}");
    }
    assert!(seconds("").is_err() && seconds("5 weeks").is_err() && seconds("1:2").is_err());
}
