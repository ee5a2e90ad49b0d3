//! A headless browser.

use std::path::Path;

use super::command::{CommandResult, Program};

/// Returns a command that opens a page in Chromium for `seconds` of virtual time. The caller adds what to do
/// with the page. The profile is below `directory`.
pub fn chromium(directory: &Path, url: &str, seconds: u32) -> Program {
    // A new profile each time: otherwise a running browser would open the page.
    let profile = tempfile::tempdir_in(directory).expect("a directory").keep();
    Program::new("chromium")
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

/// Returns the messages of the page on the console.
pub fn console(result: &CommandResult) -> Vec<&str> {
    let lines = result.stderr.lines();
    lines.filter(|line| line.contains("CONSOLE")).collect()
}

/// Asserts that the page wrote nothing to the console.
#[track_caller]
pub fn assert_no_console_errors(result: &CommandResult) {
    let bad = console(result);
    assert!(bad.is_empty(), "messages on the console: {bad:#?}");
}
