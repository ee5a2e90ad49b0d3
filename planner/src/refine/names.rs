//! Names of jobs and of staged programs.

use crate::model::TransformationName;

/// Returns the name of a staged program in the work directory.
pub(crate) fn staged_name(name: &TransformationName, delimiter: &str) -> String {
    let mut text = String::new();
    if let Some(namespace) = &name.namespace {
        text.push_str(namespace);
        text.push_str(delimiter);
    }
    text.push_str(&name.name);
    if let Some(version) = &name.version {
        text.push_str(delimiter);
        text.push_str(version);
    }
    text
}

/// Returns the name of a job, without characters that are unsafe in paths, the DAG or logs.
pub(crate) fn job_name(prefix: &str, transformation: &str, id: &str) -> Box<str> {
    let mut name = String::with_capacity(prefix.len() + transformation.len() + 1 + id.len());
    let plain = |b: u8| b.is_ascii_alphanumeric() | (b == b'_') | (b == b'-');
    for part in [prefix, transformation, "_", id] {
        if part.bytes().fold(true, |all, b| all & plain(b)) {
            name.push_str(part);
            continue;
        }
        name.extend(part.chars().map(|c| match c {
            '.' | '+' | '/' | '"' | '\'' | '\\' => '_',
            c if c.is_whitespace() || c.is_control() => '_',
            c => c,
        }));
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refine::programs::auxiliary_name;

    #[test]
    fn names_are_safe() {
        assert_eq!(&*job_name("p_", "a.b+c d", "ID1"), "p_a_b_c_d_ID1");
        assert_eq!(&*job_name("", "bin/x", "1\n2"), "bin_x_1_2");
    }

    #[test]
    fn staged_programs_are_named_after_the_whole_transformation() {
        let name = TransformationName {
            namespace: Some("lab".into()),
            name: "pipe".into(),
            version: Some("1.0".into()),
        };
        assert_eq!(staged_name(&name, "-"), "lab-pipe-1.0");
        assert_eq!(staged_name(&auxiliary_name("script"), "-"), "script");
    }
}
