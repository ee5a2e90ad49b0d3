//! Faults that a simulation plants into the code, to show that it finds them. Most have been in it once.
//! Programs have none of them: without the feature `simulated`, [`is_planted`] is false.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The first master of each run has the same epoch: agents of an earlier run are taken for others.
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
    /// All that was not settled comes again over the next connection, and is taken once more.
    TakenTwice,
    /// A master begins before those agents have come that run tasks of the one before.
    NoWaitForEarlier,
    /// The list of agents is removed when a master is killed: here, it is never written.
    NoList,
    /// A gang begins before its members have joined.
    EarlyLead,
    /// A gang takes only what it needs of its first host.
    PartCountedOnce,
    /// The members of a gang are not asked to leave.
    NoLeave,
    /// The next attempt of a gang does not wait until all hosts have left the one before.
    EarlyNextAttempt,
    /// The loss of a member of a gang is not noticed.
    LostMember,
    /// A gang that fails because a connection was cut has failed.
    CutIsFailure,
    /// A gang of the master before goes on without some of its members.
    IncompleteAdoption,
    /// A host of a gang that does not go on under the next master is not asked to leave.
    NoLeaveOnAdoption,
    /// A host does not tell the next master of which gang it is a member.
    ForgottenMember,
    /// Tasks start that do not end before the run does.
    NotHeldBack,
    /// A task that has saved itself has failed.
    SavedIsFailure,
    /// Rescue records of sub-workflows and guests are not written before tasks start that rely on them.
    OwnRescueOnly,
    /// A sub-workflow ends before its files are closed.
    OpenSubworkflow,
    /// What an earlier master had begun of a sub-workflow or guest goes on.
    EarlierGoesOn,
    /// A sub-workflow or guest joins before that has ended.
    EarlyJoin,
    /// Tasks are accepted that are not in the DAG file.
    LostAddition,
    /// An addition that was cut off stays in the DAG file.
    TornAddition,
    /// Tools hear of an end before its rescue record is written.
    EarlyEnd,
    /// A list of agents counts as complete although a loss of power may have taken its last lines.
    CompleteList,
    /// The master does not hear that a host has got a file.
    UnsaidFile,
    /// An agent that gives a connection up because the master does not answer counts as dead.
    UnansweredIsDeath,
    /// An agent goes on because the host of its master is lost, although there is a next master elsewhere.
    UnseenSuccessor,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 38] = [
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
        Self::EarlyLead,
        Self::PartCountedOnce,
        Self::NoLeave,
        Self::EarlyNextAttempt,
        Self::LostMember,
        Self::CutIsFailure,
        Self::IncompleteAdoption,
        Self::NoLeaveOnAdoption,
        Self::ForgottenMember,
        Self::NotHeldBack,
        Self::SavedIsFailure,
        Self::OwnRescueOnly,
        Self::OpenSubworkflow,
        Self::EarlierGoesOn,
        Self::EarlyJoin,
        Self::LostAddition,
        Self::TornAddition,
        Self::EarlyEnd,
        Self::CompleteList,
        Self::UnsaidFile,
        Self::UnansweredIsDeath,
        Self::UnseenSuccessor,
    ];
}

#[cfg(feature = "simulated")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault into the simulations of this thread from now on, or none.
#[cfg(feature = "simulated")]
pub fn plant(fault: Option<Planted>) {
    PLANTED.set(fault);
}

/// Returns whether a fault was planted on this thread.
#[must_use]
#[inline]
pub fn is_planted(fault: Planted) -> bool {
    #[cfg(feature = "simulated")]
    return PLANTED.get() == Some(fault);
    #[cfg(not(feature = "simulated"))]
    {
        let _ = fault;
        false
    }
}
