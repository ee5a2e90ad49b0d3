//! `pegasus-service` shows our databases in a browser with the right counts and without errors. Its pages for
//! a database of `pegasus-monitord` are the same.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use regex::{Captures, Regex};

use crate::support::browser::{chromium, console};
use crate::support::command::Program;
use crate::support::pegasus::Monitored;
use crate::support::programs::{Build, venv_bin};
use crate::support::server::{Server, free_port, system_program};
use crate::support::workflow::{Format, Planned, Request};

/// The script that checks every page.
const VISITOR: &str = include_str!("dashboard/visitor.js");
/// Replaces the proprietary library that draws charts.
const CHARTS: &str = include_str!("dashboard/charts.js");
/// The host name of the dashboard.
const HOST: &str = "dashboard.test";

/// Writes the libraries that the pages load from other servers, at the same paths.
fn place_libraries(root: &Path) {
    let from = Path::new("/usr/share/javascript");
    let read = |name: &str| {
        fs::read_to_string(from.join(name))
            .unwrap_or_else(|error| panic!("{name}: {error}: `tests/run packages` installs it"))
    };
    let place = |path: &str, content: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        fs::write(path, content).expect("a library");
    };
    place("jquery-3.5.1.min.js", &read("jquery/jquery.min.js"));
    place(
        "npm/bootstrap@5.1.1/dist/css/bootstrap.min.css",
        &read("bootstrap5/css/bootstrap.min.css"),
    );
    // The bundle of Bootstrap contains Popper.
    place("npm/@popperjs/core@2.9.3/dist/umd/popper.min.js", "");
    place(
        "npm/bootstrap@5.1.1/dist/js/bootstrap.min.js",
        &read("bootstrap5/js/bootstrap.bundle.min.js"),
    );
    let tables = "v/bs4/dt-1.11.3/b-2.0.1/datatables.min";
    place(
        &format!("{tables}.css"),
        &read("jquery-datatables/css/dataTables.bootstrap4.min.css"),
    );
    let scripts = [
        &read("jquery-datatables/jquery.dataTables.min.js"),
        &read("jquery-datatables/dataTables.bootstrap4.min.js"),
        VISITOR,
    ];
    place(&format!("{tables}.js"), &scripts.join(";\n"));
    place("4.1.4/highcharts.js", CHARTS);
    place("4.1.4/highcharts-more.js", "");
    place("4.1.4/modules/exporting.js", "");
    // A font and icons that the pages do not need.
    place("css", "");
    place("ajax/libs/font-awesome/5.15.4/css/all.min.css", "");
}

/// The dashboard of a home directory, and the server of the libraries that its pages load.
struct Dashboard {
    directory: tempfile::TempDir,
    https: u16,
    _servers: [Server; 2],
}

impl Dashboard {
    fn start(home: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        let (port, https) = (free_port(), free_port());
        Program::from_line("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -keyout tls.key -out tls.crt")
            .in_directory(top)
            .run()
            .ok();
        for name in ["root", "body"] {
            fs::create_dir(top.join(name)).expect("a directory");
        }
        place_libraries(&top.join("root"));
        let user = if nix::unistd::geteuid().is_root() {
            "user root;"
        } else {
            ""
        };
        let at = top.display();
        // The pages name digests of some libraries. Other versions have different digests.
        let configuration = format!(
            "{user} daemon off; pid {at}/pid; error_log {at}/error; worker_processes 1; events {{ worker_connections 64; }}
             http {{
               access_log off; client_body_temp_path {at}/body; proxy_temp_path {at}/body;
               fastcgi_temp_path {at}/body; uwsgi_temp_path {at}/body; scgi_temp_path {at}/body;
               types {{ application/javascript js; }} default_type text/css;
               ssl_certificate {at}/tls.crt; ssl_certificate_key {at}/tls.key;
               server {{
                 listen 127.0.0.1:{https} ssl;
                 root {at}/root; add_header Access-Control-Allow-Origin *;
               }}
               server {{
                 listen 127.0.0.1:{https} ssl; server_name {HOST};
                 location / {{
                   proxy_pass https://127.0.0.1:{port}; proxy_set_header Host $host;
                   proxy_set_header Accept-Encoding identity;
                   sub_filter ' integrity=' ' data-integrity='; sub_filter_once off;
                 }}
               }}
             }}"
        );
        fs::write(top.join("nginx.conf"), configuration).expect("a configuration");
        let nginx = Program::new(system_program("nginx"))
            .args(["-e", "stderr", "-p"])
            .arg(top)
            .arg("-c")
            .arg(top.join("nginx.conf"));
        // The service takes the home directory from the list of users, and never shows that of root.
        let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
        let users = format!("tester:x:{uid}:{gid}::{}:/bin/sh\n", home.display());
        fs::write(top.join("users"), users).expect("a list of users");
        fs::write(top.join("groups"), format!("tester:x:{gid}:\n")).expect("a list of groups");
        let settings = format!(
            "AUTHENTICATION = \"NoAuthentication\"\nPROCESS_SWITCHING = False\nMAX_PROCESSES = 4\n\
             CERTIFICATE = \"{at}/tls.crt\"\nPRIVATE_KEY = \"{at}/tls.key\"\n"
        );
        fs::write(home.join(".pegasus/service.py"), settings).expect("settings");
        let service = Program::new(venv_bin().join("pegasus-service"))
            .args(["--host", "127.0.0.1", "--no-debug", "--port", &port.to_string()])
            .in_directory(top)
            .env("HOME", home)
            .env("LD_PRELOAD", "libnss_wrapper.so")
            .env("NSS_WRAPPER_PASSWD", top.join("users"))
            .env("NSS_WRAPPER_GROUP", top.join("groups"));
        Self {
            https,
            _servers: [Server::start(nginx, https), Server::start(service, port)],
            directory,
        }
    }

    /// Returns the text of a page with its charts, and the addresses of its links.
    fn page(&self, path: &str) -> (String, BTreeSet<String>) {
        let url = format!("https://{HOST}{path}");
        let hosts = format!("--host-resolver-rules=MAP *:443 127.0.0.1:{}", self.https);
        let result = chromium(self.directory.path(), &url, 60)
            .args(["--ignore-certificate-errors", hosts.as_str(), "--dump-dom"])
            .run()
            .ok();
        // The list of workflows logs each workflow.
        let workflow_log =
            Regex::new("CONSOLE.* \"[A-Z][a-z]+ \\[object Object\\]\"").expect("an expression");
        let bad: Vec<_> = console(&result)
            .into_iter()
            .filter(|line| !workflow_log.is_match(line))
            .collect();
        assert!(bad.is_empty(), "{path}: messages on the console: {bad:#?}");
        let dom = result.stdout;
        let bad = Regex::new("data-bad=\"[^\"]*\"").expect("an expression");
        assert_eq!(bad.find(&dom).map(|found| found.as_str()), None, "{path}");
        let visited = !dom.contains("datatables.min.js") || dom.contains("data-visited=\"yes\"");
        let tag = dom.get(..600).unwrap_or(&dom);
        assert!(visited, "{path}: the browser ended too early: {tag}");
        let link = Regex::new("href=\"(/u/[^\"]*)\"").expect("an expression");
        let links = link
            .captures_iter(&dom)
            .map(|found| found[1].replace("&amp;", "&"))
            .collect();
        (visible_text(&dom), links)
    }
}

/// Returns the text of a page, with a bar where an element begins or ends.
fn visible_text(dom: &str) -> String {
    let mut text = dom.to_owned();
    for (what, with) in [
        ("(?s)<(script|style)\\b.*?</(script|style)>", "|"),
        ("<[^>]+>", "|"),
        ("(\\s*\\|\\s*)+", "|"),
    ] {
        let what = Regex::new(what).expect("an expression");
        text = what.replace_all(&text, with).into_owned();
    }
    text
}

/// Returns the pages of a workflow with a failed and several successful jobs, with their names.
fn pages(dashboard: &Dashboard) -> Vec<(&'static str, String)> {
    let top = "/u/tester/r/1/w/1";
    let (workflow, links) = dashboard.page(top);
    let (charts, _) = dashboard.page(&format!("{top}/charts"));
    let (statistics, _) = dashboard.page(&format!("{top}/statistics"));
    let mut pages = vec![
        ("workflow", workflow),
        ("charts", charts),
        ("statistics", statistics),
    ];
    // The script opens the lists, so the page has their links.
    let output = links.iter().find(|link| link.ends_with("/stdout"));
    let output = output.unwrap_or_else(|| panic!("no output of a failed job in {links:?}"));
    pages.push(("output", dashboard.page(output).0));
    pages.push(("job", dashboard.page(output.trim_end_matches("/stdout")).0));
    pages
}

/// Returns a page with numbers of six decimals at most: each database adds in its own order, so the last
/// digits of a sum differ.
fn rounded(page: &str) -> String {
    let long = Regex::new(r"\d+\.\d{7,}").expect("an expression");
    let round = |found: &Captures| {
        let number: f64 = found[0].parse().expect("a number");
        ((number * 1e6).round() / 1e6).to_string()
    };
    long.replace_all(page, round).into_owned()
}

#[track_caller]
fn assert_page_contains(pages: &[(&str, String)], page: &str, parts: &[&str]) {
    let (_, text) = pages
        .iter()
        .find(|(name, _)| *name == page)
        .expect("a page of this name");
    for part in parts {
        assert!(text.contains(part), "{page}: no {part} in {text}");
    }
}

/// Makes every job last half a second: with a database of `pegasus-monitord`, the dashboard has no page for a
/// workflow that starts and ends in the same second.
fn slow_down(planned: &Planned) {
    let kickstart = Build::Local.program("pegasus-kickstart");
    let kickstart = kickstart.to_str().expect("a path in UTF-8");
    let slow = planned.top().join("slow-kickstart");
    fs::write(
        &slow,
        format!("#!/bin/sh\nsleep 0.5\nexec '{kickstart}' \"$@\"\n"),
    )
    .expect("a script");
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).expect("a program");
    let tasks = fs::read_to_string(planned.dag()).expect("a DAG file");
    assert!(tasks.contains(kickstart), "{tasks}");
    let tasks = tasks.replace(kickstart, slow.to_str().expect("a path in UTF-8"));
    fs::write(planned.dag(), tasks).expect("a DAG file");
}

#[test]
#[ignore = "needs Pegasus' dashboard and Chromium: tests/run e2e"]
fn pegasus_dashboard_shows_our_databases() {
    let mut request = Request::new(Build::Local, Format::Yaml);
    request.chains = 3;
    request.broken = vec![2];
    let broken = request.plan();
    slow_down(&broken);
    let result = broken.executor(2).arg("--tries").arg("2").run();
    assert_eq!(result.code(), 1, "{}", result.details());

    // The database of Pegasus' monitord.
    let theirs = broken.top().join("theirs");
    fs::create_dir(&theirs).expect("a directory");
    Monitored {
        submit: broken.submit(),
        home: &theirs,
    }
    .replay();
    let expected = pages(&Dashboard::start(&theirs));

    // Our database, and a second workflow whose database the executor wrote.
    let home = broken.top().join("ours");
    fs::create_dir(&home).expect("a directory");
    Program::new(Build::Local.program("pmc-monitord"))
        .args(["-N", "-r"])
        .arg(format!("{}.dagman.out", broken.dag().display()))
        .env("HOME", &home)
        .run()
        .ok();
    let mut request = Request::new(Build::Local, Format::Yaml);
    request.chains = 3;
    let good = request.plan();
    good.executor(2).arg("--stampede").env("HOME", &home).run().ok();
    let dashboard = Dashboard::start(&home);
    let (list, links) = dashboard.page("/");
    for part in [
        "|Running|0|Successful|1|Failed|1|",
        "|Showing 1 to 2 of 2 entries|",
    ] {
        assert!(list.contains(part), "no {part} in {list}");
    }
    assert_eq!(links.iter().filter(|link| link.contains("wf_uuid=")).count(), 2);

    let ours = pages(&dashboard);
    for ((name, ours), (_, theirs)) in ours.iter().zip(&expected) {
        // Pegasus' monitord shifts the status of a failed job twice.
        assert_eq!(
            rounded(ours),
            rounded(&theirs.replace("|196608|", "|768|")),
            "{name}"
        );
    }
    assert_eq!(ours.len(), expected.len());
    assert_page_contains(&ours, "workflow", &["|Failed:|1|"]);

    // Each database counts its workflows from 1; the list names them by UUID.
    let link = links.iter().find(|link| link.contains("/r/2/"));
    let (workflow, _) = dashboard.page(link.unwrap_or_else(|| panic!("no second workflow in {links:?}")));
    assert!(workflow.contains("|Failed:|0|"), "{workflow}");
}
