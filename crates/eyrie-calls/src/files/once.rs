//! Decides what becomes of a call that reads, asks or writes: its result comes from the record, or
//! it is made again, made for the first time, or passed over. And what of it is recorded.
//! ([`super::change`] decides about calls that change names.) It must never ask the kernel itself,
//! so that a test can run it on files of its own.

use super::freshness;
use super::records::{is_new_change, Call, Part};
use super::standing_in;

#[cfg(test)]
mod tests;

/// Device and number of a file.
type Number = (u64, u64);

/// A call that gives the content of a file.
pub trait Reading {
    /// Makes it: how many bytes, or a negative errno.
    fn make(&mut self) -> i64;
    /// Makes it of a file that had not changed when it was made first.
    fn make_again(&mut self) -> i64;
    /// These bytes it gave before, at this place of all that it gave.
    fn replay(&mut self, at: usize, bytes: &[u8]);
    /// All that it gave before has been replayed, which is so many bytes or an error.
    fn replayed(&mut self, n: i64);
    /// The file that it was made of.
    fn number(&self) -> Number;
    /// Whether the job may have changed that file, so that it may be another one when the call is
    /// made again.
    fn is_changed(&self) -> bool;
    /// The bytes that it has given, from a place on, up to a number.
    fn given(&self, at: usize, most: usize) -> &[u8];
}

/// Reads, and gets the same in each process of the rank.
pub fn read(call: Call, it: &mut dyn Reading) -> i64 {
    if call.done_again() {
        return it.make_again();
    }
    if let Some(n) = call.content_again(&mut |at, bytes| it.replay(at, bytes)) {
        it.replayed(n);
        return n;
    }
    if !is_new_change() {
        // It does something else than before.
        return it.make();
    }
    standing_in::before_new();
    let n = it.make();
    freshness::looked(it.number());
    match n {
        0.. if !it.is_changed() => call.write_done(),
        _ => call.write_content(n, &mut |at, most| it.given(at, most)),
    }
    n
}

/// A call that asks for anything else: it says a number and puts some bytes.
pub trait Asking {
    /// Makes it: what it says, or a negative errno.
    fn make(&mut self) -> i64;
    /// It has put these bytes before.
    fn replay(&mut self, bytes: &[u8]);
    /// The bytes that it has put.
    fn given(&self) -> &[u8];
}

/// Asks, and gets the same in each process of the rank.
pub fn ask(call: Call, it: &mut dyn Asking) -> i64 {
    if let Some((value, bytes)) = call.answer_again() {
        it.replay(bytes);
        return value;
    }
    if !is_new_change() {
        // It does something else than before.
        return it.make();
    }
    standing_in::before_new();
    freshness::looked_around();
    let value = it.make();
    call.write_answer(value, it.given());
    value
}

/// Where a call has written.
pub enum Wrote {
    Somewhere,
    /// It has appended, and the file ends there then.
    AtTheEnd(i64),
    /// It has recorded what came of it by itself.
    Noted,
}

/// A call that writes to a file.
pub trait Writing {
    /// Makes it: how many bytes, or a negative errno.
    fn make(&mut self) -> i64;
    /// Makes it for the first time, as far as is known.
    fn make_first(&mut self, call: Call) -> (i64, Wrote);
    /// Makes it for the first time in a way of its own, and notes by itself what it gave; `None`:
    /// it has none.
    fn make_otherwise(&mut self, _call: Call) -> Option<i64> {
        None
    }
    /// What it gave when it was made before, where it has noted that in a way of its own.
    fn made_otherwise(&mut self, _call: Call) -> Option<i64> {
        None
    }
    /// It was made before, with so many bytes; where the file ended then, if they were appended.
    /// What it gave.
    fn made_before(&mut self, n: i64, end: Option<i64>) -> i64;
    /// How many bytes there are to be written.
    fn len(&self) -> i64;
    /// The file that they are written to.
    fn number(&self) -> Number;
}

/// Writes, once in all processes of the rank.
pub fn write(call: Call, it: &mut dyn Writing) -> i64 {
    if call.done_again() {
        return it.made_before(it.len(), None);
    }
    if let Some(n) = it.made_otherwise(call) {
        return n;
    }
    if let Some(mut appended) = call.again(Part::Appended) {
        let n = appended.number();
        let end = appended.number();
        return it.made_before(n, Some(end));
    }
    if let Some(n) = call.result_again() {
        return if n > 0 { it.made_before(n, None) } else { n };
    }
    if !is_new_change() {
        // It does something else than before.
        return it.make();
    }
    standing_in::before_new();
    if let Some(n) = it.make_otherwise(call) {
        return n;
    }
    freshness::before_change(it.number());
    let (n, wrote) = it.make_first(call);
    match (n, wrote) {
        (_, Wrote::Noted) => {}
        (0.., Wrote::AtTheEnd(end)) => call.write(Part::Appended, &[n, end]),
        (0.., Wrote::Somewhere) if n == it.len() => call.write_done(),
        _ => {
            call.write_result(n);
        }
    }
    n
}
