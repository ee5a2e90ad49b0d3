//! Where the output of tasks goes in a batch job: two files for each attempt, or a few packs for all.

/// Tasks of a DAG above which their files are too many.
const MANY_TASKS: usize = 10_000;

/// The property `pegasus.batch.output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskFiles {
    /// Packs for many tasks if the executor loads the database: then nothing else needs the files.
    Auto,
    /// Packs.
    Packed,
    /// Files.
    Files,
}

impl TaskFiles {
    /// Parses the value of the property.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "packed" => Some(Self::Packed),
            "files" => Some(Self::Files),
            _ => None,
        }
    }

    /// Returns whether a run with this number of tasks makes packs.
    pub(super) fn is_packed(self, tasks: usize, stampede: bool) -> bool {
        match self {
            Self::Auto => stampede && tasks > MANY_TASKS,
            Self::Packed => true,
            Self::Files => false,
        }
    }
}

/// Describes the files of a run for its output, with advice if they are many.
pub(super) fn sentence(tasks: usize, is_packed: bool) -> String {
    if is_packed {
        return "a few for the output of all tasks, in packed-output/".to_owned();
    }
    let count = format!("{} for the output of {tasks} tasks", 2 * tasks);
    if tasks <= MANY_TASKS {
        return count;
    }
    format!(
        "{count}, which is much for a shared file system: pegasus.batch.output = packed makes a few instead, which \
         pmc-monitord reads and `pmc unpack` turns into files"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_for_many_tasks_whose_files_nothing_needs() {
        let auto = TaskFiles::parse("auto").unwrap();
        assert!(auto.is_packed(10_001, true));
        assert!(!auto.is_packed(10_000, true) && !auto.is_packed(1_000_000, false));
        assert!(TaskFiles::Packed.is_packed(1, false) && !TaskFiles::Files.is_packed(1_000_000, true));
        assert_eq!(TaskFiles::parse("pack"), None);
    }

    #[test]
    fn many_files_come_with_advice() {
        assert_eq!(sentence(8, false), "16 for the output of 8 tasks");
        assert!(sentence(10_001, false).starts_with("20002 for the output of 10001 tasks, which is much"));
        assert!(!sentence(10_001, true).contains("10001"));
    }
}
