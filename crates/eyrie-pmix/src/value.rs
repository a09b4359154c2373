//! Values of PMIx: their form in a line of PMI-1, which has neither spaces nor line ends, and their
//! form in memory that the MPI library frees. A value of an unknown kind must be refused, never
//! cut.

use crate::abi::*;
use std::ffi::CStr;

/// A value in its own memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Text(Vec<u8>),
    /// Its type, and its bytes in the first word of the union.
    Number(u16, u64),
    Bytes(Vec<u8>),
}

impl Value {
    /// Copies a value of the library; `None` for a kind that is not supported.
    ///
    /// # Safety
    /// `value` must be null or a whole value.
    pub unsafe fn copy(value: *const pmix_value) -> Option<Value> {
        // SAFETY: the caller guarantees a null or whole value; its type says which part of the
        // union is valid.
        unsafe {
            let value = value.as_ref()?;
            match value.kind {
                STRING if value.data.string.is_null() => None,
                STRING => Some(Value::Text(CStr::from_ptr(value.data.string).to_bytes().to_vec())),
                BYTE_OBJECT => {
                    let pmix_byte_object { bytes, size } = value.data.object;
                    let all = match size {
                        0 => &[],
                        _ => std::slice::from_raw_parts(bytes.cast::<u8>(), size),
                    };
                    Some(Value::Bytes(all.to_vec()))
                }
                kind if is_number(kind) => Some(Value::Number(kind, value.data.number)),
                _ => None,
            }
        }
    }

    /// Makes a value that the library may free; null when there is no memory.
    pub fn give(&self) -> *mut pmix_value {
        // SAFETY: the memory comes from the C library, which also frees it, and is written within
        // its bounds.
        unsafe {
            let (kind, data) = match self {
                Value::Number(kind, number) => (*kind, pmix_data { number: *number }),
                Value::Text(text) => (STRING, pmix_data { string: copy_out(text).cast() }),
                Value::Bytes(all) => {
                    let object = pmix_byte_object { bytes: copy_out(all).cast(), size: all.len() };
                    (BYTE_OBJECT, pmix_data { object })
                }
            };
            let made: *mut pmix_value = libc::calloc(1, size_of::<pmix_value>()).cast();
            if let Some(made) = made.as_mut() {
                *made = pmix_value { kind, data };
            }
            made
        }
    }

    /// Its form in a line.
    pub fn encode(&self) -> String {
        let (kind, bytes) = match self {
            Value::Text(text) => (STRING, text.clone()),
            Value::Number(kind, number) => (*kind, number.to_le_bytes().to_vec()),
            Value::Bytes(all) => (BYTE_OBJECT, all.clone()),
        };
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{kind}:{digits}")
    }

    /// Decodes the form of a line; `None` for another text.
    pub fn decode(text: &str) -> Option<Value> {
        let (kind, digits) = text.split_once(':')?;
        let pairs = digits.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> = pairs
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        let bytes = bytes.filter(|_| digits.len() % 2 == 0)?;
        match kind.parse().ok()? {
            STRING => Some(Value::Text(bytes)),
            BYTE_OBJECT => Some(Value::Bytes(bytes)),
            kind if is_number(kind) => {
                Some(Value::Number(kind, u64::from_le_bytes(bytes.try_into().ok()?)))
            }
            _ => None,
        }
    }
}

fn is_number(kind: u16) -> bool {
    kind != 0 && kind <= LAST_NUMBER && kind != STRING || kind == RANK
}

/// A copy in memory of the C library, followed by a NUL.
///
/// # Safety
/// The owner of the copy must free it.
unsafe fn copy_out(bytes: &[u8]) -> *mut u8 {
    // SAFETY: the copy is written within the bytes that were allocated.
    unsafe {
        let to: *mut u8 = libc::calloc(1, bytes.len() + 1).cast();
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            prop::collection::vec(1u8..=255, 0..50).prop_map(Value::Text),
            prop::collection::vec(any::<u8>(), 0..50).prop_map(Value::Bytes),
            (prop_oneof![Just(UINT16), Just(UINT32), Just(RANK)], any::<u64>())
                .prop_map(|(kind, number)| Value::Number(kind, number)),
        ]
    }

    proptest! {
        #[test]
        fn a_value_survives_a_line_and_the_librarys_memory(value in any_value()) {
            let line = value.encode();
            prop_assert!(!line.contains([' ', '\n', '=']));
            prop_assert_eq!(Value::decode(&line), Some(value.clone()));
            let given = value.give();
            // SAFETY: `give` made a whole value, which nothing else refers to. What it points to is
            // leaked.
            let copied = unsafe { Value::copy(given) };
            prop_assert_eq!(copied, Some(value));
        }

        #[test]
        fn nonsense_is_no_value(text in ".{0,40}") {
            if let Some(value) = Value::decode(&text) {
                prop_assert_eq!(Value::decode(&value.encode()), Some(value));
            }
        }
    }

    #[test]
    fn unsupported_values_are_refused() {
        let list = pmix_value { kind: 39, data: pmix_data { room: [1; 3] } };
        // SAFETY: the values are whole, and of kinds whose data is not read.
        unsafe {
            assert_eq!(Value::copy(&list), None);
            assert_eq!(Value::copy(std::ptr::null()), None);
        }
    }
}
