//! The real `pegasus-service` shows our databases in a real browser, with the right counts and without errors. Its pages
//! for a database of `pegasus-monitord` are the same.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use regex::Regex;

use crate::support::browser::{chromium, console};
use crate::support::command::Run;
use crate::support::pegasus::Monitored;
use crate::support::programs::{Flavour, venv_bin};
use crate::support::server::{Server, free_port, system_program};
use crate::support::workflow::{Format, Planned, Request};

/// What is done with every page.
const VISITOR: &str = include_str!("dashboard/visitor.js");
/// In place of the library that draws charts, which is proprietary.
const CHARTS: &str = include_str!("dashboard/charts.js");
/// The name of the dashboard's own server.
const HOST: &str = "dashboard.test";

/// The libraries that the pages load from other servers, at the paths that they have there.
fn place_libraries(root: &Path) {
    let from = Path::new("/usr/share/javascript");
    let read = |name: &str| {
        fs::read_to_string(from.join(name))
            .unwrap_or_else(|error| panic!("{name}: {error}: `tests/run packages` installs it"))
    };
    let place = |path: &str, content: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        fs::write(path, content).expect("a library");
    };
    place("jquery-3.5.1.min.js", &read("jquery/jquery.min.js"));
    place(
        "npm/bootstrap@5.1.1/dist/css/bootstrap.min.css",
        &read("bootstrap5/css/bootstrap.min.css"),
    );
    // With Popper in it.
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
    // A font and icons that the pages can do without.
    place("css", "");
    place("ajax/libs/font-awesome/5.15.4/css/all.min.css", "");
}

/// The dashboard of a home directory, and the server that its pages load libraries from.
struct Dashboard {
    folder: tempfile::TempDir,
    https: u16,
    _servers: [Server; 2],
}

impl Dashboard {
    fn start(home: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let top = folder.path();
        let (port, https) = (free_port(), free_port());
        Run::line("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -keyout tls.key -out tls.crt")
            .within(top)
            .go()
            .ok();
        for name in ["root", "body"] {
            fs::create_dir(top.join(name)).expect("a folder");
        }
        place_libraries(&top.join("root"));
        let user = if nix::unistd::geteuid().is_root() {
            "user root;"
        } else {
            ""
        };
        let at = top.display();
        // The pages name the digests of some libraries, which those of other versions do not have.
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
        let nginx = Run::new(system_program("nginx"))
            .args(["-e", "stderr", "-p"])
            .arg(top)
            .arg("-c")
            .arg(top.join("nginx.conf"));
        // It takes the home directory from the list of users, and shows nobody those of root.
        let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
        let users = format!("tester:x:{uid}:{gid}::{}:/bin/sh\n", home.display());
        fs::write(top.join("users"), users).expect("a list of users");
        fs::write(top.join("groups"), format!("tester:x:{gid}:\n")).expect("a list of groups");
        let settings = format!(
            "AUTHENTICATION = \"NoAuthentication\"\nPROCESS_SWITCHING = False\nMAX_PROCESSES = 4\n\
             CERTIFICATE = \"{at}/tls.crt\"\nPRIVATE_KEY = \"{at}/tls.key\"\n"
        );
        fs::write(home.join(".pegasus/service.py"), settings).expect("settings");
        let service = Run::new(venv_bin().join("pegasus-service"))
            .args(["--host", "127.0.0.1", "--no-debug", "--port", &port.to_string()])
            .within(top)
            .env("HOME", home)
            .env("LD_PRELOAD", "libnss_wrapper.so")
            .env("NSS_WRAPPER_PASSWD", top.join("users"))
            .env("NSS_WRAPPER_GROUP", top.join("groups"));
        Self {
            https,
            _servers: [Server::start(nginx, https), Server::start(service, port)],
            folder,
        }
    }

    /// What a page and its charts say, and the addresses that it leads to.
    fn page(&self, path: &str) -> (String, BTreeSet<String>) {
        let url = format!("https://{HOST}{path}");
        let hosts = format!("--host-resolver-rules=MAP *:443 127.0.0.1:{}", self.https);
        let said = chromium(self.folder.path(), &url, 60)
            .args(["--ignore-certificate-errors", hosts.as_str(), "--dump-dom"])
            .go()
            .ok();
        // The list of workflows notes each of them there.
        let note = Regex::new("CONSOLE.* \"[A-Z][a-z]+ \\[object Object\\]\"").expect("an expression");
        let bad: Vec<_> = console(&said)
            .into_iter()
            .filter(|line| !note.is_match(line))
            .collect();
        assert!(bad.is_empty(), "{path} complains: {bad:#?}");
        let dom = said.stdout;
        let bad = Regex::new("data-bad=\"[^\"]*\"").expect("an expression");
        assert_eq!(bad.find(&dom).map(|found| found.as_str()), None, "{path}");
        let visited = !dom.contains("datatables.min.js") || dom.contains("data-visited=\"yes\"");
        let tag = dom.get(..600).unwrap_or(&dom);
        assert!(visited, "{path} was left too early: {tag}");
        let link = Regex::new("href=\"(/u/[^\"]*)\"").expect("an expression");
        let links = link
            .captures_iter(&dom)
            .map(|found| found[1].replace("&amp;", "&"))
            .collect();
        (visible(&dom), links)
    }
}

/// The text of a page, a bar where an element begins or ends.
fn visible(dom: &str) -> String {
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

/// The pages of one workflow that has a failed and several successful jobs, by what they show.
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
    // The lists are opened, so their links are there.
    let output = links.iter().find(|link| link.ends_with("/stdout"));
    let output = output.unwrap_or_else(|| panic!("no output of a failed job in {links:?}"));
    pages.push(("output", dashboard.page(output).0));
    pages.push(("job", dashboard.page(output.trim_end_matches("/stdout")).0));
    pages
}

#[track_caller]
fn says(pages: &[(&str, String)], page: &str, parts: &[&str]) {
    let (_, text) = pages
        .iter()
        .find(|(name, _)| *name == page)
        .expect("a page of this name");
    for part in parts {
        assert!(text.contains(part), "{page}: no {part} in {text}");
    }
}

/// Makes every job last a while: the dashboard has no page for a workflow that starts and ends in one second of
/// the database that `pegasus-monitord` writes.
fn slow_down(planned: &Planned) {
    let kickstart = Flavour::Local.program("pegasus-kickstart");
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
    let mut request = Request::new(Flavour::Local, Format::Yaml);
    request.chains = 3;
    request.broken = vec![2];
    let broken = request.plan();
    slow_down(&broken);
    let said = broken.execution(2).arg("--tries").arg("2").go();
    assert_eq!(said.code(), 1, "{}", said.account());

    // What Pegasus' own monitord makes of it.
    let theirs = broken.top().join("theirs");
    fs::create_dir(&theirs).expect("a folder");
    Monitored {
        submit: broken.submit(),
        home: &theirs,
    }
    .replay();
    let wanted = pages(&Dashboard::start(&theirs));

    // And ours, with a second workflow whose database the executor wrote.
    let home = broken.top().join("ours");
    fs::create_dir(&home).expect("a folder");
    Run::new(Flavour::Local.program("pmc-monitord"))
        .args(["-N", "-r"])
        .arg(format!("{}.dagman.out", broken.dag().display()))
        .env("HOME", &home)
        .go()
        .ok();
    let mut request = Request::new(Flavour::Local, Format::Yaml);
    request.chains = 3;
    let good = request.plan();
    good.execution(2).arg("--stampede").env("HOME", &home).go().ok();
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
    for ((name, ours), (_, theirs)) in ours.iter().zip(&wanted) {
        // It shifts the status of a failed job once more.
        assert_eq!(ours, &theirs.replace("|196608|", "|768|"), "{name}");
    }
    assert_eq!(ours.len(), wanted.len());
    says(&ours, "workflow", &["|Failed:|1|"]);

    // Each database counts its workflows from 1; the list names them by UUID.
    let link = links.iter().find(|link| link.contains("/r/2/"));
    let (workflow, _) = dashboard.page(link.unwrap_or_else(|| panic!("no second workflow in {links:?}")));
    assert!(workflow.contains("|Failed:|0|"), "{workflow}");
}
