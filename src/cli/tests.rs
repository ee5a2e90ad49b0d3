//! Tests of the parser.

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use pmc_dag::RetryDelay;

fn parse_with(line: &str, variables: &[(&str, &str)]) -> Result<RawArgs, EarlyExit> {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    let lookup = |name: &str| {
        variables
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| OsString::from(value))
    };
    parse(OsStr::new("pmc"), &words, lookup)
}

fn refusal(line: &str) -> String {
    match parse_with(line, &[]) {
        Err(EarlyExit {
            text,
            code: 1,
            everywhere: false,
        }) => text,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of command lines")]
fn wrong_words_are_refused() {
    for (line, message) in [
        ("-x a.dag", "Unrecognized argument: -x\n"),
        ("a.dag -", "Unrecognized argument: -\n"),
        ("-sn a.dag", "Unrecognized argument: -sn\n"),
        ("--tries=2 a.dag", "Unrecognized argument: --tries=2\n"),
        ("a.dag -o", "-o/--stdout requires PATH\n"),
        ("-e", "-e/--stderr requires PATH\n"),
        ("-m", "-m/--max-failures requires N\n"),
        ("-m x a.dag", "N for -m/--max-failures is invalid\n"),
        ("-m -1 a.dag", "N for -m/--max-failures must be >= 0\n"),
        ("-t", "-t/--tries requires N\n"),
        ("-t x a.dag", "N for -t/--tries is invalid\n"),
        ("-t 0 a.dag", "N for -t/--tries must be >= 1\n"),
        ("-r", "-r/--rescue requires PATH\n"),
        ("--host-script", "--host-script requires PATH\n"),
        ("--host-memory", "--host-memory requires N\n"),
        ("--host-memory much a.dag", "Invalid value for --host-memory\n"),
        ("--host-memory 0 a.dag", "--host-memory must be an integer >= 1\n"),
        ("--host-cpus", "--host-cpus requires N\n"),
        ("--host-cpus few a.dag", "Invalid value for --host-cpus\n"),
        ("--host-gpus", "--host-gpus requires N\n"),
        ("--host-name", "--host-name requires NAME\n"),
        ("--host-name a\"b a.dag", "Invalid value for --host-name\n"),
        ("--disk-reserve", "--disk-reserve requires MIB\n"),
        (
            "--retry-delay 1,0.5 a.dag",
            "--retry-delay must be SECONDS[,FACTOR[,MAX]], with a FACTOR from 1 to 1000\n",
        ),
        ("--disk-reserve most a.dag", "Invalid value for --disk-reserve\n"),
        (
            "--forward-limit most a.dag",
            "Invalid value for --forward-limit\n",
        ),
        ("--host-gpus all a.dag", "Invalid value for --host-gpus\n"),
        ("--runtime-limit", "--runtime-limit requires SECONDS\n"),
        ("--runtime-limit -1 a.dag", "Invalid value for --runtime-limit\n"),
        ("--drain-grace", "--drain-grace requires SECONDS\n"),
        ("--drain-grace -1 a.dag", "Invalid value for --drain-grace\n"),
        ("--drain-grace nan a.dag", "Invalid value for --drain-grace\n"),
        ("--max-wall-time", "--max-wall-time requires T\n"),
        (
            "--max-wall-time long a.dag",
            "Invalid value for --max-wall-time\n",
        ),
        ("--maxfds", "--maxfds requires N\n"),
        ("--maxfds x a.dag", "Invalid value for --maxfds\n"),
        ("--maxfds 0 a.dag", "--maxfds must be at least 1\n"),
        ("--sync-interval", "--sync-interval requires MS\n"),
        (
            "--sync-interval soon a.dag",
            "Invalid value for --sync-interval\n",
        ),
        (
            "--sync-interval -1 a.dag",
            "--sync-interval must be a number of milliseconds\n",
        ),
        ("a.dag b.dag", "Invalid argument\n\n"),
        ("a.dag b.dag --maxfds 0", "--maxfds must be at least 1\n"),
        (
            "--max-jobs db a.dag",
            "--max-jobs must be CATEGORY=N with an N of at least 1\n",
        ),
        (
            "--max-jobs db=0 a.dag",
            "--max-jobs must be CATEGORY=N with an N of at least 1\n",
        ),
        (
            "--agents , a.dag",
            "--agents must be a number of agents, names of hosts with commas, or gang (the hosts of the task)\n",
        ),
        (
            "--agents 0 a.dag",
            "--agents must be at least 1 and at most 100000\n",
        ),
        (
            "--agents n,m,n a.dag",
            "--agents names the host n twice: one agent runs there, give it more --slots\n",
        ),
        ("--slots 0 a.dag", "At least one worker process is required\n"),
        (
            "--slots 10001 a.dag",
            "--slots must be at least 1 and at most 10000\n",
        ),
        (
            "--agent-timeout 0 a.dag",
            "--agent-timeout must be at least 1 second and at most a day\n",
        ),
        ("--start-with 0 a.dag", "--start-with must be at least 1\n"),
        ("--crash-limit x a.dag", "Invalid value for --crash-limit\n"),
        ("--workers many a.dag", "Invalid value for --workers\n"),
        ("--workers 99999 a.dag", "--workers must be at most 10000\n"),
    ] {
        assert_eq!(refusal(line), message, "{line}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a line for each option")]
fn every_option_is_stored() {
    let line = "-v -v -q -o out -e err -s -m 3 -t 2x -n a.dag -r res --host-script hs --host-memory 100 \
                --host-cpus 4 --host-gpus 3 --strict-limits --max-wall-time job:0.5 --jobstate-log --monitord-hack \
                --no-resource-log --no-sleep-on-recv --maxfds 9 --keep-affinity --set-affinity --workers 3 \
                --no-forward-journal --sync-interval 20 --drain-grace 2.5 --stop-grace 4 --host-name node7 --disk-reserve 100 --forward-limit 7 \
                --watch-memory --more-memory 1.5 --retry-delay 2,3,20 --runtime-limit 60 --max-jobs db=2 --max-jobs a=b=1 --max-plans 6 \
                --agents n1,n2 --launch ssh --slots 4 --start-with 2 --listen [::1]:7-9 --crash-limit 0 --bad-host-limit 7 \
                --agent-timeout 9 --join-timeout 8 --master-timeout 7 --accept-incomplete";
    let environment = [("PMC_KICKSTART", "exec")];
    let args = parse_with(line, &environment).unwrap();
    let expected = RawArgs {
        batch_job: None,
        dag: "a.dag".into(),
        verbosity: 1,
        stdout: Some("out".into()),
        stderr: Some("err".into()),
        skip_rescue: true,
        accept_incomplete: true,
        max_failures: 3,
        max_jobs: [(b"db".to_vec(), 2), (b"a=b".to_vec(), 1)]
            .map(|(category, limit)| (category, NonZeroU32::new(limit).unwrap()))
            .to_vec(),
        max_plans: Some(6),
        tries: Some(2),
        no_lock: true,
        rescue: Some("res".into()),
        host_script: Some("hs".into()),
        host_name: Some("node7".into()),
        disk_reserve_mib: Some(100),
        forward_limit_mib: Some(7),
        watch_memory: true,
        user: None,
        more_memory_percent: Some(150),
        retry_delay: Some(RetryDelay {
            first: Duration::from_secs(2),
            percent: 300,
            max: Duration::from_secs(20),
        }),
        host_memory: 100,
        host_cpus: 4,
        host_gpus: 3,
        strict_limits: true,
        max_wall_time: Some(0.5),
        asks_time_left: true,
        stop_grace: Some(4.0),
        drain_file: None,
        per_task_stdio: true,
        packed_output: false,
        pmix: false,
        jobstate_log: true,
        monitord_hack: true,
        stampede: false,
        home: None,
        server_variables: Vec::new(),
        exec_kickstart: true,
        no_resource_log: true,
        no_sleep_on_recv: true,
        max_fds: Some(9),
        keep_affinity: true,
        set_affinity: true,
        no_forward_journal: true,
        sync_interval_ms: Some(20),
        runtime_limit: Some(60.0),
        drain_grace: Some(2.5),
        workers: Some(3),
        agents: Some(Agents::Hosts(vec!["n1".to_owned(), "n2".to_owned()])),
        launch: Some("ssh".into()),
        slots: Some(4),
        start_with: Some(2),
        listen: Some(pmc_link::Listen {
            address: Some("::1".parse().unwrap()),
            ports: Some(7..=9),
        }),
        crash_limit: Some(0),
        bad_host_limit: Some(7),
        agent_timeout: Some(9.0),
        join_timeout: Some(8.0),
        master_timeout: Some(7.0),
        agent: false,
        endpoint: None,
        endpoint_value: None,
        host_environment: [0; 3],
    };
    assert_eq!(args, expected);
}

#[cfg(feature = "stampede")]
#[test]
fn stampede_implies_log_and_files_per_task() {
    let environment = [("HOME", "/home/u"), ("PGSSLMODE", "require"), ("PGHOST", "h")];
    let args = parse_with("--stampede a.dag", &environment).unwrap();
    assert!(args.stampede && args.monitord_hack && args.per_task_stdio);
    assert_eq!(args.home, Some("/home/u".into()));
    assert_eq!(args.server_variables, [("PGSSLMODE", "require".into())]);
}

#[test]
fn last_option_wins() {
    assert_eq!(parse_with("-t 2 a.dag -t 3", &[]).unwrap().tries, Some(3));
    assert_eq!(
        parse_with("a.dag -o", &[]),
        Err(EarlyExit::refuse("-o/--stdout requires PATH"))
    );
}

#[test]
fn variables_are_defaults_and_must_be_valid() {
    let variables = [
        ("PMC_HOST_CPUS", "3"),
        ("PMC_HOST_MEMORY", "0"),
        ("PMC_MAX_WALL_TIME", "2.5"),
    ];
    let args = parse_with("--host-cpus 2 a.dag", &variables).unwrap();
    assert_eq!(
        (args.host_cpus, args.host_memory, args.max_wall_time),
        (2, 0, Some(2.5))
    );
    let name = |name| parse_with("a.dag", &[("PMC_HOST_NAME", name)]).map(|args| args.host_name);
    assert_eq!(name("node7"), Ok(Some("node7".into())));
    assert_eq!(name(""), Ok(None));
    assert_eq!(name("a b"), Err(EarlyExit::invalid_value("PMC_HOST_NAME")));
    for name in [
        "PMC_HOST_CPUS",
        "PMC_HOST_GPUS",
        "PMC_HOST_MEMORY",
        "PMC_MAX_WALL_TIME",
    ] {
        let refused = parse_with("--host-cpus 2 a.dag", &[(name, "x")]);
        assert_eq!(
            refused,
            Err(EarlyExit::refuse(&format!("Invalid value for {name}")))
        );
    }
    assert_eq!(
        parse_with("a.dag", &[("PMC_HOST_SCRIPT", "hs")])
            .unwrap()
            .host_script,
        Some("hs".into())
    );
}

#[test]
fn empty_path_means_none() {
    let words = ["-r", "", "--host-script", "", "a.dag"].map(OsString::from);
    let lookup = |name: &str| (name == "PMC_HOST_SCRIPT").then(|| OsString::from("hs"));
    let args = parse(OsStr::new("pmc"), &words, lookup).unwrap();
    assert_eq!((args.rescue, args.host_script), (None, None));
    let args = parse_with("a.dag", &[("PMC_HOST_SCRIPT", "")]).unwrap();
    assert_eq!(args.host_script, None);
}

#[test]
fn help_precedes_every_check() {
    for (line, expected) in [("", 1), ("-x -o -h", 0), ("a.dag --help", 0), ("-s", 1)] {
        match parse_with(line, &[("PMC_HOST_CPUS", if expected == 0 { "x" } else { "1" })]) {
            Err(EarlyExit {
                text,
                code,
                everywhere: true,
            }) => {
                assert_eq!(code, expected, "{line}");
                assert!(text.starts_with("Usage: pmc [options] DAGFILE\n\nOptions:\n   -h|--help "));
            }
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn version_skips_later_words() {
    match parse_with("-s -V -x", &[]) {
        Err(EarlyExit {
            text,
            code: 0,
            everywhere: false,
        }) => assert!(text.starts_with("Version: ")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_agent_has_an_endpoint_and_no_dag() {
    let environment = [("PMC_HOST_CPUS", "4"), ("PMC_ENDPOINT", "value")];
    let args = parse_with("--agent x.dag.endpoint --host-cpus 2", &environment).unwrap();
    assert_eq!((args.agent, args.endpoint), (true, Some("x.dag.endpoint".into())));
    assert_eq!((args.host_cpus, args.host_environment), (2, [0, 4, 0]));
    let args = parse_with("--agent", &environment).unwrap();
    assert_eq!((args.endpoint, args.endpoint_value), (None, Some("value".into())));
}

#[test]
fn pauses_before_attempts_can_be_none() {
    let first = |line: &str| {
        parse_with(line, &[])
            .unwrap()
            .retry_delay
            .map(|delay| delay.first)
    };
    assert_eq!(first("a.dag"), None, "transfers have one");
    assert_eq!(first("--retry-delay 0 a.dag"), Some(Duration::ZERO));
    assert_eq!(first("--retry-delay 2,3,20 a.dag"), Some(Duration::from_secs(2)));
    refusal("--retry-delay 1,2,3,4 a.dag");
}
