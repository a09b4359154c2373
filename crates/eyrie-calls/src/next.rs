//! The functions behind ours: those of the next library that has them, the C library as a rule.
//! Found when the library is loaded, because looking for one takes a lock that a signal handler
//! must not take.

use std::ffi::{c_void, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that ours stands in front of.
pub struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: std::marker::PhantomData<F>,
}

// SAFETY: nothing of an `F` is in it but a code address.
unsafe impl<F> Sync for Next<F> {}

impl<F: Copy> Next<F> {
    /// # Safety
    /// `F` must be the type of a pointer to the C function of this name.
    pub const unsafe fn new(name: &'static CStr) -> Next<F> {
        let found = AtomicPtr::new(std::ptr::null_mut());
        Next { name, found, kind: std::marker::PhantomData }
    }

    /// Looks for the function. (A call that comes before this looks for it itself.)
    pub fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }

    /// The function.
    pub fn get(&self) -> F {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            found = self.find();
        }
        if found.is_null() {
            // The program was linked with this function, so a library has it: this cannot happen.
            // SAFETY: abort(3) has no arguments and does not return.
            unsafe { libc::abort() };
        }
        // SAFETY: `new`'s caller vouches for the type; a function pointer is as long as any.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

/// A name with its NUL as a C string.
pub const fn c_string(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!(), // when it is compiled
    }
}

/// Declares functions behind ours and looks for all of them when the library is loaded.
macro_rules! next {
    ($($name:ident: fn($($arg:ty),* $(,)?) -> $result:ty;)*) => {
        $(
            #[allow(non_upper_case_globals)]
            static $name: $crate::next::Next<
                unsafe extern "C-unwind" fn($($arg),*) -> $result
            > = {
                const NAME: &::std::ffi::CStr = $crate::next::c_string(
                    concat!(stringify!($name), "\0")
                );
                // SAFETY: the type is that of the C function of this name.
                unsafe { $crate::next::Next::new(NAME) }
            };
        )*
        extern "C" fn find_next() {
            $($name.find();)*
        }
        #[used]
        #[link_section = ".init_array"]
        static FIND_NEXT: extern "C" fn() = find_next;
    };
}
pub(crate) use next;
