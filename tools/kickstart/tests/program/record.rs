//! Contents of the record for each kind of end of an invocation.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::{ffi::OsStr, fs};

use super::common::{Record, Scene};
use proptest::prelude::*;

#[test]
fn a_success_has_all_fields() {
    let scene = Scene::new();
    scene.write("in1", "hi\n");
    scene.write("a.lof", "in.lfn=in1\n");
    scene.write("b.lof", "out.lfn=out1\n");
    let script = "cat in1 > out1; echo hello; echo k=v > \\$KICKSTART_METADATA";
    let run = scene.run(&[
        "-n",
        "ns::tr:1.0",
        "-N",
        "ID000001",
        "-R",
        "local",
        "-L",
        "wf",
        "-T",
        "2026-01-01T00:00:00+00:00",
        "-S",
        "@a.lof",
        "-s",
        "@b.lof",
        "/bin/sh",
        "-c",
        script,
    ]);
    assert_eq!((run.code, run.messages.as_str()), (0, ""));
    let record = run.record();
    for (path, value) in [
        ("invocation", "True"),
        ("version", "3.0"),
        ("transformation", "ns::tr:1.0"),
        ("derivation", "ID000001"),
        ("resource", "local"),
        ("wf-label", "wf"),
        ("wf-stamp", "2026-01-01T00:00:00+00:00"),
        ("mainjob/status/raw", "0"),
        ("mainjob/status/regular_exitcode", "0"),
        ("mainjob/argument_vector/0", "-c"),
        (
            "mainjob/argument_vector/1",
            "cat in1 > out1; echo hello; echo k=v > $KICKSTART_METADATA",
        ),
        ("files/in.lfn/size", "3"),
        ("files/in.lfn/lfn", "in.lfn"),
        ("files/out.lfn/output", "True"),
        (
            "files/out.lfn/sha256",
            "98ea6e4f216f2fb4b69fff9b3a44842c38686ca685f3f55dc48c5d3fb1107be4",
        ),
        ("files/stdin/file_name", "/dev/null"),
        ("files/stdout/data", "hello\n"),
        ("files/stdout/data_truncated", "false"),
        ("files/metadata/data", "k=v\n"),
        ("machine/uname_system", "linux"),
    ] {
        assert_eq!(record.get(path), value, "{path}");
    }
    assert_eq!(
        record.get("cwd"),
        fs::canonicalize(scene.path("")).unwrap().to_str().unwrap()
    );
    assert!(record.number("mainjob/duration") >= 0.003);
    assert!(record.number("mainjob/usage/maxrss") > 0.0 && record.number("usage/maxrss") > 0.0);
    assert!(record.number("machine/ram_total") > 0.0);
    assert!(!record.has("environment") && !record.has("limits") && !record.has("files/kickstart"));
    assert!(record.find("files/stderr/data").is_none());
}

/// Returns the keys with their indentation, in order and without values.
fn outline(text: &str) -> Vec<String> {
    let key = |line: &str| line.split(':').next().unwrap_or_default().trim_end().to_owned();
    text.lines()
        .filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_alphabetic()))
        .map(key)
        .collect()
}

#[test]
fn keys_have_the_order_of_the_format() {
    let expected = include_str!("outline-failure.txt");
    let scene = Scene::new();
    let run = scene.run(&[
        "-n",
        "tr",
        "-N",
        "ID",
        "-R",
        "local",
        "-L",
        "l",
        "-T",
        "t",
        "-o",
        "o",
        "-e",
        "-",
        "/bin/false",
    ]);
    // Processes in unusual states and variables of the environment depend on the machine.
    let varies =
        |line: &str| line.starts_with("    procs_") || line.starts_with("    task_") || line.contains('"');
    let found: Vec<_> = outline(&run.text)
        .into_iter()
        .filter(|line| !varies(line))
        .collect();
    assert_eq!(found.join("\n"), expected.trim_end());
}

#[test]
fn a_failure_has_the_long_form_and_the_tail_of_the_output() {
    let scene = Scene::new();
    let script = "echo 0123456789; echo oops >&2; exit 3";
    let run = scene.run(&[
        "-H", "-n", "fail", "-N", "ID2", "-B", "8", "/bin/sh", "-c", script,
    ]);
    let record = run.record();
    assert_eq!(run.code, 3);
    assert_eq!(record.get("mainjob/status/raw"), "768");
    assert_eq!(record.get("files/stdout/data"), "3456789\n");
    assert_eq!(record.get("files/stdout/data_truncated"), "true");
    assert_eq!(record.get("files/stderr/data"), "oops\n");
    assert_eq!(record.get("environment/PATH"), "/usr/bin:/bin");
    assert_eq!(record.get("files/logfile/descriptor_number"), "1");
    assert!(record.has("limits") && record.has("files/kickstart") && !record.has("machine"));
}

#[test]
fn long_output_is_truncated() {
    let scene = Scene::new();
    let record = scene.run(&["-H", "/usr/bin/seq", "100000"]).record();
    assert_eq!(record.get("files/stdout/data").len(), 262_144);
    assert!(record.get("files/stdout/data").ends_with("\n99999\n100000\n"));
    assert_eq!(
        (
            record.get("files/stdout/data_truncated"),
            record.get("files/stdout/size")
        ),
        ("true", "588895")
    );
    let record = scene.run(&["-H", "-B", "all", "/usr/bin/seq", "100000"]).record();
    assert_eq!(record.get("files/stdout/data").len(), 588_895);
}

#[test]
fn quiet_leaves_output_out_only_on_success() {
    let scene = Scene::new();
    let record = scene.run(&["-q", "/bin/sh", "-c", "echo x"]).record();
    assert_eq!(record.find("files/stdout/data"), None);
    let record = scene.run(&["-q", "/bin/sh", "-c", "echo x; exit 1"]).record();
    assert_eq!(record.get("files/stdout/data"), "x\n");
}

#[test]
fn records_hide_secrets() {
    let scene = Scene::new();
    let mut command = scene.command(&["-f", "/bin/true"]);
    command
        .env("DB_PASSWORD", "opensesame")
        .env("LAB_PIN", "opensesame")
        .env("PMC_SECRET_NAMES", "pin");
    let record = scene.finish(command.output().unwrap()).record();
    assert_eq!(record.get("environment/DB_PASSWORD"), "XXX");
    assert_eq!(record.get("environment/LAB_PIN"), "XXX");
}

#[test]
fn the_long_form_can_be_requested() {
    let scene = Scene::new();
    let mut command = scene.command(&["-f", "/bin/true"]);
    let run = scene.finish(command.env("A\"B", "c\"d\\e\u{1}\n").output().unwrap());
    assert_eq!(run.record().get("environment/A\"B"), "c\"d\\e\u{1}\n");
    assert!(run.record().has("limits"));
}

#[test]
fn a_signal_is_named() {
    let scene = Scene::new();
    let run = scene.run(&["/bin/sh", "-c", "kill -9 \\$\\$"]);
    let record = run.record();
    assert_eq!(run.code, 137);
    assert_eq!(record.get("mainjob/status/raw"), "9");
    assert_eq!(record.get("mainjob/status/signalled_signal"), "9");
    assert_eq!(record.get("mainjob/status/singalled_name"), "Killed");
    assert_eq!(record.get("mainjob/status/corefile"), "false");
}

#[test]
fn a_missing_program_is_described() {
    let scene = Scene::new();
    let run = scene.run(&["-n", "tr", "nosuchcmd", "--opt"]);
    let record = run.record();
    assert_eq!(run.code, 127);
    assert_eq!(record.get("mainjob/start"), "1970-01-01T00:00:00.000+00:00");
    assert_eq!(record.get("mainjob/status/raw"), "-127");
    assert_eq!(
        record.get("mainjob/status/failure_error"),
        "2   No such file or directory"
    );
    assert_eq!(record.get("mainjob/executable/error"), "2");
    assert_eq!(record.get("mainjob/executable/file_name"), "nosuchcmd");
    assert_eq!(record.get("mainjob/argument_vector/0"), "--opt");
    assert!(run.messages.contains("nosuchcmd"), "{}", run.messages);
    assert!(!run.messages.contains("panicked"));
}

#[test]
fn a_missing_interpreter_is_an_ordinary_exit_code() {
    let scene = Scene::new();
    for text in ["#!/nowhere/sh\n", "no program at all"] {
        scene.write("script", text);
        fs::set_permissions(scene.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
        let run = scene.run(&["./script"]);
        assert_eq!((run.code, run.record().get("mainjob/status/raw")), (127, "32512"));
        assert!(run.record().get("files/stderr/data").starts_with("execv: "));
    }
}

#[test]
fn wrong_options_and_arguments_still_give_a_record() {
    let scene = Scene::new();
    for (arguments, code) in [
        (&["-n", "tr", "-B", "0", "/bin/true"][..], 127),
        (&["-n", "tr", "-w"], 127),
        (&["-n", "tr", "-t", "/bin/true"], 127),
        (&["-n", "tr", "-w", "/nowhere", "/bin/true"], 127),
        (&["-n", "tr", "-I", "nofile"], 127),
        (&["-n", "tr", "/bin/echo", "$NOSUCHVAR"], 1),
    ] {
        let run = scene.run(arguments);
        assert_eq!(run.code, code, "{arguments:?}");
        assert_eq!(run.record().get("transformation"), "tr");
        assert!(
            !run.record().has("mainjob") && run.record().has("limits"),
            "{arguments:?}"
        );
        assert_eq!(run.messages.lines().count(), 1, "{}", run.messages);
        let problem = run.record().get("files/stderr/data").trim_end().to_owned();
        assert!(
            !problem.is_empty() && run.messages.contains(&problem),
            "{}",
            run.messages
        );
    }
}

#[test]
fn usage_and_version_print_no_record() {
    let scene = Scene::new();
    let run = scene.run(&["-V"]);
    assert_eq!((run.code, run.text.as_str()), (0, "5.1.3\n"));
    let run = scene.run(&["--version"]);
    assert!(
        run.code == 0 && run.text.starts_with("pegasus-kickstart "),
        "{}",
        run.text
    );
    let run = scene.run(&["--help"]);
    assert!(run.code == 0 && run.text.starts_with("Usage:"), "{}", run.text);
    for arguments in [&[][..], &["-h"], &["-?"], &["-H"]] {
        let run = scene.run(arguments);
        assert_eq!((run.code, run.text.as_str()), (127, ""));
        assert!(run.messages.starts_with("Usage:"));
    }
}

#[test]
fn file_lists_keep_their_order_and_show_missing_files() {
    let scene = Scene::new();
    scene.write("in1", "12345");
    fs::create_dir(scene.path("dir")).unwrap();
    let run = scene.run(&[
        "-S",
        "lfn.a=in1",
        "-S",
        "in1",
        "-S",
        "missing=nofile",
        "-S",
        "@nolist",
        "-s",
        "o=out",
        "-s",
        "gone=nothing",
        "-s",
        "d=dir",
        "/bin/sh",
        "-c",
        "echo x > out",
    ]);
    let record = run.record();
    assert_eq!(run.code, 0);
    assert!(run.messages.contains("nolist"), "{}", run.messages);
    assert_eq!(record.get("files/lfn.a/size"), "5");
    assert_eq!(record.find("files/in1/lfn"), None);
    assert_eq!(
        (
            record.get("files/missing/error"),
            record.get("files/missing/file_name")
        ),
        ("2", "nofile")
    );
    assert_eq!(
        (record.get("files/gone/error"), record.find("files/gone/output")),
        ("2", None)
    );
    assert_eq!(
        (record.get("files/d/output"), record.find("files/d/sha256")),
        ("True", None)
    );
    let place = |key: &str| run.text.find(&format!("    {key}:\n")).unwrap();
    let order = [
        "lfn.a", "in1", "missing", "o", "gone", "d", "stdin", "stdout", "stderr", "metadata",
    ];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])));
}

#[test]
fn integrity_data_of_the_job_is_copied() {
    let scene = Scene::new();
    let script = "printf '    \"f.a\":\\n      size: 6\\n      output: True\\n    \"torn' >> \\$KICKSTART_INTEGRITY_DATA";
    let run = scene.run(&["/bin/sh", "-c", script]);
    assert_eq!((run.code, run.record().get("files/f.a/size")), (0, "6"));
    assert!(run.messages.contains("integrity"), "{}", run.messages);
}

#[test]
fn a_file_examined_twice_has_one_entry() {
    let scene = Scene::new();
    scene.write("f", "1");
    let script = "echo 22 >> f; printf '    g:\\n      size: 6\\n' >> \\$KICKSTART_INTEGRITY_DATA";
    let run = scene.run(&["-S", "f", "-S", "g=f", "-s", "f", "/bin/sh", "-c", script]);
    assert_eq!(
        (
            run.text.matches("\n    f:\n").count(),
            run.text.matches("\n    g:\n").count()
        ),
        (1, 1)
    );
    assert_eq!(
        (
            run.record().get("files/f/size"),
            run.record().get("files/f/output")
        ),
        ("4", "True")
    );
    assert_eq!(
        (
            run.record().get("files/g/size"),
            run.record().find("files/g/mode")
        ),
        ("6", None)
    );
}

#[test]
fn ids_of_batch_systems_are_recorded() {
    let scene = Scene::new();
    let mut command = scene.command(&["/bin/true"]);
    command
        .env("CONDOR_JOBID", "12.0")
        .env("SLURM_JOBID", "77")
        .env("PBS_JOBID", "9");
    let record = scene.finish(command.output().unwrap()).record();
    assert_eq!(record.get("jobids/condor"), "12.0");
    assert_eq!(
        (record.get("jobids/lrmtype"), record.get("jobids/lrm")),
        ("slurm", "77")
    );
}

#[test]
fn times_have_the_local_offset() {
    let scene = Scene::new();
    let mut command = scene.command(&["/bin/true"]);
    let record = scene
        .finish(command.env("TZ", "XXX-5:30").output().unwrap())
        .record();
    assert!(record.get("start").ends_with("+05:30"), "{}", record.get("start"));
}

#[test]
fn text_that_readers_search_for_is_escaped() {
    let scene = Scene::new();
    let run = scene.run(&["/bin/sh", "-c", "echo 'raw: 5'; echo 'integrity_error: x'"]);
    assert_eq!(run.text.matches("raw: ").count(), 1);
    assert!(!run.text.contains("integrity_error: "));
    assert_eq!(
        run.record().get("files/stdout/data"),
        "raw: 5\nintegrity_error: x\n"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn all_output_and_arguments_read_back(
        output in any::<Vec<u8>>(),
        argument in prop::collection::vec(1_u8.., 0..60),
    ) {
        let scene = Scene::new();
        let escaped: Vec<u8> = argument.iter().flat_map(|&byte| [b'\\', byte]).collect();
        let mut command = scene.command(&["-n", "tr", "-i", "-", "-f", "/bin/sh", "-c", "cat", "sh"]);
        command.arg(OsStr::from_bytes(&escaped)).env("VALUE", OsStr::from_bytes(&argument));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&output).unwrap();
        let run = scene.finish(child.wait_with_output().unwrap());
        let record = Record::parse(&run.text);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        prop_assert_eq!(record.find("files/stdout/data").unwrap_or_default(), text(&output));
        prop_assert_eq!(record.get("mainjob/argument_vector/3"), text(&argument));
        prop_assert_eq!(record.get("environment/VALUE"), text(&argument));
    }
}
