//! Checkpoint plans of the Terascale Computing System: how files are kept from being lost with a node.

use std::str::FromStr;

/// A plan. In a store on a directory that all nodes share, no file is lost with a node: all plans that are
/// known do the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plan {
    /// Each file has a copy elsewhere.
    B2,
    /// Parity of the files of several nodes.
    #[default]
    C1,
}

/// A plan that cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPlan {
    /// The paper names it, and says no more.
    #[error("the checkpoint plan {0} has no description: choose B2 or C1")]
    NotDescribed(String),
    /// There is none with this name.
    #[error("there is no checkpoint plan {0:?}: choose B2 or C1")]
    Unknown(String),
}

impl FromStr for Plan {
    type Err = InvalidPlan;

    fn from_str(text: &str) -> Result<Self, InvalidPlan> {
        match text {
            "" => Ok(Self::default()),
            "B2" => Ok(Self::B2),
            "C1" => Ok(Self::C1),
            "A1" | "A2" | "B1" | "C2" => Err(InvalidPlan::NotDescribed(text.to_owned())),
            other => Err(InvalidPlan::Unknown(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_have_names() {
        assert_eq!("".parse(), Ok(Plan::C1));
        assert_eq!("B2".parse(), Ok(Plan::B2));
        for named in ["A1", "A2", "B1", "C2"] {
            assert_eq!(
                named.parse::<Plan>(),
                Err(InvalidPlan::NotDescribed(named.to_owned()))
            );
        }
        for unknown in ["b2", "C3", "C1 "] {
            assert_eq!(
                unknown.parse::<Plan>(),
                Err(InvalidPlan::Unknown(unknown.to_owned()))
            );
        }
    }
}
