//! Transfers and registrations that the task server runs itself.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

use super::{Run, assert_same, is_running, masked, moved, value, wait};

/// Returns a specification of transfers, each from a source to a destination.
fn copies(more: &str, pairs: &[(&str, &str)]) -> String {
    let pairs = pairs.iter().map(|(source, destination)| {
        format!(
            r#"{{"type":"transfer","lfn":"x",{more}"src_urls":[{{"site_label":"s","url":"{source}","priority":1}}],
                "dest_urls":[{{"site_label":"d","url":"{destination}"}}]}}"#
        )
    });
    format!("[{}]", pairs.collect::<Vec<_>>().join(","))
}

/// Returns a specification with one directory to create or one path to remove.
fn target(kind: &str, url: &str) -> String {
    format!(r#"[{{"type":"{kind}","target":{{"site_label":"s","url":"{url}","recursive":"true"}}}}]"#)
}

/// Does what [`masked`] does, and masks times in the log of a transfer and the size, which depends on them.
fn masked_log(text: &[u8]) -> Vec<String> {
    let mut captured = false;
    let mut mask = |line: String| {
        if let Some((date, rest)) = line.split_once("    INFO:  ").or(line.split_once("   ERROR:  "))
            && date.trim().starts_with("20")
        {
            return rest
                .split(" transferred in ")
                .next()
                .unwrap_or_default()
                .to_owned();
        }
        if let Some((date, rest)) = line.split_once("CRITICAL:  ")
            && date.trim().starts_with("20")
        {
            return rest.to_owned();
        }
        if line.trim().starts_with("checksum_timing:") {
            return "checksum_timing: *".to_owned();
        }
        captured |= line.trim().starts_with("temporary_name:");
        if captured && line.trim().starts_with("size:") {
            captured = false;
            return "size: *".to_owned();
        }
        line
    };
    masked(text).into_iter().map(&mut mask).collect()
}

/// Collects names, permissions and contents below a directory.
fn tree(directory: &Path, out: &mut Vec<(PathBuf, u32, Vec<u8>)>, root: &Path) {
    let mut entries: Vec<_> = directory
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let metadata = path.symlink_metadata().unwrap();
        let content = if metadata.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            let target = target.strip_prefix(root).unwrap_or(&target);
            target.as_os_str().as_bytes().to_vec()
        } else if metadata.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let name = path.strip_prefix(root).unwrap().to_owned();
        out.push((name, metadata.permissions().mode(), content));
        if metadata.is_dir() {
            tree(&path, out, root);
        }
    }
}

/// Returns whether the job ran in the process of kickstart.
fn is_built_in(run: &Run, task: usize) -> bool {
    let record = run.record(task);
    let mut ids = record
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pid: "));
    ids.next() == ids.next()
}

/// Memory in KiB that the task server may hold beside a job: 4 MiB for built-in jobs, and the code of a debug
/// build, of which the system maps more or less at a time.
const SERVER_MEMORY: u64 = 12 << 10;

/// The peak memory of a job that is not built in is about the same.
fn assert_similar_memory(served: &Run, executed: &Run, task: usize) {
    let memory = |run: &Run| value(&run.record(task), "maxrss").parse::<u64>().unwrap();
    let (here, there) = (memory(served), memory(executed));
    assert!(here < there + SERVER_MEMORY, "{here}");
}

#[test]
fn built_in_transfers_equal_those_of_the_program() {
    let many: Vec<(String, String)> = (0..40)
        .map(|n| ("data/large".to_owned(), format!("data/many/{n}")))
        .collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let specifications = [
        ("mkdir", target("mkdir", "data/made/deep")),
        (
            "copy",
            copies(r#""generate_checksum":true,"#, &[("data/in", "data/made/out")]),
        ),
        ("link", copies("", &[("data/in", "data/made/link")])),
        ("remove", target("remove", "data/old")),
        ("missing", copies("", &[("data/none", "data/made/none")])),
        ("piped", copies("", &[("data/in", "data/made/piped")])),
        ("inside", copies("", &[("in", "inside")])),
        ("many", copies("", &many)),
        ("other", copies("", &[("nosuch://host/a", "data/made/other")])),
    ];
    let tasks = [
        "KS TR -f mkdir",
        "KS TR -f copy",
        "KS TR -f link --symlink",
        "KS -f -n dir::remove TR -f remove",
        "KS TR -m 1 -f missing",
        "KS -i piped TR",
        "KS -w data TR -f ../inside",
        "KS -e data/log -B 10 TR -f many -n 4",
        "/usr/bin/env A=b KS -f TR -f nosuch",
        "KS TR -m 1 -f other",
        "KS -k 60 TR -f copy",
        "/usr/bin/env PEGASUS_TRANSFER_THREADS=none KS TR -f copy",
        "KS TR --help",
        "KS /bin/true",
    ];
    let by_process = 8..tasks.len();
    let run = |how: &str| {
        let run = Run::new(&tasks);
        fs::create_dir_all(run.path("data/old/er")).unwrap();
        fs::write(run.path("data/in"), "some input\n").unwrap();
        fs::write(run.path("data/large"), vec![b'x'; 70_000]).unwrap();
        fs::set_permissions(run.path("data/in"), fs::Permissions::from_mode(0o750)).unwrap();
        for (name, text) in &specifications {
            fs::write(run.path(name), text).unwrap();
        }
        let output = run.command(1, &[]).env("PMC_KICKSTART", how).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        run
    };
    let (served, executed) = (run("serve"), run("exec"));
    for (task, words) in tasks.iter().enumerate() {
        for kind in ["out", "err"] {
            let name = format!("t{task}.{kind}.000");
            let mut here = moved(masked_log(&served.read(&name)), &served, &executed);
            let mut there = masked_log(&executed.read(&name));
            if words.contains("data/log") {
                // This file contains times, so its size varies.
                let is_other = |line: &String| !line.trim().starts_with("size:");
                here.retain(is_other);
                there.retain(is_other);
            }
            assert_same(&here, &there, &format!("{name}: {words}"));
        }
    }
    let files = |run: &Run| {
        let mut files = Vec::new();
        tree(&run.path("data"), &mut files, run.directory.path());
        files.retain(|(name, ..)| name != Path::new("data/log"));
        files
    };
    assert_eq!(files(&served), files(&executed));
    assert_eq!(files(&served).len(), 49);
    for (task, words) in tasks.iter().enumerate() {
        assert!(!is_built_in(&executed, task), "{words}");
        assert_eq!(is_built_in(&served, task), !by_process.contains(&task), "{words}");
    }
    let failed = served.record(4);
    assert!(failed.contains("regular_exitcode: 1"), "{failed}");
    assert_similar_memory(&served, &executed, 13);
}

#[test]
fn transfers_end_at_time_limits_and_when_the_executor_is_killed() {
    let tasks = ["KS TR -f copy", "KS TR -f hang", "KS TR -f copy"];
    // A terminal from which nobody reads.
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&master).unwrap();
    let terminal = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let prepared = || {
        let run = Run::new(&tasks);
        fs::write(run.path("in"), "some input\n").unwrap();
        fs::write(run.path("copy"), copies("", &[("in", "out")])).unwrap();
        fs::write(run.path("large"), vec![b'x'; 1 << 20]).unwrap();
        fs::write(run.path("hang"), copies("", &[("large", &terminal)])).unwrap();
        run
    };
    let run = prepared();
    let output = run.run(1, &["--runtime-limit", "0.5"]);
    assert_eq!(output.status.code(), Some(1));
    let records: Vec<String> = (0..3).map(|task| run.record(task)).collect();
    let codes = records.iter().map(|record| value(record, "regular_exitcode"));
    assert_eq!(codes.collect::<Vec<_>>(), ["0", "1", "0"]);
    // The server is abandoned together with the job that hangs.
    let servers: Vec<&str> = records.iter().map(|record| value(record, "pid")).collect();
    assert_eq!(servers[0], servers[1]);
    assert_ne!(servers[1], servers[2]);

    // The end of the executor ends a transfer that hangs.
    let run = prepared();
    fs::copy(run.path("hang"), run.path("copy")).unwrap();
    let mut executor = run.command(2, &["--host-cpus", "2"]).spawn().unwrap();
    let children = || {
        let threads = fs::read_dir(format!("/proc/{}/task", executor.id())).unwrap();
        let lists = threads.flatten().map(|thread| thread.path().join("children"));
        let lists: Vec<String> = lists.flat_map(fs::read_to_string).collect();
        let ids = lists.iter().flat_map(|list| list.split_whitespace());
        ids.map(|id| Pid::from_raw(id.parse().unwrap()))
            .collect::<Vec<_>>()
    };
    let runs_a_job = |server: Pid| {
        let threads = fs::read_dir(format!("/proc/{server}/task"));
        threads.is_ok_and(|threads| threads.count() == 2)
    };
    assert!(wait(|| children()
        .into_iter()
        .filter(|&id| runs_a_job(id))
        .count()
        >= 2));
    let servers = children();
    executor.kill().unwrap();
    executor.wait().unwrap();
    for server in servers {
        assert!(wait(|| !is_running(server)), "{server}");
    }
}

/// Returns all entries of a catalog database.
fn entries(database: &Path) -> Vec<[Option<String>; 5]> {
    let sql = "SELECT lfn, pfn, site, \"key\", value FROM rc_lfn LEFT JOIN rc_pfn USING (lfn_id) \
               LEFT JOIN rc_meta USING (lfn_id) ORDER BY lfn_id, pfn_id, \"key\"";
    let database = rusqlite::Connection::open(database).unwrap();
    let mut statement = database.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| {
        Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?])
    });
    rows.unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn built_in_registrations_equal_those_of_the_program() {
    let tasks = [
        "KS -w work RC --prefix rc --conf ../db -v --insert ../some",
        "KS -f RC --prefix rc --conf db --meta meta,none --insert more",
        "KS RC --prefix rc --conf text --insert some",
        "KS RC --prefix rc --conf yaml --insert some",
        "KS RC --prefix rc --conf db -v --delete gone",
        "KS RC --prefix rc --conf text --insert wrong",
        "KS RC --prefix rc --conf none --insert some",
        "KS RC --prefix rc --conf db --insert none",
        "KS -e log RC --prefix other --conf db --insert some",
        "KS RC --prefix rc --conf text --lookup names",
        "KS -i some RC --prefix rc --conf text --insert -",
        "KS RC --prefix rc --conf db",
        "KS RC --help",
        "/usr/bin/env TMPDIR=work KS -f RC --prefix rc --conf db --insert some",
        "KS -k 60 RC --prefix rc --conf db --insert some",
        "KS RC --prefix rc --conf db --insert pipe",
        "KS /bin/true",
    ];
    let by_process = 9..tasks.len();
    let run = |how: &str| {
        let run = Run::new(&tasks);
        fs::create_dir(run.path("work")).unwrap();
        for (name, text) in [
            ("db", "rc=JDBCRC\nrc.db.url=jdbc:sqlite:x.db\n"),
            ("text", "rc=File\nrc.file=x.txt\n"),
            ("yaml", "rc=YAML\nrc.file=x.yml\n"),
            ("some", "a file:///a site=\"local\"\nb file:///b\n"),
            (
                "more",
                "c file:///c site=\"local\"\na file:///a2 site=\"local\"\n",
            ),
            (
                "meta",
                r#"[{"_id":"c","_type":"file","_attributes":{"size":"3"}}]"#,
            ),
            ("gone", "b\n"),
            ("names", "a\n"),
            ("wrong", "a \"file:///a\n"),
        ] {
            fs::write(run.path(name), text).unwrap();
        }
        nix::unistd::mkfifo(&run.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let writer = {
            let pipe = run.path("pipe");
            std::thread::spawn(move || fs::write(pipe, "d file:///d\n"))
        };
        let output = run.command(1, &[]).env("PMC_KICKSTART", how).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        writer.join().unwrap().unwrap();
        run
    };
    let (served, executed) = (run("serve"), run("exec"));
    for (task, words) in tasks.iter().enumerate() {
        for kind in ["out", "err"] {
            let name = format!("t{task}.{kind}.000");
            let here = moved(masked(&served.read(&name)), &served, &executed);
            assert_same(&here, &masked(&executed.read(&name)), &format!("{name}: {words}"));
        }
        assert!(!is_built_in(&executed, task), "{words}");
        assert_eq!(is_built_in(&served, task), !by_process.contains(&task), "{words}");
    }
    for name in ["x.txt", "x.yml", "log"] {
        assert_eq!(served.text(name), executed.text(name), "{name}");
    }
    for database in ["x.db", "work/x.db"] {
        let (here, there) = (served.path(database), executed.path(database));
        assert_eq!(entries(&here), entries(&there), "{database}");
    }
    let names: Vec<_> = entries(&served.path("x.db"))
        .into_iter()
        .map(|[name, ..]| name.unwrap())
        .collect();
    // Tasks start in the order of their names, so the deletion comes last.
    assert_eq!(names, ["c", "a", "a", "d"]);
    assert_eq!(entries(&served.path("work/x.db")).len(), 2);
    assert_similar_memory(&served, &executed, 16);
}

#[test]
fn registrations_end_at_time_limits() {
    let tasks = [
        "KS /bin/true",
        "KS RC --prefix rc --conf text --insert some",
        "KS /bin/true",
    ];
    let run = |how: &str| {
        let run = Run::new(&tasks);
        fs::write(run.path("text"), "rc=File\nrc.file=x.txt\n").unwrap();
        fs::write(run.path("some"), "a file:///a\n").unwrap();
        // Another process locks the catalog.
        let lock = fs::File::create(run.path("x.txt.lock")).unwrap();
        lock.lock().unwrap();
        let mut command = run.command(1, &["--runtime-limit", "0.5"]);
        let output = command.env("PMC_KICKSTART", how).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(!run.path("x.txt").exists());
        run
    };
    let (served, executed) = (run("serve"), run("exec"));
    let record = |run: &Run| masked(&run.read("t1.out.000"));
    assert_same(
        &moved(record(&served), &served, &executed),
        &record(&executed),
        "record",
    );
    assert!(served.record(1).contains("signal: 15"), "{}", served.record(1));
    // The server is abandoned together with the job that hangs.
    let servers: Vec<String> = (0..3)
        .map(|task| value(&served.record(task), "pid").to_owned())
        .collect();
    assert_eq!(servers[0], servers[1]);
    assert_ne!(servers[1], servers[2]);
}
