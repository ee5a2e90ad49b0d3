//! Protocols with external programs, replaced by scripts that record their arguments.

use std::fs;
use std::path::Path;

use super::common::{Case, Run, list, mkdir, remove, transfer};

/// Fake programs that append their arguments to `log` and then run a shell script.
struct Programs(Case);

const WRITE_LAST_ARGUMENT: &str = r#"for last; do :; done; case $last in ./*) printf data > "$last";; esac"#;

impl Programs {
    fn new(programs: &[(&str, &str)]) -> Self {
        let case = Case::new();
        for (name, body) in programs {
            let name = format!("bin/{name}");
            case.write(
                &name,
                format!(
                    "#!/bin/sh\n{{ printf '%s' \"${{0##*/}}\"; for word; do printf '|%s' \"$word\"; done; echo; }} >> \
                     \"$LOG\"\n{body}\n"
                ),
            );
            case.set_mode(&name, 0o755);
        }
        case.write("a", "hello");
        Self(case)
    }

    fn run(&self, env: &[(&str, &str)], spec: &[String]) -> Run {
        let mut command = self.0.command();
        command
            .args(["--retry-wait", "0.001", "-n", "1"])
            .env("PATH", self.0.path("bin"))
            .env("HOME", self.0.dir())
            .env("LOG", self.0.path("log"))
            .envs(env.iter().copied());
        self.0.start(command, &list(spec))
    }

    /// Returns the calls, with the names of temporary files and directories replaced.
    fn calls(&self) -> Vec<String> {
        let text = fs::read(self.0.path("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).replace(self.0.dir().to_str().expect("UTF-8"), "DIR");
        text.lines()
            .map(|line| {
                line.split('/')
                    .map(|part| {
                        if part.starts_with(".pegasus-transfer-") {
                            "TMP"
                        } else {
                            part
                        }
                    })
                    .collect::<Vec<_>>()
                    .join("/")
            })
            .collect()
    }
}

const HOST_KEY_OPTIONS: &str = "-o|UserKnownHostsFile=/dev/null|-o|StrictHostKeyChecking=no";

#[test]
fn scp_uses_the_key_of_the_site() {
    let programs = Programs::new(&[("scp", WRITE_LAST_ARGUMENT), ("ssh", "")]);
    let key = programs.0.write_secret("key", "");
    let other = programs.0.write_secret("other", "");
    let env = [
        ("SSH_PRIVATE_KEY_local", key.as_str()),
        ("SSH_PRIVATE_KEY", other.as_str()),
        ("PEGASUS_SSH_HOST_KEYS", "ignore"),
    ];
    let run = programs.run(
        &env,
        &[
            mkdir("scp://me@h:2222/d/new"),
            transfer("scp://me@h:2222/d/f", "dst/f"),
            transfer("a", "scp://me@h/up/a"),
            transfer("a", "sftp://me@h/up/b"),
            remove("scp://me@h/up/a", "false"),
            remove("scp://me@h/up/it's", "true"),
        ],
    );
    run.expect_ok();
    assert_eq!(programs.0.read("dst/f"), "data");
    assert_eq!(programs.0.names("dst"), ["f"]);
    let key = "-i|DIR/key";
    assert_eq!(
        programs.calls(),
        [
            format!("ssh|-o|BatchMode=yes|{HOST_KEY_OPTIONS}|{key}|-p|2222|me@h|/bin/mkdir -p /d/new"),
            format!("scp|-r|-B|{HOST_KEY_OPTIONS}|{key}|-P|2222|me@h:/d/f|./dst/TMP/f"),
            format!("ssh|-o|BatchMode=yes|{HOST_KEY_OPTIONS}|{key}|-p|22|me@h|/bin/mkdir -p /up"),
            format!("scp|-r|-B|{HOST_KEY_OPTIONS}|{key}|-P|22|./a|me@h:/up/a"),
            format!("scp|-r|-B|{HOST_KEY_OPTIONS}|{key}|-P|22|./a|me@h:/up/b"),
            format!("ssh|-o|BatchMode=yes|{HOST_KEY_OPTIONS}|{key}|-p|22|me@h|/bin/rm -f /up/a"),
            format!("ssh|-o|BatchMode=yes|{HOST_KEY_OPTIONS}|{key}|-p|22|me@h|/bin/rm -f -r '/up/it'\\''s'"),
        ]
    );
}

#[test]
fn keys_of_hosts_are_checked() {
    let programs = Programs::new(&[("scp", WRITE_LAST_ARGUMENT), ("ssh", "")]);
    let spec = [transfer("scp://h/f", "dst/f")];
    for (env, options) in [
        (&[][..], ""),
        (&[("PEGASUS_SSH_HOST_KEYS", "check")], ""),
        (
            &[("PEGASUS_SSH_HOST_KEYS", "new")],
            "-o|StrictHostKeyChecking=accept-new|",
        ),
        (
            &[
                ("PEGASUS_SSH_HOST_KEYS", "ignore"),
                ("PEGASUS_SSH_HOST_KEYS_local", "check"),
            ],
            "",
        ),
    ] {
        programs.run(env, &spec).expect_ok();
        let expected = format!("scp|-r|-B|{options}-P|22|h:/f|./dst/TMP/f");
        assert_eq!(programs.calls().last(), Some(&expected));
    }
    programs
        .run(&[("PEGASUS_SSH_HOST_KEYS", "maybe")], &spec)
        .expect_failed("PEGASUS_SSH_HOST_KEYS must be check, new or ignore, not 'maybe'");
    let unknown =
        "echo 'No ED25519 host key is known for h.' >&2; echo 'Host key verification failed.' >&2; exit 255";
    let programs = Programs::new(&[("scp", unknown), ("ssh", unknown)]);
    for spec in [&spec[0], &mkdir("scp://h/d")] {
        programs
            .run(&[], std::slice::from_ref(spec))
            .expect_failed("Failed after 1 attempt")
            .expect_failed("set PEGASUS_SSH_HOST_KEYS=new to accept unknown keys");
    }
}

#[test]
fn scp_copies_several_files_per_call_and_isolates_failures() {
    let body = r#"for last; do :; done
        for word; do case $word in h:*bad) echo "scp: $word: No such file or directory" >&2; exit 1;; esac; done
        case $last in
            */) for word; do case $word in h:*) printf data > "$last${word##*/}";; esac; done;;
            *) printf data > "$last";;
        esac"#;
    let programs = Programs::new(&[("scp", body)]);
    let run = programs.run(
        &[],
        &[
            transfer("scp://h/d/1", "dst/one"),
            transfer("scp://h/d/2", "dst/two"),
            transfer("scp://h/e/1", "dst/three"),
        ],
    );
    run.expect_ok();
    assert_eq!(programs.0.names("dst"), ["one", "three", "two"]);
    assert_eq!(
        programs.calls(),
        [
            "scp|-r|-B|-P|22|h:/d/1|h:/d/2|./dst/TMP/",
            "scp|-r|-B|-P|22|h:/e/1|./dst/TMP/1",
        ]
    );
    let run = programs.run(
        &[],
        &[
            transfer("scp://h/d/1", "dst/4"),
            transfer("scp://h/d/bad", "dst/5"),
        ],
    );
    run.expect_failed("Failed after 1 attempt: scp://h/d/bad -> file://dst/5: scp failed: exit status 1");
    assert_eq!(programs.0.names("dst"), ["4", "one", "three", "two"]);
}

#[test]
fn names_are_neither_options_nor_commands() {
    let programs = Programs::new(&[
        ("scp", WRITE_LAST_ARGUMENT),
        ("ssh", "echo OpenSSH_9.2p1 >&2"),
        ("pelican", WRITE_LAST_ARGUMENT),
        ("docker", ""),
    ]);
    let name = "$(touch pwned);`touch pwned`'\"|&\n-x *";
    let run = programs.run(
        &[],
        &[
            transfer(&format!("scp://h/{name}"), &format!("dst/{name}")),
            transfer(&format!("osdf:///ns/{name}"), "-o"),
        ],
    );
    run.expect_ok();
    assert_eq!(programs.0.read("-o"), "data");
    assert_eq!(programs.0.read(&format!("dst/{name}")), "data");
    assert!(!programs.0.path("pwned").exists());
    for (url, message) in [
        (
            "scp://-oProxyCommand/x",
            "a host must not start with '-': -oProxyCommand",
        ),
        ("docker://-v/x", "a name of an image must not start with '-'"),
        ("scp://h:x/x", "'h:x' is not a host with a port"),
    ] {
        programs
            .run(&[], &[transfer(url, "x")])
            .expect_failed(message)
            .expect_failed("Failed after 1 attempt");
    }
    // The longest names, and names that are not UTF-8.
    let long = format!("scp://h/{}", "n/".repeat(2040));
    programs
        .run(&[], &[transfer(&format!("{long}x"), "long")])
        .expect_ok();
    let mut spec = list(&[transfer("scp://h/@", "x@")]).into_bytes();
    for at in (0..spec.len())
        .rev()
        .filter(|at| spec[*at] == b'@')
        .collect::<Vec<_>>()
    {
        spec[at] = 0xff;
    }
    fs::write(programs.0.path("spec"), spec).expect("write");
    let mut command = programs.0.command();
    command
        .env("PATH", programs.0.path("bin"))
        .env("LOG", programs.0.path("log2"))
        .args(["-f", "spec"]);
    programs.0.start(command, "").expect_ok();
    let log = fs::read(programs.0.path("log2")).expect("log");
    assert!(log.windows(5).any(|part| part == b"h:/\xff|"));
}

#[test]
fn missing_programs_are_reported() {
    let programs = Programs::new(&[]);
    for (url, message) in [
        ("osdf:///x", "pelican or stashcp is needed for osdf URLs"),
        ("shub://x/y", "apptainer or singularity is needed for shub URLs"),
        ("gsiftp://h/x", "globus-url-copy is needed for gsiftp URLs"),
        ("root://h/x", "gfal-copy is needed for root URLs"),
        ("gsiscp://h/x", "gsiscp is needed for gsiscp URLs"),
    ] {
        programs
            .run(&[], &[transfer(url, "x")])
            .expect_failed(message)
            .expect_failed("Failed after 1 attempt");
    }
    programs
        .run(&[], &[transfer("irods:///x", "x")])
        .expect_failed("irods URLs need IRODS_ENVIRONMENT_FILE_local or IRODS_ENVIRONMENT_FILE");
}

#[test]
fn gridftp_transfers_files_in_lists() {
    // Downloads the files of its list. Fails once if the file `fail` exists.
    let body = r#"for list; do :; done; [ -e fail ] && { rm fail; echo broken; exit 1; }
        [ -f "$list" ] || exit 0
        cat "$list" >> lists
        while read -r from to; do case $to in file://*) printf data > "${to#file://}";; esac; done < "$list""#;
    let programs = Programs::new(&[("globus-url-copy", body)]);
    let (one, two) = (
        programs.0.write_secret("one", ""),
        programs.0.write_secret("two", ""),
    );
    let from = |url: &str, to: &str| transfer(url, to).replacen("\"local\"", "\"far-1\"", 1);
    programs.0.write("fail", "");
    let run = programs.run(
        &[
            ("X509_USER_PROXY_far_1", one.as_str()),
            ("X509_USER_PROXY", two.as_str()),
        ],
        &[
            from("gsiftp://h/d/a b", "dst/1"),
            from("gsiftp://h/d/2", "dst/2"),
            from("gsiftp://h/d/3", "dst/3"),
        ],
    );
    run.expect_ok();
    assert_eq!(programs.0.names("dst"), ["1", "2", "3"]);
    let options = "-src-cred|DIR/one|-dst-cred|DIR/two|-r|-no-third-party-transfers|-no-data-channel-authentication|-f|";
    let calls = programs.calls();
    // The first file alone, retried at once; the rest in a list.
    assert_eq!(calls.len(), 3, "{calls:?}");
    assert!(
        calls
            .iter()
            .all(|call| call.starts_with(&format!("globus-url-copy|{options}"))),
        "{calls:?}"
    );
    let lists = programs.0.read("lists");
    let sources: Vec<_> = lists.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(
        sources,
        ["gsiftp://h/d/a%20b", "gsiftp://h/d/2", "gsiftp://h/d/3"]
    );
    fs::remove_file(programs.0.path("log")).expect("there");
    programs
        .run(
            &[],
            &[
                mkdir("gsiftp://h/new"),
                transfer("gsiftp://h/d/1", "gsiftp://i/d/1"),
                transfer("a", "sshftp://i/d/1"),
                remove("gsiftp://h/d/1", "false"),
            ],
        )
        .expect_ok();
    let calls: Vec<_> = programs
        .calls()
        .into_iter()
        .map(|call| call.split("|-f|").next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        calls,
        [
            "globus-url-copy|-create-dest|file:///dev/null|gsiftp://h/new/.create-dir",
            "globus-url-copy|-r|-create-dest|-pipeline|-parallel|4|-fast",
            "globus-url-copy|-r|-create-dest|-no-third-party-transfers|-no-data-channel-authentication",
            "globus-url-copy|file:///dev/null|gsiftp://h/d/1",
        ]
    );
}

#[test]
fn gfal_is_preferred_for_gridftp() {
    let copy = r#"for last; do :; done; case $last in file://*) printf data > "${last#file://}";; esac"#;
    let programs = Programs::new(&[("gfal-copy", copy), ("gfal-mkdir", ""), ("gfal-rm", "exit 2")]);
    programs
        .run(
            &[],
            &[
                mkdir("srm://h/d"),
                transfer("gsiftp://h/x", "dst/1"),
                transfer("gsidavs://h/x y", "dst/2"),
                transfer("a", "root://h/x"),
                remove("srm://h/x", "true"),
            ],
        )
        .expect_ok();
    let calls = programs.calls();
    let options = "-f|-p|-t|7200|-T|7200";
    assert_eq!(
        calls,
        [
            "gfal-mkdir|-p|srm://h//d".to_owned(),
            format!("gfal-copy|{options}|gsiftp://h/x|file://DIR/dst/TMP/1"),
            format!("gfal-copy|{options}|davs://h/x y|file://DIR/dst/TMP/2"),
            format!("gfal-copy|{options}|file://DIR/a|root://h//x"),
            "gfal-rm|-r|srm://h//x".to_owned(),
        ]
    );
    assert_eq!(programs.0.names("dst"), ["1", "2"]);
}

#[test]
fn irods_logs_in_once() {
    let get = format!(
        r#"[ "$IRODS_TICKET" = T ] || exit 7; [ -e fail ] && {{ rm fail; exit 1; }}; {WRITE_LAST_ARGUMENT}"#
    );
    let programs = Programs::new(&[
        (
            "iinit",
            r#"read -r word; [ "$word" = pw ] && : > "$IRODS_AUTHENTICATION_FILE""#,
        ),
        ("iget", &get),
        ("iput", ""),
        ("imkdir", ""),
        ("irm", "echo does not exist; exit 3"),
    ]);
    let environment = programs.0.write_secret(
        "irods.json",
        "{ \"irods_host\": \"h\",\n \"irodsPassword\": \"pw\",\n \"irodsTicket\": \"T\" }\n",
    );
    programs.0.write("fail", "");
    let run = programs.run(
        &[("IRODS_ENVIRONMENT_FILE_local", environment.as_str())],
        &[
            mkdir("irods:///z/d"),
            transfer("irods://res/z/f", "dst/f"),
            transfer("a", "irods:///z/up/a"),
            remove("irods:///z/f", "true"),
        ],
    );
    run.expect_ok();
    assert!(!run.stderr.contains("pw\n"), "{}", run.stderr);
    assert!(run.stderr.contains("irm -f -r -t XXX /z/f"), "{}", run.stderr);
    assert_eq!(programs.0.read("dst/f"), "data");
    let get = "iget|-v|-f|-T|-K|-N|4|-R|res|-t|T|/z/f|./dst/TMP/f";
    assert_eq!(
        programs.calls(),
        [
            "iinit",
            "imkdir|-t|T|-p|/z/d",
            get,
            "imkdir|-p|/z/up",
            "iput|-v|-f|-T|-K|-N|4|-t|T|./a|/z/up/a",
            get,
            "irm|-f|-r|-t|T|/z/f",
        ]
    );
}

#[test]
fn passwords_are_neither_arguments_nor_logged() {
    let curl = r#"cat > "$LOG.input"; printf data > "$6""#;
    let wget = r#"for last; do :; done; case $5 in --config) cat "$6" > "$LOG.input";; esac; printf data > "$4"; echo "$last" >&2"#;
    for (name, body, input) in [
        ("curl", curl, "user = \"me:opensesame\"\n"),
        ("wget", wget, "ftp_user = me\nftp_password = opensesame\n"),
    ] {
        let programs = Programs::new(&[(name, body), ("gfal-copy", "echo $6 $7; exit 1")]);
        let run = programs.run(&[], &[transfer("ftp://me:opensesame@h/f", "dst/f")]);
        if name == "wget" && Path::new("/usr/bin/curl").exists() {
            eprintln!("SKIPPED: wget is not used, since curl is installed");
            continue;
        }
        run.expect_ok();
        assert_eq!(programs.0.read("log.input"), input);
        let calls = programs.calls().concat();
        assert!(!calls.contains("sesame"), "{calls}");
        assert!(!run.stderr.contains("sesame"), "{}", run.stderr);
        let run = programs.run(&[], &[transfer("root://me:pw@h/f?authz=sesame", "dst/g")]);
        run.expect_failed("gfal-copy failed");
        assert!(
            !run.stderr.contains("sesame") && !run.stderr.contains("pw@"),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn osdf_ftp_and_container_images() {
    let save = r#"[ "$1" = save ] && printf data > "$3"; exit 0"#;
    let pull = r#"printf data > "$3""#;
    let programs = Programs::new(&[
        ("stashcp", WRITE_LAST_ARGUMENT),
        ("docker", save),
        ("singularity", pull),
        ("curl", r#"printf data > "$6""#),
    ]);
    let image = |url: &str, to: &str, kind: &str| {
        let entry = transfer(url, to);
        let at = entry.rfind("\"site_label\"").expect("there");
        format!("{}\"type\": \"{kind}\", {}", &entry[..at], &entry[at..])
    };
    programs
        .run(
            &[("http_proxy", "http://cache")],
            &[
                mkdir("stash:///d"),
                transfer("osdf:///ns/f", "dst/f"),
                transfer("a", "pelican://h/ns/a"),
                transfer("docker:///org/img:1", "dst/d.tar"),
                image("docker://org/img:1", "dst/d.sif", "singularity"),
                image("library://org/img", "dst/l.sif", "singularity"),
                transfer("shub://org/img", "dst/s.sif"),
                transfer("ftp://h/f", "dst/ftp"),
                remove("osdf:///ns/f", "false"),
            ],
        )
        .expect_ok();
    assert_eq!(
        programs.0.names("dst"),
        ["d.sif", "d.tar", "f", "ftp", "l.sif", "s.sif"]
    );
    assert_eq!(
        programs.calls(),
        [
            "stashcp|osdf:///ns/f|./dst/TMP/f",
            "stashcp|./a|pelican://h/ns/a",
            "docker|pull|org/img:1",
            "docker|save|-o|./dst/TMP/d.tar|org/img:1",
            "singularity|pull|--allow-unauthenticated|./dst/TMP/d.sif|docker://org/img:1",
            "singularity|pull|--allow-unauthenticated|./dst/TMP/l.sif|library://org/img",
            "singularity|pull|--allow-unauthenticated|./dst/TMP/s.sif|shub://org/img",
            "curl|-s|-S|--fail|--location|-o|./dst/TMP/ftp|ftp://h/f",
            "stashcp|/dev/null|osdf:///ns/f",
        ]
    );
}

/// The last job of a workflow removes its directory on the staging site, whatever the site can do.
#[test]
fn directories_that_cannot_be_removed_stay_with_a_warning() {
    let programs = Programs::new(&[
        ("pelican", WRITE_LAST_ARGUMENT),
        ("globus-url-copy", r#"printf "" > /dev/null"#),
    ]);
    for (url, reason) in [
        ("stash:///ns/run0001", "directories of the OSDF cannot be removed"),
        (
            "gsiftp://h/run0001",
            "globus-url-copy cannot remove directories: the gfal tools are needed",
        ),
    ] {
        let output = programs.run(&[], &[remove(url, "true")]);
        output.expect_ok();
        let warning = format!("{url} stays, with what is in it: {reason}");
        assert_eq!(output.lines("WARNING"), [warning]);
    }
    assert!(programs.calls().is_empty());
}

#[test]
fn globus_transfers_all_files_in_one_call() {
    let programs = Programs::new(&[("pegasus-globus-online", r#"cat "$3" >> specs; echo >> specs"#)]);
    fs::create_dir(programs.0.path(".pegasus")).expect("mkdir");
    programs.0.write_secret(
        ".pegasus/globus.conf",
        "[oauth]\nclient_id = c\ntransfer_rt = r\n",
    );
    programs
        .run(
            &[],
            &[
                transfer("go://me#one/d/1", "go://me#two/e/1"),
                transfer("go://me#one/d/2", "go://me#two/e/2"),
                remove("go://me#one/d/1", "false"),
            ],
        )
        .expect_ok();
    let specs = programs.0.read("specs");
    let specs: Vec<serde_json::Value> = specs
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(specs.len(), 2);
    assert_eq!(
        specs[0],
        serde_json::json!({"src_endpoint": "me#one", "dst_endpoint": "me#two", "client_id": "c", "transfer_at": null,
            "transfer_rt": "r", "transfer_at_exp": 0,
            "files": [{"src": "/d/1", "dst": "/e/1"}, {"src": "/d/2", "dst": "/e/2"}]})
    );
}
