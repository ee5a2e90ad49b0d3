//! Facts from the command of a job.

/// Returns the value of an option of kickstart in the arguments of a job.
pub(crate) fn kickstart_option(arguments: &str, letter: char) -> Option<String> {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let value = pmc_calls::kickstart::value(&words, letter)?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Returns the last part of a path.
pub(crate) fn base_name(path: &str) -> &str {
    match path.rsplit('/').next() {
        None | Some("") => "unknown",
        Some(name) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_job_itself_are_skipped() {
        let arguments = " -f -M -n split -NID1 -R local  -w /x /bin/app -R other";
        assert_eq!(kickstart_option(arguments, 'R').as_deref(), Some("local"));
        assert_eq!(kickstart_option(arguments, 'n').as_deref(), Some("split"));
        assert_eq!(kickstart_option("-w /x /bin/app -R other", 'R'), None);
    }

    #[test]
    fn a_path_without_a_name_is_unknown() {
        assert_eq!(base_name("/a/b"), "b");
        assert_eq!(base_name("a/"), "unknown");
    }
}
