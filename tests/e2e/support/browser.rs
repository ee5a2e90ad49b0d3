//! A real browser without a window.

use std::path::Path;

use super::command::{Run, Said};

/// Chromium with a page that has `seconds` of its own clock; what to do with it is to be added. `folder` is for its
/// own files.
pub fn chromium(folder: &Path, url: &str, seconds: u32) -> Run {
    // A profile of its own each time: a browser that is at work already would answer instead.
    let profile = tempfile::tempdir_in(folder).expect("a folder").keep();
    Run::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--enable-logging=stderr",
        ])
        .arg(format!("--virtual-time-budget={}", u64::from(seconds) * 1000))
        .arg(format!("--user-data-dir={}", profile.display()))
        .env("HOME", &profile)
        .arg(url)
}

/// What the page wrote on the console.
pub fn console(said: &Said) -> Vec<&str> {
    let lines = said.stderr.lines();
    lines.filter(|line| line.contains("CONSOLE")).collect()
}

/// Demands that the page wrote nothing on the console.
#[track_caller]
pub fn no_console_error(said: &Said) {
    let bad = console(said);
    assert!(bad.is_empty(), "the page complains: {bad:#?}");
}
