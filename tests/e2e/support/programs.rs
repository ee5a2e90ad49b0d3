//! Finds the programs under test and the programs they are tested with.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::command::Run;

/// Programs in every installation besides the executor.
const COMPANIONS: [&str; 8] = [
    "pmc-plan",
    "pegasus-kickstart",
    "pegasus-kickstart-server",
    "pegasus-transfer",
    "pegasus-rc-client",
    "pegasus-cluster",
    "pmc-monitord",
    "pmc",
];
const EXECUTOR: &str = "pegasus-mpi-cluster";

/// The kind of build of the executor, which determines how its workers start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Without MPI: threads of one process.
    Local,
    /// With Debian's Open MPI.
    OpenMpi,
    /// With Debian's MPICH.
    Mpich,
}

/// The folder of the programs that were built together with this test.
fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.ancestors()
        .nth(2)
        .expect("cargo puts tests below the profile's folder")
        .to_owned()
}

/// The folder that cargo builds into.
fn target() -> PathBuf {
    profile()
        .parent()
        .expect("a profile's folder is below it")
        .to_owned()
}

/// The top folder of the project.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn missing(what: &str, path: &Path) -> ! {
    panic!(
        "{what} is missing ({}): `tests/run e2e` prepares everything",
        path.display()
    )
}

impl Flavour {
    /// The folder with the executor, as `tests/run` built it.
    fn built(self) -> PathBuf {
        let name = match self {
            Self::Local => return profile(),
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
        };
        target()
            .join(name)
            .join(profile().file_name().expect("a profile's name"))
    }

    /// The folder `bin` of an installation with this executor; programs find each other in it.
    pub fn bin(self) -> PathBuf {
        let bin = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("install-{self:?}"))
            .join("bin");
        fs::create_dir_all(&bin).expect("a folder below the target folder");
        for name in COMPANIONS {
            place(&profile().join(name), &bin.join(name));
        }
        place(&self.built().join(EXECUTOR), &bin.join(EXECUTOR));
        bin
    }

    /// A program of this installation.
    pub fn program(self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// Returns the executor with a number of workers (for MPI: one rank more). The caller adds arguments.
    pub fn executor_with(self, workers: u32) -> Run {
        let mut words = self.launcher(workers + 1);
        words.push(self.program(EXECUTOR).display().to_string());
        if self == Self::Local {
            words.push("--workers".into());
            words.push(workers.to_string());
        }
        Run::new(&words[0]).args(&words[1..]).envs(&self.environment())
    }

    /// Returns the words that start a number of ranks.
    pub fn launcher(self, ranks: u32) -> Vec<String> {
        let line = match self {
            Self::Local => String::new(),
            Self::OpenMpi => format!("mpiexec.openmpi --oversubscribe -n {ranks}"),
            Self::Mpich => format!("mpiexec.mpich -n {ranks}"),
        };
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns what the launcher needs in its environment.
    pub fn environment(self) -> Vec<(String, String)> {
        let pairs: &[(&str, &str)] = match self {
            // Debian's Open MPI refuses to run as root otherwise.
            Self::OpenMpi => &[
                ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ],
            Self::Local | Self::Mpich => &[],
        };
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }
}

/// Puts a built program at a place: as another name of the same file where possible.
fn place(built: &Path, wanted: &Path) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Ok(new) = fs::metadata(built) else {
        missing("a program", built)
    };
    if fs::metadata(wanted).is_ok_and(|old| (old.dev(), old.ino()) == (new.dev(), new.ino())) {
        return;
    }
    // Renamed into place, because other tests may be starting the program just now.
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = wanted.with_extension(format!("{}-{number}", std::process::id()));
    if fs::hard_link(built, &temporary).is_err() {
        fs::copy(built, &temporary).expect("a copy of a program");
    }
    fs::rename(&temporary, wanted).expect("a program to be put into place");
    // Renaming one name of a file onto another name of it does nothing.
    let _ = fs::remove_file(&temporary);
}

/// The folder `bin` of the Python environment with the real Pegasus.
pub fn venv_bin() -> PathBuf {
    let bin = target().join("venv/bin");
    if !bin.join("pegasus-monitord").exists() {
        missing("the Python environment with Pegasus", &bin);
    }
    bin
}

/// The folder `bin` of the Python environment with servers to test transfers with.
pub fn server_bin() -> PathBuf {
    let bin = target().join("servers/bin");
    if !bin.join("moto_server").exists() {
        missing("the Python environment with servers", &bin);
    }
    bin
}

/// The Python that can import `Pegasus.api`.
pub fn python() -> Run {
    Run::new(venv_bin().join("python"))
}

/// A program of `examples/`.
pub fn example(name: &str) -> PathBuf {
    let path = profile().join("examples").join(name);
    if !path.exists() {
        missing("an example", &path);
    }
    path
}
