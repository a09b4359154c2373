//! What the images of each rank have, and what that releases. It must never release what an image
//! that counts does not have, but for a cut, after which the rank is unprotected.

use super::regions::Regions;
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::layout::{Channel, Layout};
use eyrie_ledger::memory::Memory;
use eyrie_ledger::order::OrderReader;
use eyrie_ledger::region;
use eyrie_wire::Rank;

/// What the newest image of a rank that counts has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imaged {
    /// The rank's clock at the image.
    pub clock: u64,
    /// Bytes that it had observed.
    pub observed: u64,
    /// How many messages of each source it had received.
    pub counts: Vec<u64>,
}

/// What the images of all ranks have.
pub struct Images {
    all: Vec<Imaged>,
}

impl Images {
    /// No rank has an image.
    pub fn none(ranks: usize) -> Images {
        let none = Imaged { clock: 0, observed: 0, counts: vec![0; ranks] };
        Images { all: vec![none; ranks] }
    }

    pub fn of(&self, rank: Rank) -> &Imaged {
        &self.all[rank.index()]
    }

    /// Goes on with what was saved.
    pub fn restore(&mut self, rank: Rank, saved: Imaged) {
        self.all[rank.index()] = saved;
    }

    /// An image of the rank counts. The messages that it has, with its order up to `clock` and what
    /// it had observed up to the byte `observed`, are released. An image that is older than the
    /// last one releases nothing.
    ///
    /// # Errors
    /// A sentence for users, when the rank's order is damaged, or does not agree with the image.
    pub fn truncate<M: Memory>(
        &mut self,
        regions: &Regions<M>,
        rank: Rank,
        (clock, rsn, observed): (u64, u64, u64),
    ) -> Result<(), String> {
        let imaged = &mut self.all[rank.index()];
        if clock < imaged.clock {
            return Ok(());
        }
        let (memory, layout) = regions.of(rank);
        let Imaged { clock: before, counts, .. } = &*imaged;
        let received = Received::read(memory, layout, (*before, counts), clock);
        let received = received.map_err(|e| e.to_string())?;
        if received.messages != rsn {
            return Err(format!(
                "an image of rank {rank} has {rsn} messages at clock {clock}, and its ledger says \
                 {}",
                received.messages
            ));
        }
        let counts = received.counts;
        *imaged = Imaged { clock, observed: observed.max(imaged.observed), counts };
        for (source, count) in regions.ranks().zip(&imaged.counts) {
            let (memory, layout) = regions.of(source);
            region::release(memory, layout, Channel::Rank(rank.0), *count);
        }
        region::release(memory, layout, Channel::Order, clock);
        // The extent that this byte is the first of, or the last before, stays: at the image's
        // clock the rank may go on to observe.
        region::release(memory, layout, Channel::Observed, imaged.observed);
        Ok(())
    }

    /// Releases what a rank has received, although no image has it: without another image it cannot
    /// be recovered. `known`: a clock, and how many messages of each source it had received then.
    /// Returns what it has received; `None`: nothing more could be released.
    ///
    /// # Errors
    /// A sentence for users, when the rank's order is damaged.
    pub fn cut<M: Memory>(
        &self,
        regions: &Regions<M>,
        rank: Rank,
        known: Option<(u64, &[u64])>,
    ) -> Result<Option<Received>, String> {
        let Imaged { clock, counts, .. } = self.of(rank);
        let received = Received::so_far(regions, rank, known.unwrap_or((*clock, counts)))?;
        let channel = Channel::Rank(rank.0);
        let mut any = false;
        for (source, count) in regions.ranks().zip(&received.counts) {
            let (memory, layout) = regions.of(source);
            if *count > region::released(memory, layout, channel) {
                region::release(memory, layout, channel, *count);
                any = true;
            }
        }
        Ok(Some(received).filter(|_| any))
    }
}

/// What a rank has received at a clock.
pub struct Received {
    /// Messages of each source.
    pub counts: Vec<u64>,
    /// Messages of all.
    pub messages: u64,
    /// The clock of the last one.
    pub clock: u64,
}

impl Received {
    /// What a rank has received so far, as far as it has recorded that. `known`: a clock, and how
    /// many messages of each source it had received then.
    ///
    /// # Errors
    /// A sentence for users, when the rank's order is damaged.
    pub fn so_far<M: Memory>(
        regions: &Regions<M>,
        rank: Rank,
        known: (u64, &[u64]),
    ) -> Result<Received, String> {
        let (memory, layout) = regions.of(rank);
        Received::read(memory, layout, known, u64::MAX).map_err(|e| e.to_string())
    }

    /// What a rank has received up to a clock, which is not before the one that it is `known` of.
    /// The order is opened anew each time, so that none of it stays in memory.
    fn read<M: Memory>(
        memory: &M,
        layout: &Layout,
        (from, counts): (u64, &[u64]),
        clock: u64,
    ) -> Result<Received, LedgerError> {
        let mut counts = counts.to_vec();
        let mut order = OrderReader::open(memory, *layout, from)?;
        while let Some(determinant) = order.next_until(clock)? {
            for (source, count) in determinant.shown {
                counts[*source as usize] += u64::from(*count);
            }
        }
        Ok(Received { counts, messages: order.rsn(), clock: order.clock() })
    }
}
