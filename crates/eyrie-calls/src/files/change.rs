//! A call that changes names, or what is under them: made once in all processes of a rank.

use super::calling::{outcome, recorded};
use super::freshness;
use super::kernel::{look, Identity};
use super::others;
use super::records::{is_new_change, Call, Part};
use super::standing_in;
use super::storing::store;
use libc::{c_char, c_int};

/// What a call does, apart from making it.
pub struct Change<'a> {
    pub call: Call,
    /// What it will change. Or the error that it fails with: then the call is not made, because by
    /// then it might change something else, which no record would name. [`UNKNOWN`]: it cannot be
    /// known before the call.
    pub before: &'a dyn Fn() -> Result<Identity, i64>,
    /// Whether that was changed.
    pub is_done: &'a dyn Fn(Identity) -> bool,
    /// The same for files that have shadow files.
    pub stand_ins: &'a dyn Fn(),
    /// Keeps the old state of what it will change, or finds what an earlier process has kept.
    pub keep: &'a dyn Fn(When),
}

/// Whether a call is about to be made, or was made by an earlier process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    Before,
    Again,
}

/// It is made all the same, and perhaps again.
pub const UNKNOWN: i64 = 0;

impl Change<'_> {
    /// Makes the call, once in all processes of the rank. As what [`super::once`] decides it is
    /// run on files of a test's own, too.
    pub(super) fn make(&self, make: &dyn Fn() -> i64) -> i64 {
        if let Some(mut intent) = self.call.again(Part::Intent) {
            (self.keep)(When::Again);
            return self.end(intent.identity(), make);
        }
        if let Some(value) = self.call.result_again() {
            return value;
        }
        if !is_new_change() {
            // It does something else than before.
            return make();
        }
        standing_in::before_new();
        (self.keep)(When::Before);
        match (self.before)() {
            Ok(what) => {
                self.call.write(Part::Intent, &[what.ino as i64, what.born_ns]);
                // SAFETY: this call is being recorded, of which there is one at a time.
                unsafe { store() };
            }
            Err(UNKNOWN) => freshness::before_any_change(),
            Err(error) => {
                freshness::looked_around();
                return self.call.write_result(error);
            }
        }
        self.call.write_result(make())
    }

    /// It was about to be made: what became of it.
    fn end(&self, what: Identity, make: &dyn Fn() -> i64) -> i64 {
        if let Some(value) = self.call.result_again() {
            if value == 0 {
                (self.stand_ins)();
            }
            return value;
        }
        if !is_new_change() {
            return make();
        }
        standing_in::before_new();
        let value = if (self.is_done)(what) { 0 } else { make() };
        self.call.write_result(value)
    }
}

/// What a call that makes a name needs: that no file has the name.
pub fn free(dir: c_int, path: *const c_char) -> Result<Identity, i64> {
    match look(dir, path, false) {
        Ok(_) => Err(-i64::from(libc::EEXIST)),
        Err(_) => Ok(Identity::default()),
    }
}

/// Makes it, in a thread whose calls are recorded or in another one.
pub fn of_call(change: &Change, make: &dyn Fn() -> c_int) -> c_int {
    of_call_by(change, make, make)
}

/// The same where what is recorded is made in a way of its own, by what no other thread must touch.
pub fn of_call_by(
    change: &Change,
    make_once: &dyn Fn() -> c_int,
    make: &dyn Fn() -> c_int,
) -> c_int {
    match recorded(&mut || change.make(&|| outcome(make_once()))) {
        Some(value) => value as c_int,
        None => {
            others::changed_names();
            make()
        }
    }
}
