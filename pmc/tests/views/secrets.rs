//! No output of a failed run shows a secret, and no file that others can read holds one.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::{Finished, Place};

/// Part of all secrets of these tests.
const MARKER: &str = "opensesame";

/// Starts a server that answers each request with 404. Returns its port.
fn empty_server() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            // The program notices a connection that ends early.
            let _ = stream.read(&mut request);
            let _ =
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    port
}

/// A workflow whose jobs fail: one because of an input that cannot be transferred, one because of its
/// program. The URL of the input, environments of jobs, and a property have secrets.
fn failing() -> Place {
    let place = Place::new();
    place.script(
        "bin/fail",
        "test -n \"$DB_PASSWORD\" -a -n \"$API_KEY\" -a \"$PLAIN\" = 1 && exit 3",
    );
    place.write(
        "transformations.yml",
        &format!(
            "pegasus: \"5.0.4\"\ntransformations:\n- name: fail\n  profiles: {{env: {{API_KEY: {MARKER}-catalog}}}}\n  sites: \
             [{{name: local, type: installed, pfn: \"${{PMC_WORKFLOW_DIR}}/bin/fail\"}}]\n"
        ),
    );
    place.write(
        "replicas.yml",
        &format!(
            "pegasus: \"5.0.4\"\nreplicas:\n- {{lfn: in.txt, pfns: [{{site: web, pfn: \
             \"http://me:{MARKER}-url@127.0.0.1:{}/in.txt?sig={MARKER}-query\"}}]}}\n",
            empty_server()
        ),
    );
    place.write(
        "workflow.yml",
        &format!(
            "pegasus: \"5.0.4\"\nname: secret\njobs:\n- {{type: job, id: A, name: fail, profiles: {{env: {{DB_PASSWORD: \
             \"{MARKER} in a job\", PLAIN: '1'}}}}, uses: [{{lfn: a.txt, type: output, registerReplica: false}}]}}\n\
             - {{type: job, id: B, name: fail, uses: [{{lfn: in.txt, type: input}}]}}\n"
        ),
    );
    place
}

#[track_caller]
fn assert_silent(finished: &Finished, what: &str) {
    for text in [finished.stdout(), finished.stderr()] {
        assert!(!text.contains(MARKER), "{what} shows a secret:\n{text}");
    }
}

/// Returns all regular files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            all.extend(files(&entry.path()));
        } else if kind.is_file() {
            all.push(entry.path());
        }
    }
    all
}

#[test]
fn a_failed_run_shows_no_secrets() {
    let place = failing();
    let property = format!("-Dpegasus.catalog.workflow.db.password={MARKER}-property");
    let mut run = place.pmc(["run", "-vv", "--stampede", &property, "workflow.yml"]);
    run.env("LAB_TOKEN", format!("{MARKER}-variable"));
    let run = Finished::from(run.output().expect("pmc runs"));
    run.code(1);
    assert_silent(&run, "run");
    let views: [&[&str]; 9] = [
        &["status"],
        &["status", "--json"],
        &["analyzer"],
        &["analyzer", "--json"],
        &["statistics"],
        &["statistics", "--json"],
        &["report", "-o", "report.html", "--trace", "trace.json"],
        &["explain", "fail_A"],
        &["resume"],
    ];
    for words in views {
        let mut command = place.pmc(words);
        command.env("LAB_TOKEN", format!("{MARKER}-variable"));
        assert_silent(
            &Finished::from(command.output().expect("pmc runs")),
            &words.join(" "),
        );
    }
    // The program has got its secrets: otherwise its exit code would be 1.
    let found = place.run(["analyzer"]).stdout();
    assert!(found.contains("exit status 3"), "{found}");
    let mut private = 0;
    for path in files(&place.path().join("pmc-runs")) {
        let bytes = std::fs::read(&path).expect("it can be read");
        if bytes.windows(MARKER.len()).any(|part| part == MARKER.as_bytes()) {
            let mode = path.metadata().expect("a file").permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", path.display());
            private += 1;
        }
    }
    assert!(private >= 5, "only {private} files with secrets");
    for name in ["report.html", "trace.json"] {
        assert!(!place.read(name).contains(MARKER), "{name}");
    }
}
