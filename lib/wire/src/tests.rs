//! Both sides of a connection.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;

fn transmit<'a>(
    request: Request<'_>,
    descriptors: &[RawFd],
    buffer: &'a mut Vec<u8>,
) -> io::Result<Option<Received<'a>>> {
    let (here, there) = UnixStream::pair().unwrap();
    let (read, write) = io::pipe().unwrap();
    let message = request.encode().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send_request(&here, &write, &message, descriptors).unwrap());
        receive_request(&there, &read, buffer)
    })
}

proptest! {
    #[test]
    fn requests_arrive(
        words: Vec<Vec<u8>>,
        variables: Vec<Vec<u8>>,
        cpus: Vec<u32>,
        number: u64,
        token: [u8; 16],
    ) {
        let null = File::open("/dev/null").unwrap();
        let refs = |list: &'_ [Vec<u8>]| list.iter().map(|text| text.to_vec()).collect::<Vec<_>>();
        let (words, variables) = (refs(&words), refs(&variables));
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let variables: Vec<&[u8]> = variables.iter().map(Vec::as_slice).collect();
        let ticket = Ticket { number, token };
        let request = Request { ticket, tool: Tool::Lite, words: &words, variables: &variables, cpus: &cpus, directory: b"some/where" };
        let mut buffer = Vec::new();
        let received = transmit(request, &[null.as_raw_fd(); 4], &mut buffer).unwrap().unwrap();
        prop_assert!(received.words == words);
        prop_assert!(received.variables == variables);
        prop_assert_eq!((&received.cpus, received.ticket, received.tool), (&cpus, ticket, Tool::Lite));
        prop_assert!(received.streams.is_some());
        prop_assert_eq!(received.descriptors.len(), 1);
    }

    #[test]
    fn malformed_requests_do_no_harm(bytes: Vec<u8>) {
        let (_, there) = UnixStream::pair().unwrap();
        let (read, mut write) = io::pipe().unwrap();
        write.write_all(&bytes).unwrap();
        drop(write);
        // Without descriptors there are no streams.
        if let Ok(Some(received)) = receive_request(&there, &read, &mut Vec::new()) {
            prop_assert!(received.streams.is_none() && received.descriptors.is_empty());
        }
    }
}

#[test]
fn large_requests_and_descriptors_arrive() {
    let (mut read, write) = std::io::pipe().unwrap();
    let word = vec![b'x'; 3 << 20];
    let words: Vec<&[u8]> = vec![&word];
    let request = Request {
        ticket: Ticket::default(),
        tool: Tool::Kickstart,
        words: &words,
        variables: &[],
        cpus: &[],
        directory: &[],
    };
    let mut buffer = Vec::new();
    let received = transmit(request, &[write.as_raw_fd(); 3], &mut buffer)
        .unwrap()
        .unwrap();
    drop(write);
    assert_eq!(received.words[0].len(), word.len());
    let [stdin, ..] = received.streams.unwrap();
    File::from(stdin).write_all(b"hello").unwrap();
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
}

#[test]
fn a_request_without_descriptors_reuses_the_streams() {
    let words: Vec<&[u8]> = vec![b"x"];
    let request = Request {
        ticket: Ticket::default(),
        tool: Tool::Kickstart,
        words: &words,
        variables: &[],
        cpus: &[],
        directory: &[],
    };
    let mut buffer = Vec::new();
    let received = transmit(request, &[], &mut buffer).unwrap().unwrap();
    assert!(received.streams.is_none() && received.words == [b"x"]);
    let null = File::open("/dev/null").unwrap();
    assert!(transmit(request, &[null.as_raw_fd(); 2], &mut buffer).is_err());
}

#[test]
fn a_server_that_ends_differs_from_one_that_replies() {
    let (here, there) = UnixStream::pair().unwrap();
    let reply = Reply {
        code: 143,
        last: true,
        peak_kib: 1 << 40,
    };
    let server = send_greeting(&there).unwrap();
    let executor = receive_greeting(&here).unwrap().unwrap();
    let ticket = Ticket {
        number: 1,
        token: [7; 16],
    };
    send_reply(&server.write, ticket, reply).unwrap();
    assert_eq!(receive_reply(&executor.read, ticket).unwrap(), Some(reply));
    for other in [
        Ticket { number: 2, ..ticket },
        Ticket {
            token: [8; 16],
            ..ticket
        },
    ] {
        send_reply(&server.write, other, reply).unwrap();
        let error = receive_reply(&executor.read, ticket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
    drop(server);
    assert_eq!(receive_reply(&executor.read, ticket).unwrap(), None);
    assert!(send_request(&here, &executor.write, b"x", &[]).is_err());
}

#[test]
fn other_greetings_are_refused() {
    for greeting in [&b"pmc-ks03"[..], b"pmc", b""] {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(greeting).unwrap();
        drop(there);
        assert!(receive_greeting(&here).unwrap().is_none());
    }
    // Descriptors with the greeting of another version.
    let (here, there) = UnixStream::pair().unwrap();
    send_descriptors(&there, b"pmc-ks99", &[there.as_raw_fd(); 2]).unwrap();
    assert!(receive_greeting(&here).unwrap().is_none());
}

#[test]
fn an_incomplete_request_of_a_dead_executor_is_an_error() {
    let (here, there) = UnixStream::pair().unwrap();
    let server = send_greeting(&there).unwrap();
    let executor = receive_greeting(&here).unwrap().unwrap();
    (&executor.write).write_all(&[0; 6]).unwrap();
    drop((here, executor));
    let mut buffer = Vec::new();
    assert!(receive_request(&there, &server.read, &mut buffer).is_err());
    assert!(
        receive_request(&there, &server.read, &mut buffer)
            .unwrap()
            .is_none()
    );
    let reply = Reply {
        code: 0,
        last: false,
        peak_kib: 0,
    };
    let error = send_reply(&server.write, Ticket::default(), reply).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}
