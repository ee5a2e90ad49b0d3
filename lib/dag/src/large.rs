//! Memory for large arrays.
//!
//! An array of a million tasks is spread over thousands of pages of 4 KiB. The processor remembers
//! where only a few of them are, so that nearly every look at a task costs a second miss besides that of
//! the cache. Linux gives pages of 2 MiB to who asks for them (`madvise(2)`, `MADV_HUGEPAGE`); it also
//! fills them with one fault instead of 512.

/// Size of a large page. Smaller arrays do not need any.
const LARGE_PAGE: usize = 2 << 20;

/// An empty vector with room for so many items, in large pages if it is large and they can be had.
#[must_use]
pub fn vec_with_capacity<T>(capacity: usize) -> Vec<T> {
    let vec = Vec::with_capacity(capacity);
    ask_for_large_pages(&vec);
    vec
}

/// Appends an item as [`Vec::push`] does, but a large vector grows into large pages.
#[inline]
pub fn push<T>(vec: &mut Vec<T>, item: T) {
    if vec.len() == vec.capacity() {
        grow(vec);
    }
    vec.push(item);
}

#[cold]
fn grow<T>(vec: &mut Vec<T>) {
    if size_of_val(vec.as_slice()) < LARGE_PAGE {
        // As ever, through the allocator, which may not have to copy.
        vec.reserve(1);
        return;
    }
    let mut larger = vec_with_capacity(vec.len() * 2);
    larger.append(vec);
    *vec = larger;
}

/// Moves the content of a vector into large pages, without room to grow.
#[must_use]
pub fn settle<T>(mut vec: Vec<T>) -> Vec<T> {
    if size_of_val(vec.as_slice()) < LARGE_PAGE {
        vec.shrink_to_fit();
        return vec;
    }
    let mut settled = vec_with_capacity(vec.len());
    settled.append(&mut vec);
    settled
}

/// Asks for large pages behind a vector that has its capacity, but no content yet.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "there is no safe way to ask")]
pub fn ask_for_large_pages<T>(vec: &Vec<T>) {
    let bytes = vec.capacity().saturating_mul(size_of::<T>());
    if bytes < LARGE_PAGE {
        return;
    }
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let Some(page) = usize::try_from(page).ok().filter(|page| page.is_power_of_two()) else {
        return;
    };
    // From the beginning of the page in which the vector begins: what the allocator keeps before an
    // array of this size is in the same mapping, and would otherwise cost the first large page.
    let start = vec.as_ptr().map_addr(|at| at & !(page - 1));
    let len = vec.as_ptr().addr() + bytes - start.addr();
    // SAFETY: a hint, which changes no content; where it cannot be followed nothing happens.
    unsafe {
        libc::madvise(start.cast_mut().cast(), len, libc::MADV_HUGEPAGE);
    }
}

/// Does nothing where there is no way to ask.
#[cfg(not(target_os = "linux"))]
pub fn ask_for_large_pages<T>(_: &Vec<T>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_grow_and_settle_with_their_content() {
        let mut vec = Vec::new();
        for item in 0..1_000_000_u64 {
            push(&mut vec, item);
        }
        assert!(vec.capacity() < 4_000_000);
        let vec = settle(vec);
        assert!(vec.iter().copied().eq(0..1_000_000));
        assert!(settle(Vec::<u8>::new()).is_empty());
        assert_eq!(vec_with_capacity::<()>(usize::MAX).len(), 0);
    }
}
