//! What is known of one other domain: the line to it, the letters that it has not confirmed, and
//! what it has said. A letter has a number, is kept until it is confirmed, and is taken once, in
//! order; so letters may be lost, doubled and overtaken on the way.

use eyrie_wire::control::StandardStream;
use eyrie_wire::domains::{DomainSays, Letter};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// After so long a letter is sent again that is not confirmed; and after twice as long each time,
/// up to so long. A line that is up loses none but with one of its gateways.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AT_MOST: Duration = Duration::from_secs(32);

/// How long without a line a domain that ends while the job goes on can have a new one, unless it
/// is known to need none: it may not know that it can go.
const GONE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the first line may take: also to a domain that a user starts by hand.
pub const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The line to a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LineState {
    pub up: bool,
    /// Since when that is so; `None`: it was never up.
    pub since: Option<Duration>,
}

/// Whether a domain is a part of the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Membership {
    Member,
    /// It is to be one. It is told all that a member is, and not waited for.
    Joins,
    /// It is not to be one after all, and may not know that yet: it is told until then.
    StaysOut {
        until: Duration,
    },
}

/// Another domain.
#[derive(Debug, Serialize, Deserialize)]
pub struct OtherDomain {
    name: String,
    membership: Membership,
    /// Until when there must have been a line to it.
    first_line_until: Duration,
    line: LineState,
    /// Letters that it has not confirmed, with consecutive numbers.
    unconfirmed: VecDeque<DomainSays>,
    /// The last one that it has confirmed.
    confirmed: u64,
    /// The last one of its letters that has come in order.
    heard: u64,
    /// When letters are sent again, and how long after the last time.
    again: Duration,
    pause: Duration,
    /// The exit code of its ranks together, when all have ended.
    finished: Option<i32>,
    /// It has ended the job, and confirms nothing any more.
    ended: bool,
    /// It had no ranks, and has ended while the job goes on.
    gone: bool,
    /// It knows that it can go.
    left: bool,
    /// It can have no line any more.
    line_over: bool,
    /// Bytes of output in the letters that it has not confirmed.
    unconfirmed_output: usize,
    /// Bytes of output that have come from it, and those of them of which it knows that they were
    /// written.
    printed: u64,
    told_shown: u64,
}

/// Bytes of output that a domain says.
fn output_in(says: &DomainSays) -> usize {
    match says {
        DomainSays::Output { bytes, .. } => bytes.len(),
        _ => 0,
    }
}

impl OtherDomain {
    /// One that is a part of the job from its beginning.
    pub fn new(name: String) -> OtherDomain {
        OtherDomain::of(name, Membership::Member, FIRST_LINE_TIMEOUT)
    }

    /// One that is to join the running job.
    pub fn joining(name: String, now: Duration) -> OtherDomain {
        OtherDomain::of(name, Membership::Joins, now + FIRST_LINE_TIMEOUT)
    }

    fn of(name: String, membership: Membership, first_line_until: Duration) -> OtherDomain {
        OtherDomain {
            name,
            membership,
            first_line_until,
            line: LineState { up: false, since: None },
            unconfirmed: VecDeque::new(),
            confirmed: 0,
            heard: 0,
            again: Duration::ZERO,
            pause: AGAIN,
            finished: None,
            ended: false,
            gone: false,
            left: false,
            line_over: false,
            unconfirmed_output: 0,
            printed: 0,
            told_shown: 0,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a part of the job.
    pub fn is_member(&self) -> bool {
        self.membership == Membership::Member
    }

    /// It is one from now on.
    pub fn join(&mut self) {
        self.membership = Membership::Member;
    }

    /// It is not to be one, and is told so until then at the latest.
    pub fn stay_out(&mut self, until: Duration) {
        self.membership = Membership::StaysOut { until };
    }

    /// Whether there is nothing more to be told to one that stays out.
    pub fn is_out(&self, now: Duration) -> bool {
        let Membership::StaysOut { until } = self.membership else { return false };
        !self.line.up || !self.must_confirm() || now >= until
    }

    /// Until when one that stays out is told so.
    pub fn told_until(&self) -> Option<Duration> {
        match self.membership {
            Membership::StaysOut { until } => Some(until),
            Membership::Member | Membership::Joins => None,
        }
    }

    pub fn line(&self) -> LineState {
        self.line
    }

    /// What it was told and has not confirmed.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &DomainSays> {
        self.unconfirmed.iter()
    }

    /// How many letters it has not confirmed.
    pub fn waiting(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The exit code of its ranks together, when all have ended.
    pub fn finished(&self) -> Option<i32> {
        self.finished
    }

    /// All of its ranks have ended; false when it has said so before.
    pub fn finish(&mut self, code: i32) -> bool {
        self.finished.is_none() && self.finished.replace(code).is_none()
    }

    /// It ends while the job goes on, and is told nothing any more.
    pub fn go(&mut self) {
        self.gone = true;
        self.end();
    }

    /// Whether it has ended while the job goes on.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// It knows that it can go.
    pub fn leave(&mut self) {
        self.left = true;
    }

    /// When the line to it is over, if it has gone and gets no other one before.
    pub fn line_over_at(&self) -> Option<Duration> {
        let waits = self.gone && !self.line.up && !self.line_over;
        let since = self.line.since.filter(|_| !self.left);
        waits.then(|| since.map_or(Duration::ZERO, |since| since + GONE_TIMEOUT))
    }

    /// It can have no line any more.
    pub fn end_line(&mut self) {
        self.line_over = true;
    }

    /// It has ended the job.
    pub fn end(&mut self) {
        self.ended = true;
        self.confirmed += self.unconfirmed.len() as u64;
        self.unconfirmed.clear();
        self.unconfirmed_output = 0;
    }

    /// Whether it has ended the job: it is told nothing any more.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether it may not know yet what it was told.
    pub fn must_confirm(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// As [`OtherDomain::must_confirm`], but for what it is told to show.
    pub fn must_confirm_but_output(&self) -> bool {
        let is_shown = |says: &DomainSays| {
            use DomainSays::{Line, Output, Shown};
            matches!(says, Output { .. } | Shown { .. } | Line { .. })
        };
        !self.unconfirmed.iter().all(is_shown)
    }

    /// Bytes of output in the letters that it has not confirmed.
    pub fn unconfirmed_output(&self) -> usize {
        self.unconfirmed_output
    }

    /// The output in the letters that it has not confirmed.
    pub fn output_told(&self) -> impl Iterator<Item = (StandardStream, Vec<u8>)> + '_ {
        self.unconfirmed.iter().filter_map(|says| match says {
            DomainSays::Output { stream, bytes } => Some((*stream, bytes.clone())),
            _ => None,
        })
    }

    /// So many bytes of output have come from it. How many that makes.
    pub fn print(&mut self, bytes: usize) -> u64 {
        self.printed += bytes as u64;
        self.printed
    }

    /// So many bytes that have come from it were written. Whether it does not know that.
    pub fn has_shown(&mut self, bytes: u64) -> bool {
        let is_new = bytes > self.told_shown;
        self.told_shown = self.told_shown.max(bytes);
        is_new
    }

    /// What it prints is shown here from now on: it counts its bytes anew.
    pub fn begin_to_print(&mut self) {
        self.printed = 0;
        self.told_shown = 0;
    }

    /// Bytes of output that have come from it.
    pub fn printed(&self) -> u64 {
        self.printed
    }

    /// It is told this. The letters to be sent now.
    pub fn tell(&mut self, says: DomainSays, now: Duration) -> Vec<Letter> {
        if self.ended {
            return Vec::new();
        }
        if self.unconfirmed.is_empty() {
            self.pause = AGAIN;
            self.again = now + AGAIN;
        }
        self.unconfirmed_output += output_in(&says);
        self.unconfirmed.push_back(says);
        let sent = self.unconfirmed.len() - 1;
        self.letters().skip(sent).filter(|_| self.line.up).collect()
    }

    /// The line to it is up, or is not any more; false when that was known. What it has not
    /// confirmed is to be sent when it is up.
    pub fn set_line(&mut self, up: bool, now: Duration) -> bool {
        let changes = self.line.up != up;
        if changes {
            self.line = LineState { up, since: Some(now) };
        }
        changes
    }

    /// The letters that it has not confirmed, which are sent again now; the time for the next time
    /// begins. None without a line.
    pub fn send_again(&mut self, now: Duration) -> Vec<Letter> {
        self.again = now + self.pause;
        self.pause = (self.pause * 2).min(AGAIN_AT_MOST);
        self.letters().filter(|_| self.line.up).collect()
    }

    /// When letters are to be sent again.
    pub fn again(&self) -> Option<Duration> {
        (self.line.up && !self.unconfirmed.is_empty()).then_some(self.again)
    }

    /// Until when there must have been a line, if there was none. For one that is not a part of the
    /// job the domain waits that lets it join.
    pub fn first_line_until(&self) -> Option<Duration> {
        let must_come = self.line.since.is_none() && !self.gone && self.is_member();
        must_come.then_some(self.first_line_until)
    }

    fn letters(&self) -> impl Iterator<Item = Letter> + '_ {
        let numbered = (self.confirmed + 1..).zip(&self.unconfirmed);
        let heard = self.heard;
        numbered.map(move |(number, says)| Letter { number, heard, says: Some(says.clone()) })
    }

    /// A letter that only confirms what has come.
    pub fn confirmation(&self) -> Letter {
        Letter { number: 0, heard: self.heard, says: None }
    }

    /// A letter of it has come. What it says, when it is the next one.
    ///
    /// # Errors
    /// When it confirms letters that were never sent.
    pub fn hear(&mut self, letter: Letter, now: Duration) -> Result<Option<DomainSays>, String> {
        let Letter { number, heard, says } = letter;
        let last = self.confirmed + self.unconfirmed.len() as u64;
        if heard > last {
            return Err(format!("it confirms letter {heard}, and the last one was {last}"));
        }
        let confirmed = heard.saturating_sub(self.confirmed);
        if confirmed > 0 {
            let drained = self.unconfirmed.drain(..confirmed as usize);
            self.unconfirmed_output -= drained.map(|says| output_in(&says)).sum::<usize>();
            self.confirmed = heard;
            self.pause = AGAIN;
            self.again = now + AGAIN;
        }
        let is_next = number == self.heard + 1;
        self.heard += u64::from(is_next);
        Ok(says.filter(|_| is_next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn arrived(barrier: u32) -> DomainSays {
        DomainSays::Arrived { barrier }
    }

    /// One with a line.
    fn other() -> OtherDomain {
        let mut other = OtherDomain::new("b".into());
        assert!(other.set_line(true, NOW) && !other.set_line(true, NOW));
        other
    }

    fn numbers(letters: &[Letter]) -> Vec<u64> {
        letters.iter().map(|letter| letter.number).collect()
    }

    #[test]
    fn letters_are_sent_when_made_and_again_until_they_are_confirmed() {
        let mut b = other();
        assert_eq!(numbers(&b.tell(arrived(1), NOW)), [1]);
        assert_eq!(numbers(&b.tell(arrived(2), NOW)), [2]);
        assert_eq!(b.again(), Some(NOW + AGAIN));
        assert_eq!(numbers(&b.send_again(NOW + AGAIN)), [1, 2]);
        assert_eq!(b.again(), Some(NOW + AGAIN * 2));
        assert_eq!(numbers(&b.send_again(NOW + AGAIN * 2)), [1, 2]);
        assert_eq!(b.again(), Some(NOW + AGAIN * 4), "the pause grows");
        let bare = |heard| Letter { number: 0, heard, says: None };
        assert_eq!(b.hear(bare(1), NOW), Ok(None));
        assert_eq!((b.again(), numbers(&b.send_again(NOW))), (Some(NOW + AGAIN), vec![2]));
        assert_eq!(b.hear(bare(1), NOW), Ok(None));
        assert!(b.hear(bare(3), NOW).is_err(), "there was none");
        assert_eq!(b.hear(bare(2), NOW), Ok(None));
        assert_eq!((b.waiting(), b.again(), b.send_again(NOW).len()), (0, None, 0));
        assert_eq!(numbers(&b.tell(arrived(3), NOW)), [3]);
    }

    #[test]
    fn without_a_line_letters_wait() {
        let mut b = other();
        b.set_line(false, NOW);
        assert!(b.tell(arrived(1), NOW).is_empty() && b.again().is_none());
        assert!(b.set_line(true, NOW));
        assert_eq!(numbers(&b.send_again(NOW)), [1]);
    }

    #[test]
    fn each_letter_is_taken_once_and_in_order() {
        let mut b = other();
        let letter = |number| Letter { number, heard: 0, says: Some(arrived(number as u32)) };
        assert_eq!(b.hear(letter(2), NOW), Ok(None), "a gap");
        assert_eq!(b.hear(letter(1), NOW), Ok(Some(arrived(1))));
        assert_eq!(b.hear(letter(1), NOW), Ok(None), "again");
        assert_eq!(b.confirmation(), Letter { number: 0, heard: 1, says: None });
        assert_eq!(b.hear(letter(2), NOW), Ok(Some(arrived(2))));
        assert_eq!(b.tell(arrived(9), NOW)[0].heard, 2);
    }

    #[test]
    fn output_is_counted_until_it_is_confirmed() {
        let mut b = other();
        let output = || DomainSays::Output { stream: StandardStream::Stderr, bytes: vec![1; 10] };
        for says in [output(), arrived(1), output()] {
            b.tell(says, NOW);
        }
        let heard = |heard| Letter { number: 0, heard, says: None };
        assert_eq!((b.unconfirmed_output(), b.must_confirm_but_output()), (20, true));
        b.hear(heard(2), NOW).unwrap();
        assert_eq!((b.unconfirmed_output(), b.must_confirm_but_output()), (10, false));
        assert_eq!(b.output_told().collect::<Vec<_>>(), [(StandardStream::Stderr, vec![1; 10])]);
        b.end();
        assert_eq!((b.unconfirmed_output(), b.must_confirm()), (0, false));
    }

    #[test]
    fn a_domain_that_has_ended_is_told_nothing() {
        let mut b = other();
        b.tell(arrived(1), NOW);
        b.end();
        assert!(!b.must_confirm() && b.tell(arrived(2), NOW).is_empty() && b.again().is_none());
    }

    #[test]
    fn one_that_has_gone_is_told_nothing_and_never_has_to_come() {
        let mut b = OtherDomain::new("b".into());
        assert!(!b.is_gone() && b.first_line_until().is_some());
        b.tell(arrived(1), NOW);
        b.go();
        assert!(b.is_gone() && !b.must_confirm() && b.tell(arrived(2), NOW).is_empty());
        assert_eq!((b.first_line_until(), b.finished()), (None, None));
    }

    #[test]
    fn one_that_goes_can_have_another_line_until_it_knows_that_it_can_go() {
        let mut b = other();
        b.go();
        assert_eq!(b.line_over_at(), None, "it may ask");
        b.set_line(false, NOW);
        assert_eq!(b.line_over_at(), Some(NOW + GONE_TIMEOUT));
        b.set_line(true, NOW);
        assert_eq!(b.line_over_at(), None);
        b.leave();
        b.set_line(false, NOW);
        assert!(b.line_over_at().is_some_and(|at| at <= NOW));
        b.end_line();
        assert_eq!(b.line_over_at(), None);
    }
}
