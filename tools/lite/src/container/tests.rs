use super::*;

#[test]
fn names_of_loaded_images_are_found() {
    for (text, name) in [
        ("Loaded image: busybox:1.36\n", Some("busybox:1.36")),
        ("Loaded image ID: sha256:00ff\n", Some("sha256:00ff")),
        (
            "Getting blobs\nLoaded image(s): localhost/a:1,localhost/b:2\n",
            Some("localhost/a:1"),
        ),
        ("Error: no such file\n", None),
    ] {
        assert_eq!(loaded_name(text), name);
    }
}

#[test]
fn an_engine_that_hangs_is_ended() {
    let start = Instant::now();
    let error = said("sleep", &["600"], Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(300));
    let text = said("/bin/sh", &["-c", "echo no >&2"], Duration::from_secs(60)).unwrap();
    assert_eq!(text, "no\n");
}

#[test]
fn variables_of_the_node_are_expanded() {
    let value = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
    for (word, expanded) in [
        ("$HOME/a:${HOME}b", "/home/me/a:/home/meb"),
        ("a$", "a$"),
        ("$(x) ${not ok}", "$(x) ${not ok}"),
        ("[$NONE]", "[]"),
    ] {
        assert_eq!(expand(word, &value), expanded);
    }
}
