//! Which process may use the region of each rank. It must never admit two that write one region: an
//! incarnation is admitted only after the process of the one before has ended.

use super::output::{ConnId, Output};
use eyrie_router::RouterEvent;
use eyrie_wire::{Incarnation, Rank, RankInstance};

/// The admission of one rank.
struct Admission {
    /// The incarnation that may connect.
    incarnation: Incarnation,
    /// Whether it may have the ledgers.
    recovered: bool,
    conn: Option<Conn>,
    /// The incarnation and the number of the process that was the last to connect, until it is
    /// asked to end.
    process: Option<(Incarnation, u32)>,
    /// To be reported as fenced when the process of an older incarnation has ended.
    fencing: Option<RankInstance>,
    /// Whether content that differs was reported since the rank was fenced.
    content_reported: bool,
    /// Whether it has said that it re-executes no more.
    replayed: bool,
}

#[derive(Clone, Copy)]
struct Conn {
    id: ConnId,
    /// It has the ledgers.
    admitted: bool,
}

/// The admission of all ranks.
pub struct Ranks {
    all: Vec<Admission>,
}

impl Ranks {
    /// These incarnations may connect, and have the ledgers at once.
    pub fn new(incarnations: &[Incarnation]) -> Ranks {
        let admission = |incarnation: &Incarnation| Admission {
            incarnation: *incarnation,
            recovered: true,
            conn: None,
            process: None,
            fencing: None,
            content_reported: false,
            replayed: false,
        };
        Ranks { all: incarnations.iter().map(admission).collect() }
    }

    fn of_mut(&mut self, rank: Rank) -> &mut Admission {
        &mut self.all[rank.index()]
    }

    /// The incarnation of a rank that may connect.
    pub fn instance(&self, rank: Rank) -> RankInstance {
        RankInstance { rank, incarnation: self.all[rank.index()].incarnation }
    }

    /// Goes on with what was saved.
    pub fn restore(&mut self, saved: RankInstance) {
        let admission = self.of_mut(saved.rank);
        admission.incarnation = admission.incarnation.max(saved.incarnation);
    }

    /// Whether this incarnation may connect.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, instance: RankInstance) -> Result<(), String> {
        let Some(admission) = self.all.get(instance.rank.index()) else {
            return Err("there is no such rank in the job".into());
        };
        if instance.incarnation != admission.incarnation {
            return Err(format!("{instance} has been replaced by {}", admission.incarnation));
        }
        Ok(())
    }

    /// Begins a connection, which replaces an older one of the rank. `process`: the number of the
    /// process at its other end.
    ///
    /// # Errors
    /// Why it is to be refused.
    pub fn connected(
        &mut self,
        id: ConnId,
        instance: RankInstance,
        process: u32,
        out: &mut impl Output,
    ) -> Result<(), String> {
        self.admit(instance)?;
        let RankInstance { rank, incarnation } = instance;
        let admission = self.of_mut(rank);
        let other =
            admission.process.filter(|(of, number)| *of == incarnation && process != *number);
        if let Some((_, number)) = other.filter(|_| out.runs(rank)) {
            return Err(format!("process {number} of {instance} has not ended"));
        }
        if let Some(old) = admission.conn.replace(Conn { id, admitted: false }) {
            out.close(old.id);
        }
        admission.process = Some((incarnation, process));
        out.adopt(id, rank);
        Ok(())
    }

    /// The connection of a rank that may have the ledgers now and has not got them. It counts as
    /// admitted from then on.
    pub fn next_admitted(&mut self, rank: Rank) -> Option<ConnId> {
        let admission = self.of_mut(rank);
        let may = admission.recovered && admission.fencing.is_none();
        let conn = admission.conn.as_mut().filter(|conn| may && !conn.admitted)?;
        conn.admitted = true;
        Some(conn.id)
    }

    /// Whether this is the connection of the rank, and it has the ledgers.
    pub fn is_admitted(&self, rank: Rank, id: ConnId) -> bool {
        self.conn(rank).is_some_and(|conn| conn.id == id && conn.admitted)
    }

    /// Whether the rank has the ledgers and is connected.
    pub fn has_ledgers(&self, rank: Rank) -> bool {
        self.conn(rank).is_some_and(|conn| conn.admitted)
    }

    fn conn(&self, rank: Rank) -> Option<Conn> {
        self.all.get(rank.index()).and_then(|admission| admission.conn)
    }

    /// A connection of the rank has ended.
    pub fn disconnected(&mut self, rank: Rank, id: ConnId, out: &mut impl Output) {
        if self.conn(rank).is_some_and(|conn| conn.id == id) {
            self.of_mut(rank).conn = None;
            out.event(RouterEvent::Disconnected(self.instance(rank)));
        }
    }

    /// Breaks the connection of a rank.
    pub fn break_connection(&mut self, rank: Rank, out: &mut impl Output) {
        if let Some(conn) = self.conn(rank) {
            self.disconnected(rank, conn.id, out);
            out.close(conn.id);
        }
    }

    /// Only this incarnation may connect from now on. True: no process of an older one has the
    /// ledgers.
    pub fn fence(&mut self, instance: RankInstance, out: &mut impl Output) -> bool {
        let RankInstance { rank, incarnation } = instance;
        let admission = self.of_mut(rank);
        admission.incarnation = admission.incarnation.max(incarnation);
        (admission.recovered, admission.content_reported) = (false, false);
        admission.replayed = false;
        if let Some(conn) = admission.conn.take() {
            out.close(conn.id);
        }
        if admission.process.take_if(|(of, _)| *of < incarnation).is_some() {
            admission.fencing = Some(instance);
            out.end(rank);
        } else if let Some(waits) = &mut admission.fencing {
            *waits = instance;
        }
        admission.fencing.is_none()
    }

    /// The process of an older incarnation has ended, or cannot be ended. Returns what waits for
    /// that.
    pub fn ended(&mut self, rank: Rank) -> Option<RankInstance> {
        self.of_mut(rank).fencing.take()
    }

    /// The incarnation may have the ledgers now. False: another one may connect by now.
    pub fn recover(&mut self, instance: RankInstance) -> bool {
        let current =
            instance.rank.index() < self.all.len() && self.instance(instance.rank) == instance;
        if current {
            self.of_mut(instance.rank).recovered = true;
        }
        current
    }

    /// The rank re-executes no more.
    pub fn replayed(&mut self, rank: Rank) {
        self.of_mut(rank).replayed = true;
    }

    /// Whether the rank needs nothing of what it has received before, as long as it lives.
    pub fn is_past_replay(&self, rank: Rank) -> bool {
        self.has_ledgers(rank) && self.all[rank.index()].replayed
    }

    /// The rank has sent content that differs. True: that is not known yet.
    pub fn content_differs(&mut self, rank: Rank) -> bool {
        !std::mem::replace(&mut self.of_mut(rank).content_reported, true)
    }
}
