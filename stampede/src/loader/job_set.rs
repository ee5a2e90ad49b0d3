//! A set of job ids.

/// A set of job ids, which count from 1 without gaps: one bit each.
#[derive(Clone, Debug, Default)]
pub(super) struct JobSet(Vec<u64>);

impl JobSet {
    /// Adds an id. Returns whether it is new.
    pub fn insert(&mut self, job: i64) -> bool {
        let Ok(job) = usize::try_from(job) else {
            return false;
        };
        if self.0.len() <= job / 64 {
            self.0.resize(job / 64 + 1, 0);
        }
        let (word, bit) = (&mut self.0[job / 64], 1 << (job % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_new_once() {
        let mut jobs = JobSet::default();
        for job in [128, 1, 64, 63, 1000] {
            assert!(jobs.insert(job), "{job}");
            assert!(!jobs.insert(job), "{job}");
        }
        assert!(!jobs.insert(-1));
    }
}
