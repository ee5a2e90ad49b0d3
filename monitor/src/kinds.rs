//! Purpose of a task.

/// Purpose of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A job of the workflow.
    Compute,
    /// Creates directories.
    CreateDir,
    /// Copies inputs to the site.
    StageIn,
    /// Copies between sites.
    StageInter,
    /// Copies outputs to the output site.
    StageOut,
    /// Registers outputs in the replica catalog.
    Registration,
    /// Removes files that are no longer needed.
    CleanUp,
    /// Anything else.
    Other,
}

impl Kind {
    /// All kinds, in the order of tables.
    pub const ALL: [Kind; 8] = [
        Kind::Compute,
        Kind::CreateDir,
        Kind::StageIn,
        Kind::StageInter,
        Kind::StageOut,
        Kind::Registration,
        Kind::CleanUp,
        Kind::Other,
    ];

    /// Name in texts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Compute => "compute",
            Kind::CreateDir => "create directory",
            Kind::StageIn => "stage in",
            Kind::StageInter => "stage between sites",
            Kind::StageOut => "stage out",
            Kind::Registration => "register",
            Kind::CleanUp => "clean up",
            Kind::Other => "other",
        }
    }

    /// Name in JSON, which never changes.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Kind::Compute => "compute",
            Kind::CreateDir => "create_dir",
            Kind::StageIn => "stage_in",
            Kind::StageInter => "stage_inter",
            Kind::StageOut => "stage_out",
            Kind::Registration => "registration",
            Kind::CleanUp => "cleanup",
            Kind::Other => "other",
        }
    }

    /// Reads the `type_desc` in an event of the planner.
    #[must_use]
    pub fn from_description(text: &str) -> Self {
        match text {
            "compute" => Kind::Compute,
            "create-dir" => Kind::CreateDir,
            "stage-in-tx" => Kind::StageIn,
            "inter-site-tx" => Kind::StageInter,
            "stage-out-tx" => Kind::StageOut,
            "registration" => Kind::Registration,
            "cleanup" => Kind::CleanUp,
            _ => Kind::Other,
        }
    }

    /// Derives the kind from the transformation of a task and its name. All transfers have the same
    /// transformation; only their names differ.
    #[must_use]
    pub fn of_task(transformation: &[u8], name: &[u8]) -> Self {
        let named = |part: &[u8]| memchr::memmem::find(name, part).is_some();
        match transformation {
            b"pegasus::dirmanager" => Kind::CreateDir,
            b"pegasus::transfer" if named(b"stage_in_") => Kind::StageIn,
            b"pegasus::transfer" if named(b"stage_out_") => Kind::StageOut,
            b"pegasus::transfer" if named(b"stage_inter_") => Kind::StageInter,
            b"pegasus::cleanup" => Kind::CleanUp,
            b"pegasus::rc-client" => Kind::Registration,
            b"pegasus::transfer" | b"system::chmod" | b"pegasus::noop" => Kind::Other,
            _ => Kind::Compute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_distinguish_transfers() {
        let transfer = |name: &[u8]| Kind::of_task(b"pegasus::transfer", name);
        assert_eq!(transfer(b"stage_in_local_hpc_0_0"), Kind::StageIn);
        assert_eq!(transfer(b"p_stage_out_local_hpc_1_0"), Kind::StageOut);
        assert_eq!(transfer(b"stage_inter_hpc_1_0"), Kind::StageInter);
        assert_eq!(transfer(b"x"), Kind::Other);
        assert_eq!(Kind::of_task(b"work", b"stage_in_data"), Kind::Compute);
    }
}
