//! Transfers to and from object stores with a scripted server.

use std::fs;
use std::time::{Duration, Instant};

use super::common::{Case, Run, content, list, mkdir, remove, send_signal, transfer, with_option};
use super::odd_servers::{LATER_ATTEMPTS, LYING_RANGES, SHORTENED, shortened};
use super::server::{Reply, Request, Server, body, range, status};
use nix::sys::signal::Signal;

/// Returns the environment for a store at `host`.
fn environment(case: &Case, host: &str) -> Vec<(&'static str, String)> {
    let text = format!(
        "[store]\nendpoint = http://{host}/\n[me@store]\naccess_key = ak\nsecret_key = sk\nsession_token = st\n"
    );
    vec![
        (
            "PEGASUS_CREDENTIALS_local",
            case.write_secret("credentials", &text),
        ),
        ("STORAGE_EMULATOR_HOST", host.to_owned()),
        ("PEGASUS_TRANSFER_S3_PART_MB", "1".to_owned()),
    ]
}

fn run(case: &Case, environment: &[(&str, String)], entries: &[String]) -> Run {
    let mut command = case.command();
    command
        .args(["--retry-wait", "0.001"])
        .envs(environment.iter().map(|(name, value)| (name, value)));
    case.start(command, &list(entries))
}

/// Serves an object with `Range` and `If-Match`.
fn object(request: &Request, bytes: &[u8], tag: &str, cut: Option<usize>) -> Reply {
    if request.header("if-match").is_some_and(|expected| expected != tag) {
        return status(412);
    }
    range(request, true, bytes, cut).with("ETag", tag)
}

fn ranges(server: &Server) -> Vec<Option<String>> {
    let requests = server.requests();
    let range = |request: &Request| request.header("range").map(str::to_owned);
    requests.iter().map(range).collect()
}

#[test]
fn interrupted_downloads_resume() {
    for url in ["s3://me@store/b/d/x", "gs://b/d/x"] {
        let case = Case::new();
        let server = Server::start(|request, number| {
            let cut = (number < 3).then_some(200_000);
            object(request, &content(700_000), "\"v1\"", cut)
        });
        let entry = with_option(&transfer(url, "dst/x"), "generate_checksum", true);
        run(&case, &environment(&case, &server.host()), &[entry]).expect_ok();
        assert!(
            fs::read(case.path("dst/x")).expect("there") == content(700_000),
            "{url}"
        );
        let expected = [None, Some(200_000), Some(400_000), Some(600_000)];
        let expected = expected.map(|start| start.map(|start| format!("bytes={start}-")));
        assert_eq!(ranges(&server), expected, "{url}");
        let first = &server.requests()[0];
        let signed = url.starts_with("gs")
            || first.header("authorization").is_some_and(|text| {
                text.starts_with("AWS4-HMAC-SHA256 Credential=ak/") && text.contains("x-amz-security-token")
            });
        assert!(signed, "{first:?}");
        assert_eq!(first.line, "GET /b/d/x");
    }
}

#[test]
fn changed_objects_are_downloaded_again() {
    for url in ["s3://me@store/b/x", "gs://b/x"] {
        let case = Case::new();
        let server = Server::start(|request, number| match number {
            0 => object(request, &content(500_000), "\"v1\"", Some(300_000)),
            _ => object(request, b"new", "\"v2\"", None),
        });
        run(&case, &environment(&case, &server.host()), &[transfer(url, "x")]).expect_ok();
        assert_eq!(case.read("x"), "new");
        assert_eq!(
            ranges(&server),
            [None, Some("bytes=300000-".to_owned()), None],
            "{url}"
        );
    }
    // A store without ranges.
    let case = Case::new();
    let server = Server::start(|_, number| {
        let mut reply = body(content(500_000)).with("ETag", "\"v1\"");
        reply.cut = (number == 0).then_some(300_000);
        reply
    });
    let entry = transfer("s3://me@store/b/x", "x");
    run(&case, &environment(&case, &server.host()), &[entry]).expect_ok();
    assert!(fs::read(case.path("x")).expect("there") == content(500_000));
}

#[test]
fn a_rest_that_is_not_that_of_the_object_is_no_success() {
    for url in ["s3://me@store/b/x", "gs://b/x"] {
        for (range, length) in LYING_RANGES {
            let case = Case::new();
            let server = Server::start(move |request, _| match request.header("range") {
                None => object(request, &content(102_400), "\"v1\"", Some(50_000)),
                Some(_) => Reply {
                    status: 206,
                    ..body(content(length))
                        .with("Content-Range", range)
                        .with("ETag", "\"v1\"")
                },
            });
            let entry = transfer(url, "dst/x");
            let made = run(&case, &environment(&case, &server.host()), &[entry]);
            made.expect_failed("Failed after");
            assert_eq!(case.names("dst"), [""; 0], "{url}: {range}");
        }
    }
}

#[test]
fn a_later_attempt_gets_what_the_first_one_has_announced() {
    for url in ["s3://me@store/b/x", "gs://b/x"] {
        for (first, later, size, is_good) in LATER_ATTEMPTS {
            let case = Case::new();
            let server = Server::start(move |_, number| shortened(first, later, size, number));
            let made = run(
                &case,
                &environment(&case, &server.host()),
                &[transfer(url, "dst/x")],
            );
            if is_good {
                made.expect_ok();
                continue;
            }
            made.expect_failed(SHORTENED);
            assert_eq!(case.names("dst"), [""; 0], "{url}: {first:?} {later:?}");
        }
    }
}

/// The rest of another version is not put behind what has arrived, even if the store ignores the condition.
#[test]
fn a_rest_of_another_version_does_not_count() {
    for url in ["s3://me@store/b/x", "gs://b/x"] {
        let case = Case::new();
        let server = Server::start(|request, number| match number {
            0 => object(request, &content(500_000), "\"v1\"", Some(300_000)),
            1 => range(request, true, &[b'n'; 500_000], None).with("ETag", "\"v2\""),
            _ => object(request, &[b'n'; 500_000], "\"v2\"", None),
        });
        run(&case, &environment(&case, &server.host()), &[transfer(url, "x")]).expect_ok();
        assert!(
            fs::read(case.path("x")).expect("there") == [b'n'; 500_000],
            "{url}"
        );
    }
}

/// A store that accepts uploads in parts. `refuse` returns the status of refused parts.
fn multipart_server(refuse: impl Fn(usize) -> Option<u16> + Send + Sync + 'static) -> Server {
    Server::start(move |request, number| {
        let (method, address) = request.line.split_once(' ').expect("two words");
        match (method, address.split_once('?').map_or("", |(_, query)| query)) {
            ("POST", query) if query.starts_with("uploads") => body(
                "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>x</Key><UploadId>a&amp;b</UploadId>\
                 </InitiateMultipartUploadResult>",
            ),
            ("PUT", query) if query.contains("partNumber=") => match refuse(number) {
                Some(code) => status(code),
                None => status(200).with("ETag", &format!("\"{number}\"")),
            },
            ("POST", _) => body(
                "<CompleteMultipartUploadResult><ETag>&quot;e&quot;</ETag></CompleteMultipartUploadResult>",
            ),
            ("DELETE", _) => status(204),
            _ => status(400),
        }
    })
}

#[test]
fn parts_of_large_uploads_are_retried() {
    for url in ["s3://me@store/b/x", "gs://b/x"] {
        let case = Case::new();
        case.write("big", content(2_500_000));
        // The server is busy at the second part.
        let server = multipart_server(|number| (number == 2).then_some(503));
        run(
            &case,
            &environment(&case, &server.host()),
            &[transfer("big", url)],
        )
        .expect_ok();
        let requests = server.requests();
        let query = |request: &Request| request.line.split_once('?').expect("a query").1.to_owned();
        let parts: Vec<_> = requests
            .iter()
            .filter(|request| request.line.starts_with("PUT "))
            .collect();
        let numbers: Vec<_> = parts
            .iter()
            .map(|part| query(part).split('&').next().map(str::to_owned))
            .collect();
        let numbers: Vec<_> = numbers.iter().flatten().map(String::as_str).collect();
        assert_eq!(
            numbers,
            ["partNumber=1", "partNumber=2", "partNumber=2", "partNumber=3"],
            "{url}"
        );
        assert!(
            parts.iter().all(|part| query(part).ends_with("uploadId=a%26b")),
            "{parts:?}"
        );
        let uploaded = [&parts[0].body[..], &parts[2].body, &parts[3].body].concat();
        assert!(uploaded == content(2_500_000), "{url}");
        let list = String::from_utf8_lossy(&requests.last().expect("the end").body).into_owned();
        assert_eq!(list.matches("<PartNumber>").count(), 3, "{list}");
    }
}

#[test]
fn failed_uploads_leave_no_parts() {
    for url in ["s3://me@store/b/x", "gs://b/x"] {
        let case = Case::new();
        case.write("big", content(2_500_000));
        let server = multipart_server(|number| (number == 2).then_some(403));
        run(
            &case,
            &environment(&case, &server.host()),
            &[transfer("big", url)],
        )
        .expect_failed("Failed after 1 attempt: file://big")
        .expect_failed("the server answered 403");
        let lines = server.lines();
        let last = lines.last().expect("requests");
        assert!(
            last.starts_with("DELETE ") && last.ends_with("?uploadId=a%26b"),
            "{lines:?}"
        );
    }
}

#[test]
fn statuses_decide_about_retries() {
    for (url, code, attempts) in [
        ("s3://me@store/b/x", 403, 1),
        ("s3://me@store/b/x", 503, 3),
        ("s3://me@store/b/x", 429, 3),
        ("gs://b/x", 403, 1),
        ("gs://b/x", 500, 3),
    ] {
        let case = Case::new();
        let server = Server::start(move |_, _| status(code));
        run(
            &case,
            &environment(&case, &server.host()),
            &[transfer(url, "dst/x")],
        )
        .expect_failed(&format!("the server answered {code} "));
        assert_eq!(server.lines().len(), attempts, "{url} {code}");
        assert_eq!(case.names("dst"), [""; 0]);
    }
}

#[test]
fn terminated_transfers_end_at_once() {
    for url in ["s3://me@store/b/x", "gs://b/x"] {
        let case = Case::new();
        let server = Server::start(|_, _| Reply {
            stall: Some(1000),
            ..body(content(700_000)).with("ETag", "\"v\"")
        });
        case.write("in", list(&[transfer(url, "dst/x")]));
        let child = case
            .command()
            .args(["-f", "in"])
            .envs(environment(&case, &server.host()))
            .spawn()
            .expect("start");
        while server.lines().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let start = Instant::now();
        send_signal(&child, Signal::SIGTERM);
        let output = child.wait_with_output().expect("wait");
        // Usually half a second; longer on a busy machine.
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(case.names("dst"), [""; 0]);
    }
}

#[test]
fn answers_that_are_no_listing_are_failures() {
    for url in ["s3://me@store/b/d/", "gs://b/d/"] {
        for reply in [
            "<html><body>Please log in</body></html>",
            "",
            "{}",
            "<ListBucketResult><Conte",
        ] {
            let case = Case::new();
            let server = Server::start(move |_, _| body(reply));
            run(&case, &environment(&case, &server.host()), &[remove(url, "true")])
                .expect_failed("Failed after 3 attempts");
        }
        // Neither is the page of something that is no store.
        let case = Case::new();
        let server = Server::start(|_, _| Reply {
            status: 404,
            ..body("<html/>")
        });
        let run = run(&case, &environment(&case, &server.host()), &[remove(url, "true")]);
        assert!(!run.ok || url.starts_with("gs"), "{}", run.stderr);
    }
}

#[test]
fn invalid_endpoints_keys_and_names_are_refused() {
    let section = |endpoint: &str, key: &str| {
        format!("[store]\nendpoint = {endpoint}\n[me@store]\naccess_key = {key}\nsecret_key = sk\n")
    };
    for (text, message) in [
        (
            section("nonsense", "ak"),
            "the endpoint 'nonsense' is not a valid address",
        ),
        (section("http://[::x]:1", "ak"), "is not a valid address"),
        (section("http://h:99999", "ak"), "is not a valid address"),
        (section("ftp://h", "ak"), "is not a valid address"),
        (
            section("http://127.0.0.1:1", "a\u{e9}"),
            "'access_key' in the credentials file has invalid characters",
        ),
    ] {
        let case = Case::new();
        case.write("a", "x");
        let environment = [(
            "PEGASUS_CREDENTIALS_local",
            case.write_secret("credentials", &text),
        )];
        let url = "s3://me@store/b/x";
        run(
            &case,
            &environment,
            &[
                mkdir(url),
                transfer(url, "y"),
                transfer("a", url),
                transfer(url, "s3://me@store/c/z"),
                remove(url, "false"),
            ],
        )
        .expect_failed(message);
    }
    let case = Case::new();
    let unused = Server::start(|_, _| status(500));
    for (url, message) in [
        ("s3://me@store/b/d/../x", "has a part '.' or '..'"),
        ("s3://me@store/b/x/..", "has a part '.' or '..'"),
        ("s3://me@store/b/a\nb", "has a control character"),
        ("gs://b/a\nb", "has a control character"),
    ] {
        let entries = [transfer(url, "y")];
        run(&case, &environment(&case, &unused.host()), &entries).expect_failed(message);
    }
    assert_eq!(unused.lines(), [""; 0]);
    for service in ["http://a b", "http://[", ":"] {
        let environment = [("STORAGE_EMULATOR_HOST", service.to_owned())];
        run(&case, &environment, &[transfer("gs://b/x", "y")]).expect_failed("not");
    }
    let key =
        r#"{"client_email": "me@x", "private_key": "no key", "private_key_id": "1", "project_id": "p"}"#;
    let environment = [("GOOGLE_PKCS12", case.write_secret("key.json", key))];
    run(&case, &environment, &[transfer("gs://b/x", "y")])
        .expect_failed("the key of a service account in")
        .expect_failed("cannot be used");
    let key = case.write_secret("key.p12", "\u{1}binary");
    let boto = format!("[Credentials]\ngs_service_key_file = {key}\n");
    let boto = case.write_secret("boto.conf", &boto);
    for environment in [("GOOGLE_PKCS12_local", key), ("BOTO_CONFIG", boto)] {
        for entry in [
            transfer("gs://b/x", "y"),
            mkdir("gs://b"),
            remove("gs://b/x", "false"),
        ] {
            run(&case, std::slice::from_ref(&environment), &[entry])
                .expect_failed("key.p12: not a key in JSON; keys in PKCS#12 are not supported, make one");
        }
    }
    run(&case, &[], &[transfer("gs://b/f", "x")]).expect_failed("gs URLs need the key of a service account");
}

/// Pegasus looks there if no profile and no variable names a file.
#[test]
fn the_usual_credentials_file_counts_without_a_variable() {
    let case = Case::new();
    let server = Server::start(|request, _| object(request, b"data", "\"v1\"", None));
    let text = format!(
        "[store]\nendpoint = http://{}/\n[me@store]\naccess_key = ak\nsecret_key = sk\n",
        server.host()
    );
    let home = [("HOME", case.path("home").display().to_string())];
    let entries = [transfer("s3://me@store/b/x", "dst/x")];
    run(&case, &home, &entries)
        .expect_failed("s3 URLs need the file ~/.pegasus/credentials.conf, or one that");
    fs::create_dir_all(case.path("home/.pegasus")).expect("mkdir");
    let file = case.write_secret("home/.pegasus/credentials.conf", &text);
    run(&case, &home, &entries).expect_ok();
    assert_eq!(case.read("dst/x"), "data");

    // One that others can read is refused where it is needed, and is no obstacle where it is not.
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("chmod");
    run(&case, &home, &entries).expect_failed("too liberal; run: chmod 600");
    let url = format!("http://{}/x", server.host());
    run(&case, &home, &[transfer(&url, "dst/y")]).expect_ok();
}
