//! How the C library keeps memory that is free.

/// Bytes that each heap keeps although they are free, and bytes of the smallest piece that is in no heap.
/// What a redirect has on its way at a time is less.
#[cfg(target_env = "gnu")]
const SIZES: (libc::c_int, libc::c_int) = (4 << 20, 1 << 20);

/// Makes the C library keep the memory of messages with output of tasks. By itself, it gives that of each
/// message back to the system, which has to clear it for the next one: that took a third of the time of a
/// redirect.
pub(crate) fn keep_memory_of_messages() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the C library offers no other way")]
    // SAFETY: the function takes two numbers and ignores those that it does not know.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, SIZES.0);
        libc::mallopt(libc::M_MMAP_THRESHOLD, SIZES.1);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use nix::sys::resource::{UsageWho, getrusage};

    use super::*;

    #[test]
    fn memory_of_messages_is_used_again() {
        keep_memory_of_messages();
        let make = || (0..3).map(|_| vec![1_u8; 900 << 10]).collect::<Vec<_>>();
        std::hint::black_box(make());
        let faults = || getrusage(UsageWho::RUSAGE_THREAD).unwrap().minor_page_faults();
        let before = faults();
        for _ in 0..20 {
            std::hint::black_box(make());
        }
        let pages = 20 * 3 * 900 / 4;
        let cleared = faults() - before;
        assert!(
            cleared < pages / 4,
            "the system has cleared {cleared} of {pages} pages"
        );
    }
}
