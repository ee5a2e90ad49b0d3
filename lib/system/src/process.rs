//! The process.

/// [`std::process::id`].
#[must_use]
pub fn id() -> u32 {
    #[cfg(feature = "simulated")]
    if let Some(process) = crate::simulated::current_process() {
        return process.0;
    }
    std::process::id()
}
