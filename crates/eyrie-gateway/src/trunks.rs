//! The trunks of a line: connections to the other gateway, each for the delivery streams of a share
//! of this domain's ranks (`eyrie_router::trunk`). A rank whose router has no room stops its own
//! stream only. Nothing here may hold a trunk back.

use crate::courier::{Link, Taken};
use crate::line::{Line, Outlet, Peer};
use crate::links::{Need, State};
use crate::sockets::{Sockets, Token};
use eyrie_router::spin::Sizes;
use eyrie_router::trunk::{parse, put_word, Record, Word};
use eyrie_wire::data::{Frame, Header};
use eyrie_wire::Rank;
use std::time::Instant;

/// Handles what comes on the trunks of a line, and their ends.
pub struct Trunks<'a> {
    pub line: &'a mut Line,
    pub sockets: &'a mut Sockets<Peer>,
    /// How long messages are at present.
    pub sizes: &'a mut Sizes,
}

impl Trunks<'_> {
    /// Begins the streams of ranks whose trunks stand.
    pub fn begin_streams(&mut self, ranks: &[Rank]) {
        let line = &mut *self.line;
        let token = |rank: &Rank| line.links.token(Need::Trunk(line.trunk_of(*rank)?));
        let begun: Vec<_> = ranks.iter().filter_map(|rank| Some((*rank, token(rank)?))).collect();
        let Line { courier, links, .. } = line;
        for (rank, token) in begun {
            let link = Link::Fetch(rank);
            links.set(Need::Stream(link), State::Up(token));
            courier.connected(link, &mut Outlet { sockets: self.sockets, links });
        }
    }

    /// A trunk stands.
    pub fn stands(&mut self, number: usize, token: Token) {
        self.line.links.set(Need::Trunk(number), State::Up(token));
        self.line.fetching += 1;
        if self.line.fetching == 1 {
            tracing::info!(domain = %self.line.domain.name, "there is a line");
        }
    }

    /// A trunk is lost, and with it the streams of its ranks.
    pub fn lost(&mut self, number: usize, why: &str) {
        self.line.links.set(Need::Trunk(number), State::lost());
        self.line.fetching -= 1;
        if self.line.fetching == 0 {
            tracing::info!(domain = %self.line.domain.name, why, "the line is lost");
        }
        for rank in self.line.ranks_of(number) {
            self.stream_lost(rank, State::wanted(Instant::now()));
        }
    }

    /// The stream of a rank is over; `state`: when it is to begin again.
    fn stream_lost(&mut self, rank: Rank, state: State) {
        let Line { courier, links, stalled, .. } = &mut *self.line;
        let link = Link::Fetch(rank);
        if links.token(Need::Stream(link)).is_none() {
            return;
        }
        stalled.forget(rank);
        links.set(Need::Stream(link), state);
        courier.lost(link, &mut Outlet { sockets: self.sockets, links });
    }

    /// Takes the records that have come on a trunk. False: it is over.
    pub fn take_records(&mut self, token: Token) -> bool {
        let Some((conn, _)) = self.sockets.get(token) else { return true };
        let (input, filled) = conn.take_input();
        let mut used = 0;
        let end = loop {
            match parse(&input[used..filled]) {
                Ok(Some((rank, record, len))) => {
                    used += len;
                    if let Err(reason) = self.record(token, rank, record) {
                        break Err(reason);
                    }
                }
                Ok(None) => break Ok(()),
                Err(reason) => break Err(reason.to_owned()),
            }
        };
        if let Some((conn, _)) = self.sockets.get(token) {
            conn.put_back(input, used);
        }
        if let Err(reason) = &end {
            tracing::warn!(reason, "a trunk is refused");
        }
        end.is_ok()
    }

    /// Takes a record of the other gateway for a rank.
    fn record(&mut self, token: Token, rank: Rank, record: Record) -> Result<(), String> {
        let Line { links, stalled, .. } = &mut *self.line;
        if links.token(Need::Stream(Link::Fetch(rank))) != Some(token) {
            return self.record_of_none(token, rank);
        }
        match record {
            Record::Frame(frame) if stalled.has(rank) => {
                stalled.push(rank, frame).map_err(String::from)
            }
            Record::Frame(frame) => match self.take_frame(rank, frame)? {
                Taken::Yes => Ok(()),
                Taken::Later => {
                    self.sockets.queue(token, |conn| put_word(&mut conn.out, rank, Word::Stop));
                    self.line.stalled.push(rank, frame).map_err(String::from)
                }
            },
            Record::Word(Word::Closed) => {
                self.stream_lost(rank, State::lost());
                Ok(())
            }
            Record::Word(_) => Err("a word that only a receiver says".into()),
        }
    }

    /// A record for a rank whose stream is over: it was under way, if the rank is of this trunk.
    fn record_of_none(&self, token: Token, rank: Rank) -> Result<(), String> {
        let number = self.line.trunk_of(rank);
        let is_its_trunk = |number| self.line.links.token(Need::Trunk(number)) == Some(token);
        if number.is_some_and(is_its_trunk) {
            return Ok(());
        }
        Err(format!("rank {rank} is not of this trunk"))
    }

    /// Gives the courier a frame of the other gateway for a rank.
    fn take_frame(&mut self, rank: Rank, bytes: &[u8]) -> Result<Taken, String> {
        let frame = Frame::parse(bytes)?.filter(|frame| frame.len == bytes.len());
        let frame = frame.ok_or("a record is no frame")?;
        let Line { courier, links, .. } = &mut *self.line;
        let mut outlet = Outlet { sockets: self.sockets, links };
        let taken = courier.frame(Link::Fetch(rank), &frame, &mut outlet)?;
        if let (Taken::Yes, Header::Deliver(message)) = (taken, &frame.header) {
            self.sizes.note(message.size);
        }
        Ok(taken)
    }

    /// Offers the frames that had no room again. True: some of them were taken.
    ///
    /// # Errors
    /// The trunk that is over, and why.
    pub fn offer_stalled(&mut self) -> Result<bool, (Token, String)> {
        let mut some = false;
        for rank in self.line.stalled.ranks() {
            some |= self.offer(rank)?;
        }
        Ok(some)
    }

    /// Offers the frames that wait for a rank.
    fn offer(&mut self, rank: Rank) -> Result<bool, (Token, String)> {
        let stream = Need::Stream(Link::Fetch(rank));
        let Some(token) = self.line.links.token(stream) else { return Ok(false) };
        let mut some = false;
        while let Some(frame) = self.line.stalled.take(rank) {
            match self.take_frame(rank, &frame).map_err(|reason| (token, reason))? {
                Taken::Yes => some = true,
                Taken::Later => {
                    self.line.stalled.put_back(rank, frame);
                    return Ok(some);
                }
            }
        }
        if self.line.stalled.has_ended(rank) {
            self.sockets.queue(token, |conn| put_word(&mut conn.out, rank, Word::Go));
        }
        Ok(some)
    }
}
