//! The text of `--version`.

/// The version block: first lines of every run and answer to `-V`.
#[must_use]
pub fn version() -> String {
    let mpi = crate::transport::mpi_library().unwrap_or_else(|| "none".to_owned());
    format!(
        "Version: {}\nTarget: {}-{}\nMPI: {mpi}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS
    )
}
