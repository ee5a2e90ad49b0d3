//! Builds the message that makes a worker run a task.

use pmc_dag::{Stdin, Task};

use crate::protocol::{self, Assignment, Output, Place};
use crate::scheduler::Start;

/// Returns the message for a task with this line of its DAG. Paths of a sub-workflow are named as from the
/// directory of its tasks.
#[must_use]
pub fn assignment(line: &Task<'_>, start: Start, place: Option<&Place>, output: Output) -> Assignment {
    let path = |path: &Vec<u8>| place.map_or_else(|| path.clone(), |place| place.target(path));
    let pipe_forwards = line.pipe_forwards.iter();
    let file_forwards = line.file_forwards.iter();
    Assignment {
        submit: start.submit,
        attempt: start.attempt,
        name: line.name.to_vec(),
        id: line.id.map(<[u8]>::to_vec),
        command: line.command.to_vec(),
        memory_mb: start.grant.memory_mb,
        cpus: start.grant.cpus,
        cpu_set: start.grant.cpu_set,
        gpu_set: start.grant.gpu_set,
        runtime_limit: line.runtime_limit,
        pipe_forwards: pipe_forwards
            .map(|(variable, target)| (variable.clone(), path(target)))
            .collect(),
        file_forwards: file_forwards
            .map(|(source, target)| (path(source), path(target)))
            .collect(),
        output,
        stdin: line.stdin.map(|stdin| match stdin {
            Stdin::Push => protocol::Stdin::Push,
            Stdin::File(file) => protocol::Stdin::File(path(file)),
        }),
        relay: line.relay,
        redirect: None,
        failure_messages: line.failure_messages.to_vec(),
        success_messages: line.success_messages.to_vec(),
        place: place.map(|place| Box::new(place.clone())),
        gang: None,
        restarts: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pmc_dag::{Dag, TaskId};

    use super::*;
    use crate::protocol::{Rank, SubmitId};
    use crate::scheduler::Granted;

    fn start() -> Start {
        Start {
            task: TaskId(0),
            submit: SubmitId(1),
            rank: Rank(1),
            attempt: 2,
            grant: Granted {
                memory_mb: 70,
                cpus: 2,
                cpu_set: vec![0, 1],
                gpu_set: vec![],
            },
        }
    }

    #[test]
    fn an_assignment_has_everything_of_the_task_line() {
        let text = "#@ 7 tr id7\nTASK t -m 60 -c 2 -g 0 -T 1.5 -f A=/a -F s=/d prog 'a b'\n";
        let dag = Dag::parse(text.as_bytes().to_vec()).unwrap();
        assert_eq!(
            assignment(&dag.task(TaskId(0)), start(), None, Output::Packed(3)),
            Assignment {
                submit: SubmitId(1),
                attempt: 2,
                name: b"t".to_vec(),
                id: Some(b"7".to_vec()),
                command: b"prog 'a b'".to_vec(),
                memory_mb: 70,
                cpus: 2,
                cpu_set: vec![0, 1],
                gpu_set: vec![],
                runtime_limit: Some(Duration::from_millis(1500)),
                pipe_forwards: vec![(b"A".to_vec(), b"/a".to_vec())],
                file_forwards: vec![(b"s".to_vec(), b"/d".to_vec())],
                output: Output::Packed(3),
                stdin: None,
                relay: false,
                redirect: None,
                failure_messages: Vec::new(),
                success_messages: Vec::new(),
                place: None,
                gang: None,
                restarts: 0,
            }
        );
    }

    #[test]
    fn paths_of_a_sub_workflow_start_at_its_directory() {
        let text = "TASK t --stdin in -f A=/a -f B=b -F s=d prog\n";
        let dag = Dag::parse(text.as_bytes().to_vec()).unwrap();
        let place = Place {
            dag: b"sub/x.dag".to_vec(),
            directory: b"sub".to_vec(),
        };
        let made = assignment(&dag.task(TaskId(0)), start(), Some(&place), Output::Own);
        assert_eq!(made.stdin, Some(protocol::Stdin::File(b"sub/in".to_vec())));
        let pipes = [
            (b"A".to_vec(), b"/a".to_vec()),
            (b"B".to_vec(), b"sub/b".to_vec()),
        ];
        assert_eq!(made.pipe_forwards, pipes);
        assert_eq!(made.file_forwards, [(b"sub/s".to_vec(), b"sub/d".to_vec())]);
        assert_eq!(made.place.as_deref(), Some(&place));
    }
}
