//! Hosts that do not see the directory of the DAG file: what goes with their attempts, and where their output
//! goes. The master writes the files that a worker on another host would have written.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use pmc_calls::{LiteCall, Part};
use pmc_dag::{Task, TaskId, reason, words};
use pmc_job_files::{Description, DescriptionError, FileUse};
use pmc_packed::{Attempt, Pack};
use pmc_system::clock;

use super::{Run, RunError, RunEvent};
use crate::options::{Options, Stdio, folder};
use crate::payload::Payload;
use crate::protocol::{
    Carried, CarriedFile, EXECUTOR_FAILURE, ForwardedData, Place, Rank, Registration, Returned, TaskResult,
};
use crate::transport::MasterTransport;
use crate::worker::{append_shared, store_output};

/// Maximum bytes that go with an attempt.
const MAX_CARRIED: u64 = 16 << 20;

/// Mode of files that come back, before they have their names.
const FILE_MODE: u32 = 0o644;

/// Number in the name of the pack of the master: workers have 1 and more.
const MASTER_PACK: u32 = 0;

/// What an attempt needs cannot go with it.
#[derive(Debug, thiserror::Error)]
enum CarryError {
    #[error("its command is not understood: it must be pegasus-lite with one description")]
    Command,
    #[error("{}: {}", .0.display(), reason(.1))]
    Read(PathBuf, io::Error),
    #[error("its description {} is invalid: {}", .0.display(), .1)]
    Description(PathBuf, DescriptionError),
    #[error("what it reads in the directory of the DAG file has more than {} MiB", MAX_CARRIED >> 20)]
    TooMuch,
}

/// Workers of such hosts.
#[derive(Default)]
pub(super) struct Away {
    ranks: BTreeSet<Rank>,
    /// Their hosts, which the user knows of.
    hosts: BTreeSet<String>,
    pack: Option<Pack>,
}

impl Away {
    /// Returns whether the host of a worker does not see the directory.
    pub(super) fn has(&self, rank: Rank) -> bool {
        // Most runs have none.
        !self.ranks.is_empty() && self.ranks.contains(&rank)
    }
}

/// Reads the description of the job that a command runs. Returns its text, too.
fn describe(command: &[u8], directory: &Path, left: &mut u64) -> Result<(Vec<u8>, Description), CarryError> {
    let words = words::split(command);
    let call = LiteCall::new(&words).ok_or(CarryError::Command)?;
    let file = directory.join(path(call.file));
    let text = read(&file, call.part, left)?;
    let description = Description::parse(&text).map_err(|error| CarryError::Description(file, error))?;
    Ok((text, description))
}

/// Returns the files in the directory of the DAG file that the job of a command writes.
fn written(command: &[u8], directory: &Path) -> Result<BTreeSet<Vec<u8>>, CarryError> {
    let mut left = MAX_CARRIED;
    let (_, mut description) = describe(command, directory, &mut left)?;
    let mut names = BTreeSet::new();
    description.each_file(&mut |what, path| {
        if what == FileUse::Written {
            names.insert(path.as_os_str().as_bytes().to_vec());
        }
    });
    Ok(names)
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Returns the working directory of a task that runs at a place.
fn directory_of(place: Option<&Place>) -> &Path {
    place.map_or(Path::new(""), |place| path(&place.directory))
}

/// Returns what an attempt of a task needs on a host that does not see the directory of the DAG file. Without
/// it, the worker fails the attempt.
pub(super) fn carried(line: &Task<'_>, place: Option<&Place>, dag_file: &Path) -> Option<Box<Carried>> {
    let failed = |error: &CarryError| {
        let name = String::from_utf8_lossy(line.name);
        tracing::error!("Task {name} cannot run on a host that does not see its files: {error}");
    };
    let carried = carry(line.command, place, dag_file).inspect_err(failed);
    carried.ok().map(Box::new)
}

/// Returns what an attempt of a task reads in the directory of its DAG file.
fn carry(command: &[u8], place: Option<&Place>, dag_file: &Path) -> Result<Carried, CarryError> {
    let dag_file = place.map_or(dag_file, |place| path(&place.dag));
    let directory = directory_of(place);
    let mut left = MAX_CARRIED;
    let (text, mut description) = describe(command, directory, &mut left)?;
    let mut names = BTreeMap::new();
    description.each_file(&mut |what, path| {
        if what != FileUse::Written {
            names.insert(std::mem::take(path), what);
        }
    });
    let here = folder(dag_file).canonicalize();
    let mut files = Vec::with_capacity(names.len());
    for (name, what) in names {
        // A script may be anywhere on this host. Other files are missing, or none of the run: the job says
        // so.
        let real = directory.join(&name).canonicalize().ok();
        let Some(real) = real.filter(|real| what == FileUse::Script || is_below(real, &here)) else {
            continue;
        };
        let data = read(&real, None, &mut left)?;
        files.push(CarriedFile { path: name, data });
    }
    Ok(Carried {
        description: text,
        files,
    })
}

/// Returns whether a file without links on its path is in a directory.
fn is_below(file: &Path, directory: &io::Result<PathBuf>) -> bool {
    directory
        .as_ref()
        .is_ok_and(|directory| file.starts_with(directory))
}

fn read(path: &Path, part: Option<Part>, left: &mut u64) -> Result<Vec<u8>, CarryError> {
    let failed = |error| CarryError::Read(path.to_owned(), error);
    let mut file = pmc_files::open(path).map_err(failed)?;
    let mut length = u64::MAX;
    if let Some(part) = part {
        file.seek(SeekFrom::Start(part.start)).map_err(failed)?;
        length = part.length;
    }
    let mut bytes = Vec::new();
    file.take(length.min(*left + 1))
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    *left = left.checked_sub(bytes.len() as u64).ok_or(CarryError::TooMuch)?;
    Ok(bytes)
}

/// Where the output of an attempt belongs.
struct Destination<'a> {
    options: &'a Options,
    dag_file: &'a Path,
    task: &'a [u8],
    command: &'a [u8],
    /// The working directory of the task.
    directory: &'a Path,
    /// How often the task was submitted before, if that is known.
    number: Option<u32>,
}

impl Destination<'_> {
    /// Writes the files that the description of the job names as written by it. An agent that sends
    /// others is not trusted: nothing is written.
    fn write_files(&self, files: &[ForwardedData]) -> io::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let written = written(self.command, self.directory).map_err(io::Error::other)?;
        if let Some(other) = files.iter().find(|file| !written.contains(&file.target)) {
            let other = path(&other.target).display();
            let message = format!("its host has sent {other}, which the job is not to write");
            return Err(io::Error::other(message));
        }
        let here = folder(self.dag_file).canonicalize();
        for ForwardedData { target, data } in files {
            let target = self.directory.join(path(target));
            let folder = folder(&target).canonicalize()?;
            if !is_below(&folder, &here) {
                let message = format!("{} is not below the DAG file", target.display());
                return Err(io::Error::other(message));
            }
            let mut file = tempfile::Builder::new()
                .permissions(Permissions::from_mode(FILE_MODE))
                .tempfile_in(folder)?;
            copy(data, &mut file)?;
            file.persist(target)?;
        }
        Ok(())
    }

    fn append_to(&self, pack: &mut Option<Pack>, result: &TaskResult, returned: &Returned) -> io::Result<()> {
        let number = self.number.unwrap_or(0);
        if pack.is_none() {
            *pack = Some(Pack::open(self.dag_file, MASTER_PACK).map_err(|(_, error)| error)?);
        }
        let Some(pack) = pack else { return Ok(()) };
        let unnamed = |data: &Payload| -> io::Result<File> {
            let mut file = tempfile::tempfile_in(folder(self.dag_file))?;
            copy(data, &mut file)?;
            Ok(file)
        };
        // Views show the latest of two attempts with one number.
        let start = clock::system_time()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .saturating_sub(result.outcome.runtime);
        let attempt = Attempt {
            task: self.task,
            number,
            submit: result.submit.0,
            start_ms: u64::try_from(start.as_millis()).unwrap_or(0),
        };
        // Standard output ends with the record.
        pack.append(attempt, &unnamed(&returned.out)?, b"", &unnamed(&returned.err)?)
    }
}

fn copy(data: &Payload, to: &mut impl io::Write) -> io::Result<()> {
    data.for_each_chunk(|chunk| to.write_all(chunk))
}

impl<T: MasterTransport> Run<'_, T> {
    /// Notes whether the host of a new worker sees the directory of the DAG file.
    pub(super) fn note_sight(&mut self, from: Rank, registration: &Registration) {
        if !registration.away {
            return;
        }
        self.out.away.ranks.insert(from);
        if self.out.away.hosts.insert(registration.host.clone()) {
            let notice = format!(
                "Host {} does not see the directory of the DAG file: it gets only jobs with directories of their own",
                registration.host
            );
            tracing::info!("{notice}");
            (self.out.observer)(&RunEvent::Notice(&notice));
        }
    }

    /// Writes what an attempt on a host that does not see the directory of the DAG file has written. If that
    /// fails, the attempt fails. To be called before the result counts.
    pub(super) fn store_returned(
        &mut self,
        from: Rank,
        mut result: TaskResult,
    ) -> Result<TaskResult, RunError> {
        let returned = result.returned.take();
        if !self.out.away.has(from) {
            return Ok(result);
        }
        let Some((task, submit)) = self.master.running_on(from) else {
            return Ok(result);
        };
        if submit != result.submit {
            return Ok(result);
        }
        let returned = returned.unwrap_or_default();
        if let Err(error) = self.store(from, task, &result, &returned) {
            let name = self.out.dags.name(task);
            tracing::error!("Task {name}: its output cannot be stored: {}", reason(&error));
            if result.outcome.succeeded() {
                result.outcome.status = EXECUTOR_FAILURE;
            }
        }
        Ok(result)
    }

    fn store(
        &mut self,
        from: Rank,
        task: TaskId,
        result: &TaskResult,
        returned: &Returned,
    ) -> io::Result<()> {
        let options = self.options;
        let (segment, task) = self.out.dags.locate(task);
        let mut pack = self.out.away.pack.take();
        let stored = self.out.dags.get(segment).map_or(Ok(()), |run| {
            let place = run.place.as_ref();
            let is_packed = run.numbers.as_ref().is_some_and(|numbers| numbers.is_packed());
            let destination = Destination {
                options,
                dag_file: place.map_or(&*options.dag, |place| path(&place.dag)),
                task: run.dag.name(task),
                command: run.dag.task(task).command,
                directory: directory_of(place),
                number: run.numbers.as_ref().map(|numbers| numbers.of(task)),
            };
            destination.store(from, is_packed.then_some(&mut pack), result, returned)
        });
        self.out.away.pack = pack;
        stored
    }
}

impl Destination<'_> {
    /// Writes what an attempt has returned. `pack` is that of the master, if output goes there.
    fn store(
        &self,
        from: Rank,
        pack: Option<&mut Option<Pack>>,
        result: &TaskResult,
        returned: &Returned,
    ) -> io::Result<()> {
        self.write_files(&returned.files)?;
        let Returned { out, err, .. } = returned;
        if let Stdio::Merged { .. } = self.options.stdio {
            return append_shared(&self.options.worker_files, from.0, [out, err]);
        }
        match pack {
            Some(pack) => self.append_to(pack, result, returned),
            None => store_output(self.dag_file, self.task, self.number, [out, err]).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_that_the_description_names_are_carried() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        fs::create_dir(path("run")).unwrap();
        for name in ["outside.meta", "env.sh", "run/b.meta"] {
            fs::write(path(name), name).unwrap();
        }
        let shown = |name: &str| path(name).display().to_string();
        let verify: Vec<_> = ["run/b.meta", "outside.meta", "run/missing.meta"]
            .map(|name| serde_json::json!({"lfn": name, "checksum_file": shown(name)}))
            .into();
        let description = serde_json::json!({
            "format": 1, "job": "a", "run": {"program": ["/bin/true"]},
            "env_source": shown("env.sh"), "verify": verify, "checksum_file": shown("run/a.meta"),
        });
        let description = description.to_string();
        fs::write(path("run/lists"), format!("xxx{description}yyy")).unwrap();
        let file = shown("run/lists");
        let command = format!(
            "/usr/bin/env A=b pegasus-lite --part 3:{} {file}",
            description.len()
        );
        let carried = carry(command.as_bytes(), None, &path("run/x.dag")).unwrap();
        assert_eq!(carried.description, description.as_bytes());
        let names: Vec<_> = carried.files.iter().map(|file| file.path.clone()).collect();
        assert_eq!(names, [path("env.sh"), path("run/b.meta")]);
        assert_eq!(carried.files[1].data, b"run/b.meta");
    }

    #[test]
    fn what_cannot_be_carried_is_named() {
        let top = tempfile::tempdir().unwrap();
        let dag = top.path().join("x.dag");
        let problem = |command: String| carry(command.as_bytes(), None, &dag).unwrap_err().to_string();
        assert!(problem("pegasus-lite a b".to_owned()).contains("one description"));
        let file = top.path().join("a.json");
        let command = format!("pegasus-lite {}", file.display());
        assert!(problem(command.clone()).contains("a.json: No such file"));
        fs::write(&file, "{").unwrap();
        assert!(problem(command.clone()).contains("a.json is invalid"));
        File::create(&file).unwrap().set_len(MAX_CARRIED + 1).unwrap();
        assert!(problem(command).contains("more than 16 MiB"));
    }

    /// Writes what a host has sent into the directory `run`, for a job that writes one of these files.
    fn write_to(run: &Path, written: &Path, files: &[ForwardedData]) -> io::Result<()> {
        let description = serde_json::json!({
            "format": 1, "job": "a", "run": {"program": ["/bin/true"]}, "checksum_file": written.to_str(),
            "verify": [{"lfn": "b", "checksum_file": run.join("b.meta").to_str()}],
        });
        fs::write(run.join("a.json"), description.to_string())?;
        let dag_file = run.join("x.dag");
        let destination = Destination {
            options: &Options::new(&dag_file, OsStr::new("pmc")),
            dag_file: &dag_file,
            task: b"a",
            command: b"pegasus-lite a.json",
            directory: run,
            number: None,
        };
        destination.write_files(files)
    }

    fn file(target: impl AsRef<OsStr>) -> ForwardedData {
        ForwardedData {
            target: target.as_ref().as_bytes().to_vec(),
            data: b"checksums".to_vec().into(),
        }
    }

    #[test]
    fn files_that_come_back_stay_below_the_dag_file() {
        let top = tempfile::tempdir().unwrap();
        let run = top.path().join("run");
        fs::create_dir(&run).unwrap();
        let (own, other) = (run.join("a.meta"), Path::new("c.meta"));
        write_to(&run, &own, &[file(&own)]).unwrap();
        write_to(&run, other, &[file(other)]).unwrap();
        assert_eq!(fs::read(run.join("a.meta")).unwrap(), b"checksums");
        assert_eq!(fs::read(run.join("c.meta")).unwrap(), b"checksums");
        for target in [top.path().join("a.meta"), run.join("../a.meta")] {
            let error = write_to(&run, &target, &[file(&target)]).unwrap_err();
            assert!(error.to_string().contains("is not below"), "{error}");
        }
        let lost = ForwardedData {
            data: Payload::Sent(3),
            ..file("d.meta")
        };
        assert!(write_to(&run, Path::new("d.meta"), &[lost]).is_err());
        assert_eq!(fs::read_dir(&run).unwrap().count(), 3);
        assert!(!top.path().join("a.meta").exists());
    }

    /// A host, or a task that speaks in place of its agent, sends files of the run.
    #[test]
    fn a_host_writes_only_the_files_that_the_job_names() {
        let run = tempfile::tempdir().unwrap();
        let own = run.path().join("a.meta");
        for name in ["x.dag", "x.dag.rescue", "a.json", "b.meta", "./a.meta", "new"] {
            let target = run.path().join(name);
            let _ = fs::remove_file(&target);
            let error = write_to(run.path(), &own, &[file(&own), file(&target)]).unwrap_err();
            assert!(
                error.to_string().contains("which the job is not to write"),
                "{error}"
            );
            // Not even the one that it may write.
            assert!(!own.exists(), "{name}");
            assert_ne!(fs::read(&target).unwrap_or_default(), b"checksums", "{name}");
        }
    }
}
