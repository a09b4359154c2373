//! PMIx's structures, types and results, as in Open MPI's binary (PMIx 4 and 5 agree in these).
//! Definitions only.

#![allow(non_camel_case_types)]

use libc::{c_char, c_int, c_void, size_t};

/// Results.
pub const SUCCESS: c_int = 0;
pub const ERR_UNREACH: c_int = -25;
pub const ERR_BAD_PARAM: c_int = -27;
pub const ERR_INIT: c_int = -31;
pub const ERR_NOMEM: c_int = -32;
pub const ERR_NOT_FOUND: c_int = -46;
pub const ERR_NOT_SUPPORTED: c_int = -47;

/// In place of a rank: all ranks of the job.
pub const RANK_WILDCARD: u32 = u32::MAX - 1;

/// Which ranks a value is for (`pmix_scope_t`): those of the same host only, or all.
pub const LOCAL: u8 = 1;
#[cfg(test)]
pub const GLOBAL: u8 = 3;

/// Room for the name of a job, and for a key, with the NUL.
pub const NSPACE_ROOM: usize = 256;
pub const KEY_ROOM: usize = 512;

/// Types of a value. Those of a single number, up to a double, are as long as eight bytes at most.
pub const STRING: u16 = 3;
pub const LAST_NUMBER: u16 = 17;
pub const UINT16: u16 = 13;
pub const UINT32: u16 = 14;
pub const PROC: u16 = 22;
pub const BYTE_OBJECT: u16 = 27;
pub const RANK: u16 = 40;

/// `pmix_proc_t`.
#[repr(C)]
pub struct pmix_proc {
    pub nspace: [c_char; NSPACE_ROOM],
    pub rank: u32,
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pmix_byte_object {
    pub bytes: *mut c_char,
    pub size: size_t,
}

/// The `data` of a value: three words are as long as the longest of its kinds (pmix_envar_t).
#[repr(C)]
#[derive(Clone, Copy)]
pub union pmix_data {
    pub string: *mut c_char,
    pub number: u64,
    pub object: pmix_byte_object,
    pub room: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pmix_value {
    pub kind: u16,
    pub data: pmix_data,
}

/// `pmix_op_cbfunc_t`.
pub type op_done = Option<unsafe extern "C" fn(c_int, *mut c_void)>;
/// `pmix_hdlr_reg_cbfunc_t`.
pub type registered = Option<unsafe extern "C" fn(c_int, size_t, *mut c_void)>;
