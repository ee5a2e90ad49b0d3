//! Times and bytes of lite jobs, from the standard error that the database keeps.

use std::io;
use std::path::Path;

use monitord_compat::lite_data::{LiteData, find};

use super::{Statistics, StatisticsError, index, open_untrusted};

/// One attempt of a lite job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataAttempt {
    /// Name of the job.
    pub job: String,
    /// Number of the attempt of this job, from 1.
    pub number: u32,
    /// Its times and bytes.
    pub data: LiteData,
}

impl Statistics {
    /// Calls `take` for all attempts of lite jobs in the order of their submission.
    ///
    /// # Errors
    /// The database cannot be read, or `take` returns an error.
    pub fn data(
        &self,
        path: &Path,
        mut take: impl FnMut(&DataAttempt) -> io::Result<()>,
    ) -> Result<io::Result<()>, StatisticsError> {
        let mut read = || -> rusqlite::Result<io::Result<()>> {
            let connection = open_untrusted(path)?;
            let mut numbers = vec![0_u32; self.job_limit];
            let mut statement = connection.prepare(
                "SELECT i.job_id, j.exec_job_id, i.stderr_text FROM job_instance i CROSS JOIN job j USING (job_id)
                 ORDER BY i.job_instance_id",
            )?;
            let mut rows = statement.query(())?;
            while let Some(row) = rows.next()? {
                let Some(number) = numbers.get_mut(index(row.get(0)?)) else {
                    continue;
                };
                *number += 1;
                let Some(data) = row.get_ref(2)?.as_str().ok().and_then(find) else {
                    continue;
                };
                let attempt = DataAttempt {
                    job: row.get::<_, Option<String>>(1)?.unwrap_or_default(),
                    number: *number,
                    data,
                };
                if let Err(error) = take(&attempt) {
                    return Ok(Err(error));
                }
            }
            Ok(Ok(()))
        };
        read().map_err(|source| StatisticsError::Database {
            path: path.to_owned(),
            source,
        })
    }
}
