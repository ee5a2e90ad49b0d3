//! Styles: how a job comes to its site.

mod batch;
mod condor;
mod condorc;

use crate::tasks::style::Style;
use crate::tasks::{Invocation, PlannedJob};

use super::ad::Ad;
use super::context::Context;
use super::transfers::Transfers;

/// Adds what the style of a job says.
///
/// # Errors
/// Settings that the style does not allow; the message names the job.
pub(super) fn add<'a>(
    context: &'a Context<'a>,
    job: PlannedJob<'a>,
    invocation: &mut Invocation,
    transfers: &Transfers,
    ad: &mut Ad<'a>,
) -> Result<(), String> {
    // Jobs without an offered style are refused before.
    match job.style().unwrap_or(Style::Condor) {
        Style::Condor => condor::add(context, job, invocation, transfers, ad),
        Style::Glite | Style::Ssh => batch::add(context, job, transfers, ad),
        Style::CondorC => condorc::add(context, job, transfers, ad),
    }
}
