//! What a task requests after an attempt that failed: more memory, or what its expressions say.
//!
//! After an attempt that ran out of memory, the request for memory is multiplied by a factor until it exceeds
//! what the attempt used. Expressions of the task come instead of that: each gives one request, from those of
//! the attempt and from how it ended. Neither asks for more than a host has, so a retry waits for no host
//! that does not exist. All requests are few in practice, and each is a shape of the queue.

use pmc_dag::{Forward, Request, TaskId};
use pmc_expressions::{Amount, Variables, evaluate};

use crate::protocol::{MemoryUse, Outcome};
use crate::scheduler::hosts::Host;
use crate::scheduler::run::Master;
use crate::scheduler::shortage::Shortage;
use crate::scheduler::{Outbox, Record};

impl Master {
    /// Sets the percentage of its memory that a task without one of its own requests after an attempt that
    /// ran out of memory. Up to 100, the request stays.
    #[must_use]
    pub fn with_more_memory(mut self, percent: u32) -> Self {
        self.more_memory = percent;
        self
    }

    /// Sets the name of the user, for expressions.
    #[must_use]
    pub fn with_user(mut self, name: Option<String>) -> Self {
        self.user = name;
        self
    }

    /// What a task requests now.
    pub(super) fn request(&self, task: TaskId) -> Request {
        let chain = self.nodes[task.index()].chain;
        self.queue.shape(self.queue.shape_of(chain)).request
    }

    /// Changes the request of a task, which is not in the queue, after an attempt that failed.
    pub(super) fn change_request(&mut self, task: TaskId, outcome: &Outcome, out: &mut impl Outbox) {
        let (dag, local) = self.locate(task);
        let before = self.request(task);
        let mut wanted = before;
        let (expressions, values) = dag.request_expressions(local);
        let has_expression = |name: &[u8]| expressions.iter().any(|(request, _)| request == name);
        let ran_out = outcome.memory.filter(|used| used.out_of_memory);
        if let Some(used) = ran_out.filter(|_| !has_expression(Amount::Memory.name().as_bytes())) {
            let percent = dag.more_memory(local).unwrap_or(self.more_memory);
            wanted.memory_mb = raised(before.memory_mb, used.peak_mib, percent);
        }
        let mut estimates = Vec::new();
        if !expressions.is_empty() {
            let variables = self.variables(task, before, outcome, values);
            for (amount, expression) in expressions {
                match value(amount, expression, &variables) {
                    // The executor counts neither; the next expressions may use them.
                    Ok((amount @ (Amount::Diskspace | Amount::Runtime), value)) => {
                        estimates.push(((task, amount), value));
                    }
                    // Expressions give at most 32 bits.
                    Ok((Amount::Cores, value)) => wanted.cpus = u32::try_from(value).unwrap_or(u32::MAX),
                    Ok((Amount::Gpus, value)) => wanted.gpus = u32::try_from(value).unwrap_or(u32::MAX),
                    Ok((Amount::Memory, value)) => wanted.memory_mb = value,
                    Err(reason) => {
                        let request = &String::from_utf8_lossy(amount);
                        let reason = &reason;
                        out.record(Record::ExpressionSkipped {
                            task,
                            request,
                            reason,
                        });
                    }
                }
            }
        }
        let may_exceed = expressions.is_empty();
        self.estimates.extend(estimates);
        if wanted == before {
            return;
        }
        let (request, shortage) = self.within_hosts(before, wanted);
        if let Some(shortage) = shortage.filter(|_| !may_exceed) {
            out.record(Record::RequestCapped { task, shortage });
        }
        if request != before {
            self.hosts.grow(&[request.cpus]);
            let chain = self.nodes[task.index()].chain;
            self.nodes[task.index()].chain = self.queue.with_request(&self.nodes, chain, request);
            out.record(Record::NewRequest {
                task,
                request,
                before,
            });
        }
    }

    /// Returns the values of the variables that expressions of a task may have.
    fn variables(&self, task: TaskId, before: Request, outcome: &Outcome, values: &[Forward]) -> Variables {
        let mut variables = Variables::default();
        for (name, value) in values {
            variables.set_text(&String::from_utf8_lossy(name), &String::from_utf8_lossy(value));
        }
        for amount in [Amount::Diskspace, Amount::Runtime] {
            if let Some(value) = self.estimates.get(&(task, amount)) {
                variables.set_whole(amount.variable(), *value);
            }
        }
        variables.set_whole(Amount::Cores.variable(), before.cpus.into());
        variables.set_whole(Amount::Gpus.variable(), before.gpus.into());
        variables.set_whole(Amount::Memory.variable(), before.memory_mb);
        let failures = self.failures.get(&task).copied().unwrap_or(1);
        variables.set_whole("job_retry", u64::from(failures.saturating_sub(1)));
        let seconds = outcome.runtime.as_secs_f64();
        variables.set_number("job_runtime", seconds);
        variables.set_number("duration", seconds);
        variables.set_whole("exitcode", exit_code(outcome.status));
        if let Some(user) = &self.user {
            variables.set_text("user", user);
        }
        if let Some(MemoryUse { peak_mib, .. }) = outcome.memory.filter(|used| used.peak_mib > 0) {
            variables.set_whole("maxrss", peak_mib.saturating_mul(1024));
        }
        variables
    }

    /// Returns the request as far as a host that is there can ever meet it, and what is missing beyond that.
    /// The host is one of those that met the last request, so no more is taken away than was added.
    fn within_hosts(&self, before: Request, wanted: Request) -> (Request, Option<Shortage>) {
        let hosts = self.hosts.all().iter();
        let able = |host: &&Host| !host.ranks.is_empty() && host.could_take(before);
        let able: Vec<&Host> = hosts.filter(able).collect();
        if able.iter().any(|host| host.could_take(wanted)) {
            return (wanted, None);
        }
        let Some(shortage) = Shortage::of(able.into_iter(), wanted) else {
            return (before, None);
        };
        let has = shortage.available;
        let request = Request {
            memory_mb: wanted.memory_mb.min(has.memory_mib),
            cpus: wanted.cpus.min(has.cpus),
            gpus: wanted.gpus.min(has.gpus),
            ..wanted
        };
        (request, Some(shortage))
    }
}

/// Returns the request that an expression is about, and what it asks for.
fn value(request: &[u8], expression: &[u8], variables: &Variables) -> Result<(Amount, u64), String> {
    let known = std::str::from_utf8(request).ok().and_then(Amount::parse);
    let amount = known.ok_or("no such request is known")?;
    let expression = std::str::from_utf8(expression).map_err(|_| "it is not UTF-8")?;
    match evaluate(amount, expression, variables) {
        Ok(value) => Ok((amount, value)),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the exit code of a raw wait status; for a signal, as in shells, 128 and its number.
fn exit_code(status: i32) -> u64 {
    let signal = status & 0x7f;
    let code = if signal == 0 {
        status >> 8 & 0xff
    } else {
        128 + signal
    };
    u64::try_from(code).unwrap_or(0)
}

/// Returns the next request. Without a request and a peak, there is nothing to multiply.
fn raised(requested: u64, peak: u64, percent: u32) -> u64 {
    if percent <= 100 || requested.max(peak) == 0 {
        return requested;
    }
    let mut memory = requested.max(1);
    loop {
        let product = (u128::from(memory) * u128::from(percent)).div_ceil(100);
        memory = u64::try_from(product).unwrap_or(u64::MAX);
        if memory > peak || memory == u64::MAX {
            return memory;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_grow_in_few_steps() {
        assert_eq!(raised(100, 100, 200), 200);
        assert_eq!(raised(100, 0, 150), 150);
        assert_eq!(raised(100, 950, 200), 1600);
        assert_eq!(raised(100, 950, 100), 100);
        assert_eq!(raised(0, 0, 200), 0);
        assert_eq!(raised(0, 500, 200), 512);
        assert_eq!(raised(1, 3, 101), 4);
        assert_eq!(raised(u64::MAX - 1, 5, 200), u64::MAX);
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!((exit_code(3 << 8), exit_code(9), exit_code(0)), (3, 137, 0));
        assert_eq!(exit_code(crate::protocol::EXECUTOR_FAILURE), 1);
    }
}
