//! Styles: how HTCondor brings jobs to a site.

use super::plan::PlannedJob;

/// How HTCondor brings jobs to a site: the profile `pegasus::style`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// To the pool of the submit host, or to the submit host itself.
    Condor,
    /// To a batch system on the submit host.
    Glite,
    /// To a batch system that is reached by ssh.
    Ssh,
    /// To the queue of another pool.
    CondorC,
}

impl Style {
    /// Names of the styles that are offered.
    pub(crate) const NAMES: &str = "condor, glite, ssh, condorc";

    /// Parses a name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "condor" => Style::Condor,
            "glite" => Style::Glite,
            "ssh" => Style::Ssh,
            "condorc" => Style::CondorC,
            _ => return None,
        })
    }

    /// Returns whether jobs go to a batch system.
    pub(crate) fn is_batch(self) -> bool {
        matches!(self, Style::Glite | Style::Ssh)
    }
}

impl PlannedJob<'_> {
    /// Returns the style of the job, `None` if it has none that is offered. On the submit host, it is
    /// [`Style::Condor`] unless a profile says otherwise.
    pub(crate) fn style(self) -> Option<Style> {
        match self.pegasus("style") {
            Some(name) => Style::parse(name),
            None => (self.site == self.plan.sites.local()).then_some(Style::Condor),
        }
    }
}
