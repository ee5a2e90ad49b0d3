use proptest::prelude::*;

use super::*;

fn variables() -> Variables {
    let mut variables = Variables::default();
    variables.set_whole("pegasus_memory_mb", 1000);
    variables.set_whole("pegasus_cores", 2);
    variables.set_whole("job_retry", 1);
    variables.set_whole("exitcode", 137);
    variables.set_number("job_runtime", 12.5);
    variables.set_whole("maxrss", 900 << 10);
    variables.set_text("pegasus_wf_name", "montage");
    variables.set_text("pegasus_cluster_size", "4");
    variables
}

fn memory(text: &str) -> Result<u64, String> {
    evaluate(Amount::Memory, text, &variables()).map_err(|error| error.to_string())
}

/// The values are those of Python 3.11.
#[test]
fn expressions_mean_what_they_mean_in_python() {
    for (text, value) in [
        ("pegasus_memory_mb * 2", 2000),
        (
            "pegasus_memory_mb * 2 if exitcode == 137 else pegasus_memory_mb",
            2000,
        ),
        (
            "pegasus_memory_mb * 2 if exitcode == 1 else pegasus_memory_mb",
            1000,
        ),
        ("1 if exitcode == 1 else 2 if exitcode == 2 else 3", 3),
        ("pegasus_memory_mb * 2 ** (job_retry + 1)", 4000),
        ("int(pegasus_memory_mb * 1.5)", 1500),
        ("max(pegasus_memory_mb, maxrss / 1024 * 1.2)", 1080),
        ("min(3, 1, 2) + max([4, 6, 5])", 7),
        ("7 // 2 + 7 % 4", 6),
        ("7 / 2", 4),
        ("round(2.5) + round(3.5)", 6),
        ("round(2.345, 1) * 10", 23),
        ("int('12') + float('1.5') * 2", 15),
        ("len(pegasus_wf_name) + len('é')", 8),
        ("int(str(12) + '3')", 123),
        (
            "100 if 'mont' in pegasus_wf_name and not exitcode in [1, 2] else 50",
            100,
        ),
        ("100 if exitcode not in (1, 2) else 50", 100),
        ("100 if 0 < job_retry < 3 else 50", 100),
        ("100 if 3 > 2 > 2 else 50", 50),
        ("job_retry and 5 or 7", 5),
        ("100 if True and not False else 50", 100),
        ("'2 GB' if job_runtime > 10 else '1 GB'", 2048),
        ("pegasus_cluster_size * 10", 40),
        ("abs(-3)", 3),
        ("-7 // 2 + 10", 6),
        ("-7 % 3", 2),
    ] {
        assert_eq!(memory(text), Ok(value), "{text}");
    }
}

/// In Python these are 6 and 2.
#[test]
fn powers_group_as_in_jinja() {
    assert_eq!((memory("-2 ** 2 + 10"), memory("2 ** 3 ** 0")), (Ok(14), Ok(1)));
}

#[test]
fn expressions_that_give_nothing_say_why() {
    for (text, says) in [
        ("pegasus_memory_mb *", "syntax error"),
        ("(1", "syntax error"),
        ("1 2", "syntax error"),
        ("", "syntax error"),
        ("nonsense + 1", "there is no variable `nonsense`"),
        (
            "total_ip_size_mb * 3",
            "the variable `total_ip_size_mb` has no value in this run",
        ),
        (
            "pegasus_gpus",
            "the variable `pegasus_gpus` has no value in this run",
        ),
        ("open('/etc/passwd')", "there is no variable `open`"),
        ("'a' + 1", "tried to use + operator"),
        ("1 / 0", "invalid operation"),
        ("1 // 0", "invalid operation"),
        ("9 ** 9999", "invalid operation"),
        ("max('a', 1)", "cannot be compared"),
        ("max()", "needs a value"),
        ("int('x')", "need a number"),
        ("5 if exitcode == 1", "which is no amount"),
        ("pegasus_wf_name", "`montage`"),
        ("pegasus_memory_mb - 2000", "out of range"),
    ] {
        let error = memory(text).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
    let long = memory(&format!("1{}", "+1".repeat(3000))).unwrap_err();
    assert_eq!(long, "it has 6001 bytes, and at most 4096 are allowed");
}

/// Each of them made hundreds of megabytes, or did not end for seconds.
#[test]
fn no_expression_fills_memory() {
    let begun = std::time::Instant::now();
    for (text, says) in [
        ("len('x' * 99999999)", "out of fuel"),
        ("len('x' * 9999 * 9999)", "out of fuel"),
        ("len(('x' * 99999 + 'y') * 999)", "out of fuel"),
        ("len((1, 2) * 9999999)", "cannot be repeated"),
        ("len(([1] * 99999999) ~ 'y')", "cannot be repeated"),
        ("len(([1]) ~ 'y')", "`~` is no operator"),
        ("1 if 7 in [1] * 99999999 else 2", "cannot be repeated"),
        ("max([max([[1], [2]])])", "lists cannot be compared"),
        ("len(str([1]))", "not a list"),
        ("[1]", "`a list`"),
        ("'2 ' + 'G' * 99999999", "out of fuel"),
    ] {
        let result = memory(text);
        let is_so = result.as_ref().is_err_and(|error| error.contains(says));
        assert!(is_so, "{text}: {result:?} after {:?}", begun.elapsed());
    }
    let queue = evaluate_text("[1]", &variables()).unwrap_err();
    assert!(queue.to_string().contains("not a list"), "{queue}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(2));
    assert_eq!(memory(r#"len('ab' * 100) + max([3, 2]) + len("'~")"#), Ok(205));
}

#[test]
fn planning_sees_syntax_and_names() {
    assert_eq!(
        check("pegasus_memory_mb * 2 if pegasus_site == 'a' else max(1, maxrss)"),
        Ok(())
    );
    assert_eq!(
        check("a +").unwrap_err().to_string(),
        "syntax error: unexpected end of input, expected expression"
    );
    assert_eq!(
        check("pegasus_memory"),
        Err(ExpressionError::Unknown("pegasus_memory".into()))
    );
    assert_eq!(
        check("hostaddr"),
        Err(ExpressionError::NoValue("hostaddr".into()))
    );
    assert!(mentions("pegasus_site == 'x'", "pegasus_site"));
    assert!(!mentions("'pegasus_site' == 'x'", "pegasus_site"));
    assert!(!mentions("pegasus_site +", "pegasus_site"));
}

proptest! {
    #[test]
    fn no_text_panics(text in "[-a-z0-9_ ()+*/%<>=!.,'\"\\[\\]{}|~:]{0,60}") {
        let _ = check(&text);
        let _ = memory(&text);
    }

    #[test]
    fn numbers_are_themselves(number in 1_u32..) {
        prop_assert_eq!(memory(&number.to_string()), Ok(u64::from(number)));
    }
}
