//! Runs the program of a job in a container.
//!
//! Kickstart runs in the container too, inside a second `pegasus-lite`: only there can it see the program,
//! its usage and its end. It lies in the directory of the job, with loader and libraries of the node, so the
//! image needs neither a C library nor a shell.

mod call;
mod images;
mod programs;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monitord_compat::lite_log::Step;
use nix::unistd::{getegid, geteuid};
use pegasus_kickstart::environment::Environment;
use pegasus_kickstart::interrupts::Interrupts;
use pegasus_kickstart::lookup;
use pegasus_transfer::integrity;
use pmc_calls::{KICKSTART, LITE, kickstart};
use pmc_job_files::{Container, ContainerKind, Description, FORMAT, Run, Verified};

use crate::data::{DataError, Mover};
use crate::directory::JobDirectory;
use crate::job_context::JobContext;
use crate::messages::Log;
use crate::task::{Ended, outside};

use call::Call;
use images::{Image, Images, Keeper};
use programs::Programs;

/// Directory in that of a job with what the second `pegasus-lite` needs.
const TOOLS: &str = ".pegasus-lite";

/// Where the daemon of docker listens.
const DOCKER_SOCKET: &str = "/var/run/docker.sock";

/// File that the second `pegasus-lite` makes when it starts.
pub(crate) const STARTED: &str = "started";

/// File with the checksums of the outputs.
const CHECKSUMS: &str = "checksums";

/// How long the engine may take to remove a container.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);

/// Time between two looks at the engine that removes a container.
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// Variables with directories of the node, which Apptainer would take into the container.
const TEMPORARY: [&str; 3] = ["TEMP", "TMP", "TMPDIR"];

/// Beginnings of the names of variables that programs in containers get from the node.
const PASSED: [&str; 8] = [
    "PMC_",
    "KICKSTART_",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
];

/// What keeps a program from running in its container.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainerError {
    /// The image cannot be fetched, or a signal arrived.
    #[error("{0}")]
    Data(#[from] DataError),
    /// No program that runs containers.
    #[error("the node has no {} in its PATH, which the container of the job needs", .0.join(" or "))]
    NoEngine(&'static [&'static str]),
    /// An image in a shared directory is not there.
    #[error("cannot read the image {}: {source}", file.display())]
    NoImage { file: PathBuf, source: io::Error },
    /// The engine cannot read the image.
    #[error("{engine} cannot load the image {image} (exit code {code}); see its messages above")]
    Load {
        engine: &'static str,
        image: String,
        code: u8,
    },
    /// The container does not start.
    #[error("the container did not start: {engine} ended with exit code {code}; see its messages above")]
    NotStarted { engine: &'static str, code: u8 },
    /// A system call failed.
    #[error("cannot prepare the container: {0}")]
    System(#[from] io::Error),
}

/// Program that runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Docker,
    Podman,
    /// Or Singularity.
    Apptainer,
    Shifter,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Docker => "docker",
            Engine::Podman => "podman",
            Engine::Apptainer => "apptainer",
            Engine::Shifter => "shifter",
        }
    }

    /// Returns whether it keeps images, and containers with names.
    fn keeps_images(self) -> bool {
        matches!(self, Engine::Docker | Engine::Podman)
    }

    /// Finds the program for a kind of container.
    fn find(kind: ContainerKind, environment: &Environment) -> Result<(Self, PathBuf), ContainerError> {
        let names: &'static [&'static str] = match kind {
            ContainerKind::Docker => &["docker", "podman"],
            ContainerKind::Podman => &["podman"],
            ContainerKind::Singularity => &["apptainer", "singularity"],
            ContainerKind::Shifter => &["shifter"],
        };
        let path = environment.get(b"PATH");
        let find = |name: &'static str| {
            let file = lookup::find(OsStr::new(name), Path::new("/"), path).ok()?.file;
            Some((name, file))
        };
        let mut found: Vec<(&str, PathBuf)> = names.iter().filter_map(|&name| find(name)).collect();
        if found.len() > 1 && found[0].0 == "docker" && !has_docker_daemon(environment) {
            found.remove(0);
        }
        let (name, file) = found.into_iter().next().ok_or(ContainerError::NoEngine(names))?;
        let engine = match name {
            "docker" => Engine::Docker,
            "podman" => Engine::Podman,
            "shifter" => Engine::Shifter,
            _ => Engine::Apptainer,
        };
        Ok((engine, file))
    }
}

/// Returns whether docker finds its daemon: one that variables name, else one that takes a connection of this
/// user.
fn has_docker_daemon(environment: &Environment) -> bool {
    let is_named = |name: &[u8]| environment.get(name).is_some_and(|value| !value.is_empty());
    if is_named(b"DOCKER_HOST") || is_named(b"DOCKER_CONTEXT") {
        return true;
    }
    let own = environment.get(b"XDG_RUNTIME_DIR").map(|folder| {
        let folder = Path::new(OsStr::from_bytes(folder));
        folder.join("docker.sock")
    });
    let sockets = own.into_iter().chain([DOCKER_SOCKET.into()]);
    sockets
        .into_iter()
        .any(|socket| UnixStream::connect(socket).is_ok())
}

/// A job that runs in a container.
struct Contained<'a> {
    description: &'a Description,
    container: &'a Container,
    directory: &'a JobDirectory,
    around: &'a JobContext<'a>,
    engine: Engine,
    /// File of the engine.
    program: PathBuf,
}

/// Runs the program of a job in its container.
///
/// # Errors
/// It did not start.
pub(crate) fn run(
    description: &Description,
    container: &Container,
    directory: &JobDirectory,
    around: &JobContext<'_>,
    mover: &mut Mover,
    interrupts: &mut dyn Interrupts,
) -> Result<Ended, ContainerError> {
    let (engine, program) = Engine::find(container.kind, &around.context.environment)?;
    let this = Contained {
        description,
        container,
        directory,
        around,
        engine,
        program,
    };
    // The lock of the image is held until the container has ended.
    let (image, _held) = this.image(mover, interrupts)?;
    let command = this.prepare(mover)?;
    around.log.heading(Step::Container);
    this.start(&image, &command, interrupts)
}

impl Contained<'_> {
    /// Directory of the node for directories of jobs.
    fn base(&self) -> &Path {
        let path = self.directory.path();
        path.parent().unwrap_or(path)
    }

    fn tools(&self) -> PathBuf {
        self.directory.path().join(TOOLS)
    }

    /// Returns the directory in which the program works, in the container.
    fn work_directory(&self) -> PathBuf {
        let shared = self.description.work_directory.clone();
        shared.unwrap_or_else(|| self.container.directory.clone().into())
    }

    /// Returns the name or file of the image, ready for use.
    fn image(
        &self,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<(String, Option<Image>), ContainerError> {
        let container = self.container;
        if self.engine == Engine::Shifter {
            return Ok((container.image.clone(), None));
        }
        let images = Images::open(self.base(), &self.around.log);
        let place = match &self.description.work_directory {
            Some(shared) => shared,
            None => self.directory.path(),
        };
        let own = place.join(&container.image);
        let image = if container.fetch.is_empty() {
            images.shared(&own, container, mover)?
        } else {
            let (run, here) = (self.description.run_key.as_path(), self.directory.path());
            let image = images.fetched(container, (run, here), mover, interrupts)?;
            if image.file != own {
                // The engine expects it here. A second name of the file itself would let the program
                // change it, also from inside of the container.
                std::os::unix::fs::symlink(&image.file, &own)?;
            }
            image
        };
        let name = if self.engine.keeps_images() {
            images.loaded(&image, self.engine.name(), self, interrupts)?
        } else {
            own.to_string_lossy().into_owned()
        };
        Ok((name, Some(image)))
    }

    /// Runs the engine. Returns its exit code and its output.
    fn call(
        &self,
        words: &[&OsStr],
        interrupts: &mut dyn Interrupts,
    ) -> Result<(u8, String), ContainerError> {
        let mut all: Vec<OsString> = vec![self.program.clone().into()];
        all.extend(words.iter().map(|&word| word.to_owned()));
        let output = self.tools().with_extension("output");
        let file = File::create(&output)?;
        let ended = outside(&all, self.directory.path(), Some(&file), self.around, interrupts)?;
        if let Some(signal) = ended.signal {
            return Err(DataError::Signal(signal).into());
        }
        let text = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
        fs::remove_file(&output)?;
        Ok((ended.code, text))
    }

    /// Asks the engine for the image with a name or identifier. Returns its exit code and the identifier.
    fn identify(&self, name: &str, interrupts: &mut dyn Interrupts) -> Result<(u8, String), ContainerError> {
        self.call(
            &["image", "inspect", "--format", "{{.Id}}", name].map(OsStr::new),
            interrupts,
        )
    }

    /// Puts programs and description of the second `pegasus-lite` into the directory of the job. Returns the
    /// command that starts it.
    fn prepare(&self, mover: &mut Mover) -> Result<Vec<String>, ContainerError> {
        let tools = self.tools();
        fs::create_dir(&tools)?;
        let there = format!("{}/{TOOLS}", self.container.directory);
        let own = &self.around.context.program;
        let programs = Programs::copy(&own.with_file_name(LITE), &tools, &there)?;
        let run = self.inner_run(&programs)?;
        let inner = self.inner(run, &programs, mover)?;
        // It may hold secrets.
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600);
        let mut file = file.open(tools.join("job.json"))?;
        file.write_all(inner.to_json().map_err(io::Error::from)?.as_bytes())?;
        let mut command = programs.call(LITE);
        command.extend(["--inside".to_owned(), programs.path("job.json")]);
        Ok(command)
    }

    /// Returns what runs in the container: lists of files are there, and kickstart has another path.
    fn inner_run(&self, programs: &Programs) -> io::Result<Run> {
        match &self.description.run {
            Run::Kickstart(words) => {
                let mut inner = words.clone();
                for (list, place) in kickstart::lists(words) {
                    let name = format!("{}.lof", place.0);
                    fs::copy(list, self.tools().join(&name))?;
                    kickstart::set_list(&mut inner, place, &programs.path(&name));
                }
                Ok(Run::Kickstart(inner))
            }
            Run::Program(words) => {
                let own = self.around.context.program.with_file_name(KICKSTART);
                let is_own = |word: &str| {
                    word.ends_with(KICKSTART)
                        && Path::new(word).canonicalize().ok() == own.canonicalize().ok()
                        && own.exists()
                };
                let mut inner = Vec::new();
                for word in words {
                    if is_own(word) {
                        programs.add(&own)?;
                        inner.extend(programs.call(KICKSTART));
                    } else {
                        inner.push(word.clone());
                    }
                }
                Ok(Run::Program(inner))
            }
        }
    }

    /// Returns the description of the job inside.
    fn inner(&self, run: Run, programs: &Programs, mover: &Mover) -> Result<Description, ContainerError> {
        let outer = self.description.clone();
        let mut inner = Description {
            format: FORMAT,
            job: outer.job,
            work_directory: Some(self.work_directory()),
            run,
            environment: self.variables(),
            required: outer.required,
            checksum_file: outer.checksum_file.map(|_| programs.path(CHECKSUMS).into()),
            ..Description::default()
        };
        if self.engine == Engine::Apptainer {
            inner.unset = TEMPORARY.map(str::to_owned).into();
        }
        if self.container.transfers_inside {
            let known = mover.expected(&outer.verify)?.into_iter();
            let verified = known.map(|(lfn, sha256)| Verified {
                lfn,
                sha256: Some(sha256),
                checksum_file: None,
            });
            inner.verify = verified.collect();
            inner.transfer_arguments = outer.transfer_arguments;
            inner.executables = outer.executables;
            inner.stage_in = outer.stage_in;
            inner.checkpoint_in = outer.checkpoint_in;
            inner.checkpoint_out = outer.checkpoint_out;
            inner.stage_out = outer.stage_out;
        }
        Ok(inner)
    }

    /// Returns the variables that the program gets besides those of the image.
    fn variables(&self) -> BTreeMap<String, String> {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let is_passed = |name: &str| {
            PASSED.iter().any(|start| name.starts_with(start))
                || self.container.secrets.iter().any(|secret| secret == name)
        };
        let node = self.around.context.environment.iter();
        let node = node.map(|(name, value)| (text(name), text(value)));
        let mut variables = BTreeMap::from([("HOME".to_owned(), self.container.directory.clone())]);
        variables.extend(node.filter(|(name, _)| is_passed(name)));
        variables.extend(self.container.environment.clone());
        variables
    }

    /// Starts the container and waits for its end.
    fn start(
        &self,
        image: &str,
        command: &[String],
        interrupts: &mut dyn Interrupts,
    ) -> Result<Ended, ContainerError> {
        let name = self.name();
        let expanded = |words: &[String]| -> Vec<String> {
            let value = |name: &str| {
                let value = self.around.context.environment.get(name.as_bytes());
                value.map(|value| String::from_utf8_lossy(value).into_owned())
            };
            words.iter().map(|word| expand(word, &value)).collect()
        };
        let call = Call {
            engine: self.engine,
            program: &self.program,
            launcher: &expanded(&self.container.launcher),
            name: &name,
            directory: (self.directory.path(), &self.container.directory),
            shared: self.description.work_directory.as_deref(),
            mounts: &expanded(&self.container.mounts),
            arguments: &expanded(&self.container.arguments),
            gpus: self.container.gpus,
            user: (geteuid().as_raw(), getegid().as_raw()),
            image,
            command,
        };
        if self.engine.keeps_images() {
            // Should this process be killed, the next job of the node removes the container.
            self.directory.note(&format!("{} {name}", self.engine.name()))?;
        }
        let directory = self.directory.path();
        let mut ended = outside(&call.words(), directory, None, self.around, interrupts)?;
        let has_started = self.tools().join(STARTED).exists();
        if self.engine.keeps_images() && (ended.signal.is_some() || !has_started) {
            remove(self.engine.name(), &name, &self.around.log);
        }
        if !has_started && ended.signal.is_none() {
            return Err(ContainerError::NotStarted {
                engine: self.engine.name(),
                code: ended.code,
            });
        }
        if let Ok(checksums) = integrity::read_metadata(&self.tools().join(CHECKSUMS)) {
            ended.checksums = checksums.into_iter().collect();
        }
        Ok(ended)
    }

    /// Returns the name of the container: that of the job, and what is unique on the node.
    fn name(&self) -> String {
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "_.-".contains(c) {
                c
            } else {
                '_'
            }
        };
        let directory = self.directory.path().file_name().unwrap_or_default();
        let directory = directory.to_string_lossy();
        format!("{directory}-{}", self.description.job)
            .chars()
            .map(plain)
            .collect()
    }
}

impl Keeper for Contained<'_> {
    fn has(&self, identifier: &str, interrupts: &mut dyn Interrupts) -> Result<bool, ContainerError> {
        Ok(self.identify(identifier, interrupts)?.0 == 0)
    }

    fn load(&self, file: &Path, interrupts: &mut dyn Interrupts) -> Result<String, ContainerError> {
        let failed = |code| ContainerError::Load {
            engine: self.engine.name(),
            image: self.container.image.clone(),
            code,
        };
        let words = [OsStr::new("load"), OsStr::new("-i"), file.as_os_str()];
        let (code, text) = self.call(&words, interrupts)?;
        let name = loaded_name(&text).filter(|_| code == 0);
        let (code, identifier) = self.identify(name.ok_or_else(|| failed(code))?, interrupts)?;
        let identifier = Some(identifier.trim()).filter(|text| code == 0 && !text.is_empty());
        identifier.map(str::to_owned).ok_or_else(|| failed(code))
    }
}

/// Removes the container that a killed job has noted.
pub(crate) fn remove_noted(note: &str, log: &Log) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if let Some((engine @ ("docker" | "podman"), name)) = note.trim().split_once(' ')
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
    {
        remove(engine, name, log);
    }
}

/// Removes a container, if it is there.
fn remove(engine: &str, name: &str, log: &Log) {
    let failed = |why: &dyn std::fmt::Display| {
        log.say(format_args!("{engine} cannot remove the container {name}: {why}"));
    };
    match said(engine, &["rm", "--force", name], REMOVAL_LIMIT) {
        // Mostly the engine has removed it already.
        Ok(text)
            if text.trim().is_empty()
                || text.to_ascii_lowercase().contains("no such container")
                || text.contains("no container with") => {}
        Ok(text) => failed(&text.trim()),
        Err(error) => failed(&error),
    }
}

/// Runs a program for at most `limit`. Returns what it says on standard error.
fn said(program: &str, arguments: &[&str], limit: Duration) -> io::Result<String> {
    use std::process::{Command, Stdio};
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let end = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            let message = format!("{program} does not end within {} s", limit.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(REMOVAL_PAUSE);
    }
    let mut text = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // A process that it has started may hold the pipe open.
        rustix::io::ioctl_fionbio(&stderr, true)?;
        match io::Read::read_to_end(&mut { stderr }, &mut text) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the name of an image in what an engine says when it has loaded it.
fn loaded_name(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("Loaded image"))?;
    let (_, names) = line.split_once(": ")?;
    let name = names.split(',').next()?.trim();
    (!name.is_empty()).then_some(name)
}

/// Replaces `$NAME` and `${NAME}` by variables of the node, as the shell of the original does.
fn expand(word: &str, value: &dyn Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, behind) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(found) => found,
            None => after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len())),
        };
        if name.is_empty() || !name.chars().all(is_name) {
            text.push('$');
            rest = after;
            continue;
        }
        text.push_str(&value(name).unwrap_or_default());
        rest = behind;
    }
    text + rest
}

#[cfg(test)]
mod tests;
