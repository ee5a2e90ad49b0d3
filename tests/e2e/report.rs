//! The page of `pmc report` in a browser. The tests leave screenshots in cargo's directory for tests.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::browser::{assert_no_console_errors, chromium};
use crate::support::command::Program;
use crate::support::programs::{Build, project};
use testutils::generated_run::{self, Shape};

/// Writes the report of a run, checks it in a browser, and keeps screenshots of both themes.
fn check_page(run_dir: &Path, name: &str, expected: &[&str]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let page = directory.path().join("report.html");
    Program::new(Build::Local.program("pmc"))
        .args(["report", "-q", "-o"])
        .arg(&page)
        .arg(run_dir)
        .run()
        .ok();
    let size = fs::metadata(&page).expect("the report").len();
    assert!(size < 3_000_000, "{name}: {size} bytes");
    let url = format!("file://{}", page.display());
    let result = chromium(directory.path(), &url, 3).arg("--dump-dom").run().ok();
    assert_no_console_errors(&result);
    let dom = result.stdout.as_str();
    assert!(dom.contains("data-drawn=\"yes\""), "the script did not finish");
    for part in expected {
        assert!(dom.contains(part), "{name}: no {part} in the page");
    }
    let screenshots = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for (theme, flag) in [
        ("light", "--blink-settings=preferredColorScheme=1"),
        ("dark", "--blink-settings=preferredColorScheme=0"),
    ] {
        let picture = screenshots.join(format!("report-{name}-{theme}.png"));
        let _ = fs::remove_file(&picture);
        let result = chromium(directory.path(), &url, 3)
            .args([flag, "--window-size=1280,2600"])
            .arg(format!("--screenshot={}", picture.display()))
            .run()
            .ok();
        assert_no_console_errors(&result);
        let size = fs::metadata(&picture).map_or(0, |data| data.len());
        assert!(
            size > 50_000,
            "{name} in {theme} is an empty screenshot: {size} bytes"
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
    let directory = tempfile::tempdir().expect("a temporary directory");
    Program::new(Build::Local.program("pmc"))
        .args(["run", "-q"])
        .arg(project().join("examples/diamond/workflow.yml"))
        .in_directory(directory.path())
        .run()
        .ok();
    let mut expected = SECTIONS.to_vec();
    expected.extend([
        "<h1>diamond</h1>",
        ">succeeded<",
        "<b>8</b><span>of 8 tasks done</span>",
        "findrange (2)",
    ]);
    check_page(&directory.path().join("pmc-runs/diamond"), "diamond", &expected);

    let shape = Shape {
        tasks: 1500,
        hosts: 4,
        slots: 8,
        failing: 60,
        records: true,
    };
    let run = directory.path().join("study");
    let generated = generated_run::generate(&run, shape).expect("a run");
    assert!(!generated.success, "some tasks fail for good");
    let mut expected = SECTIONS.to_vec();
    expected.extend([
        "<section id=\"failures\">",
        ">failed</span>",
        "Tasks by host and slot",
        "out of memory: it used",
        "ValueError: step 1204 did not converge",
    ]);
    check_page(&run, "study", &expected);
}

#[test]
#[ignore = "needs Chromium: tests/run e2e"]
fn report_of_a_hundred_thousand_tasks() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let shape = Shape {
        tasks: 100_000,
        hosts: 64,
        slots: 16,
        failing: 10,
        records: false,
    };
    let generated = generated_run::generate(directory.path(), shape).expect("a run");
    let simulated = generated
        .attempts
        .iter()
        .filter(|attempt| generated.tasks[attempt.task as usize].transformation == "simulate")
        .count();
    let digits = simulated.to_string();
    let (thousands, rest) = digits.split_at(digits.len() - 3);
    let simulated = format!("simulate ({thousands},{rest})");
    let mut expected = SECTIONS.to_vec();
    expected.extend(["Each cell stands for many attempts", &simulated]);
    check_page(directory.path(), "large", &expected);
}
