//! Atomic operations on memory of this process, with libfabric's numbers for operations and
//! datatypes (`rdma/fi_domain.h`). No rank sees a half of an operation, because it happens in a
//! progress call.

/// libfabric's datatypes, in their order.
const INT8: u8 = 0;
const UINT8: u8 = 1;
const INT16: u8 = 2;
const UINT16: u8 = 3;
const INT32: u8 = 4;
const UINT32: u8 = 5;
const INT64: u8 = 6;
const UINT64: u8 = 7;
const FLOAT: u8 = 8;
const DOUBLE: u8 = 9;
const FLOAT_COMPLEX: u8 = 10;
const DOUBLE_COMPLEX: u8 = 11;

/// libfabric's operations, in their order.
const MIN: u8 = 0;
const MAX: u8 = 1;
const SUM: u8 = 2;
const PROD: u8 = 3;
const LOR: u8 = 4;
const LAND: u8 = 5;
const BOR: u8 = 6;
const BAND: u8 = 7;
const LXOR: u8 = 8;
const BXOR: u8 = 9;
const ATOMIC_READ: u8 = 10;
const ATOMIC_WRITE: u8 = 11;
const CSWAP: u8 = 12;
const CSWAP_NE: u8 = 13;
const CSWAP_LE: u8 = 14;
const CSWAP_LT: u8 = 15;
const CSWAP_GE: u8 = 16;
const CSWAP_GT: u8 = 17;
const MSWAP: u8 = 18;

/// Bytes of one element; `None` for types that are not offered (long double, 128 bits).
pub fn size_of(datatype: u8) -> Option<usize> {
    Some(match datatype {
        INT8 | UINT8 => 1,
        INT16 | UINT16 => 2,
        INT32 | UINT32 | FLOAT => 4,
        INT64 | UINT64 | DOUBLE | FLOAT_COMPLEX => 8,
        DOUBLE_COMPLEX => 16,
        _ => return None,
    })
}

/// Whether an operation compares, and so takes twice as many operands.
fn compares(op: u8) -> bool {
    (CSWAP..=MSWAP).contains(&op)
}

/// Whether an operation is offered for a datatype. `compare`: as one that compares.
pub fn is_supported(op: u8, datatype: u8, compare: bool) -> bool {
    let Some(size) = size_of(datatype) else { return false };
    let zeros = vec![0u8; 2 * size];
    let operands = if compare { &zeros[..] } else { &zeros[..size] };
    compares(op) == compare && apply(op, datatype, &mut zeros[..size].to_vec(), operands)
}

/// Applies an operation to the elements in `memory`. `operands`: as many elements, followed, for
/// one that compares, by as many to compare with. False: it is not offered, or lengths do not fit.
pub fn apply(op: u8, datatype: u8, memory: &mut [u8], operands: &[u8]) -> bool {
    let factor = if compares(op) { 2 } else { 1 };
    // A pure read needs no operands.
    if operands.len() != factor * memory.len() && op != ATOMIC_READ {
        return false;
    }
    let (new, compare) = operands.split_at(memory.len().min(operands.len()));
    macro_rules! each {
        ($t:ty, $f:expr) => {
            each_element::<$t, { size_of::<$t>() }>(op, memory, new, compare, $f)
        };
    }
    use std::mem::size_of;
    match datatype {
        INT8 => each!(i8, integer),
        UINT8 => each!(u8, integer),
        INT16 => each!(i16, integer),
        UINT16 => each!(u16, integer),
        INT32 => each!(i32, integer),
        UINT32 => each!(u32, integer),
        INT64 => each!(i64, integer),
        UINT64 => each!(u64, integer),
        FLOAT => each!(f32, float),
        DOUBLE => each!(f64, float),
        FLOAT_COMPLEX => each!(Complex<f32>, complex),
        DOUBLE_COMPLEX => each!(Complex<f64>, complex),
        _ => false,
    }
}

/// An operation on one element: (operation, present value, operand, value to compare with).
type Operation<T> = fn(u8, T, T, T) -> Option<T>;

fn each_element<T: Element<N>, const N: usize>(
    op: u8,
    memory: &mut [u8],
    new: &[u8],
    compare: &[u8],
    operation: Operation<T>,
) -> bool {
    let at = |bytes: &[u8], i: usize| match bytes.get(i * N..(i + 1) * N) {
        Some(b) => T::from_bytes(b.try_into().expect("that many bytes")),
        None => T::from_bytes([0; N]),
    };
    for (i, place) in memory.chunks_exact_mut(N).enumerate() {
        let present = T::from_bytes((&*place).try_into().expect("that many bytes"));
        let Some(value) = operation(op, present, at(new, i), at(compare, i)) else { return false };
        place.copy_from_slice(&value.to_bytes());
    }
    true
}

/// A value that stands in memory as bytes.
trait Element<const N: usize>: Copy {
    fn from_bytes(bytes: [u8; N]) -> Self;
    fn to_bytes(self) -> [u8; N];
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Element<{ std::mem::size_of::<$t>() }> for $t {
            fn from_bytes(bytes: [u8; std::mem::size_of::<$t>()]) -> Self {
                <$t>::from_ne_bytes(bytes)
            }
            fn to_bytes(self) -> [u8; std::mem::size_of::<$t>()] {
                self.to_ne_bytes()
            }
        }
    )*};
}
numbers!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);

#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
struct Complex<T> {
    re: T,
    im: T,
}

macro_rules! complexes {
    ($($t:ty, $half:literal, $whole:literal);*) => {$(
        impl Element<$whole> for Complex<$t> {
            fn from_bytes(bytes: [u8; $whole]) -> Self {
                let part = |from: usize| {
                    <$t>::from_ne_bytes(bytes[from..from + $half].try_into().expect("a half"))
                };
                Complex { re: part(0), im: part($half) }
            }
            fn to_bytes(self) -> [u8; $whole] {
                let mut bytes = [0; $whole];
                bytes[..$half].copy_from_slice(&self.re.to_ne_bytes());
                bytes[$half..].copy_from_slice(&self.im.to_ne_bytes());
                bytes
            }
        }
    )*};
}
complexes!(f32, 4, 8; f64, 8, 16);

/// Writing and comparing, which all ordered types have alike.
fn swap<T: PartialOrd>(op: u8, present: T, new: T, compare: T) -> Option<T> {
    let take = match op {
        ATOMIC_READ => false,
        ATOMIC_WRITE => true,
        // As libfabric has it: the value to compare with stands on the left.
        CSWAP => compare == present,
        CSWAP_NE => compare != present,
        CSWAP_LE => compare <= present,
        CSWAP_LT => compare < present,
        CSWAP_GE => compare >= present,
        CSWAP_GT => compare > present,
        _ => return None,
    };
    Some(if take { new } else { present })
}

trait Integer: Copy + PartialOrd + PartialEq + From<bool> {
    fn bits(self, other: Self, op: u8) -> Self;
    fn masked(self, new: Self, mask: Self) -> Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Integer for $t {
            fn bits(self, other: Self, op: u8) -> Self {
                match op {
                    BOR => self | other,
                    BAND => self & other,
                    _ => self ^ other,
                }
            }
            fn masked(self, new: Self, mask: Self) -> Self {
                new & mask | self & !mask
            }
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )*};
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64);

fn integer<T: Integer>(op: u8, present: T, new: T, compare: T) -> Option<T> {
    let (a, b) = (present != T::from(false), new != T::from(false));
    Some(match op {
        MIN => {
            if new < present {
                new
            } else {
                present
            }
        }
        MAX => {
            if new > present {
                new
            } else {
                present
            }
        }
        SUM => present.sum(new),
        PROD => present.product(new),
        LOR => (a || b).into(),
        LAND => (a && b).into(),
        LXOR => (a != b).into(),
        BOR | BAND | BXOR => present.bits(new, op),
        MSWAP => present.masked(new, compare),
        _ => return swap(op, present, new, compare),
    })
}

trait Float:
    Copy
    + PartialOrd
    + Default
    + std::ops::Add<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Sub<Output = Self>
{
    const ONE: Self;
}
impl Float for f32 {
    const ONE: f32 = 1.0;
}
impl Float for f64 {
    const ONE: f64 = 1.0;
}

fn truth<T: Float>(value: bool) -> T {
    if value {
        T::ONE
    } else {
        T::default()
    }
}

fn float<T: Float>(op: u8, present: T, new: T, compare: T) -> Option<T> {
    let (a, b) = (present != T::default(), new != T::default());
    Some(match op {
        MIN => {
            if new < present {
                new
            } else {
                present
            }
        }
        MAX => {
            if new > present {
                new
            } else {
                present
            }
        }
        SUM => present + new,
        PROD => present * new,
        LOR => truth(a || b),
        LAND => truth(a && b),
        LXOR => truth(a != b),
        _ => return swap(op, present, new, compare),
    })
}

fn complex<T: Float>(
    op: u8,
    present: Complex<T>,
    new: Complex<T>,
    compare: Complex<T>,
) -> Option<Complex<T>> {
    let zero = T::default();
    let is_true = |c: Complex<T>| c.re != zero || c.im != zero;
    let (a, b) = (is_true(present), is_true(new));
    let real = |value: bool| Complex { re: truth(value), im: zero };
    Some(match op {
        SUM => Complex { re: present.re + new.re, im: present.im + new.im },
        PROD => Complex {
            re: present.re * new.re - present.im * new.im,
            im: present.re * new.im + present.im * new.re,
        },
        LOR => real(a || b),
        LAND => real(a && b),
        LXOR => real(a != b),
        ATOMIC_READ => present,
        ATOMIC_WRITE => new,
        CSWAP => {
            if compare == present {
                new
            } else {
                present
            }
        }
        CSWAP_NE => {
            if compare != present {
                new
            } else {
                present
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(op: u8, memory: &[i32], operands: &[i32]) -> Vec<i32> {
        let bytes = |v: &[i32]| v.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>();
        let mut memory = bytes(memory);
        assert!(apply(op, INT32, &mut memory, &bytes(operands)), "operation {op}");
        let word = |b: &[u8]| i32::from_ne_bytes(b.try_into().unwrap());
        memory.chunks(4).map(word).collect()
    }

    #[test]
    fn operations_do_what_libfabric_says() {
        assert_eq!(run(MIN, &[3, -3], &[1, 5]), [1, -3]);
        assert_eq!(run(MAX, &[3, -3], &[1, 5]), [3, 5]);
        assert_eq!(run(SUM, &[i32::MAX, 2], &[1, 5]), [i32::MIN, 7]);
        assert_eq!(run(PROD, &[3, 2], &[-1, 5]), [-3, 10]);
        assert_eq!(run(LOR, &[0, 2], &[0, 0]), [0, 1]);
        assert_eq!(run(LAND, &[4, 2], &[0, 9]), [0, 1]);
        assert_eq!(run(LXOR, &[4, 2], &[0, 9]), [1, 0]);
        assert_eq!(run(BXOR, &[6, 2], &[3, 2]), [5, 0]);
        assert_eq!(run(ATOMIC_READ, &[6, 2], &[]), [6, 2]);
        assert_eq!(run(ATOMIC_WRITE, &[6, 2], &[1, 1]), [1, 1]);
        assert_eq!(run(CSWAP, &[6, 2], &[1, 1, 6, 6]), [1, 2]);
        assert_eq!(run(CSWAP_NE, &[6, 2], &[1, 1, 6, 6]), [6, 1]);
        assert_eq!(run(CSWAP_LT, &[6, 2], &[1, 1, 5, 5]), [1, 2]);
        assert_eq!(run(CSWAP_GE, &[6, 2], &[1, 1, 5, 5]), [6, 1]);
        assert_eq!(run(MSWAP, &[0x0ff, 0], &[0xf0f, 7, 0x00f, 1]), [0x0ff, 1]);
    }

    #[test]
    fn what_is_offered_is_said() {
        assert!(is_supported(SUM, DOUBLE_COMPLEX, false));
        assert!(!is_supported(MIN, DOUBLE_COMPLEX, false));
        assert!(!is_supported(BOR, FLOAT, false));
        assert!(is_supported(CSWAP, UINT64, true) && !is_supported(CSWAP, UINT64, false));
        assert!(!is_supported(SUM, UINT64, true));
        assert!(!is_supported(SUM, 12, false), "long double");
        assert!(!is_supported(19, UINT64, false));
    }

    #[test]
    fn complex_numbers_multiply_as_such() {
        let bytes = |v: [f64; 2]| v.map(f64::to_ne_bytes).concat();
        let mut memory = bytes([1.0, 2.0]);
        assert!(apply(PROD, DOUBLE_COMPLEX, &mut memory, &bytes([3.0, -1.0])));
        assert_eq!(memory, bytes([5.0, 5.0]));
    }
}
