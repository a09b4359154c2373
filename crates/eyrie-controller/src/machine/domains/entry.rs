//! What is known of one other domain: the line to it, the letters that it has not confirmed, and
//! what it has said. A letter has a number, is kept until it is confirmed, and is taken once, in
//! order; so letters may be lost, doubled and overtaken on the way.

use eyrie_wire::domains::{DomainSays, Letter};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// After so long a letter is sent again that is not confirmed; and after twice as long each time,
/// up to so long. A line that is up loses none but with one of its gateways.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AT_MOST: Duration = Duration::from_secs(32);

/// How long the first line may take: also to a domain that a user starts by hand.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The line to a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LineState {
    pub up: bool,
    /// Since when that is so; `None`: it was never up.
    pub since: Option<Duration>,
}

/// Another domain.
#[derive(Debug, Serialize, Deserialize)]
pub struct OtherDomain {
    name: String,
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
}

impl OtherDomain {
    pub fn new(name: String) -> OtherDomain {
        OtherDomain {
            name,
            line: LineState { up: false, since: None },
            unconfirmed: VecDeque::new(),
            confirmed: 0,
            heard: 0,
            again: Duration::ZERO,
            pause: AGAIN,
            finished: None,
            ended: false,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn line(&self) -> LineState {
        self.line
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

    /// It has ended the job.
    pub fn end(&mut self) {
        self.ended = true;
        self.confirmed += self.unconfirmed.len() as u64;
        self.unconfirmed.clear();
    }

    /// Whether it may not know yet what it was told.
    pub fn must_confirm(&self) -> bool {
        !self.unconfirmed.is_empty()
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

    /// Until when there must have been a line, if there was none.
    pub fn first_line_until(&self) -> Option<Duration> {
        self.line.since.is_none().then_some(FIRST_LINE_TIMEOUT)
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
            self.unconfirmed.drain(..confirmed as usize);
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
    fn a_domain_that_has_ended_is_told_nothing() {
        let mut b = other();
        b.tell(arrived(1), NOW);
        b.end();
        assert!(!b.must_confirm() && b.tell(arrived(2), NOW).is_empty() && b.again().is_none());
    }
}
