use super::*;

/// The remote shell is the user's, which need not know the syntax of others.
#[test]
fn words_survive_two_shells() {
    let echo = ["printf", "%s|", "it's", "a b", "$HOME"].map(OsStr::new);
    let line = remote(&echo, 7, "").unwrap();
    let mut child = Command::new("/bin/sh")
        .args(["-c", &line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"secret\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it's|a b|$HOME|");
}

#[test]
fn an_agent_of_a_gang_has_what_its_part_has() {
    let print = ["printenv", "PMC_HOST_CPUS", "PMC_HOST_MEMORY"].map(OsStr::new);
    let line = remote(&print, 7, PART).unwrap();
    for (cpus, expected) in [(Some("4"), "4\n0\n"), (None, "0\n0\n")] {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &line])
            .stdin(Stdio::null())
            .env_remove("PMC_CPUS");
        command.env_remove("PMC_MEMORY");
        command.envs(cpus.map(|cpus| ("PMC_CPUS", cpus)));
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
}

#[test]
fn agents_that_may_be_there_are_started_later() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("launch");
    let text = format!(
        "#!/bin/sh\necho $1 ${NUMBER_VARIABLE} >> {}/log\n",
        folder.path().display()
    );
    std::fs::write(&script, text).unwrap();
    let how = format!("/bin/sh {} {{host}}", script.display());
    let hosts = ["n0", "n1", "n2"].map(str::to_owned);
    let launch = Launch::parse(&how, 3, &hosts).unwrap();
    let endpoint = Endpoint {
        addresses: vec!["n1:1".to_owned()],
        epoch: 1,
        lease: Duration::from_secs(30),
        key: pmc_link::RunKey::generate().unwrap(),
    };
    let options = LaunchOptions::default();
    let earlier = EarlierAgents {
        any: true,
        numbers: [1, 7].into(),
    };
    let mut launcher =
        Launcher::start(&launch, &options, &earlier, Path::new("x"), endpoint.clone()).unwrap();
    let started = |launcher: &mut Launcher| {
        for process in launcher.processes.values_mut() {
            process.child.wait().unwrap();
        }
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        let mut lines: Vec<String> = log.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(started(&mut launcher), ["n0 0", "n2 2"]);
    assert!(!launcher.has_exited(1));
    launcher.start_skipped(|number| number == 0).unwrap();
    launcher.start_skipped(|_| false).unwrap();
    assert_eq!(started(&mut launcher), ["n0 0", "n1 1", "n2 2"]);
    launcher.start_again(1).unwrap();
    assert_eq!(started(&mut launcher), ["n0 0", "n1 1", "n1 1", "n2 2"]);

    // One launcher for all waits, too.
    let launch = Launch::parse(&format!("/bin/sh {} all", script.display()), 3, &[]).unwrap();
    let mut launcher = Launcher::start(&launch, &options, &earlier, Path::new("x"), endpoint).unwrap();
    assert!(launcher.has_skipped());
    launcher.start_skipped(|_| false).unwrap();
    assert_eq!(started(&mut launcher)[0], "all");
}

#[test]
fn last_words_are_kept() {
    let launch = Launch::parse("/bin/sh -c exit", 1, &[]).unwrap();
    let endpoint = Endpoint {
        addresses: vec!["n1:1".to_owned()],
        epoch: 1,
        lease: Duration::from_secs(30),
        key: pmc_link::RunKey::generate().unwrap(),
    };
    let none = EarlierAgents::default();
    let mut launcher = Launcher::start(
        &launch,
        &LaunchOptions::default(),
        &none,
        Path::new("x"),
        endpoint,
    )
    .unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo one; echo two >&2; sleep 0.1; echo three; echo four"]);
    launcher.spawn(1, command, Lines::Kept { quiet: false }).unwrap();
    let process = launcher.processes.get_mut(&0).unwrap();
    process.child.wait().unwrap();
    let process = launcher.processes.get_mut(&1).unwrap();
    process.child.wait().unwrap();
    process
        .readers
        .drain(..)
        .for_each(|reader| reader.join().unwrap());
    assert!(launcher.last_words(Some(1)).ends_with(" | three | four"));
    assert!(launcher.all_have_exited());
}
