//! Asking for memory before it is needed.
//!
//! In a DAG of a million tasks nearly every look at a task is a cache miss. The processor fetches what
//! it was asked for while it does something else.

/// Asks for the memory of a value. Does nothing on processors for which there is no way to ask.
#[inline]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "there is no safe way to ask")
)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never fails, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
