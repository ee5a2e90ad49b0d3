//! The end of MPI, which is neither to take long nor to wait for ever.

use std::time::Duration;

use super::patience::Patience;

/// How often to look whether the time is over.
const LOOK: Duration = Duration::from_millis(100);

/// Ends this process after a time, if it still exists by then: MPI may wait for ever for processes that are
/// gone, and there is nothing left to be done.
#[expect(unsafe_code, reason = "what is to be done at an orderly exit may wait, too")]
pub(super) fn exit_after(time: Duration, code: i32) {
    let thread = std::thread::Builder::new().name("end".to_owned());
    let watch = thread.spawn(move || {
        let mut patience = Patience::new(time);
        while !patience.is_over() {
            std::thread::sleep(LOOK.min(time));
        }
        tracing::error!("MPI does not end: leaving without it");
        // SAFETY: there is no condition to keep.
        unsafe { libc::_exit(code) }
    });
    if let Err(error) = watch {
        tracing::debug!("The end of MPI is not watched: {error}");
    }
}

/// Lets all TCP connections of this process send small messages at once. Open MPI takes leave of its launcher
/// with several, of which the second otherwise waits until the launcher's host confirms the first: 40
/// milliseconds, since there is no answer that the confirmation could go with.
pub(super) fn send_at_once() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers = open
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Each is tried: whatever is no TCP connection refuses, and nothing depends on it.
    numbers.for_each(set_no_delay);
}

#[expect(unsafe_code, reason = "the descriptors belong to the MPI library")]
fn set_no_delay(descriptor: libc::c_int) {
    let on: libc::c_int = 1;
    // SAFETY: the value is as long as the call is told. A descriptor that was closed meanwhile is refused; no
    // other thread of this program opens connections, for which the setting would do no harm anyway.
    unsafe {
        libc::setsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_send_at_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!connection.nodelay().unwrap());
        send_at_once();
        assert!(connection.nodelay().unwrap());
    }
}
