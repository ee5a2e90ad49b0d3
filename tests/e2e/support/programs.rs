//! Finds the programs under test, and the programs that tests compare them with.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::command::Program;

/// Programs in every installation besides the executor.
const COMPANIONS: [&str; 11] = [
    "pmc-plan",
    "pegasus-kickstart",
    "pegasus-kickstart-server",
    "pegasus-lite",
    "pegasus-transfer",
    "pegasus-rc-client",
    "pegasus-cluster",
    "pmc-monitord",
    "pmc-rsh",
    "pmc-launch",
    "pmc",
];
const EXECUTOR: &str = "pegasus-mpi-cluster";

/// Options of `pmc-plan` for a plan in `submit/run` whose jobs run on the site `local`.
pub const PLAN_IN_SUBMIT_RUN: [&str; 6] = [
    "--sites",
    "local",
    "--dir",
    "submit",
    "--relative-submit-dir",
    "run",
];

/// A build of the executor, and how its workers start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Without MPI: threads of one process.
    Local,
    /// Without MPI: agents with one slot each, on this machine.
    Agents,
    /// With Debian's Open MPI.
    OpenMpi,
    /// With Debian's MPICH.
    Mpich,
}

/// Returns the directory of the programs that were built with this test.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.ancestors()
        .nth(2)
        .expect("cargo puts tests below the profile's directory")
        .to_owned()
}

/// Returns the directory that cargo builds into.
fn target_dir() -> PathBuf {
    profile_dir()
        .parent()
        .expect("a profile's directory is below it")
        .to_owned()
}

/// Returns the top directory of the project.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn missing(what: &str, path: &Path) -> ! {
    panic!(
        "{what} is missing ({}): `tests/run e2e` prepares everything",
        path.display()
    )
}

impl Build {
    /// Returns the directory with the executor that `tests/run` built.
    fn directory(self) -> PathBuf {
        let name = match self {
            Self::Local | Self::Agents => return profile_dir(),
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
        };
        target_dir()
            .join(name)
            .join(profile_dir().file_name().expect("a profile's name"))
    }

    /// Installs the programs with this executor and returns their directory, `bin`.
    pub fn bin(self) -> PathBuf {
        let bin = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("install-{self:?}"))
            .join("bin");
        fs::create_dir_all(&bin).expect("a directory below the target directory");
        for name in COMPANIONS {
            install(&profile_dir().join(name), &bin.join(name));
        }
        install(&self.directory().join(EXECUTOR), &bin.join(EXECUTOR));
        bin
    }

    /// Returns the path of an installed program.
    pub fn program(self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// Returns the executor with a number of workers; MPI starts one more rank. The caller adds arguments.
    pub fn executor_with(self, workers: u32) -> Program {
        let mut words = self.launcher(workers + 1);
        words.push(self.program(EXECUTOR).display().to_string());
        let options = match self {
            Self::Local => format!("--workers {workers}"),
            Self::Agents => format!("--agents {workers} --launch local --slots 1"),
            Self::OpenMpi | Self::Mpich => String::new(),
        };
        Program::new(&words[0])
            .args(&words[1..])
            .args(options.split_whitespace())
            .envs(&self.environment())
    }

    /// Returns the command line that starts a number of ranks.
    pub fn launcher(self, ranks: u32) -> Vec<String> {
        let line = match self {
            Self::Local | Self::Agents => String::new(),
            Self::OpenMpi => format!("mpiexec.openmpi --oversubscribe -n {ranks}"),
            Self::Mpich => format!("mpiexec.mpich -n {ranks}"),
        };
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the environment variables that the launcher needs.
    pub fn environment(self) -> Vec<(String, String)> {
        let pairs: &[(&str, &str)] = match self {
            // Debian's Open MPI refuses to run as root otherwise.
            Self::OpenMpi => &[
                ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ],
            Self::Local | Self::Agents | Self::Mpich => &[],
        };
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }
}

/// Installs a built program, as a hard link where possible.
fn install(built: &Path, installed: &Path) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Ok(new) = fs::metadata(built) else {
        missing("a program", built)
    };
    if fs::metadata(installed).is_ok_and(|old| (old.dev(), old.ino()) == (new.dev(), new.ino())) {
        return;
    }
    // Replaces the program by a rename, because other tests may be starting it.
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = installed.with_extension(format!("{}-{number}", std::process::id()));
    if fs::hard_link(built, &temporary).is_err() {
        fs::copy(built, &temporary).expect("a copy of a program");
    }
    fs::rename(&temporary, installed).expect("an installed program");
    // A rename between two links to the same file does nothing, so remove the name.
    let _ = fs::remove_file(&temporary);
}

/// Returns the directory `bin` of the Python environment with Pegasus.
pub fn venv_bin() -> PathBuf {
    let bin = target_dir().join("venv/bin");
    if !bin.join("pegasus-monitord").exists() {
        missing("the Python environment with Pegasus", &bin);
    }
    bin
}

/// Returns the directory `bin` of the Python environment with servers for tests of transfers.
pub fn server_bin() -> PathBuf {
    let bin = target_dir().join("servers/bin");
    if !bin.join("moto_server").exists() {
        missing("the Python environment with servers", &bin);
    }
    bin
}

/// Returns the directory `bin` of the Python environment with a kind of MPI: `openmpi`, `mpich` or `impi-rt`.
pub fn mpi_environment(name: &str) -> PathBuf {
    let bin = target_dir().join("python-mpi").join(name).join("bin");
    if !bin.join("mpiexec").exists() {
        missing("a Python environment with MPI", &bin);
    }
    bin
}

/// Returns the directory `bin` of the Python environment with the validator of RO-Crate.
pub fn validator_bin() -> PathBuf {
    let bin = target_dir().join("validator/bin");
    if !bin.join("rocrate-validator").exists() {
        missing("the Python environment with the validator of RO-Crate", &bin);
    }
    bin
}

/// Returns the directory `bin` of the Python environment with Snakemake.
pub fn snakemake_bin() -> PathBuf {
    let bin = target_dir().join("snakemake/bin");
    if !bin.join("snakemake").exists() {
        missing("the Python environment with Snakemake", &bin);
    }
    bin
}

/// Returns the Python that can import `Pegasus.api`.
pub fn python() -> Program {
    Program::new(venv_bin().join("python"))
}

/// Returns the path of a program of `examples/`.
pub fn example(name: &str) -> PathBuf {
    let path = profile_dir().join("examples").join(name);
    if !path.exists() {
        missing("an example", &path);
    }
    path
}
