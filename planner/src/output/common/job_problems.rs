//! Problems of the jobs of a plan, of which the message shows the first ones.

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;

/// Problems after which the search for more ends.
pub(crate) const MAX_SHOWN: usize = 20;

/// Problems of jobs, a list for each job that has any.
#[derive(Default)]
pub(crate) struct JobProblems(Vec<Vec<Diagnostic>>);

impl JobProblems {
    /// Takes over the problems of a chunk of jobs, and what has failed in it.
    ///
    /// # Errors
    /// A write has failed, or there are more problems than a message shows.
    pub(crate) fn take(
        &mut self,
        problems: &mut Vec<Vec<Diagnostic>>,
        failed: &mut Option<PlanError>,
    ) -> Result<(), PlanError> {
        self.0.append(problems);
        if self.0.iter().map(Vec::len).sum::<usize>() > MAX_SHOWN {
            return self.finish();
        }
        failed.take().map_or(Ok(()), Err)
    }

    /// Ends the search.
    ///
    /// # Errors
    /// The problems of the first jobs that have any.
    pub(crate) fn finish(&mut self) -> Result<(), PlanError> {
        let mut all = Vec::new();
        for of_job in self.0.drain(..) {
            all.extend(of_job);
            if all.len() > MAX_SHOWN {
                break;
            }
        }
        PlanError::check_code(all)
    }
}
