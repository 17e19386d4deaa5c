// SPDX-License-Identifier: Apache-2.0
//! The chat template's half of the C ABI. The contract of each function is in src/text/text_rs.h.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ffi::{give, guard, Buffer, Bytes};
use crate::template::TemplateHandle;

#[no_mangle]
pub unsafe extern "C" fn inferd_template_compile(
    source: Bytes,
    specials_json: Bytes,
    out: *mut *mut TemplateHandle,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let handle =
            TemplateHandle::compile(source.as_str("the chat template")?, specials_json.as_slice())?;
        *out = Box::into_raw(Box::new(handle));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_template_free(handle: *mut TemplateHandle) {
    if !handle.is_null() {
        drop(Box::from_raw(handle));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inferd_template_render(
    handle: *const TemplateHandle,
    variables_json: Bytes,
    kwargs_json: Bytes,
    now_s: i64,
    out: *mut Buffer,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let now_s = if now_s >= 0 {
            now_s
        } else {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
        };
        let text = (*handle).render(variables_json.as_slice(), kwargs_json.as_slice(), now_s)?;
        give(out, text);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inferd_template_mentions(
    handle: *const TemplateHandle,
    variable: Bytes,
) -> i32 {
    let look_up =
        || std::str::from_utf8(variable.as_slice()).is_ok_and(|name| (*handle).mentions(name));
    i32::from(catch_unwind(AssertUnwindSafe(look_up)).unwrap_or(false))
}
