//! What the ranks of a simulated domain print, and how it is shown: an agent reads within a window,
//! and a reader may be slow. Each word of 8 bytes says of which rank it is and which of its words,
//! so the domain that shows all of them sees at once that one is lost, doubled or out of order.

use super::*;
use eyrie_wire::control::StandardStream;

/// Most bytes of a rank that an agent reads ahead of what is shown, and after how many bytes more a
/// printer tells another domain what it has written. As in life.
const WINDOW: u64 = 256 << 10;
const SHOWN_EVERY: u64 = 64 << 10;
pub const WORD: u64 = 8;

/// The stream of a rank's process, as its agent sees it.
#[derive(Clone, Copy)]
struct Process {
    incarnation: Incarnation,
    read: u64,
    shown: u64,
    /// When the last piece reaches the controller: what an agent says keeps its order.
    at: Duration,
    waits: bool,
}

/// Output that is on its way through a printer.
#[derive(Clone, Copy, Debug)]
pub enum Written {
    Here(NodeId, RankInstance, u64),
    Elsewhere(DomainId, u64),
}

#[derive(Default)]
pub struct Printing {
    /// Bytes that a rank prints at once; 0: ranks print nothing.
    pub piece: u64,
    processes: BTreeMap<Rank, Process>,
    in_images: BTreeMap<(Rank, ImageId), u64>,
    /// What was shown here.
    pub words: Words,
    told: BTreeMap<DomainId, u64>,
    /// Controllers that have died: with each its printer.
    controllers: u64,
    lines: u64,
    lines_of: BTreeMap<String, u64>,
}

impl Printing {
    /// Bytes that a rank prints.
    pub fn total(&self, rank: Rank) -> u64 {
        self.piece * u64::from(3 + rank.0 % 5 * 3)
    }

    /// Whether all words of these ranks were shown here.
    pub fn is_whole(&self, ranks: u32) -> bool {
        Rank::first(ranks).all(|rank| self.words.bytes_of(rank) == self.total(rank))
    }
}

/// How many words of each rank were shown.
#[derive(Default, Debug)]
pub struct Words(BTreeMap<Rank, u64>);

impl Words {
    /// What a rank prints from one offset to another one.
    pub fn of(rank: Rank, from: u64, to: u64) -> Vec<u8> {
        let word = |n: u64| (u64::from(rank.0) << 48 | n).to_le_bytes();
        (from / WORD..to / WORD).flat_map(word).collect()
    }

    /// Takes what is shown: of each rank the next words.
    pub fn show(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(WORD as usize) {
            let word = u64::from_le_bytes(word.try_into().expect("whole words"));
            let rank = Rank((word >> 48) as u32);
            let next = self.0.entry(rank).or_default();
            assert_eq!(word & ((1 << 48) - 1), *next, "the next word of rank {rank}");
            *next += 1;
        }
    }

    /// Bytes of a rank that were shown.
    pub fn bytes_of(&self, rank: Rank) -> u64 {
        self.0.get(&rank).map_or(0, |words| words * WORD)
    }
}

impl Cluster {
    /// A process begins to print, where its image had come to.
    pub fn begin_printing(&mut self, instance: RankInstance, from: Option<Source>) {
        if self.printing.piece == 0 {
            return;
        }
        let RankInstance { rank, incarnation } = instance;
        let in_image = |from: Source| self.printing.in_images[&(rank, from.image)];
        let read = from.map_or(0, in_image);
        let at = self.now;
        let process = Process { incarnation, read, shown: read, at, waits: false };
        self.printing.processes.insert(rank, process);
        self.after(60..500, Happening::Print(instance));
    }

    /// What a rank has printed when it is captured.
    pub fn printed_in(&mut self, rank: Rank, image: ImageId) -> [u64; 2] {
        let read = self.printing.processes.get(&rank).map_or(0, |process| process.read);
        self.printing.in_images.insert((rank, image), read);
        [read, 0]
    }

    /// Whether its agent has read all that a rank prints, and when that has reached the controller.
    pub fn has_printed(&self, rank: Rank) -> Option<Duration> {
        let process = self.printing.processes.get(&rank);
        let Some(process) = process else { return Some(Duration::ZERO) };
        (process.read >= self.printing.total(rank)).then_some(process.at)
    }

    /// A process prints more, if its agent has room.
    pub fn print(&mut self, instance: RankInstance) {
        let RankInstance { rank, incarnation } = instance;
        let Some((node, present)) = self.process(rank) else { return };
        if present != incarnation {
            return;
        }
        let still = self.ranks[rank.index()].still.is_some_and(|(of, _)| of == instance);
        if still || self.nodes[node.index()].health == Health::Frozen {
            return self.after(50..500, Happening::Print(instance));
        }
        let to_arrive = self.now + ms(self.random.gen_range(0..20));
        let total = self.printing.total(rank);
        let piece = self.printing.piece;
        let Some(process) = self.printing.processes.get_mut(&rank) else { return };
        if process.read >= total {
            return;
        }
        process.waits = process.read - process.shown >= WINDOW;
        if process.waits {
            return;
        }
        let offset = process.read;
        process.read = (offset + piece).min(total);
        process.at = process.at.max(to_arrive);
        let bytes = Words::of(rank, offset, process.read);
        let at = process.at;
        let stream = StandardStream::Stdout;
        let output = FromAgent::Output { instance, stream, offset, bytes };
        self.made += 1;
        let output = Happening::FromNode(node, said::agent(node, output));
        self.queue.push(Due(at, self.made, output));
        self.after(1..200, Happening::Print(instance));
    }

    /// An agent has more room.
    pub fn open_window(&mut self, instance: RankInstance, shown: u64) {
        let process = self.printing.processes.get_mut(&instance.rank);
        let Some(process) = process.filter(|p| p.incarnation == instance.incarnation) else {
            return;
        };
        process.shown = process.shown.max(shown.min(process.read));
        if std::mem::take(&mut process.waits) {
            self.after(0..20, Happening::Print(instance));
        }
    }

    /// Output comes to the printer.
    pub fn show(&mut self, written: Option<Written>, bytes: &[u8]) {
        if self.shows_all() {
            self.printing.words.show(bytes);
        }
        if let Some(written) = written {
            let controller = self.printing.controllers;
            self.after(0..1500, Happening::Written { controller, written });
        }
    }

    /// A printer has written something.
    pub fn written(&mut self, controller: u64, written: Written) {
        if controller != self.printing.controllers {
            return;
        }
        match written {
            Written::Here(node, instance, end) => {
                if self.nodes[node.index()].health == Health::Up {
                    self.open_window(instance, end);
                }
            }
            Written::Elsewhere(domain, end) => {
                let told = self.printing.told.entry(domain).or_default();
                if end / SHOWN_EVERY > *told / SHOWN_EVERY {
                    *told = end;
                    self.handle(Event::Shown { domain, bytes: end });
                }
            }
        }
    }

    /// Another controller goes on: agents that come back are told what was taken.
    pub fn resume_printing(&mut self) {
        self.printing.controllers += 1;
        self.printing.told.clear();
        let processes: Vec<_> = self.printing.processes.iter().map(|(r, p)| (*r, *p)).collect();
        for (rank, Process { incarnation, .. }) in processes {
            let [taken, _] = self.machine.output_taken(rank);
            self.open_window(RankInstance { rank, incarnation }, taken);
        }
    }

    fn shows_all(&self) -> bool {
        self.config.domains.as_ref().is_some_and(|domains| domains.shown_by().is_none())
    }

    /// A line of Eyrie's own is said, as the runtime does it.
    pub fn say_line(&mut self) {
        if self.printing.piece == 0 || !self.machine.is_shown_elsewhere() {
            return;
        }
        self.printing.lines += 1;
        let text = self.printing.lines.to_string();
        self.made += 1;
        let line = Happening::Event(Event::Line { is_error: false, text });
        self.queue.push(Due(self.now, self.made, line));
    }

    /// A line of another domain comes: each once, and in order, but for those that it has left out,
    /// as it says.
    pub fn show_line(&mut self, text: &str) {
        let (domain, number) = text.split_once(": ").expect("a domain and its line");
        let last = self.printing.lines_of.entry(domain.into()).or_default();
        let left_out = number.strip_suffix(" left out").and_then(|said| said.split_once(' '));
        if let Some((left_out, _)) = left_out {
            *last += left_out.parse::<u64>().expect("how many lines");
            return;
        }
        assert_eq!(number.parse(), Ok(*last + 1), "the next line of {domain}");
        *last += 1;
    }
}
