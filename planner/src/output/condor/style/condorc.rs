//! The style condorc: the queue of another pool.

use crate::tasks::PlannedJob;

use super::super::ad::Ad;
use super::super::context::Context;
use super::super::requests;
use super::super::transfers::Transfers;
use super::condor::{set_files, set_remote_directory};

/// Adds universe, pool and files.
///
/// # Errors
/// The site has no grid of the type condor.
pub(super) fn add<'a>(
    context: &'a Context<'a>,
    job: PlannedJob<'a>,
    transfers: &Transfers,
    ad: &mut Ad<'a>,
) -> Result<(), String> {
    let inner = ad.commands.remove("universe").unwrap_or("vanilla".into());
    ad.set("universe", "grid");
    ad.commands.insert("remote_universe".into(), inner);
    let collector = ad.commands.remove("collector");
    if ad.get("grid_resource").is_none() {
        let site = context.plan.sites.get(job.site);
        let Some(grid) = context.grid(job, "condor") else {
            return Err(format!(
                "job {}: No valid grid gateway found for site {}: the style condorc needs a grid of the type condor, with the \
                 name of the schedd as its contact, or the profile condor::grid_resource",
                job.name, site.name
            ));
        };
        let collector = collector.as_deref().unwrap_or(&grid.contact);
        ad.set("grid_resource", format!("condor {} {collector}", grid.contact));
    }
    requests::add(job, true, ad)?;
    ad.or_set("+WantIOProxy", "True");
    set_files(context, job, transfers, ad);
    set_remote_directory(context, job, ad);
    ad.commands.remove("should_transfer_files");
    ad.commands.remove("when_to_transfer_output");
    ad.or_set("+remote_ShouldTransferFiles", "\"YES\"");
    ad.or_set("+remote_WhenToTransferOutput", "\"ON_EXIT\"");
    Ok(())
}
