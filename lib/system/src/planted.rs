//! Faults that a simulation plants into the code, to show that it finds them. Most have been in it once.
//! Programs have none of them: without the feature `simulated`, [`is_planted`] is false when they are compiled.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The first master of each run has the same epoch, so an agent of an earlier run is taken for one of this.
    SameEpoch,
    /// An agent that was suspended begins tasks from before that.
    LateMessages,
    /// The last lines of a run continue a line that a full disk has cut off.
    TornLogs,
    /// A run begins with agents whose workers have not registered.
    EarlyAgents,
    /// A master with nothing to do waits for agents.
    NeedlessAgents,
    /// The numbers of adopted attempts are given again.
    AdoptedNumbers,
    /// Logs are written before the rescue file.
    LogsFirst,
    /// The lease counts from the answer of the master, not from the heartbeat that it answers.
    LeaseFromAnswer,
    /// A connection that was reset counts as the death of an agent.
    ResetIsDeath,
    /// A guard does not end an agent whose lease is over.
    PatientGuard,
    /// A guard leaves the tasks of an agent that was killed.
    TasksOutliveAgent,
    /// Forwarded data has no record in the journal.
    NoJournal,
    /// What was not settled is not sent again over the next connection.
    NotSentAgain,
    /// What comes again over the next connection is taken once more.
    TakenTwice,
    /// A master begins before those agents have come that run tasks of the one before.
    NoWaitForEarlier,
    /// The list of agents is removed when a master is killed: here, it is never written.
    NoList,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::SameEpoch,
        Self::LateMessages,
        Self::TornLogs,
        Self::EarlyAgents,
        Self::NeedlessAgents,
        Self::AdoptedNumbers,
        Self::LogsFirst,
        Self::LeaseFromAnswer,
        Self::ResetIsDeath,
        Self::PatientGuard,
        Self::TasksOutliveAgent,
        Self::NoJournal,
        Self::NotSentAgain,
        Self::TakenTwice,
        Self::NoWaitForEarlier,
        Self::NoList,
    ];
}

/// Returns whether the simulation of this thread has planted a fault.
#[must_use]
#[inline]
pub fn is_planted(fault: Planted) -> bool {
    #[cfg(feature = "simulated")]
    return crate::simulated::planted() == Some(fault);
    #[cfg(not(feature = "simulated"))]
    {
        let _ = fault;
        false
    }
}
