//! The end of MPI: it must be quick, and must not wait for ever.

use std::time::Duration;

use super::patience::Patience;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Ends this process after `time` if it still exists: MPI may wait for ever for processes that have died, and
/// nothing is left to be done.
#[expect(unsafe_code, reason = "exit handlers may wait, too")]
pub(super) fn exit_after(time: Duration, code: i32) {
    let thread = std::thread::Builder::new().name("end".to_owned());
    let watchdog = thread.spawn(move || {
        let mut patience = Patience::new(time);
        while !patience.is_over() {
            std::thread::sleep(POLL_INTERVAL.min(time));
        }
        tracing::error!("MPI does not end: leaving without it");
        // SAFETY: the call has no precondition.
        unsafe { libc::_exit(code) }
    });
    if let Err(error) = watchdog {
        tracing::debug!("No watchdog for the end of MPI: {error}");
    }
}

/// Makes all TCP connections of this process send small messages at once. Open MPI sends several to its
/// launcher at the end. The second one otherwise waits 40 milliseconds, until the launcher's host
/// acknowledges the first.
pub(super) fn disable_send_delay() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let descriptors = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Descriptors of other kinds refuse the option.
    descriptors.for_each(set_no_delay);
}

#[expect(unsafe_code, reason = "the descriptors belong to the MPI library")]
fn set_no_delay(descriptor: libc::c_int) {
    let on: libc::c_int = 1;
    // SAFETY: the pointer is valid for the given length. A closed descriptor is refused. If another thread
    // reused the number for a new connection meanwhile, the option would do no harm.
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
        disable_send_delay();
        assert!(connection.nodelay().unwrap());
    }
}
