//! The functions that programs in C, C++ and Fortran call in the same way.

/// Defines the functions of `tcsio.h` without texts, which a library exports. Fortran calls them without the
/// underscore. Their crate imports [`api`](crate::api), `c_int`, `c_long` and `c_void`.
#[macro_export]
macro_rules! functions_without_texts {
    () => {
        /// Returns the number of the series from which the program goes on.
        #[unsafe(no_mangle)]
        pub extern "C" fn tcs_jobrestarted_() -> c_int {
            api::jobrestarted()
        }

        /// Writes elements.
        ///
        /// # Safety
        /// The pointers lead to what `tcsio.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tcs_write_(
            lun: *mut c_int,
            data: *mut c_void,
            len: *const c_long,
            datasize: *mut c_int,
        ) -> c_int {
            // SAFETY: as above.
            unsafe {
                api::write(
                    api::number(lun),
                    data,
                    api::number(len),
                    api::number(datasize),
                )
            }
        }

        /// Writes elements of 8 bytes.
        ///
        /// # Safety
        /// The pointers lead to what `tcsio.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tcs_write8_(
            lun: *mut c_int,
            data: *mut c_void,
            len: *const c_long,
        ) -> c_int {
            // SAFETY: as above.
            unsafe { api::write(api::number(lun), data, api::number(len), Some(8)) }
        }

        /// Writes elements of 4 bytes.
        ///
        /// # Safety
        /// The pointers lead to what `tcsio.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tcs_write4_(
            lun: *mut c_int,
            data: *mut c_void,
            len: *const c_long,
        ) -> c_int {
            // SAFETY: as above.
            unsafe { api::write(api::number(lun), data, api::number(len), Some(4)) }
        }

        /// Reads elements. Appendix A declares the address of an `int`, its program passes that of a `long`:
        /// the first 32 bits are read.
        ///
        /// # Safety
        /// The pointers lead to what `tcsio.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tcs_read_(
            lun: *mut c_int,
            data: *mut c_void,
            len: *const c_void,
            datasize: *mut c_int,
        ) -> c_int {
            // SAFETY: as above.
            unsafe {
                let count = api::number(len.cast::<c_int>());
                api::read(api::number(lun), data, count, api::number(datasize))
            }
        }

        /// Reads elements of 8 bytes.
        ///
        /// # Safety
        /// The pointers lead to what `tcsio.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tcs_read8_(lun: *mut c_int, data: *mut c_void, len: *mut c_long) -> c_int {
            // SAFETY: as above.
            unsafe { api::read(api::number(lun), data, api::number(len), Some(8)) }
        }

        /// Reads elements of 4 bytes.
        ///
        /// # Safety
        /// The pointers lead to what `tcsio.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tcs_read4_(lun: *mut c_int, data: *mut c_void, len: *mut c_long) -> c_int {
            // SAFETY: as above.
            unsafe { api::read(api::number(lun), data, api::number(len), Some(4)) }
        }

        /// Closes a file.
        ///
        /// # Safety
        /// The pointers are null or lead to numbers.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tcs_close_(lun: *mut c_int, keep: *mut c_int) -> c_int {
            // SAFETY: as above.
            unsafe { api::close(api::number(lun), api::number(keep)) }
        }

        /// Releases what `tcs_init_` has taken.
        #[unsafe(no_mangle)]
        pub extern "C" fn tcs_finalize_() -> c_int {
            api::finalize()
        }

        /// Returns whether the run drains.
        #[unsafe(no_mangle)]
        pub extern "C" fn tcs_drainoperation_() -> c_int {
            api::drainoperation()
        }
    };
}
