//! Exhaustive search of the protocol of ledgers on one node, small: three ranks with short programs
//! that receive in any order, test, observe and send; images, spilling, and ranks that die at any
//! moment. What must never be: a message that is sent again with other content, one that is needed
//! and gone, an observation of another history, a wait for ever. Each rule of the protocol is also
//! turned off, and each must be missed. The model has the rules, not the code of this crate: those
//! who change a rule change it here first. Loss of a node is not modelled: there is one node.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};

const RANKS: usize = 3;

/// What a program does next.
#[derive(Clone, Copy, Debug)]
enum Op {
    Send(usize),
    /// Waits for a message of any source.
    Receive,
    /// A message of any source, or none.
    Test,
    /// Learns something from outside, which is another time something else.
    Look,
}
use Op::{Look, Receive, Send, Test};

/// A rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    Nothing,
    /// A determinant is written before the program sees the message.
    RecordFirst,
    /// What was not shown is written before the next send.
    NoDelivery,
    /// Nothing may show up to the clock of the last observation.
    ObservedAt,
    /// Observations are written before the next send.
    ObserveFirst,
    /// Messages are released when the image of their receiver is stored, not when it is taken.
    ReleaseStored,
    /// What was received is released by images only.
    ReleaseByImages,
    /// Only messages that their receiver has recorded are taken out to disk.
    SpillRecorded,
    /// Nothing is taken out while the receiver re-executes.
    SpillNotInReplay,
    /// The old process has ended when the new one begins.
    Fence,
}

const RULES: [Without; 9] = [
    Without::RecordFirst,
    Without::NoDelivery,
    Without::ObservedAt,
    Without::ObserveFirst,
    Without::ReleaseStored,
    Without::ReleaseByImages,
    Without::SpillRecorded,
    Without::SpillNotInReplay,
    Without::Fence,
];

/// What happens in a step of the search, and to which rank.
#[derive(Clone, Copy)]
enum Event {
    /// The program goes on; with the source that shows, or what is observed.
    Step(usize, Option<usize>),
    /// The old process of a rank goes on, which no fence has ended.
    OldSteps(usize),
    WritesObserved(usize),
    WritesRecord(usize),
    ImageTaken(usize),
    ImageStored(usize),
    TakenOut {
        from: usize,
        to: usize,
    },
    Killed(usize),
    Restarted(usize),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Step(rank, None) => write!(f, "rank {rank} goes on"),
            Event::Step(rank, Some(what)) => write!(f, "rank {rank} goes on, and finds {what}"),
            Event::OldSteps(rank) => write!(f, "the old process of rank {rank} goes on"),
            Event::WritesObserved(rank) => write!(f, "rank {rank} writes what it has observed"),
            Event::WritesRecord(rank) => write!(f, "rank {rank} writes a determinant"),
            Event::ImageTaken(rank) => write!(f, "an image of rank {rank} is taken"),
            Event::ImageStored(rank) => write!(f, "the image of rank {rank} is stored"),
            Event::TakenOut { from, to } => {
                write!(f, "a message of rank {from} to rank {to} goes to disk")
            }
            Event::Killed(rank) => write!(f, "rank {rank} dies"),
            Event::Restarted(rank) => write!(f, "rank {rank} is restarted"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Determinant {
    clock: u8,
    /// None: nothing shows at this clock, and nothing since the last determinant.
    source: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Observation {
    value: u8,
    clock: u8,
    /// All that the rank had done before: no part of the ledger.
    history: u64,
}

/// A process of a rank, or its image.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    at: u8,
    clock: u8,
    /// All that its program has received, found and observed so far.
    history: u64,
    sent: [u8; RANKS],
    received: [u8; RANKS],
    observed: u8,
    /// Not in the ledger yet.
    unwritten: Vec<Observation>,
    unrecorded: Vec<Determinant>,
    /// Messages of each source that were on disk when it began.
    on_disk: [u8; RANKS],
}

/// What a rank has written, which outlives its processes.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct Ledger {
    sent: [Vec<u64>; RANKS],
    /// How many of them are gone, and how many were taken out to disk.
    released: [u8; RANKS],
    taken_out: [u8; RANKS],
    order: Vec<Determinant>,
    observed: Vec<Observation>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Rank {
    process: Option<Process>,
    /// The old process, where no fence has ended it.
    old: Option<Process>,
    /// From which it is restarted.
    image: Process,
    /// Taken, and not stored.
    taken: Option<Process>,
    ledger: Ledger,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    ranks: Vec<Rank>,
    kills: u8,
    images: u8,
}

/// What is searched.
#[derive(Clone, Copy)]
struct Scenario {
    programs: [&'static [Op]; RANKS],
    kills: u8,
    images: u8,
    spills: bool,
    without: Without,
}

/// What may show at the next progress call.
enum Next {
    Free,
    Nothing,
    Due(usize),
}

fn mix(history: u64, more: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (history, more).hash(&mut hasher);
    hasher.finish()
}

impl Process {
    fn new(rank: usize) -> Process {
        Process {
            at: 0,
            clock: 0,
            history: rank as u64,
            sent: [0; RANKS],
            received: [0; RANKS],
            observed: 0,
            unwritten: Vec::new(),
            unrecorded: Vec::new(),
            on_disk: [0; RANKS],
        }
    }

    fn learns(&mut self, what: u64) {
        self.history = mix(self.history, what);
    }

    fn next(&self, ledger: &Ledger, without: Without) -> Next {
        let clock = self.clock + 1;
        match ledger.order.iter().find(|determinant| determinant.clock >= clock) {
            Some(Determinant { clock: due, source: Some(source) }) if *due == clock => {
                Next::Due(usize::from(*source))
            }
            Some(_) => Next::Nothing,
            None => {
                let observed_at = ledger.observed.last().map_or(0, |last| last.clock);
                if clock <= observed_at && without != Without::ObservedAt {
                    Next::Nothing
                } else {
                    Next::Free
                }
            }
        }
    }
}

impl Ledger {
    fn recorded_at(&self) -> u8 {
        self.order.last().map_or(0, |last| last.clock)
    }

    fn recorded(&self, source: usize) -> u8 {
        let of_source = |determinant: &&Determinant| determinant.source == Some(source as u8);
        self.order.iter().filter(of_source).count() as u8
    }
}

type Outcome = Result<State, String>;

impl State {
    fn new() -> State {
        let rank = |rank| Rank {
            process: Some(Process::new(rank)),
            old: None,
            image: Process::new(rank),
            taken: None,
            ledger: Ledger::default(),
        };
        State { ranks: (0..RANKS).map(rank).collect(), kills: 0, images: 0 }
    }

    fn is_over(&self, scenario: &Scenario) -> bool {
        self.ranks.iter().zip(scenario.programs).all(|(rank, program)| {
            rank.process.as_ref().is_some_and(|it| usize::from(it.at) == program.len())
        })
    }

    /// The message that a process of `to` reads next of `from`: `None` when there is none yet.
    fn message(&self, from: usize, to: usize, process: &Process) -> Result<Option<u64>, String> {
        let n = process.received[from];
        let ledger = &self.ranks[from].ledger;
        if n < ledger.released[to] {
            return Err(format!("rank {to} needs message {n} of rank {from}, which is released"));
        }
        if n >= process.on_disk[from] && n < ledger.taken_out[to] {
            return Err(format!("rank {to} looks for message {n} of rank {from}: it is on disk"));
        }
        Ok(ledger.sent[to].get(usize::from(n)).copied())
    }

    /// All that can happen next.
    fn events(&self, scenario: &Scenario) -> Vec<(Event, Outcome)> {
        let mut all = Vec::new();
        for rank in 0..RANKS {
            self.steps(rank, scenario, &mut all);
            self.images(rank, scenario, &mut all);
            self.deaths(rank, scenario, &mut all);
            if scenario.spills {
                self.spills(rank, scenario, &mut all);
            }
        }
        all
    }

    fn with(&self, change: impl FnOnce(&mut State)) -> Outcome {
        let mut next = self.clone();
        change(&mut next);
        Ok(next)
    }

    fn steps(&self, rank: usize, scenario: &Scenario, all: &mut Vec<(Event, Outcome)>) {
        let own = &self.ranks[rank];
        if let Some(old) = &own.old {
            if let Some(Send(to)) = scenario.programs[rank].get(usize::from(old.at)) {
                all.push((Event::OldSteps(rank), self.send(rank, *to, true)));
            }
        }
        let Some(process) = &own.process else { return };
        if !process.unwritten.is_empty() {
            all.push((Event::WritesObserved(rank), self.with(|next| next.write_observed(rank))));
        }
        if !process.unrecorded.is_empty() {
            let write = |next: &mut State| next.ranks[rank].write_record();
            all.push((Event::WritesRecord(rank), self.with(write)));
        }
        let Some(op) = scenario.programs[rank].get(usize::from(process.at)) else { return };
        match op {
            Send(to) => self.send_step(rank, *to, scenario.without, all),
            Receive => self.receive(rank, false, scenario.without, all),
            Test => self.receive(rank, true, scenario.without, all),
            Look => self.look(rank, all),
        }
    }

    /// What must be in the ledger before, and then the message.
    fn send_step(&self, rank: usize, to: usize, without: Without, all: &mut Vec<(Event, Outcome)>) {
        let Rank { process: Some(process), ledger, .. } = &self.ranks[rank] else { return };
        if !process.unwritten.is_empty() && without != Without::ObserveFirst {
            return; // that it is written is an event of its own
        }
        if process.clock > ledger.recorded_at() && without != Without::NoDelivery {
            let nothing = Determinant { clock: process.clock, source: None };
            let write = |next: &mut State| {
                if process.unrecorded.is_empty() {
                    next.ranks[rank].ledger.order.push(nothing);
                }
            };
            if process.unrecorded.is_empty() {
                return all.push((Event::Step(rank, None), self.with(write)));
            }
        }
        all.push((Event::Step(rank, None), self.send(rank, to, false)));
    }

    fn send(&self, rank: usize, to: usize, is_old: bool) -> Outcome {
        let mut next = self.clone();
        let own = &mut next.ranks[rank];
        let process = if is_old { &mut own.old } else { &mut own.process };
        let Some(process) = process else { return Ok(next) };
        let n = usize::from(process.sent[to]);
        let content = mix(process.history, (to * 256 + n) as u64);
        (process.sent[to], process.at) = (process.sent[to] + 1, process.at + 1);
        match own.ledger.sent[to].get(n) {
            Some(before) if *before != content => {
                Err(format!("message {n} of rank {rank} to rank {to} is another than before"))
            }
            Some(_) => Ok(next),
            None => {
                own.ledger.sent[to].push(content);
                Ok(next)
            }
        }
    }

    fn receive(
        &self,
        rank: usize,
        is_test: bool,
        without: Without,
        all: &mut Vec<(Event, Outcome)>,
    ) {
        let Rank { process: Some(process), ledger, .. } = &self.ranks[rank] else { return };
        match process.next(ledger, without) {
            Next::Due(source) => match self.message(source, rank, process) {
                Err(e) => all.push((Event::Step(rank, Some(source)), Err(e))),
                Ok(None) => {} // its sender makes it again
                Ok(Some(content)) => {
                    let show = self.with(|next| next.ranks[rank].show(source, content, None));
                    all.push((Event::Step(rank, Some(source)), show));
                }
            },
            Next::Nothing if is_test => {
                all.push((Event::Step(rank, None), self.with(|next| next.ranks[rank].miss())));
            }
            Next::Nothing => {
                let e = format!("rank {rank} waits for a message where none has shown before");
                all.push((Event::Step(rank, None), Err(e)));
            }
            Next::Free => {
                if is_test {
                    all.push((Event::Step(rank, None), self.with(|next| next.ranks[rank].miss())));
                }
                for source in 0..RANKS {
                    let event = Event::Step(rank, Some(source));
                    match self.message(source, rank, process) {
                        Err(e) => all.push((event, Err(e))),
                        Ok(None) => {}
                        Ok(Some(content)) => {
                            let show = |next: &mut State| {
                                next.ranks[rank].show(source, content, Some(without));
                            };
                            all.push((event, self.with(show)));
                        }
                    }
                }
            }
        }
    }

    fn look(&self, rank: usize, all: &mut Vec<(Event, Outcome)>) {
        let Rank { process: Some(process), ledger, .. } = &self.ranks[rank] else { return };
        let known = ledger.observed.get(usize::from(process.observed));
        if let Some(known) = known {
            let event = Event::Step(rank, Some(usize::from(known.value)));
            let outcome = if known.history == process.history {
                self.with(|next| next.ranks[rank].observe(known.value))
            } else {
                Err(format!("rank {rank} observes what it had observed in another history"))
            };
            return all.push((event, outcome));
        }
        for value in 0..2 {
            let new = |next: &mut State| {
                let own = &mut next.ranks[rank];
                if let Some(it) = &mut own.process {
                    let clock = it.clock;
                    let history = it.history;
                    it.unwritten.push(Observation { value, clock, history });
                }
                own.observe(value);
            };
            all.push((Event::Step(rank, Some(usize::from(value))), self.with(new)));
        }
    }

    fn write_observed(&mut self, rank: usize) {
        let Rank { process: Some(process), ledger, .. } = &mut self.ranks[rank] else { return };
        ledger.observed.append(&mut process.unwritten);
    }

    fn images(&self, rank: usize, scenario: &Scenario, all: &mut Vec<(Event, Outcome)>) {
        let own = &self.ranks[rank];
        if let Some(taken) = &own.taken {
            let stored = |next: &mut State| {
                next.ranks[rank].image = taken.clone();
                next.ranks[rank].taken = None;
                next.release(rank, &taken.received);
            };
            all.push((Event::ImageStored(rank), self.with(stored)));
        }
        let Some(process) = &own.process else { return };
        let is_whole = process.unwritten.is_empty() && process.unrecorded.is_empty();
        if is_whole && own.taken.is_none() && self.images < scenario.images {
            let take = |next: &mut State| {
                next.images += 1;
                next.ranks[rank].taken = Some(process.clone());
                if scenario.without == Without::ReleaseStored {
                    next.release(rank, &process.received);
                }
            };
            all.push((Event::ImageTaken(rank), self.with(take)));
        }
    }

    /// Senders forget so many messages to a rank.
    fn release(&mut self, to: usize, counts: &[u8; RANKS]) {
        for (rank, count) in self.ranks.iter_mut().zip(counts) {
            let released = &mut rank.ledger.released[to];
            *released = (*released).max(*count);
        }
    }

    fn deaths(&self, rank: usize, scenario: &Scenario, all: &mut Vec<(Event, Outcome)>) {
        let own = &self.ranks[rank];
        let Some(process) = &own.process else {
            let restart = |next: &mut State| {
                let on_disk = std::array::from_fn(|from| next.ranks[from].ledger.taken_out[rank]);
                let image = next.ranks[rank].image.clone();
                next.ranks[rank].process = Some(Process { on_disk, ..image });
            };
            return all.push((Event::Restarted(rank), self.with(restart)));
        };
        if self.kills == scenario.kills {
            return;
        }
        let die = |next: &mut State| {
            next.kills += 1;
            let own = &mut next.ranks[rank];
            (own.process, own.taken) = (None, None);
            if scenario.without == Without::Fence {
                own.old = Some(process.clone());
            }
            if scenario.without == Without::ReleaseByImages {
                next.release(rank, &process.received);
            }
        };
        all.push((Event::Killed(rank), self.with(die)));
    }

    /// The oldest message to a rank that is not on disk goes there.
    fn spills(&self, to: usize, scenario: &Scenario, all: &mut Vec<(Event, Outcome)>) {
        let Rank { process, ledger, .. } = &self.ranks[to];
        let replays = process.as_ref().is_none_or(|it| it.clock < ledger.recorded_at());
        if replays && scenario.without != Without::SpillNotInReplay {
            return;
        }
        for from in 0..RANKS {
            let sender = &self.ranks[from].ledger;
            let n = sender.taken_out[to].max(sender.released[to]);
            let most = if scenario.without == Without::SpillRecorded {
                sender.sent[to].len() as u8
            } else {
                ledger.recorded(from)
            };
            if n < most {
                let out = |next: &mut State| next.ranks[from].ledger.taken_out[to] = n + 1;
                all.push((Event::TakenOut { from, to }, self.with(out)));
            }
        }
    }

    fn fingerprint(&self) -> u128 {
        let half = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, self).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(1) << 64 | half(2)
    }
}

impl Rank {
    /// A message shows; it is recorded where the order is free.
    fn show(&mut self, source: usize, content: u64, free: Option<Without>) {
        let Some(process) = &mut self.process else { return };
        process.clock += 1;
        let determinant = Determinant { clock: process.clock, source: Some(source as u8) };
        match free {
            None => {}
            Some(Without::RecordFirst) => process.unrecorded.push(determinant),
            Some(_) => self.ledger.order.push(determinant),
        }
        process.received[source] += 1;
        process.at += 1;
        process.learns(content);
    }

    fn miss(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.clock += 1;
        process.at += 1;
        process.learns(0);
    }

    fn observe(&mut self, value: u8) {
        let Some(process) = &mut self.process else { return };
        process.observed += 1;
        process.at += 1;
        process.learns(u64::from(value) + 1);
    }

    fn write_record(&mut self) {
        let Some(process) = &mut self.process else { return };
        self.ledger.order.append(&mut process.unrecorded);
    }
}

/// What a search has found.
struct Found {
    states: usize,
    /// What went wrong, and what led there.
    wrong: Option<String>,
}

/// Goes through all states, those nearest to the beginning first.
fn search(scenario: &Scenario) -> Found {
    let first = State::new();
    let mut known: HashMap<u128, (u128, Option<Event>)> = HashMap::new();
    known.insert(first.fingerprint(), (0, None));
    let mut open = VecDeque::from([first]);
    while let Some(state) = open.pop_front() {
        let here = state.fingerprint();
        let events = state.events(scenario);
        let goes_on = events.iter().any(|(event, _)| !matches!(event, Event::Killed(_)));
        if !goes_on && !state.is_over(scenario) {
            let wrong = told(&known, here, None, "ranks wait for ever");
            return Found { states: known.len(), wrong: Some(wrong) };
        }
        for (event, outcome) in events {
            match outcome {
                Err(e) => {
                    let wrong = told(&known, here, Some(event), &e);
                    return Found { states: known.len(), wrong: Some(wrong) };
                }
                Ok(next) => {
                    known.entry(next.fingerprint()).or_insert_with(|| {
                        open.push_back(next);
                        (here, Some(event))
                    });
                }
            }
        }
    }
    Found { states: known.len(), wrong: None }
}

fn told(
    known: &HashMap<u128, (u128, Option<Event>)>,
    mut at: u128,
    last: Option<Event>,
    wrong: impl fmt::Display,
) -> String {
    let mut events: Vec<_> = last.into_iter().collect();
    while let Some((before, Some(event))) = known.get(&at) {
        events.push(*event);
        at = *before;
    }
    let events: Vec<_> = events.iter().rev().map(|event| format!("  {event}")).collect();
    format!("{wrong}:\n{}", events.join("\n"))
}

/// Whose messages are first is told to others.
const ANY_ORDER: [&[Op]; RANKS] =
    [&[Receive, Receive, Send(1)], &[Send(0), Receive, Send(2)], &[Send(0), Receive]];
/// What a test finds is told to others.
const TESTS: [&[Op]; RANKS] = [&[Test, Send(1), Test, Send(1)], &[Send(0), Receive, Receive], &[]];
/// What is seen outside, too, after something may have shown.
const LOOKS: [&[Op]; RANKS] = [&[Test, Look, Send(1), Receive], &[Send(0), Receive, Send(0)], &[]];

const PROGRAMS: [[&[Op]; RANKS]; 3] = [ANY_ORDER, TESTS, LOOKS];

fn scenario(programs: [&'static [Op]; RANKS], spills: bool, without: Without) -> Scenario {
    Scenario { programs, kills: 2, images: 1, spills, without }
}

#[test]
fn nothing_goes_wrong_however_ranks_die() {
    for programs in PROGRAMS {
        for spills in [false, true] {
            let found = search(&scenario(programs, spills, Without::Nothing));
            println!("{programs:?}, spills {spills}: {} states", found.states);
            assert_eq!(found.wrong, None, "{programs:?}, spills {spills}");
        }
    }
}

#[test]
fn each_rule_is_needed() {
    for without in RULES {
        let found = PROGRAMS
            .iter()
            .flat_map(|programs| [false, true].map(|spills| scenario(*programs, spills, without)))
            .find_map(|scenario| search(&scenario).wrong);
        let Some(wrong) = found else { panic!("nothing goes wrong without {without:?}") };
        println!("without {without:?}: {wrong}");
    }
}
