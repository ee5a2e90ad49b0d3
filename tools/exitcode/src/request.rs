//! The next attempt of a job that has failed: expressions in its submit description change what it requests.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use monitord_compat::record_reader::Record;
use pmc_expressions::{Amount, Variables, evaluate};

/// Largest submit description, in bytes.
const MAX_DESCRIPTION: u64 = 64 << 20;
/// Where expressions stand, and which macros they set. Texts are those of batch systems.
const TEXTS: [&str; 3] = ["queue", "project", "glite_arguments"];

/// Applies the expressions of a submit description. Returns notes about those that were skipped.
///
/// # Errors
/// The description cannot be read or written.
pub(crate) fn update(
    base: &Path,
    record: Option<&Record>,
    exit_code: Option<i64>,
    retry: u32,
) -> io::Result<Vec<String>> {
    let path = PathBuf::from(format!("{}.sub", base.display()));
    let read = pmc_files::open(&path).and_then(|file| {
        let bytes = pmc_files::read_rest(&file, MAX_DESCRIPTION)?;
        Ok((
            String::from_utf8(bytes).map_err(io::Error::other)?,
            file.metadata()?,
        ))
    });
    let (text, data) = match read {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (changed, notes) = apply(&text, record, exit_code, retry);
    if changed != text {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
        file.write_all(changed.as_bytes())?;
        file.as_file().set_permissions(data.permissions())?;
        file.persist(&path).map_err(|error| error.error)?;
    }
    Ok(notes)
}

/// Returns the description with new values.
fn apply(text: &str, record: Option<&Record>, exit_code: Option<i64>, retry: u32) -> (String, Vec<String>) {
    let values: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    let get = |name: &str| {
        values
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    };
    let mut variables = variables(&values, record, exit_code, retry);
    let (mut changed, mut notes) = (text.to_owned(), Vec::new());
    for amount in Amount::ALL {
        let Some(expression) = get(&format!("pegasus_{}_expr", amount.name())) else {
            continue;
        };
        match evaluate(amount, unquoted(expression), &variables) {
            Ok(value) => {
                let name = amount.variable();
                variables.set_whole(name, value);
                changed = replaced(&changed, name, &value.to_string());
            }
            Err(error) => notes.push(format!("pegasus_{}_expr: {error}", amount.name())),
        }
    }
    for name in TEXTS {
        if let Some(expression) = get(&format!("pegasus_{name}_expr")) {
            match pmc_expressions::evaluate_text(unquoted(expression), &variables) {
                Ok(value) if value.contains(['\n', '\r', '\\']) => {
                    notes.push(format!("pegasus_{name}_expr: its value does not fit on a line"));
                }
                Ok(value) => changed = replaced(&changed, &format!("pegasus_{name}"), &format!("'{value}'")),
                Err(error) => notes.push(format!("pegasus_{name}_expr: {error}")),
            }
        }
    }
    (changed, notes)
}

/// Returns what expressions may name.
fn variables(
    values: &[(&str, &str)],
    record: Option<&Record>,
    exit_code: Option<i64>,
    retry: u32,
) -> Variables {
    let mut variables = Variables::default();
    for (name, value) in values {
        let name = name.strip_prefix('+').unwrap_or(name);
        if name.starts_with("pegasus_") && !name.ends_with("_expr") {
            let value = unquoted(value);
            match value.parse() {
                Ok(number) => variables.set_whole(name, number),
                Err(_) => variables.set_text(name, value),
            };
        }
    }
    // Of the attempt that failed, as in the executor.
    variables.set_whole("job_retry", u64::from(retry));
    if let Some(code) = exit_code.and_then(|code| u64::try_from(code).ok()) {
        variables.set_whole("exitcode", code);
    }
    if let Some(record) = record {
        if let Some(duration) = record.main.duration {
            variables.set_number("duration", duration);
            variables.set_number("job_runtime", duration);
        }
        if let Some(kib) = record.main.max_rss.and_then(|kib| u64::try_from(kib).ok()) {
            variables.set_whole("maxrss", kib);
        }
        if let Some(user) = &record.user {
            variables.set_text("user", user);
        }
    }
    variables
}

/// Returns a text without the quotes around it.
fn unquoted(text: &str) -> &str {
    for quote in ['\'', '"'] {
        let inner = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    text
}

/// Returns a description with another value of a macro.
fn replaced(text: &str, name: &str, value: &str) -> String {
    let start = format!("{name} = ");
    let lines = text
        .split_inclusive('\n')
        .map(|line| match line.starts_with(&start) {
            true => format!("{start}{value}\n"),
            false => line.to_owned(),
        });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTION: &str = "request_memory = $(pegasus_memory_mb) MB\npegasus_cores_expr = 'job_retry + 1'\n\
        pegasus_memory_expr = '2048 if job_retry == 0 else 8192 * pegasus_cores'\n\
        pegasus_queue_expr = '\"scavenge\" if job_retry > 0 else \"short\"'\npegasus_runtime_expr = 'nonsense('\n\
        pegasus_cores = 1\npegasus_memory_mb = 2048\npegasus_queue = 'short'\nqueue\n";

    #[test]
    fn expressions_change_the_next_request() {
        let (text, notes) = apply(DESCRIPTION, None, Some(1), 1);
        assert!(text.contains("pegasus_cores = 2\n"), "{text}");
        assert!(text.contains("pegasus_memory_mb = 16384\n"), "{text}");
        assert!(text.contains("pegasus_queue = 'scavenge'\n"), "{text}");
        assert!(
            text.contains("request_memory = $(pegasus_memory_mb) MB\n"),
            "{text}"
        );
        assert_eq!(notes.len(), 1, "{notes:?}");
    }
}
