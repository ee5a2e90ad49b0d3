//! Data configurations: the jobs of a site share its work directory, or each has a directory of its own on
//! its node, and files are staged in the work directory of the staging site.

use rustc_hash::FxHashMap;

use crate::diagnostic::Diagnostic;
use crate::model::FileId;
use crate::properties::Properties;

/// Profile with the data configuration.
pub(crate) const KEY: &str = "data.configuration";

/// How jobs get their files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DataMode {
    /// They work in the work directory of their site.
    #[default]
    Shared,
    /// Each works in a directory of its own, and exchanges files with its staging site.
    NonShared,
    /// The same, and the staging site is `local`: without HTCondor, nothing else can bring the files.
    CondorIo,
}

impl DataMode {
    /// Parses its name in properties and profiles.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "sharedfs" => Some(DataMode::Shared),
            "nonsharedfs" | "s3" => Some(DataMode::NonShared),
            "condorio" | "condor" => Some(DataMode::CondorIo),
            _ => None,
        }
    }
    /// Returns its name in properties.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DataMode::Shared => "sharedfs",
            DataMode::NonShared => "nonsharedfs",
            DataMode::CondorIo => "condorio",
        }
    }
    /// Returns whether each job has a directory of its own.
    pub(crate) fn is_lite(self) -> bool {
        self != DataMode::Shared
    }
}

/// Layout of files in the work directory of a staging site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StagingMapper {
    /// All in one directory.
    Flat,
    /// The files of a job in one of many numbered directories.
    Hashed {
        /// Levels of directories.
        levels: u32,
        /// Added to the counter for each job.
        multiplier: u32,
    },
}

impl StagingMapper {
    /// Reads the mapper from the properties.
    pub(crate) fn new(
        properties: &Properties,
        mode: DataMode,
        (levels, multiplier): (Option<u32>, Option<u32>),
        problems: &mut Vec<Diagnostic>,
    ) -> Self {
        /// Deeper directories are of no use.
        const MAX_LEVELS: u32 = 8;
        const NAME: &str = "pegasus.dir.staging.mapper";
        let hashed = StagingMapper::Hashed {
            levels: levels.unwrap_or(2).min(MAX_LEVELS),
            multiplier: multiplier.unwrap_or(5),
        };
        match properties.get(NAME).unwrap_or_default().trim() {
            "" if mode == DataMode::NonShared => hashed,
            // As in Pegasus, also for jobs whose profiles say otherwise.
            "" => StagingMapper::Flat,
            name if name.eq_ignore_ascii_case("hashed") => hashed,
            name if name.eq_ignore_ascii_case("flat") => StagingMapper::Flat,
            _ => {
                problems.push(properties.bad_value(NAME, "must be one of Hashed, Flat"));
                hashed
            }
        }
    }
}

/// Files per directory of a hashed layout.
const FILES_PER_DIRECTORY: u64 = 254;
/// Initial counter of a hashed layout.
const FIRST_COUNT: u64 = 30;

/// Returns the directory of the job with number `n` in a hashed layout.
pub(crate) fn hashed(n: u64, levels: u32, multiplier: u32) -> String {
    let mut e = n * u64::from(multiplier) + FIRST_COUNT;
    let mut digits = vec![0; levels as usize];
    for digit in digits.iter_mut().rev() {
        e /= FILES_PER_DIRECTORY;
        *digit = e % FILES_PER_DIRECTORY;
    }
    let parts: Vec<String> = digits.iter().map(|d| format!("{d:02X}")).collect();
    parts.join("/")
}

/// Directories of files on staging sites: that of the first job which uses the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileDirectories {
    names: Vec<Box<str>>,
    /// Index of the directory.
    of_file: FxHashMap<FileId, u32>,
    jobs: u64,
}

impl FileDirectories {
    /// Returns the directory of a file, `.` for the work directory itself.
    pub(crate) fn of(&self, file: FileId) -> &str {
        self.of_file.get(&file).map_or(".", |&n| &self.names[n as usize])
    }
    /// Gives the files of the next job a directory, unless an earlier job has done so.
    pub(crate) fn add_job(&mut self, mapper: StagingMapper, files: impl Iterator<Item = FileId>) {
        let StagingMapper::Hashed { levels, multiplier } = mapper else {
            return;
        };
        let name = hashed(self.jobs, levels, multiplier);
        self.jobs += 1;
        if self.names.last().is_none_or(|last| **last != *name) {
            self.names.push(name.into());
        }
        let number = u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX);
        for file in files {
            self.of_file.entry(file).or_insert(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_directories_are_numbered() {
        assert_eq!(hashed(0, 2, 5), "00/00");
        assert_eq!(hashed(44, 2, 5), "00/00");
        assert_eq!(hashed(45, 2, 5), "00/01");
        assert_eq!(hashed(95, 2, 5), "00/01");
        assert_eq!(hashed(96, 2, 5), "00/02");
        assert_eq!(hashed(1_000_000, 2, 5), "4D/7F");
    }

    #[test]
    fn a_file_stays_in_the_directory_of_its_first_job() {
        let mapper = StagingMapper::Hashed {
            levels: 3,
            multiplier: 40,
        };
        let mut directories = FileDirectories::default();
        for job in 0..7 {
            directories.add_job(mapper, [FileId::new(0), FileId::new(job + 1)].into_iter());
        }
        assert_eq!(directories.of(FileId::new(0)), "00/00/00");
        assert_eq!(directories.of(FileId::new(7)), "00/00/01");
        assert_eq!(directories.of(FileId::new(99)), ".");
    }

    #[test]
    fn names_of_configurations() {
        assert_eq!(DataMode::parse(" NonSharedFS "), Some(DataMode::NonShared));
        assert_eq!(DataMode::parse("condorio"), Some(DataMode::CondorIo));
        assert_eq!(DataMode::parse("sharedfs"), Some(DataMode::Shared));
        assert_eq!(DataMode::parse("nfs"), None);
    }
}
