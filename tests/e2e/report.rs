//! The page of `pmc report` in a real browser. Pictures of it are left in cargo's folder for tests.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::browser::{chromium, no_console_error};
use crate::support::command::Run;
use crate::support::programs::{Flavour, project};
use testutils::generated_run::{self, Shape};

/// Draws a run, checks what the browser makes of it, and keeps pictures of both themes.
fn page_of(run: &Path, name: &str, says: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = folder.path().join("report.html");
    Run::new(Flavour::Local.program("pmc"))
        .args(["report", "-q", "-o"])
        .arg(&page)
        .arg(run)
        .go()
        .ok();
    let size = fs::metadata(&page).expect("the report").len();
    assert!(size < 3_000_000, "{name}: {size} bytes");
    let url = format!("file://{}", page.display());
    let said = chromium(folder.path(), &url, 3).arg("--dump-dom").go().ok();
    no_console_error(&said);
    let dom = said.stdout.as_str();
    assert!(
        dom.contains("data-drawn=\"yes\""),
        "the script did not come to its end"
    );
    for part in says {
        assert!(dom.contains(part), "{name}: no {part} in the page");
    }
    let artefacts = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for (theme, flag) in [
        ("light", "--blink-settings=preferredColorScheme=1"),
        ("dark", "--blink-settings=preferredColorScheme=0"),
    ] {
        let picture = artefacts.join(format!("report-{name}-{theme}.png"));
        let _ = fs::remove_file(&picture);
        let said = chromium(folder.path(), &url, 3)
            .args([flag, "--window-size=1280,2600"])
            .arg(format!("--screenshot={}", picture.display()))
            .go()
            .ok();
        no_console_error(&said);
        let size = fs::metadata(&picture).map_or(0, |data| data.len());
        assert!(
            size > 50_000,
            "{name} in {theme} is an empty picture: {size} bytes"
        );
    }
}

const SECTIONS: [&str; 5] = [
    "<section id=\"timeline\">",
    "<section id=\"use\">",
    "<section id=\"chain\">",
    "<section id=\"lengths\">",
    "<section id=\"hosts\">",
];

#[test]
#[ignore = "needs Chromium: tests/run e2e"]
fn reports_of_real_and_small_runs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    Run::new(Flavour::Local.program("pmc"))
        .args(["run", "-q"])
        .arg(project().join("examples/diamond/workflow.yml"))
        .within(folder.path())
        .go()
        .ok();
    let mut says = SECTIONS.to_vec();
    says.extend([
        "<h1>diamond</h1>",
        ">succeeded<",
        "<b>8</b><span>of 8 tasks done</span>",
        "findrange (2)",
    ]);
    page_of(&folder.path().join("pmc-runs/diamond"), "diamond", &says);

    let shape = Shape {
        tasks: 1500,
        hosts: 4,
        slots: 8,
        failing: 60,
        records: true,
    };
    let run = folder.path().join("study");
    let generated = generated_run::generate(&run, shape).expect("a run");
    assert!(!generated.success, "some tasks fail for good");
    let mut says = SECTIONS.to_vec();
    says.extend([
        "<section id=\"failures\">",
        ">failed</span>",
        "Tasks by host and slot",
        "out of memory: it used",
        "ValueError: step 1204 did not converge",
    ]);
    page_of(&run, "study", &says);
}

#[test]
#[ignore = "needs Chromium: tests/run e2e"]
fn a_hundred_thousand_tasks() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let shape = Shape {
        tasks: 100_000,
        hosts: 64,
        slots: 16,
        failing: 10,
        records: false,
    };
    let generated = generated_run::generate(folder.path(), shape).expect("a run");
    let simulated = generated
        .attempts
        .iter()
        .filter(|attempt| generated.tasks[attempt.task as usize].transformation == "simulate")
        .count();
    let digits = simulated.to_string();
    let (thousands, rest) = digits.split_at(digits.len() - 3);
    let simulated = format!("simulate ({thousands},{rest})");
    let mut says = SECTIONS.to_vec();
    says.extend(["Each cell stands for many attempts", &simulated]);
    page_of(folder.path(), "large", &says);
}
