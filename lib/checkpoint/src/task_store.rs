//! The files of a task in a store.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use pmc_files::Destination;

use crate::error::at;
use crate::own::{
    FILE_MODE, MAX_TEXT, Sync, again_while_missing, found, is_gone, make_directories, make_directory,
    own_folder, remove_directory, replace, sync_directory, write_anew,
};
use crate::{AllSeries, InvalidSidecar, Prefix, Series, Sidecar, StoreError, sidecar, verify};

/// Ending of a file that is open.
const PART: &str = ".part";

/// Ending of the directory of a series that is not there as a whole: it has no number, and so does not count.
const INCOMING: &str = ".new";

/// Ending of a sidecar.
const SIDECAR: &str = ".json";

/// Highest number of a series that is read. No task saves that many.
const MAX_SERIES: u64 = 1 << 48;

/// Name of the file that says why a series is not given.
const WITHHELD: &str = "withheld";

/// Name of the file with the last message of the task.
const MESSAGE: &str = "message";

/// Maximum characters of a message.
const MAX_MESSAGE: usize = 1000;

/// Maximum bytes of a series that is read as a whole before it is given. Readers check their files in any
/// case.
const MAX_VERIFIED: u64 = 4 << 30;

/// The files of a task in a store.
#[derive(Clone, Debug)]
pub struct TaskStore {
    path: PathBuf,
    task: String,
    /// The id of the store.
    run: String,
    /// Ending of the directories of series.
    ending: &'static str,
    /// The store is that of a node: other agents of the host remove its directories when they are empty.
    is_on_node: bool,
}

/// What the store beside a DAG file has of a task.
#[derive(Debug, Default)]
pub struct Contents {
    /// The sidecars of all complete series.
    pub sidecars: Vec<Sidecar>,
    /// The series that are not given, and why.
    pub withheld: Vec<(u64, String)>,
}

/// A series that was looked at before it is given.
#[derive(Debug, Default)]
pub struct Verified {
    /// The series, if there is one.
    pub given: Option<u64>,
    /// Newer ones that cannot be given, and why.
    pub problems: Vec<(u64, String)>,
}

impl TaskStore {
    /// The files of the task with this directory in a store with this path and id.
    pub(crate) fn new(store: &Path, task: &str, run: &str, is_on_node: bool) -> Self {
        Self {
            path: store.join(task),
            task: task.to_owned(),
            run: run.to_owned(),
            ending: "",
            is_on_node,
        }
    }

    /// The same for files of series that do not count before they are [`accepted`](Self::accept).
    #[must_use]
    pub fn incoming(&self) -> Self {
        Self {
            ending: INCOMING,
            ..self.clone()
        }
    }

    /// Lets a series count whose files are all there: see [`incoming`](Self::incoming). What other attempts
    /// have left there goes.
    ///
    /// # Errors
    /// It is missing, or cannot get its name. It does not count then.
    pub fn accept(&self, series: u64, submit: u64) -> Result<(), StoreError> {
        let incoming = self.incoming().series_path(series);
        let name = series.to_string();
        for entry in fs::read_dir(own_folder(&incoming)?.path()).map_err(at(&incoming))? {
            let entry = entry.map_err(at(&incoming))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let sidecar = incoming.join(format!("{}{SIDECAR}", name.trim_end_matches(SIDECAR)));
            let is_of = |sidecar: Sidecar| sidecar.submit == submit;
            if !self.read_sidecar(series, &sidecar).is_ok_and(is_of) {
                fs::remove_file(entry.path()).map_err(at(&incoming.join(name)))?;
            }
        }
        pmc_files::rename(&incoming, OsStr::new(&name)).map_err(at(&incoming))?;
        sync_directory(&self.path).map_err(at(&self.path))
    }

    /// Returns what is there of complete series, and what is withheld. Removes nothing.
    ///
    /// # Errors
    /// The directory cannot be read. One that is missing is empty.
    pub fn contents(&self) -> Result<Contents, StoreError> {
        let all = self.scan()?.0;
        let withheld = all.iter().filter_map(|(number, series)| {
            let reason = series.withheld()?;
            Some((number, reason.to_owned()))
        });
        let mut contents = Contents {
            withheld: withheld.collect(),
            sidecars: Vec::new(),
        };
        for number in all.complete() {
            let names = all.get(number).into_iter().flat_map(Series::names);
            let sidecars = names.map(|(prefix, rank)| {
                let path = self.file_path(number, prefix, rank, SIDECAR);
                self.read_sidecar(number, &path)
            });
            contents.sidecars.extend(sidecars.flatten());
        }
        Ok(contents)
    }

    /// Returns the name of the directory.
    #[must_use]
    pub fn directory(&self) -> &str {
        &self.task
    }

    /// Returns the directory of the store.
    #[must_use]
    pub fn store(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Returns the id of the store.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Returns a sidecar for a file of this task; callers fill in what differs.
    #[must_use]
    pub fn sidecar(&self, prefix: Prefix) -> Sidecar {
        Sidecar::new(self.run.clone(), self.task.clone(), prefix)
    }

    fn series_path(&self, series: u64) -> PathBuf {
        self.path.join(format!("{series}{}", self.ending))
    }

    fn file_path(&self, series: u64, prefix: &Prefix, rank: u32, ending: &str) -> PathBuf {
        self.series_path(series).join(format!("{prefix}.{rank}{ending}"))
    }

    /// Returns what is there, and what is wrong with files that do not count therefore.
    ///
    /// # Errors
    /// The directory cannot be read. One that is missing is empty.
    pub fn scan(&self) -> Result<(AllSeries, Vec<StoreError>), StoreError> {
        let (mut all, mut problems) = (AllSeries::default(), Vec::new());
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((all, problems)),
            entries => entries.map_err(at(&self.path))?,
        };
        for entry in entries {
            let name = entry.map_err(at(&self.path))?.file_name();
            let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
            // Not `007`, which would be the same number.
            let is_series = |number: &u64| *number <= MAX_SERIES && OsStr::new(&number.to_string()) == name;
            if let Some(number) = number.filter(is_series) {
                self.scan_series(number, &mut all, &mut problems)?;
            }
        }
        Ok((all, problems))
    }

    /// Returns the sidecars of all files that count. Removes files that are open: call it while no attempt of
    /// the task runs.
    ///
    /// # Errors
    /// The directory cannot be read. One that is missing is empty.
    pub fn take_stock(&self) -> Result<Vec<Sidecar>, StoreError> {
        self.take_stock_below(u64::MAX)
    }

    /// The same for the series below a number.
    ///
    /// # Errors
    /// The same.
    pub fn take_stock_below(&self, below: u64) -> Result<Vec<Sidecar>, StoreError> {
        let mut sidecars = Vec::new();
        let all = self.scan()?.0;
        for (number, _) in all.iter().filter(|(number, _)| *number < below) {
            let path = self.series_path(number);
            let folder = own_folder(&path)?;
            for entry in fs::read_dir(folder.path()).map_err(at(&path))?.flatten() {
                let name = entry.file_name();
                if name.as_encoded_bytes().ends_with(PART.as_bytes()) {
                    // One that stays keeps the series from counting, and goes with it.
                    let _ = fs::remove_file(entry.path());
                } else if name.as_encoded_bytes().ends_with(SIDECAR.as_bytes()) {
                    sidecars.extend(self.read_sidecar(number, &path.join(name)));
                }
            }
        }
        Ok(sidecars)
    }

    /// Returns the paths of a file and of its sidecar.
    #[must_use]
    pub fn paths(&self, series: u64, prefix: &Prefix, rank: u32) -> (PathBuf, PathBuf) {
        let path = |ending| self.file_path(series, prefix, rank, ending);
        (path(""), path(SIDECAR))
    }

    /// Returns whether the bytes of a file are those of its sidecar.
    ///
    /// # Errors
    /// The file is missing, or cannot be read.
    pub fn is_whole(&self, series: u64, prefix: &Prefix, rank: u32) -> Result<bool, StoreError> {
        let (file, sidecar) = self.open(series, prefix, rank)?;
        let path = self.file_path(series, prefix, rank, "");
        verify(file, sidecar.bytes, &sidecar.crc32).map_err(at(&path))
    }

    /// Removes a file. Its sidecar goes first, so that no part of it counts.
    ///
    /// # Errors
    /// It cannot be removed. One that is missing is removed.
    pub fn remove_file(&self, series: u64, prefix: &Prefix, rank: u32) -> Result<(), StoreError> {
        let path = self.series_path(series);
        let Some(folder) = found(own_folder(&path))? else {
            return Ok(());
        };
        for ending in [SIDECAR, ""] {
            let path = folder.path().join(format!("{prefix}.{rank}{ending}"));
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn scan_series(
        &self,
        number: u64,
        all: &mut AllSeries,
        problems: &mut Vec<StoreError>,
    ) -> Result<(), StoreError> {
        let path = self.series_path(number);
        let entries = match fs::read_dir(&path) {
            // The run has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(at(&path))?,
        };
        all.begin(number);
        for entry in entries {
            let name = entry.map_err(at(&path))?.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(PART) {
                all.cut(number);
            } else if name == WITHHELD {
                let reason = pmc_files::read_to_string(&path.join(name), MAX_TEXT).unwrap_or_default();
                all.withhold(number, reason.trim_end().to_owned());
            } else if name.ends_with(SIDECAR) {
                let sidecar = path.join(name);
                match self.read_sidecar(number, &sidecar) {
                    Ok(sidecar) => all.close(&sidecar),
                    // The run has removed it meanwhile, before its file.
                    Err(_) if is_gone(&sidecar) => {}
                    Err(problem) => problems.push(problem),
                }
            }
        }
        Ok(())
    }

    /// Reads a sidecar, and compares it with its place and the size of its file.
    fn read_sidecar(&self, series: u64, path: &Path) -> Result<Sidecar, StoreError> {
        let text = pmc_files::read_to_string(path, sidecar::MAX_SIZE).map_err(at(path))?;
        let invalid = |source| StoreError::Sidecar {
            path: path.to_owned(),
            source,
        };
        let sidecar = Sidecar::parse(&text).map_err(invalid)?;
        if sidecar.run != self.run {
            return Err(invalid(InvalidSidecar::OtherRun));
        }
        let name = sidecar.file_name() + SIDECAR;
        if sidecar.series != series
            || sidecar.task != self.task
            || path.file_name() != Some(OsStr::new(&name))
        {
            return Err(invalid(InvalidSidecar::OtherFile));
        }
        let file = path.with_extension("");
        let size = pmc_files::open(&file).and_then(|file| Ok(file.metadata()?.len()));
        match size.map_err(at(&file))? {
            size if size == sidecar.bytes => Ok(sidecar),
            size => {
                let text = format!("it has {size} of {} bytes", sidecar.bytes);
                Err(at(&file)(io::Error::new(io::ErrorKind::InvalidData, text)))
            }
        }
    }

    /// Creates a file, in place of one that was not closed.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(&self, series: u64, prefix: &Prefix, rank: u32) -> Result<File, StoreError> {
        let (directory, path) = (
            self.series_path(series),
            self.file_path(series, prefix, rank, PART),
        );
        let mut directories = vec![self.path.as_path(), &directory];
        if self.is_on_node {
            let outer = self.path.ancestors().skip(1).take(2);
            outer.for_each(|outer| directories.insert(0, outer));
        }
        again_while_missing(|| {
            make_directories(&directories)?;
            let destination = Destination::named(&path).map_err(at(&path))?;
            destination.create_anew(FILE_MODE).map_err(at(&path))
        })
    }

    /// Removes a file that was not closed.
    pub fn discard(&self, series: u64, prefix: &Prefix, rank: u32) {
        let path = self.file_path(series, prefix, rank, PART);
        if let (Ok(folder), Some(name)) = (own_folder(&self.series_path(series)), path.file_name()) {
            // One that is left keeps the series from counting, and goes with it.
            let _ = fs::remove_file(folder.path().join(name));
        }
    }

    /// Lets a file count that was created, written and synced.
    ///
    /// # Errors
    /// It cannot get its name, or the sidecar cannot be written. The file does not count then.
    pub fn publish(&self, sidecar: &Sidecar) -> Result<(), StoreError> {
        self.rename(sidecar, Sync::Yes)?;
        let directory = self.series_path(sidecar.series);
        sync_directory(&directory).map_err(at(&directory))
    }

    /// As [`publish`](Self::publish), but nothing waits for the disk: after a loss of power, checksums tell
    /// what is whole. For the disk of a node, which is not the only place of a file.
    ///
    /// # Errors
    /// The same.
    pub fn publish_on_node(&self, sidecar: &Sidecar) -> Result<(), StoreError> {
        self.rename(sidecar, Sync::No)
    }

    fn rename(&self, sidecar: &Sidecar, sync: Sync) -> Result<(), StoreError> {
        let file = |ending| self.file_path(sidecar.series, &sidecar.prefix, sidecar.rank, ending);
        let (part, name) = (file(PART), sidecar.file_name());
        pmc_files::rename(&part, OsStr::new(&name)).map_err(at(&part))?;
        let path = file(SIDECAR);
        write_anew(&path, sidecar.text().as_bytes(), sync).map_err(at(&path))
    }

    /// Opens a file for reading, with its sidecar.
    ///
    /// # Errors
    /// It is missing, or is not what the sidecar says.
    pub fn open(&self, series: u64, prefix: &Prefix, rank: u32) -> Result<(File, Sidecar), StoreError> {
        let sidecar = self.read_sidecar(series, &self.file_path(series, prefix, rank, SIDECAR))?;
        let path = self.file_path(series, prefix, rank, "");
        Ok((pmc_files::open(&path).map_err(at(&path))?, sidecar))
    }

    /// Reads all files of a series. Returns what is wrong with the first one that is damaged.
    #[must_use]
    pub fn damage(&self, number: u64, series: &Series) -> Option<String> {
        series
            .names()
            .find_map(|(prefix, rank)| match self.is_whole(number, prefix, rank) {
                Ok(true) => None,
                Ok(false) => Some(format!("its file {prefix}.{rank} is damaged")),
                Err(error) => Some(error.to_string()),
            })
    }

    /// Chooses the series from which an attempt goes on. Damaged ones are withheld from now on.
    #[must_use]
    pub fn choose(&self, all: &mut AllSeries) -> Verified {
        let mut verified = Verified::default();
        while let Some(number) = all.given() {
            let series = all.get(number).filter(|series| series.bytes() <= MAX_VERIFIED);
            let Some(damage) = series.and_then(|series| self.damage(number, series)) else {
                verified.given = Some(number);
                break;
            };
            // If that cannot be noted, it is found again.
            let _ = self.withhold(number, &damage);
            all.withhold(number, damage.clone());
            verified.problems.push((number, damage));
        }
        verified
    }

    /// Notes that a series is not to be given, also one that only nodes have.
    ///
    /// # Errors
    /// It cannot be noted.
    pub fn withhold(&self, series: u64, reason: &str) -> Result<(), StoreError> {
        make_directory(&self.path)?;
        make_directory(&self.series_path(series))?;
        let path = self.series_path(series).join(WITHHELD);
        replace(&path, format!("{reason}\n").as_bytes()).map_err(at(&path))
    }

    /// Keeps the last message of the task; the end of one that is too long is left out.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn set_message(&self, text: &str) -> Result<(), StoreError> {
        make_directory(&self.path)?;
        let path = self.path.join(MESSAGE);
        let text: String = text.chars().take(MAX_MESSAGE).collect();
        replace(&path, text.as_bytes()).map_err(at(&path))
    }

    /// Returns the last message of the task.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        pmc_files::read_to_string(&self.path.join(MESSAGE), MAX_TEXT).ok()
    }

    /// Removes a series. The sidecars go first, so that no part of it counts.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn remove_series(&self, series: u64) -> Result<(), StoreError> {
        let path = self.series_path(series);
        let Some(folder) = found(own_folder(&path))? else {
            return Ok(());
        };
        let entries = fs::read_dir(folder.path()).into_iter().flatten().flatten();
        for entry in
            entries.filter(|entry| entry.file_name().as_encoded_bytes().ends_with(SIDECAR.as_bytes()))
        {
            fs::remove_file(entry.path()).map_err(at(&path.join(entry.file_name())))?;
        }
        remove_directory(&own_folder(&self.path)?, &path)
    }

    /// Removes the series below a number.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn remove_below(&self, below: u64) -> Result<(), StoreError> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
        numbers
            .filter(|number| *number < below)
            .try_for_each(|number| self.remove_series(number))
    }

    /// Removes all that the task has saved.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn remove(&self) -> Result<(), StoreError> {
        let Some(store) = self.path.parent() else {
            return Ok(());
        };
        match found(own_folder(store))? {
            Some(store) => remove_directory(&store, &self.path),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
