//! Reads the surroundings, for the rim of a program.

use std::path::PathBuf;

use super::Surroundings;

impl Surroundings {
    /// Environment, working directory, user, host, program, time, and a new identifier.
    ///
    /// # Errors
    /// A working directory that is gone.
    pub fn read() -> std::io::Result<Self> {
        let environment = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let user = nix::unistd::User::from_uid(nix::unistd::getuid())
            .ok()
            .flatten()
            .map(|user| user.name)
            .or_else(|| std::env::var("USER").ok())
            .unwrap_or_else(|| nix::unistd::getuid().to_string());
        let own_bin = std::env::current_exe()
            .ok()
            .and_then(|program| program.parent().map(PathBuf::from));
        Ok(Surroundings {
            environment,
            working_dir: std::env::current_dir()?,
            user,
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            own_bin,
            now: chrono::Local::now().fixed_offset(),
            uuid: uuid::Uuid::new_v4().to_string(),
        })
    }
}
