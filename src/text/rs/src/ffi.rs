// SPDX-License-Identifier: Apache-2.0
//! Types of the C ABI and the guard that keeps panics on this side of it.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Codes of inferd::Code that this crate returns.
pub const INVALID_ARGUMENT: i32 = 3;
pub const RESOURCE_EXHAUSTED: i32 = 8;
pub const UNIMPLEMENTED: i32 = 12;
pub const INTERNAL: i32 = 13;

/// What went wrong, as the C++ side turns it into its own Error.
#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: INVALID_ARGUMENT, message: message.into() }
    }

    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self { code: UNIMPLEMENTED, message: message.into() }
    }

    pub fn exhausted(message: impl Into<String>) -> Self {
        Self { code: RESOURCE_EXHAUSTED, message: message.into() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    size: usize,
}

impl Bytes {
    /// # Safety
    /// The caller's bytes must stay alive and unchanged for 'a.
    pub unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(self.data, self.size)
        }
    }

    /// # Safety
    /// As for as_slice.
    pub unsafe fn as_str<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.as_slice()).map_err(|e| {
            Failure::invalid(format!("{what} is not valid UTF-8 (byte {})", e.valid_up_to()))
        })
    }
}

/// A Vec that crosses the border: taken apart here, put together again by its free function.
#[repr(C)]
pub struct Owned<T> {
    data: *mut T,
    size: usize,
    capacity: usize,
}

impl<T> Owned<T> {
    fn put(&mut self, values: Vec<T>) {
        let mut values = std::mem::ManuallyDrop::new(values);
        self.data = values.as_mut_ptr();
        self.size = values.len();
        self.capacity = values.capacity();
    }

    fn free(&mut self) {
        if !self.data.is_null() {
            // SAFETY: the three fields are those that put() took from a Vec<T>.
            drop(unsafe { Vec::from_raw_parts(self.data, self.size, self.capacity) });
        }
        self.data = std::ptr::null_mut();
        self.size = 0;
        self.capacity = 0;
    }
}

pub type Buffer = Owned<u8>;
pub type Ids = Owned<u32>;

#[no_mangle]
pub unsafe extern "C" fn inferd_buffer_free(buffer: *mut Buffer) {
    (*buffer).free();
}

#[no_mangle]
pub unsafe extern "C" fn inferd_ids_free(ids: *mut Ids) {
    (*ids).free();
}

/// Puts `values` into a fresh out parameter.
///
/// # Safety
/// `out` must point to a zeroed or freed Owned<T>.
pub unsafe fn give<T>(out: *mut Owned<T>, values: Vec<T>) {
    (*out).put(values);
}

/// Messages quote what they are about, which may be a megabyte.
fn shortened(mut message: String) -> String {
    const MAX_BYTES: usize = 2000;
    if message.len() > MAX_BYTES {
        let cut = (0..=MAX_BYTES).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(cut);
        message.push_str("...");
    }
    message
}

/// Runs `body`; an error or a panic becomes a code and a message.
///
/// # Safety
/// `error` must point to a zeroed or freed Buffer.
pub unsafe fn guard(error: *mut Buffer, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let text = payload
                .downcast_ref::<&str>()
                .map(|s| s.to_string())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "unknown".to_string());
            Failure { code: INTERNAL, message: format!("a text library panicked: {text}") }
        }
    };
    give(error, shortened(failure.message).into_bytes());
    failure.code
}
