//! The cause of a failure under `pegasus-lite` is what the program wrote.

use crate::support::Place;

/// Ways to run a job in a directory of its own.
const WITHOUT_SHARED_FILES: [&str; 2] = ["nonsharedfs", "condorio"];

/// Runs the workflow `chain`, whose job `first` fails, and returns the summary of `pmc run`.
fn run(place: &Place, configuration: &str, more: &[&str]) -> String {
    let property = format!("pegasus.data.configuration={configuration}");
    let mut words = vec!["run", "-q", "-D", &property];
    words.extend(more);
    words.push("workflow.yml");
    let output = place.run(words);
    output.code(1);
    output.stdout()
}

#[track_caller]
fn assert_only_of_program(text: &str, expected: &str) {
    assert!(text.contains(expected), "{text}");
    for own in ["PegasusLite", "#####", "INFO:"] {
        assert!(!text.contains(own), "{own} is in\n{text}");
    }
}

#[test]
fn a_program_in_a_directory_of_its_own_shows_what_it_wrote() {
    for configuration in WITHOUT_SHARED_FILES {
        let place = Place::new();
        place.chain("echo reading; echo 'KeyError: x' >&2; exit 3", "true");
        let summary = run(&place, configuration, &[]);
        assert_only_of_program(&summary, "  stderr   | KeyError: x\n");
        let analyzer = place.run(["analyzer", "pmc-runs/chain"]).stdout();
        assert_only_of_program(&analyzer, "   stderr    | KeyError: x\n   stdout    | reading\n");
        let json = place.run(["analyzer", "--json", "pmc-runs/chain"]).json();
        assert_eq!(json["causes"][0]["message"], "KeyError: x", "{json}");
        assert_eq!(
            json["causes"][0]["example"]["cannot_repeat"],
            serde_json::Value::Null
        );
        // The directory is gone, so the whole task is repeated.
        let by_hand = json["causes"][0]["example"]["by_hand"]
            .as_str()
            .unwrap_or_default();
        let again = std::process::Command::new("sh")
            .arg("-c")
            .arg(by_hand)
            .output()
            .expect("a shell");
        assert_eq!(again.status.code(), Some(3), "{by_hand}");
        assert!(
            String::from_utf8_lossy(&again.stdout).contains("KeyError: x"),
            "{by_hand}"
        );
    }
}

#[test]
fn a_command_that_cannot_be_repeated_says_why() {
    let place = Place::new();
    place.chain("exit 3", "true");
    run(&place, "nonsharedfs", &[]);
    let json = place.run(["analyzer", "--json", "pmc-runs/chain"]).json();
    let by_hand = json["causes"][0]["example"]["by_hand"]
        .as_str()
        .unwrap_or_default();
    let description = by_hand.rsplit(' ').next().unwrap_or_default();
    std::fs::remove_file(description).expect("the description of the job");
    let analyzer = place.run(["analyzer", "pmc-runs/chain"]).stdout();
    assert!(
        analyzer.contains(&format!(
            "   repeat    not possible here: {description} is not on this machine\n"
        )),
        "{analyzer}"
    );
}

#[test]
fn programs_that_write_only_to_standard_output_or_are_killed_show_that() {
    let place = Place::new();
    place.chain("echo 'Traceback: y'; exit 4", "true");
    assert_only_of_program(&run(&place, "nonsharedfs", &[]), "  stdout   | Traceback: y\n");
    let json = place.run(["analyzer", "--json", "pmc-runs/chain"]).json();
    assert_eq!(json["causes"][0]["message"], "Traceback: y", "{json}");

    place.chain("echo 'about to crash' >&2; kill -SEGV $$", "true");
    let summary = run(&place, "condorio", &[]);
    assert_only_of_program(&summary, "  stderr   | about to crash\n");
    assert!(
        summary.contains("first_A failed: signal 11, SIGSEGV"),
        "{summary}"
    );
}

#[test]
fn a_program_without_kickstart_shows_what_it_wrote() {
    let place = Place::new();
    place.chain("echo 'KeyError: x' >&2; printf 'no end' >&2; exit 3", "true");
    let text = place.read("workflow.yml");
    let without = "{name: first, profiles: {pegasus: {gridstart: none}}, ";
    place.write("workflow.yml", &text.replace("{name: first, ", without));
    let summary = run(&place, "nonsharedfs", &[]);
    assert_only_of_program(&summary, "  stderr   | KeyError: x\n           | no end\n");
}

#[test]
fn packed_output_of_lite_jobs_shows_what_the_program_wrote() {
    let place = Place::new();
    place.chain("echo 'KeyError: x' >&2; exit 3", "true");
    let summary = run(&place, "nonsharedfs", &["--packed-output=always"]);
    assert_only_of_program(&summary, "  stderr   | KeyError: x\n");
}
