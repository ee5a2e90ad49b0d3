//! Transfers over HTTP and WebDAV with a scripted server.

use std::fs;
use std::time::{Duration, Instant};

use super::common::{Case, Run, content, list, mkdir, remove, send_signal, transfer, with_option};
use super::server::{Reply, Server, body, file, range, status};
use nix::sys::signal::Signal;

/// Options for short waits between attempts.
const QUICK: [&str; 2] = ["--retry-wait", "0.001"];

fn download(case: &Case, urls: &[(String, &str)]) -> Run {
    let entries: Vec<_> = urls.iter().map(|(url, to)| transfer(url, to)).collect();
    case.run(&list(&entries), &QUICK)
}

fn run_with(case: &Case, env: &[(&str, &str)], spec: &[String]) -> Run {
    let mut command = case.command();
    command.args(QUICK).envs(env.iter().copied());
    case.start(command, &list(spec))
}

#[test]
fn downloads_report_their_checksum() {
    let case = Case::new();
    let server = Server::start(|_, _| body("hello"));
    let entry = with_option(
        &transfer(&server.url("/a b?c"), "dst/x"),
        "generate_checksum",
        true,
    );
    let run = case.run(&list(&[entry]), &[]);
    run.expect_ok();
    assert_eq!(case.read("dst/x"), "hello");
    assert_eq!(case.names("dst"), ["x"]);
    assert_eq!(case.mode("dst/x") & 0o111, 0);
    assert_eq!(server.lines(), ["GET /a%20b?c"]);
    assert!(
        run.stderr
            .contains("sha256: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr.contains("Stats: Total 1 transfers, 5.0 B transferred"),
        "{}",
        run.stderr
    );
}

#[test]
fn permanent_failures_are_not_retried() {
    for code in [400, 401, 403, 404, 410, 501] {
        let case = Case::new();
        let server = Server::start(move |_, _| status(code));
        let run = download(&case, &[(server.url("/x"), "dst/x")]);
        run.expect_failed("Failed after 1 attempt: http://");
        assert!(
            run.stderr.contains(&format!("the server answered {code} ")),
            "{}",
            run.stderr
        );
        assert_eq!(server.lines().len(), 1, "{code}");
        assert_eq!(case.names("dst"), [""; 0], "{code}");
    }
}

#[test]
fn transient_failures_are_retried() {
    for code in [429, 500, 503] {
        let case = Case::new();
        let server = Server::start(move |_, number| if number < 2 { status(code) } else { body("late") });
        download(&case, &[(server.url("/x"), "x")]).expect_ok();
        assert_eq!(case.read("x"), "late");
        assert_eq!(server.lines().len(), 3);
    }
    let case = Case::new();
    let server = Server::start(|_, _| status(503).with("Content-Type", "text/plain"));
    download(&case, &[(server.url("/x"), "x")])
        .expect_failed("Failed after 3 attempts")
        .expect_failed("503 Service Unavailable");
    assert_eq!(server.lines().len(), 3);
}

#[test]
fn interrupted_downloads_resume() {
    let case = Case::new();
    let server = Server::start(|request, number| {
        let cut = (number < 3).then_some(200_000);
        file(request, &content(700_000), "\"v1\"", cut)
    });
    let entry = with_option(&transfer(&server.url("/x"), "dst/x"), "generate_checksum", true);
    let run = case.run(&list(&[entry]), &QUICK);
    run.expect_ok();
    assert!(fs::read(case.path("dst/x")).expect("there") == content(700_000));
    // One attempt, four connections, no byte received twice.
    assert_eq!(run.stderr.matches("Starting transfers - attempt").count(), 1);
    let ranges: Vec<_> = server
        .requests()
        .iter()
        .map(|request| request.header("range").map(str::to_owned))
        .collect();
    let expected = [
        None,
        Some("bytes=200000-"),
        Some("bytes=400000-"),
        Some("bytes=600000-"),
    ];
    assert_eq!(ranges, expected.map(|range| range.map(str::to_owned)));
    let again = Case::new();
    again.write("x", content(700_000));
    let spec = with_option(&transfer("x", "y"), "generate_checksum", true);
    let sum = |run: &Run| {
        run.stderr
            .lines()
            .find(|line| line.contains("sha256:"))
            .map(str::to_owned)
    };
    assert_eq!(
        sum(&run),
        sum(&again.run(&list(&[spec]), &[])),
        "hashed across connections"
    );
}

#[test]
fn the_next_attempt_resumes_a_download() {
    let case = Case::new();
    let server = Server::start(|request, number| match number {
        0 => file(request, &content(700_000), "\"v1\"", Some(300_000)),
        1 => status(503),
        _ => file(request, &content(700_000), "\"v1\"", None),
    });
    download(&case, &[(server.url("/x"), "dst/x")]).expect_ok();
    assert!(fs::read(case.path("dst/x")).expect("there") == content(700_000));
    let last = server.requests().pop().expect("three");
    assert_eq!(last.header("range"), Some("bytes=300000-"));
    assert_eq!(case.names("dst"), ["x"]);
}

#[test]
fn changed_files_are_downloaded_again() {
    let case = Case::new();
    let server = Server::start(|request, number| {
        if number == 0 {
            file(request, &content(700_000), "\"v1\"", Some(300_000))
        } else {
            file(request, b"new", "\"v2\"", None)
        }
    });
    download(&case, &[(server.url("/x"), "x")]).expect_ok();
    assert_eq!(case.read("x"), "new");
}

/// A server that ignores `If-Range` sends a range of the new file.
#[test]
fn ranges_of_another_version_are_discarded() {
    for (header, versions) in [
        ("ETag", ["\"v1\"", "\"v2\""]),
        (
            "Last-Modified",
            ["Sat, 21 Nov 2026 10:00:00 GMT", "Sat, 21 Nov 2026 10:00:01 GMT"],
        ),
    ] {
        let case = Case::new();
        let new: Vec<u8> = content(700_000).iter().map(|byte| !byte).collect();
        let expected = new.clone();
        let server = Server::start(move |request, number| match number {
            0 => range(request, true, &content(700_000), Some(300_000)).with(header, versions[0]),
            _ => range(request, true, &new, None).with(header, versions[1]),
        });
        download(&case, &[(server.url("/x"), "x")]).expect_ok();
        assert!(fs::read(case.path("x")).expect("there") == expected, "{header}");
        let ranges: Vec<_> = server
            .requests()
            .iter()
            .map(|request| request.header("range").map(str::to_owned))
            .collect();
        assert_eq!(ranges, [None, Some("bytes=300000-".to_owned()), None]);
    }
}

#[test]
fn downloads_without_a_version_restart() {
    let case = Case::new();
    let server = Server::start(|request, number| {
        assert_eq!(request.header("range"), None);
        let mut reply = body(content(700_000));
        reply.cut = (number == 0).then_some(300_000);
        reply
    });
    download(&case, &[(server.url("/x"), "x")]).expect_ok();
    assert!(fs::read(case.path("x")).expect("there") == content(700_000));
    assert_eq!(server.lines().len(), 2);
}

#[test]
fn truncated_chunked_bodies_are_failures() {
    let case = Case::new();
    let server = Server::start(|_, _| {
        let mut reply = body("5\r\nhello\r\n").with("Transfer-Encoding", "chunked");
        reply.cut = Some(100);
        reply
    });
    download(&case, &[(server.url("/x"), "dst/x")]).expect_failed("the connection broke");
    assert_eq!(case.names("dst"), [""; 0]);
}

#[test]
fn redirections_do_not_forward_credentials() {
    let case = Case::new();
    let other = Server::start(|request, _| {
        assert_eq!(request.header("authorization"), None);
        assert_eq!(request.header("x-token"), None);
        body("found")
    });
    let target = other.url("/y z");
    let origin = Server::start(move |request, number| {
        assert_eq!(request.header("authorization"), Some("Basic bWU6c2VjcmV0"));
        assert_eq!(request.header("x-token"), Some("t"));
        match number {
            0 => status(302).with("Location", "../other"),
            1 => status(307).with("Location", &target),
            _ => status(500),
        }
    });
    let file = case.write_secret(
        "credentials",
        &format!(
            "[{}]\nheader.X-Token = t\nusername = me\npassword = secret\n",
            origin.host()
        ),
    );
    let env = [("PEGASUS_CREDENTIALS", file.as_str())];
    let run = run_with(&case, &env, &[transfer(&origin.url("/a/x"), "x")]);
    run.expect_ok();
    assert_eq!(case.read("x"), "found");
    assert_eq!(origin.lines(), ["GET /a/x", "GET /other"]);
    assert_eq!(other.lines(), ["GET /y%20z"]);
    assert!(!run.stderr.contains("secret"), "{}", run.stderr);
}

#[test]
fn endless_or_wrong_redirections_fail() {
    for (location, message) in [
        ("/x", "redirects more than 10 times"),
        ("file:///etc/passwd", "redirects to 'file:///etc/passwd'"),
    ] {
        let case = Case::new();
        let server = Server::start(move |_, _| status(301).with("Location", location));
        download(&case, &[(server.url("/x"), "x")])
            .expect_failed(message)
            .expect_failed("Failed after 1 attempt");
    }
}

#[test]
fn passwords_in_urls_are_not_logged() {
    let case = Case::new();
    let server = Server::start(|request, _| {
        assert_eq!(request.header("authorization"), Some("Basic bWU6c2VjcmV0"));
        body("1")
    });
    let url = server.url("/x").replace("http://", "http://me:secret@");
    let run = download(&case, &[(url, "x")]);
    run.expect_ok();
    assert!(!run.stderr.contains("secret"), "{}", run.stderr);
}

#[test]
fn unusable_credentials_are_refused() {
    let case = Case::new();
    case.write("open", "[h]\n").set_mode("open", 0o640);
    let open = case.path("open");
    let entry = [transfer("http://127.0.0.1:1/x", "x")];
    let run_with_file = |file: &str| run_with(&case, &[("PEGASUS_CREDENTIALS", file)], &entry);
    let run = run_with_file(open.to_str().expect("UTF-8"));
    run.expect_failed("are too liberal; run: chmod 600 ");
    assert!(!run.stderr.contains("Starting transfers"));
    run_with_file(&case.write_secret("credentials", "x = 1\n"))
        .expect_failed("credentials, line 1: an option stands before the first [section]");
}

#[test]
fn the_proxy_is_used_for_the_first_attempt_only() {
    let case = Case::new();
    let origin = Server::start(|_, _| body("direct"));
    let proxy = Server::start(|_, _| status(403));
    let host = proxy.host();
    for name in ["http_proxy", "OSG_SQUID_LOCATION"] {
        let run = run_with(
            &case,
            &[(name, &host), ("no_proxy", "")],
            &[transfer(&origin.url("/x"), "x")],
        );
        run.expect_ok();
        assert!(
            run.stderr.contains("403 Forbidden (through a proxy)"),
            "{}",
            run.stderr
        );
    }
    let target = format!("GET {}", origin.url("/x"));
    assert_eq!(proxy.lines(), [target.clone(), target]);
    assert_eq!(origin.lines(), ["GET /x", "GET /x"]);
    let env = [("http_proxy", host.as_str()), ("no_proxy", "127.0.0.1")];
    run_with(&case, &env, &[transfer(&origin.url("/x"), "x")]).expect_ok();
    assert_eq!((proxy.lines().len(), origin.lines().len()), (2, 3));
}

#[test]
fn stalled_downloads_time_out() {
    let case = Case::new();
    let server = Server::start(|_, _| {
        let mut reply = body(content(700_000));
        reply.stall = Some(1000);
        reply
    });
    let start = Instant::now();
    let spec = list(&[transfer(&server.url("/x"), "dst/x")]);
    let run = case.run(&spec, &["--timeout", "0.2", "-m", "1"]);
    run.expect_failed("Failed after 1 attempt");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(case.names("dst"), [""; 0]);
}

#[test]
fn unreachable_hosts_do_not_block_others() {
    let case = Case::new();
    let server = Server::start(|_, _| body("1"));
    // A port without a listener.
    let dead = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("port")
        .local_addr()
        .expect("address");
    let mut urls: Vec<_> = (0..30).map(|i| (format!("http://{dead}/{i}"), "dead")).collect();
    urls.push((server.url("/alive"), "alive"));
    let entries: Vec<_> = urls
        .iter()
        .enumerate()
        .map(|(i, (url, to))| transfer(url, &format!("{to}{i}")))
        .collect();
    let mut args = QUICK.to_vec();
    args.extend(["-n", "2"]);
    let run = case.run(&list(&entries), &args);
    run.expect_failed("Some transfers failed!");
    assert_eq!(case.names("").len(), 1, "{:?}", case.names(""));
    let lines = run.lines("ERROR");
    let (summary, attempts): (Vec<&str>, Vec<&str>) =
        lines.iter().partition(|line| line.starts_with("Failed after "));
    assert_eq!(summary.len(), 30, "one line for each");
    assert!(
        summary
            .iter()
            .any(|line| line.contains("failed 5 times in a row")),
        "{}",
        run.stderr
    );
    assert!(attempts.len() <= 12, "{}", run.stderr);
}

#[test]
fn the_next_source_is_used_after_a_failure() {
    let case = Case::new();
    let server = Server::start(|request, _| match request.line.as_str() {
        "GET /good" => body("1"),
        _ => status(404),
    });
    let spec = format!(
        r#"[{{"type":"transfer","lfn":"x","src_urls":[
            {{"site_label":"a","url":"{}","priority":9}},{{"site_label":"b","url":"{}","priority":1}}],
            "dest_urls":[{{"site_label":"c","url":"x"}}]}}]"#,
        server.url("/bad"),
        server.url("/good")
    );
    case.run(&spec, &[]).expect_ok();
    assert_eq!(server.lines(), ["GET /bad", "GET /good"]);
}

/// A WebDAV server with the collections `/` and `/dav/`. It refuses uploads into missing collections.
fn dav() -> Server {
    let collections = std::sync::Mutex::new(vec!["/".to_owned(), "/dav/".to_owned()]);
    Server::start(move |request, _| {
        let mut collections = collections.lock().expect("no panic");
        let (method, path) = request.line.split_once(' ').expect("two words");
        let parent = |path: &str| {
            let path = path.trim_end_matches('/');
            path[..=path.rfind('/').unwrap_or(0)].to_owned()
        };
        match method {
            "MKCOL" if collections.contains(&path.to_owned()) => status(405),
            "MKCOL" | "PUT" if !collections.contains(&parent(path)) => status(409),
            "MKCOL" => {
                collections.push(path.to_owned());
                status(201)
            }
            "PUT" => status(201),
            "DELETE" if path.contains("missing") => status(404),
            "DELETE" => status(204),
            "PROPFIND" if path.contains("collection") => {
                let mut reply = body("<D:resourcetype><D:collection/></D:resourcetype>");
                reply.status = 207;
                reply
            }
            "PROPFIND" => status(405),
            _ => body("remote"),
        }
    })
}

#[test]
fn webdav_makes_each_collection_once() {
    let case = Case::new();
    case.write("a", "hello");
    let server = dav();
    let url = |path: &str| server.url(path).replace("http:", "webdav:");
    let spec = list(&[
        transfer("a", &url("/dav/x/y/1")),
        transfer("a", &url("/dav/x/y/2")),
        mkdir(&url("/dav/new")),
        transfer(&url("/dav/far"), "near"),
        remove(&url("/dav/old"), "false"),
        remove(&url("/dav/missing"), "false"),
        remove(&url("/dav/deep"), "true"),
    ]);
    case.run(&spec, &["-n", "1"]).expect_ok();
    assert_eq!(case.read("near"), "remote");
    assert_eq!(
        server.lines(),
        [
            "MKCOL /dav/new/",
            "MKCOL /dav/x/y/",
            "MKCOL /dav/x/",
            "MKCOL /dav/x/y/",
            "PUT /dav/x/y/1",
            "PUT /dav/x/y/2",
            "GET /dav/far",
            "PROPFIND /dav/old",
            "DELETE /dav/old",
            "PROPFIND /dav/missing",
            "DELETE /dav/missing",
            "DELETE /dav/deep",
        ]
    );
    let put = server
        .requests()
        .into_iter()
        .find(|r| r.line.starts_with("PUT"))
        .expect("one");
    assert_eq!(
        (put.body.as_slice(), put.header("content-length")),
        (&b"hello"[..], Some("5"))
    );
    let spec = list(&[remove(&url("/dav/collection"), "false")]);
    case.run(&spec, &[])
        .expect_failed("is a directory; the removal is not recursive");
    let spec = list(&[remove(&url("/"), "true")]);
    case.run(&spec, &[]).expect_failed("refusing to remove /");
}

#[test]
fn transfers_between_servers_use_a_temporary_file() {
    let case = Case::new();
    let source = Server::start(|_, _| body("hello"));
    let server = dav();
    case.write("m.meta", r#"[{"_id":"x","_attributes":{"checksum.value":"00"}}]"#);
    fs::create_dir(case.path("tmp")).expect("mkdir");
    let to = server.url("/dav/x").replace("http:", "webdav:");
    let entry =
        transfer(&source.url("/x"), &to).replace("\"site_label\": \"local\"", "\"site_label\": \"far\"");
    let temporary = case.path("tmp");
    let env = [("TMPDIR", temporary.to_str().expect("UTF-8"))];
    let run = run_with(&case, &env, std::slice::from_ref(&entry));
    run.expect_ok();
    assert_eq!(server.lines(), ["MKCOL /dav/", "PUT /dav/x"]);
    for line in [
        "Between sites far->local : 1 transfers",
        "Between sites local->far : 1 transfers",
    ] {
        assert!(run.stderr.contains(line), "{}", run.stderr);
    }
    assert_eq!(case.names("tmp"), [""; 0]);
    // The copy is read back, and its checksum is wrong.
    let entry = with_option(&entry, "verify_checksum_remote", true);
    let run = run_with(&case, &env, &[entry]);
    run.expect_failed("but 00 was expected");
    assert_eq!(case.names("tmp"), [""; 0]);
    // A link to the temporary file would dangle, so the destination is a copy.
    let entry = transfer(&source.url("/x"), "symlink://@DIR@/l");
    case.run(&list(&[entry]), &["-s"]).expect_ok();
    assert_eq!(case.read("l"), "hello");
    assert!(fs::symlink_metadata(case.path("l")).expect("there").is_file());
}

#[test]
fn killed_downloads_leave_no_partial_files() {
    let case = Case::new();
    // Sends the file in about 0.1 s.
    let server = Server::start(|request, _| {
        std::thread::sleep(Duration::from_millis(5));
        file(request, &content(700_000), "\"v1\"", Some(65_000))
    });
    let spec = list(&[
        transfer(&server.url("/x"), "dst/new"),
        transfer(&server.url("/y"), "dst/old"),
    ]);
    case.write("in", spec);
    let mut killed_early = 0;
    for round in 0..16u64 {
        let _ = fs::remove_dir_all(case.path("dst"));
        case.write("dst/old", "old");
        let mut child = case.command().args(["-f", "in"]).spawn().expect("start");
        std::thread::sleep(Duration::from_millis(2 + round * 8));
        child.kill().expect("kill");
        child.wait().expect("wait");
        match fs::read(case.path("dst/new")) {
            Ok(bytes) => assert!(bytes == content(700_000), "round {round}"),
            Err(_) => killed_early += 1,
        }
        let kept = fs::read(case.path("dst/old")).expect("never missing");
        assert!(kept == b"old" || kept == content(700_000), "round {round}");
    }
    assert!(killed_early > 0, "the kills came too late to test anything");
}

#[test]
fn terminated_downloads_end_at_once_and_clean_up() {
    let case = Case::new();
    let server = Server::start(|_, _| Reply {
        stall: Some(1000),
        ..body(content(700_000))
    });
    case.write("in", list(&[transfer(&server.url("/x"), "dst/x")]));
    let child = case.command().args(["-f", "in"]).spawn().expect("start");
    while server.lines().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let start = Instant::now();
    send_signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().expect("wait");
    assert!(start.elapsed() < Duration::from_secs(5));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("interrupted"), "{stderr}");
    assert_eq!(case.names("dst"), [""; 0]);
}
