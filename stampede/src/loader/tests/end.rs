//! What the files of an attempt add at its end.

use super::*;

#[test]
fn missing_and_torn_output_is_reported() {
    let mut load = Load::new(&["a", "b", "c"]);
    load.start(0);
    load.attempt(1, "a", "1.0", 0);
    fs::write(load.dir.path().join("b.out.000"), "no record\n").unwrap();
    fs::write(load.dir.path().join("b.err.000"), "words").unwrap();
    load.attempt(11, "b", "2.0", 0);
    load.output("c", 0, 0, 22, "- invocation: [\n");
    load.attempt(21, "c", "3.0", 0);
    let dir = load.dir.path().display().to_string();
    let notices = load.notices.join("\n").replace(&dir, "DIR");
    let lines: Vec<&str> = notices.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "cannot read DIR/a.out.000: No such file or directory (os error 2)",
            "cannot read DIR/a.err.000: No such file or directory (os error 2)",
            "DIR/b.out.000: ends before the executor's record of the task; the rest is not stored"
        ],
        "{notices}"
    );
    assert!(
        lines[3].starts_with("DIR/c.out.000:1: damaged record"),
        "{notices}"
    );
    assert_eq!(lines.len(), 4);
    assert_eq!(
        load.rows("SELECT exitcode, stderr_text FROM job_instance ORDER BY job_submit_seq"),
        ["0|-", "0|words", "0|"]
    );
}

#[test]
fn output_is_stored_only_if_it_is_wanted() {
    for keep_output in [true, false] {
        let mut load = Load::planned(&["a"], keep_output, |_| {});
        load.output("a", 0, 0, 2, "printed\n");
        load.start(0);
        load.attempt(1, "a", "1.0", 0);
        let rows = load.rows("SELECT stdout_text IS NULL, stderr_text IS NULL FROM job_instance");
        assert_eq!(rows, [if keep_output { "0|0" } else { "1|1" }]);
    }
}

#[test]
fn ends_are_noted_on_request() {
    let mut load = Load::new(&["a", "b"]);
    load.output("a", 0, 256, 2, "");
    load.output("b", 0, 256, 12, "");
    load.start(0);
    load.attempt(1, "a", "1.0", 256);
    assert_eq!(load.loader().take_end(), None);
    load.loader().note_ends();
    load.attempt(11, "b", "2.0", 256);
    let end = JobEnd {
        status: 256,
        files: ["b.out.000".to_owned(), "b.err.000".to_owned()],
        constituents: vec![(1, 256)],
    };
    assert_eq!(load.loader().take_end(), Some(end));
    assert_eq!(load.loader().take_end(), None);
}

#[test]
fn the_task_of_a_job_is_found_by_names_and_by_the_plan() {
    let mut load = Load::planned(&["n_ID1", "ID2", "x_ID1", "plain", "none"], true, |store| {
        for (task, job) in [
            ("ID1", "n_ID1"),
            ("ID2", "ID2"),
            ("ID3", "plain"),
            ("ID4", "x_ID1"),
        ] {
            store
                .insert_task(task, &format!("tr{task}"), None, "compute")
                .unwrap();
            assert!(store.assign_task(task, job).unwrap());
        }
    });
    load.start(0);
    let jobs = ["n_ID1", "ID2", "x_ID1", "plain", "none"];
    for (job, number) in jobs.into_iter().zip(1..) {
        load.output(job, 0, 0, 2, "");
        load.attempt(1, job, &format!("{number}.0"), 0);
    }
    assert_eq!(
        load.rows(
            "SELECT transformation, abs_task_id FROM invocation JOIN job_instance USING (job_instance_id)
             ORDER BY job_submit_seq"
        ),
        ["trID1|ID1", "trID2|ID2", "trID4|ID4", "trID3|ID3", "prog|-"],
        "x_ID1 ends with the name of another job's task"
    );
}

#[test]
fn facts_of_records_are_rows() {
    let mut load = Load::new(&["a"]);
    let payload = "@@@MONITORING_PAYLOAD - START@@@{\"monitoring_event\": \"int.metric\", \"payload\": [{\"event\": \
        \"check\", \"file_type\": \"input\", \"count\": 3, \"failed\": 2, \"duration\": 0.5}]}@@@MONITORING_PAYLOAD - END@@@\n";
    let file = |name: &str, timing: &str| {
        format!(
            "    {name}:\n      lfn: \"{name}\"\n      size: 5\n      user: tester\n      \
             ctime: 2026-01-01T00:00:02+00:00\n      output: True\n      sha256: abc\n      checksum_timing: {timing}\n"
        )
    };
    let record = format!(
        "- invocation: True\n  transformation: \"tr\"\n  resource: \"here\"\n  hostname: node9\n  \
         hostaddr: 192.0.2.1\n  user: tester\n  mainjob:\n    start: 2026-01-01T00:00:02.000+00:00\n    duration: 0.250\n    \
         status:\n      raw: 0\n    executable:\n      file_name: /bin/work\n  cwd: /scratch\n  files:\n{}{}",
        file("f", "1"),
        file("g", "soon")
    );
    load.output("a", 0, 0, 2, &record);
    fs::write(load.dir.path().join("a.err.000"), payload).unwrap();
    load.start(0);
    load.attempt(1, "a", "1.0", 0);
    assert_eq!(load.notices, [""; 0]);
    let meta = load.rows("SELECT lfn, key, value FROM rc_meta JOIN rc_lfn USING (lfn_id) ORDER BY 1, 2");
    let of_f: Vec<&str> = meta.iter().filter_map(|row| row.strip_prefix("f|")).collect();
    assert_eq!(
        of_f,
        [
            "checksum.timing|1.0",
            "checksum.type|sha256",
            "checksum.value|abc",
            "ctime|2026-01-01T00:00:02+00:00",
            "size|5",
            "user|tester"
        ]
    );
    assert!(meta.contains(&"g|checksum.timing|soon".to_owned()), "{meta:?}");
    assert_eq!(
        load.rows("SELECT site, hostname, ip FROM host"),
        ["here|node9|192.0.2.1"]
    );
    assert_eq!(
        load.rows("SELECT type, file_type, count, duration FROM integrity ORDER BY 1"),
        ["check|input|3|0.5", "compute|output|1|1"]
    );
    assert_eq!(load.rows("SELECT name, count FROM tag"), ["int.error|2"]);
}

#[test]
fn registered_replicas_are_rows() {
    let mut load = Load::new(&["register_a", "register_b", "stage_c"]);
    fs::create_dir(load.dir.path().join("00")).unwrap();
    let list =
        "# comment\nf.1 file:///x/f.1 size=5 site=\"local\"\nf.2 file:///f.2 pool=p\nf.3\nf.4 file:///f.4\n";
    for job in ["register_a", "register_b", "stage_c"] {
        fs::write(load.dir.path().join(format!("00/{job}.in")), list).unwrap();
    }
    load.start(0);
    for (job, id, status) in [("register_b", "1.0", 256), ("stage_c", "2.0", 0)] {
        load.output(job, 0, status, 2, "");
        load.attempt(1, job, id, status);
    }
    const REPLICAS: &str = "SELECT lfn, pfn, site FROM rc_pfn JOIN rc_lfn USING (lfn_id) ORDER BY 1";
    assert_eq!(load.rows(REPLICAS), [""; 0], "it failed, or registers nothing");
    load.output("register_a", 0, 0, 12, "");
    load.attempt(11, "register_a", "3.0", 0);
    assert_eq!(
        load.rows(REPLICAS),
        [
            "f.1|file:///x/f.1|local",
            "f.2|file:///f.2|p",
            "f.4|file:///f.4|-"
        ]
    );
    assert_eq!(load.notices, [""; 0]);
    fs::remove_file(load.dir.path().join("00/register_b.in")).unwrap();
    load.output("register_b", 1, 0, 22, "");
    load.attempt(21, "register_b", "4.0", 0);
    assert_eq!(load.notices.len(), 1);
    assert!(
        load.notices[0].contains("00/register_b.in: No such file"),
        "{:?}",
        load.notices
    );
}
