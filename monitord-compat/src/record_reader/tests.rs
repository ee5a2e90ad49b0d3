use proptest::prelude::*;

use super::*;

const SHORT: &str = "\
- invocation: True
  version: 3.0
  start: 2026-11-21T07:28:44.087+00:00
  transformation: \"work\"
  derivation: \"ID0000002\"
  resource: \"local\"
  hostaddr: 192.0.2.2
  hostname: n1.example.org
  user: root
  mainjob:
    start: 2026-11-21T07:28:44.093+00:00
    duration: 0.003
    usage:
      utime: 0.002
      stime: 0.001
      maxrss: 1628
    status:
      raw: 768
      regular_exitcode: 3
    executable:
      file_name: /bin/step.sh
      user: wrong
    argument_vector:
      - \"-\"
      - \"a\\n\\
        b: c\"
    procs:
  jobids:
  cwd: /scratch/a b
  usage:
    utime: 9.999
    maxrss: 99
  machine:
    uname_system: linux
    uname_release: 6.18
    uname_machine: x86_64
    ram_total: 24682416
  files:
    done0.txt:
      lfn: \"done0.txt\"
      size: 57
      ctime: 2026-11-21T07:28:44+00:00
      user: root
      output: True
      sha256: c797
      checksum_timing: 0.25
    in.txt:
      size: 1
    \"odd: \\\"name\\\"\":
      output: True
      size: 0
    stdin:
      file_name: /dev/null
    stdout:
      inode: 77
      size: 18
      data_truncated: false
      data: |
        one
          two: 2

        - three
        
    stderr:
      data_truncated: true
      data: \"a\\n\\
        \\  b\"
  limits:
    RLIMIT_CPU_soft: unlimited
";

fn read(text: &str) -> Record {
    let (record, error) = Record::read(text);
    assert_eq!(error, None);
    record
}

#[test]
fn all_fields_are_read() {
    let record = read(SHORT);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(record.transformation, some("work"));
    assert_eq!(record.derivation, some("ID0000002"));
    assert_eq!(record.resource, some("local"));
    assert_eq!(record.host_address, some("192.0.2.2"));
    assert_eq!(record.host_name, some("n1.example.org"));
    assert_eq!(record.user, some("root"));
    assert_eq!(record.cwd, some("/scratch/a b"));
    assert_eq!(record.uname, [some("linux"), some("6.18"), some("x86_64")]);
    assert_eq!(record.ram_total, Some(24_682_416));
    assert_eq!(
        record.main,
        MainJob {
            start: Some(1_795_246_124.093),
            duration: Some(0.003),
            user_time: Some(0.002),
            system_time: Some(0.001),
            max_rss: Some(1628),
            raw_status: Some(768),
            start_error: None,
            signal_name: None,
            executable: some("/bin/step.sh"),
            arguments: vec!["-".to_owned(), "a\nb: c".to_owned()],
        }
    );
    assert_eq!(
        record.outputs,
        [
            OutputFile {
                lfn: "done0.txt".to_owned(),
                user: some("root"),
                size: some("57"),
                ctime: some("2026-11-21T07:28:44+00:00"),
                sha256: some("c797"),
                checksum_timing: some("0.25"),
            },
            OutputFile {
                lfn: "odd: \"name\"".to_owned(),
                size: some("0"),
                ..OutputFile::default()
            },
        ]
    );
    assert_eq!(record.stdout, some("one\n  two: 2\n\n- three\n"));
    assert_eq!(record.stderr, some("a\n  b"));
    let [stdout, stderr] = &record.streams;
    assert_eq!((stdout.size, stdout.inode), (Some(18), Some(77)));
    assert!(!stdout.is_truncated && stderr.is_truncated);
}

#[test]
fn the_yaml_parser_gives_the_same() {
    let mut parsed = Record::default();
    yaml_reader::walk(SHORT, |path, value| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        parsed.set(&path, Cow::Borrowed(value.unwrap_or_default()));
    })
    .unwrap();
    parsed.end_entry();
    assert_eq!(parsed, read(SHORT));
}

#[test]
fn flow_style_is_read_too() {
    let text = "- {transformation: x, mainjob: {status: {raw: 0}}, files: {? a : {output: True}}}\n";
    let record = read(text);
    assert_eq!(record.transformation.as_deref(), Some("x"));
    assert_eq!(record.outputs[0].lfn, "a");
}

#[test]
fn signals_and_start_errors_are_read() {
    let record = read("  mainjob:\n    status:\n      raw: 9\n      singalled_name: \"Killed\"\n");
    assert_eq!(record.main.signal_name.as_deref(), Some("Killed"));
    let record = read("  mainjob:\n    status:\n      raw: -127\n      failure_error: 2   No such file\n");
    assert_eq!(record.main.raw_status, Some(-127));
    assert_eq!(record.main.start_error.as_deref(), Some("2   No such file"));
}

#[test]
fn damage_keeps_the_fields_before_it() {
    let cut = SHORT.find("checksum_timing").unwrap();
    let (record, error) = Record::read(&SHORT[..cut]);
    assert_eq!(error, None, "the status is there");
    assert_eq!(record.outputs[0].sha256.as_deref(), Some("c797"));

    let (record, error) = Record::read(&SHORT[..SHORT.find("    status").unwrap()]);
    assert_eq!(error, Some(RecordError::Incomplete));
    assert_eq!(record.main.max_rss, Some(1628));

    let (record, error) = Record::read("  transformation: \"x\"\n  resource: \"torn\n");
    assert!(
        matches!(error, Some(RecordError::NotYaml { line: 2.., .. })),
        "{error:?}"
    );
    assert_eq!(record.transformation.as_deref(), Some("x"));
}

#[test]
fn literal_blocks_keep_their_line_breaks() {
    let stdout = |data: &str| {
        let text = format!(
            "  mainjob:\n    status:\n      raw: 0\n  files:\n    stdout:\n      data: {data}\n    x:\n"
        );
        read(&text).stdout.unwrap()
    };
    assert_eq!(stdout("|-\n        a"), "a");
    assert_eq!(stdout("|2+\n          a\n"), "  a\n\n");
    assert_eq!(stdout("|\n          a\n        b"), "a\nb\n");
    assert_eq!(stdout("|\n"), "");
    assert_eq!(stdout("''"), "");
}

proptest! {
    /// Any output and any file name reads back as kickstart wrote it.
    #[test]
    fn texts_read_back(
        text in "([ \t\n\r#:\"'\\\\|>&*!%@`{}\\[\\],?a-c\u{85}\u{2028}\u{feff}\u{0}-\u{1f}-]|\\PC){0,60}",
        key in "([ #:\"'\\\\|>&*!?a-c-]|\\PC){1,20}",
    ) {
        use crate::yaml::{Emitter, KeyStyle};
        let mut emitter = Emitter::new(Vec::new());
        let written: std::io::Result<()> = emitter.nested(|out| {
            out.scalar("cwd", text.as_bytes())?;
            out.open(KeyStyle::Auto, b"mainjob")?;
            out.nested(|out| {
                out.open(KeyStyle::Auto, b"status")?;
                out.nested(|out| out.verbatim("raw", 0))
            })?;
            out.open(KeyStyle::Auto, b"files")?;
            out.nested(|out| {
                out.open(KeyStyle::Auto, key.as_bytes())?;
                out.nested(|out| out.verbatim("output", "True"))?;
                out.open(KeyStyle::Auto, b"stdout")?;
                out.nested(|out| out.text("data", &text))
            })?;
            Ok(())
        });
        written.unwrap();
        let yaml = String::from_utf8(emitter.into_inner()).unwrap();
        let record = read(&yaml);
        prop_assert_eq!(record.cwd.as_deref(), Some(&*text), "{}", yaml);
        prop_assert_eq!(record.stdout.as_deref(), Some(&*text), "{}", yaml);
        if key != "stdout" {
            prop_assert_eq!(&record.outputs[0].lfn, &key, "{}", yaml);
        }
    }

    #[test]
    fn torn_records_never_panic(cut in 0..SHORT.len(), tail in "([a-c:\"'\n>|&*\\-\\[\\]{}? \\\\]|\\PC){0,40}") {
        let _ = Record::read(&format!("{}{tail}", &SHORT[..cut]));
    }
}
