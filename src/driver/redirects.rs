//! Which output tools can redirect, which tools wait for tasks to start, and how redirects end with the run.

use std::time::Duration;

use pmc_control::{Answer, RedirectOptions, Request, TAILING, TailRequest};
use pmc_dag::{pattern, words};
use pmc_system::clock;

use super::Driver;
use crate::protocol::Assignment;
use crate::transport::MasterTransport;

/// Time for redirects to end before tasks are ended.
const LAST_DELIVERY_TIMEOUT: Duration = Duration::from_millis(250);
/// Time between two looks for that.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Tools that wait for tasks to start.
#[derive(Debug, Default)]
pub(super) struct WaitingRedirects(Vec<TailRequest>);

impl WaitingRedirects {
    /// Notes a tool that waits for tasks, or that it waits no more if it has no pattern.
    pub(super) fn tail(&mut self, request: TailRequest) -> Answer {
        let RedirectOptions { token, .. } = request.options;
        self.0.retain(|tool| tool.options.token != token);
        if !request.patterns.is_empty() {
            self.0.push(request);
        }
        Answer::Done(TAILING.to_owned())
    }

    /// Lets the first tool that waits for a task of the run's own DAG redirect it.
    pub(super) fn redirect(&self, assignment: &mut Assignment) {
        if self.0.is_empty() || refusal_of(assignment).is_some() {
            return;
        }
        let matches = |text: &String| pattern::matches(text.as_bytes(), &assignment.name);
        let mut waiting = self.0.iter();
        if let Some(tool) = waiting.find(|tool| tool.patterns.iter().any(matches)) {
            assignment.redirect = Some(Box::new(tool.options.clone()));
        }
    }
}

fn refusal_of(assignment: &Assignment) -> Option<String> {
    let task = String::from_utf8_lossy(&assignment.name);
    refusal(
        &task,
        &assignment.command,
        [&assignment.failure_messages, &assignment.success_messages],
    )
}

/// Returns why the output of a task must be in its files.
pub(super) fn refusal(task: &str, command: &[u8], messages: [&[Vec<u8>]; 2]) -> Option<String> {
    if let Some(program) = pmc_calls::recorder(&words::split(command)) {
        return Some(format!(
            "the output of task {task} cannot be redirected: it has the record of {program}; `pmc attach` without \
             --redirect shows what its program prints"
        ));
    }
    let is_checked = messages.iter().any(|messages| !messages.is_empty());
    is_checked.then(|| {
        format!(
            "the output of task {task} cannot be redirected: the task has --success-message or --failure-message"
        )
    })
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Ends redirects before tasks are ended: only the threads of connections know what was delivered, and it
    /// must not go to a file, too. Waits for them for a moment.
    pub(super) fn end_redirects(&mut self) {
        self.control.end_redirects();
        let end = clock::now() + LAST_DELIVERY_TIMEOUT;
        loop {
            let has_redirects = self.control.has_redirects();
            // A redirect passes its last request on before it ends.
            while let Some(pending) = self.control.take() {
                if let Request::Redirect(request) = pending.request {
                    let asked = self.run.redirect_request(pending.guest, request);
                    self.requests.ask(&mut self.run, asked, pending.answer);
                }
            }
            if !has_redirects || clock::now() >= end {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_checked_output_stay_in_their_files() {
        let refused = |command: &[u8]| refusal("t", command, [&[], &[]]);
        assert_eq!(refused(b"/bin/sim -x 'a b'"), None);
        let named = b"/bin/sh -c 'sleep 9' pegasus-kickstart";
        assert_eq!(refused(named), None, "an argument is no program");
        let text = refused(b"env A=1 /opt/bin/pegasus-kickstart -n x /bin/sim").unwrap();
        assert!(text.contains("task t cannot be redirected: it has the record of pegasus-kickstart"));
        let messages = [b"no".to_vec()];
        assert!(refusal("t", b"/bin/sim", [&messages, &[]]).is_some());
        assert!(refusal("t", b"/bin/sim", [&[], &messages]).is_some());
    }
}
