//! The straight way: each rank writes what it sends into its own ledger, in memory that its
//! receivers read and that outlives its process. So a message is logged and delivered by the same
//! stores. Order and observations lie in the same ledger, in front of whatever depends on them. It
//! must never let a message be seen outside a progress call, nor let anything out before the
//! determinants it depends on; nor keep a pointer into a ledger in an image.
//!
//! Each file calls only those before it: [`attaching`], [`sending`], [`receiving`].

mod ahead;
mod attached;
mod attaching;
mod envelope;
pub mod host;
mod receiving;
mod script;
mod sending;
mod spilled;
#[cfg(test)]
mod tests;
mod unwritten;

use self::attached::Attached;
use self::host::LedgerHost;
use self::script::{Script, Step};
use self::unwritten::Unwritten;
use super::again::Again;
use super::error::RankError;
#[cfg(test)]
use super::mutation::{active, Mutation};
use super::path::{Found, Path, Show, Turn};
use eyrie_ledger::error::LedgerError;
use eyrie_wire::data::Envelope;
use eyrie_wire::Rank;
use std::time::Duration;

/// Ticks between two looks at what is needed rarely, by a rank that waits: about a millisecond.
const LOOK_GAP: u64 = 3_000_000;
/// Looks in vain after which a rank that waits makes pages for its next messages.
const IDLE_LOOKS: u32 = 20;

/// The straight way of one rank's messages.
pub struct LedgerPath<H: LedgerHost> {
    pub host: H,
    number: Rank,
    /// The ledgers, while this process has them.
    attached: Option<Attached<H>>,
    script: Script<H::Region>,
    again: Again,
    unwritten: Unwritten,
    /// Messages sent to each rank, and shown of each, when the ledgers were last attached or given
    /// up; while they are attached, these know it.
    sent: Vec<u64>,
    shown: Vec<u64>,
    rsn: u64,
    /// Messages that this incarnation has shown again.
    shown_again: u64,
    /// The keeper does not know yet that this incarnation re-executes no more.
    owes_replayed: bool,
    /// A progress call is under way.
    progressing: bool,
    /// When was last looked at what is needed rarely.
    last_look: u64,
    /// Looks in vain, one behind the other.
    idle_looks: u32,
}

impl<H: LedgerHost> LedgerPath<H> {
    /// Of rank `number` of `ranks`, without ledgers.
    pub fn new(host: H, number: Rank, ranks: u32) -> LedgerPath<H> {
        LedgerPath {
            host,
            number,
            attached: None,
            script: Script::new(),
            again: Again::default(),
            unwritten: Unwritten::default(),
            sent: vec![0; ranks as usize],
            shown: vec![0; ranks as usize],
            rsn: 0,
            shown_again: 0,
            owes_replayed: true,
            progressing: false,
            last_look: 0,
            idle_looks: 0,
        }
    }
}

impl<H: LedgerHost> Path for LedgerPath<H> {
    type World = H;

    fn world(&self) -> &H {
        &self.host
    }

    fn world_mut(&mut self) -> &mut H {
        &mut self.host
    }

    fn number(&self) -> Rank {
        self.number
    }

    fn clock(&self) -> u64 {
        self.script.clock()
    }

    fn rsn(&self) -> u64 {
        self.rsn
    }

    fn attach(&mut self) -> Result<(), RankError> {
        self.attach_ledgers()
    }

    #[inline]
    fn send(&mut self, to: Rank, envelope: Envelope, content: &[u8]) -> Result<(), RankError> {
        self.send_message(to, envelope, content)
    }

    #[inline]
    fn tick(&mut self) -> Result<Turn, RankError> {
        self.progressing = true;
        if self.attached.is_none() {
            self.attach_ledgers()?;
        }
        let turn = match self.script.tick() {
            Step::Free => {
                self.host.before_new();
                Turn::New
            }
            Step::Nothing => {
                self.end_step()?;
                Turn::Nothing
            }
            Step::Due => Turn::Again,
        };
        self.end_observed();
        Ok(turn)
    }

    #[inline]
    fn show_new(&mut self, sleep: bool, show: &mut impl Show) -> Result<Found, RankError> {
        self.show_arrived(sleep, show)
    }

    fn show_again(&mut self, show: &mut impl Show) -> Result<(), RankError> {
        self.show_due(show)
    }

    #[inline]
    fn look_after(&mut self, found: Found, ticks: u64) -> Result<(), RankError> {
        if found.something {
            self.idle_looks = 0;
            return Ok(());
        }
        self.idle_looks += 1;
        if self.idle_looks > IDLE_LOOKS {
            self.idle_looks = IDLE_LOOKS;
            if let Some(attached) = &mut self.attached {
                attached.writer.make_ahead();
            }
        }
        if ticks.wrapping_sub(self.last_look) > LOOK_GAP {
            self.last_look = ticks;
            self.look_rarely()?;
        }
        Ok(())
    }

    #[inline]
    fn end_progress(&mut self) {
        self.progressing = false;
        #[cfg(test)]
        if active(Mutation::RecordLate) {
            self.record_late();
        }
    }

    fn flush(&mut self) -> Result<(), RankError> {
        // Everything sent lies in the ledger.
        self.host.before_new();
        Ok(())
    }

    fn store_observed(&mut self) -> Result<(), RankError> {
        self.attach_ledgers()?;
        // It depends on what was shown until now, too, when nothing was observed since.
        self.observe()?;
        self.record_nothing()
    }

    fn settle(&mut self, _: Duration) -> Result<(), &'static str> {
        if self.attached.is_none() {
            return Err("it waits for the keeper of the ledgers to let it in");
        }
        // What waits in the program's recorder would be observed twice by a restored process. What
        // the ledger has no room for is in the image.
        use LedgerError::{Full, NoMemory};
        match self.try_observe() {
            Ok(()) | Err(Full { .. } | NoMemory { .. }) => Ok(()),
            Err(_) => Err("its ledger is damaged: it cannot be written"),
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        let spilled = self.attached.as_ref().and_then(|attached| attached.spilled.descriptor());
        self.host.keeper_descriptor().into_iter().chain(spilled)
    }

    fn forget_connections(&mut self) {
        self.detach();
        self.host.forget_windows();
    }

    fn reconnect(&mut self) -> Result<(), RankError> {
        self.attach_ledgers()
    }
}

/// What an image of this rank would hold, to be continued with another host: for tests.
#[cfg(test)]
impl<H: LedgerHost> LedgerPath<H> {
    pub fn image(&self) -> impl Fn(H) -> LedgerPath<H> {
        let number = self.number;
        let clock = self.script.clock();
        let rsn = self.rsn;
        let (sent, shown) = self.counts();
        let mut unwritten = self.unwritten.clone();
        if active(Mutation::ForgetUnwritten) {
            unwritten = Unwritten::default();
        }
        move |host| LedgerPath {
            sent: sent.clone(),
            shown: shown.clone(),
            rsn,
            script: Script::at(clock),
            unwritten: unwritten.clone(),
            ..LedgerPath::new(host, number, sent.len() as u32)
        }
    }
}
