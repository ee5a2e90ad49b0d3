//! What a task is for.

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A job of the workflow.
    Compute,
    /// Makes directories.
    CreateDir,
    /// Copies inputs to the site.
    StageIn,
    /// Copies between sites.
    StageInter,
    /// Copies outputs to their place.
    StageOut,
    /// Enters outputs into the replica catalog.
    Registration,
    /// Removes what is no longer needed.
    CleanUp,
    /// Anything else.
    Other,
}

impl Kind {
    /// All kinds, in the order in which a workflow goes.
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

    /// For people.
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

    /// For programs; these words do not change.
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

    /// From the `type_desc` of a planner's event.
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

    /// From the transformation of a task in the DAG, and its name: all transfers have the same
    /// transformation, and the planner tells them apart in their names only.
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
    fn transfers_are_told_apart_by_name() {
        let transfer = |name: &[u8]| Kind::of_task(b"pegasus::transfer", name);
        assert_eq!(transfer(b"stage_in_local_hpc_0_0"), Kind::StageIn);
        assert_eq!(transfer(b"p_stage_out_local_hpc_1_0"), Kind::StageOut);
        assert_eq!(transfer(b"stage_inter_hpc_1_0"), Kind::StageInter);
        assert_eq!(transfer(b"x"), Kind::Other);
        assert_eq!(Kind::of_task(b"work", b"stage_in_data"), Kind::Compute);
    }
}
