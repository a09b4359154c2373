//! The messages of a job's ranks in one iteration: phases of messages that are under way at the
//! same time. Stencils and single directions are one phase; collectives have one phase for each
//! round.

use std::fmt::Write;

use eyrie_topology::{coords, refuse, TopologyError};

/// A rank, from 0. It is the number of an `eyrie_wire::Rank`: the planner knows no other numbers of
/// a job, and is used without its messages, too.
pub type Rank = u32;

/// `count` messages of `bytes` in all from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankMessage {
    pub from: Rank,
    pub to: Rank,
    /// Bytes of all `count` messages together.
    pub bytes: u64,
    pub count: u32,
}

/// Messages under way at the same time; the phase happens `repeat` times an iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    pub repeat: u32,
    pub messages: Vec<RankMessage>,
    /// Messages of rank r, as sender or receiver: `incident[first[r]..first[r + 1]]`.
    first: Vec<u32>,
    incident: Vec<u32>,
}

impl Phase {
    pub fn new(ranks: usize, repeat: u32, messages: Vec<RankMessage>) -> Self {
        let mut first = vec![0u32; ranks + 1];
        for m in &messages {
            first[m.from as usize + 1] += 1;
            first[m.to as usize + 1] += 1;
        }
        for r in 0..ranks {
            first[r + 1] += first[r];
        }
        let mut next = first.clone();
        let mut incident = vec![0; 2 * messages.len()];
        for (i, m) in messages.iter().enumerate() {
            for rank in [m.from, m.to] {
                incident[next[rank as usize] as usize] = i as u32;
                next[rank as usize] += 1;
            }
        }
        Phase { repeat, messages, first, incident }
    }

    /// Indices of the messages that `rank` sends or receives.
    pub fn of_rank(&self, rank: Rank) -> &[u32] {
        let a = self.first[rank as usize];
        let b = self.first[rank as usize + 1];
        &self.incident[a as usize..b as usize]
    }
}

/// All messages of one iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    pub name: String,
    pub ranks: usize,
    pub phases: Vec<Phase>,
}

/// The patterns that [`Traffic::parse`] reads, for `--help` and errors.
pub const FORMS: &str =
    "stencil5, stencil7, stencil9 or stencil27 (`:periodic` wraps round), direction:+x (or -x, +y, \
     …), \
     barrier[:dissemination|recursive-doubling], \
     allreduce[:recursive-doubling|ring|rabenseifner|dissemination], alltoall";

/// Most messages, and bytes of them, that one rank sends to another one in a step of a matrix.
pub const MOST_MESSAGES: u32 = 1 << 20;
pub const MOST_BYTES: u64 = 1 << 50;

/// So many parts of what the busiest pair sends are told apart where messages differ in length.
const PARTS: u64 = 1000;

/// What pairs of ranks have sent each other, as the planner takes it: where one has more than it
/// takes of a step, all numbers are divided by the same one, and rounded up. That number, too.
/// `pairs`: sender, receiver, messages and bytes.
pub fn within_bounds(
    pairs: impl Iterator<Item = (Rank, Rank, u64, u64)> + Clone,
) -> (Vec<RankMessage>, u64) {
    let most_messages = pairs.clone().map(|(_, _, messages, _)| messages).max().unwrap_or(0);
    let most_bytes = pairs.clone().map(|(_, _, _, bytes)| bytes).max().unwrap_or(0);
    let messages_over = most_messages.div_ceil(u64::from(MOST_MESSAGES));
    let by = messages_over.max(most_bytes.div_ceil(MOST_BYTES)).max(1);
    let message = |(from, to, messages, bytes): (Rank, Rank, u64, u64)| RankMessage {
        from,
        to,
        bytes: bytes.div_ceil(by),
        count: messages.div_ceil(by) as u32,
    };
    (pairs.map(message).collect(), by)
}

/// Most ranks of an alltoall: it has ranks² messages.
const MOST_ALLTOALL: usize = 4096;

impl Traffic {
    /// Reads a pattern for ranks on a grid of extents `shape` (row-major). `bytes` are those of a
    /// message (stencils, directions; alltoall: for each pair) or of the whole vector (allreduce).
    pub fn parse(text: &str, shape: &[usize], bytes: u64) -> Result<Self, TopologyError> {
        let (kind, option) = text.split_once(':').unwrap_or((text, ""));
        let ranks: usize = shape.iter().product();
        let algorithm = |default: &'static str| if option.is_empty() { default } else { option };
        let phases = match kind {
            "stencil5" | "stencil7" | "stencil9" | "stencil27" => {
                if !matches!(option, "" | "periodic") {
                    return refuse!("`{option}` after {kind}: only `periodic` is allowed");
                }
                stencil(kind, shape, option == "periodic", bytes)?
            }
            "direction" => vec![direction(option, shape, bytes)?],
            "barrier" => match algorithm("dissemination") {
                "dissemination" => dissemination(ranks, 0),
                "recursive-doubling" => recursive_doubling(ranks, 0),
                other => {
                    return refuse!(
                        "barrier algorithm `{other}`: dissemination or recursive-doubling"
                    )
                }
            },
            "allreduce" => match algorithm("recursive-doubling") {
                "recursive-doubling" => recursive_doubling(ranks, bytes),
                "ring" => ring(ranks, bytes),
                "rabenseifner" => rabenseifner(ranks, bytes),
                "dissemination" => dissemination(ranks, bytes),
                other => {
                    return refuse!(
                        "allreduce algorithm `{other}`: recursive-doubling, ring, rabenseifner or \
                         dissemination"
                    )
                }
            },
            "alltoall" => {
                if ranks > MOST_ALLTOALL {
                    return refuse!(
                        "alltoall over {ranks} ranks has {} messages: at most {MOST_ALLTOALL} \
                         ranks",
                        ranks as u64 * ranks as u64
                    );
                }
                vec![alltoall(ranks, bytes)]
            }
            _ => return refuse!("traffic `{text}`: write one of {FORMS}, or a matrix file"),
        };
        let name = text.to_string();
        Ok(Traffic { name, ranks, phases })
    }

    /// Reads traffic as the user writes it: a pattern or `matrix:FILE`, whose text `file` returns.
    /// The default is the star stencil of the job's axes, or allreduce where there is none.
    pub fn read(
        written: Option<&str>,
        shape: &[usize],
        bytes: u64,
        file: &dyn Fn(&str) -> Result<String, TopologyError>,
    ) -> Result<Self, TopologyError> {
        let default = match shape.len() {
            2 => "stencil5",
            3 => "stencil7",
            _ => "allreduce",
        };
        let written = written.unwrap_or(default);
        let Some(path) = written.strip_prefix("matrix:") else {
            return Self::parse(written, shape, bytes);
        };
        let read = Self::from_matrix(&file(path)?, shape.iter().product());
        read.map(Self::by_bytes).map_err(|e| TopologyError(format!("{path}: {e}")))
    }

    /// A measured matrix: one line a pair, `rank rank bytes messages` per iteration, separated by
    /// blanks or commas; `#` starts a comment.
    pub fn from_matrix(text: &str, ranks: usize) -> Result<Self, TopologyError> {
        let mut messages = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let number = number + 1;
            let line = line.split('#').next().unwrap_or("");
            let fields: Vec<&str> =
                line.split([',', ' ', '\t', '\r']).filter(|f| !f.is_empty()).collect();
            if fields.is_empty() || (messages.is_empty() && fields[0] == "rank") {
                continue;
            }
            let [from, to, bytes, count] = fields[..] else {
                return refuse!(
                    "line {number}: {} fields: write `rank rank bytes messages`",
                    fields.len()
                );
            };
            let rank = |field: &str| match field.parse::<usize>() {
                Ok(r) if r < ranks => Ok(r as Rank),
                _ => refuse!(
                    "line {number}: rank `{field:.20}` is not one of 0 to {}: give a matrix of \
                     {ranks} ranks",
                    ranks - 1
                ),
            };
            let (from, to) = (rank(from)?, rank(to)?);
            let Ok(bytes) = bytes.parse::<u64>() else {
                return refuse!("line {number}: bytes `{bytes:.20}` is not a whole number");
            };
            let Some(count) = count.parse::<u32>().ok().filter(|&c| c <= MOST_MESSAGES) else {
                return refuse!(
                    "line {number}: messages `{count:.20}` is not a number up to {MOST_MESSAGES}"
                );
            };
            if bytes > MOST_BYTES {
                return refuse!("line {number}: {bytes} bytes in one step: at most 2^50");
            }
            if from != to && count > 0 {
                messages.push(RankMessage { from, to, bytes, count });
            }
        }
        if messages.is_empty() {
            return refuse!("the matrix has no message between two different ranks");
        }
        Ok(Traffic { name: "matrix".into(), ranks, phases: vec![Phase::new(ranks, 1, messages)] })
    }

    /// What ranks have sent each other in some time, as one phase; `None` where none has sent
    /// anything to another one. Pairs of ranks that there are not are left out.
    pub fn measured(ranks: usize, mut messages: Vec<RankMessage>) -> Option<Self> {
        let counts =
            |m: &RankMessage| m.from != m.to && (m.from.max(m.to) as usize) < ranks && m.count > 0;
        messages.retain(counts);
        let phases = vec![Phase::new(ranks, 1, messages)];
        let traffic = Traffic { name: "measured".into(), ranks, phases };
        (traffic.messages() > 0).then(|| traffic.by_bytes())
    }

    /// Links are compared by numbers of messages. Where those of a matrix have different lengths,
    /// each pair counts as so many of one length: a thousandth of what the busiest pair sends.
    fn by_bytes(mut self) -> Self {
        let all = || self.phases.iter().flat_map(|phase| &phase.messages);
        let most = all().map(|m| m.bytes).max().unwrap_or(0);
        let Some(first) = all().next().copied() else { return self };
        let length = |a: &RankMessage, b: &RankMessage| u128::from(a.bytes) * u128::from(b.count);
        if most == 0 || all().all(|m| length(m, &first) == length(&first, m)) {
            return self;
        }
        let unit = most.div_ceil(PARTS).max(1);
        for m in self.phases.iter_mut().flat_map(|phase| &mut phase.messages) {
            m.count = (m.bytes / unit).max(1) as u32;
        }
        self
    }

    /// The same without the messages of ranks that are not there.
    pub fn among(&self, is_there: impl Fn(Rank) -> bool) -> Self {
        let of_phase = |phase: &Phase| {
            let kept = phase.messages.iter().filter(|m| is_there(m.from) && is_there(m.to));
            Phase::new(self.ranks, phase.repeat, kept.copied().collect())
        };
        let phases = self.phases.iter().map(of_phase).collect();
        Traffic { name: self.name.clone(), ranks: self.ranks, phases }
    }

    /// Writes the matrix format, for traffic of one phase or several.
    pub fn to_matrix(&self) -> String {
        let mut text = String::from("# rank rank bytes messages\n");
        for phase in &self.phases {
            for m in &phase.messages {
                let bytes = m.bytes * u64::from(phase.repeat);
                let count = m.count * phase.repeat;
                let _ = writeln!(text, "{} {} {bytes} {count}", m.from, m.to);
            }
        }
        text
    }

    /// Whether the busiest link says little about the time: with several rounds one after the
    /// other, or without any bytes.
    pub fn time_first(&self) -> bool {
        self.phases.len() > 1 || self.phases.iter().flat_map(|p| &p.messages).all(|m| m.bytes == 0)
    }

    /// Messages of all phases, each phase once.
    pub fn messages(&self) -> usize {
        self.phases.iter().map(|p| p.messages.len()).sum()
    }
}

fn message(from: usize, to: usize, bytes: u64) -> RankMessage {
    RankMessage { from: from as Rank, to: to as Rank, bytes, count: 1 }
}

/// The rank one `offset` away, or `None` beyond a border that does not wrap.
fn shifted(at: &[usize], offset: &[i64], shape: &[usize], periodic: bool) -> Option<usize> {
    let mut to = Vec::with_capacity(at.len());
    for axis in 0..shape.len() {
        let c = at[axis] as i64 + offset[axis];
        let n = shape[axis] as i64;
        if !periodic && !(0..n).contains(&c) {
            return None;
        }
        to.push(c.rem_euclid(n) as usize);
    }
    Some(coords::index(&to, shape))
}

fn from_offsets(shape: &[usize], offsets: &[Vec<i64>], periodic: bool, bytes: u64) -> Phase {
    let ranks: usize = shape.iter().product();
    let mut messages = Vec::with_capacity(ranks * offsets.len());
    coords::for_each(shape, |at| {
        let from = coords::index(at, shape);
        for offset in offsets {
            match shifted(at, offset, shape, periodic) {
                Some(to) if to != from => messages.push(message(from, to, bytes)),
                _ => {}
            }
        }
    });
    Phase::new(ranks, 1, messages)
}

fn stencil(
    kind: &str,
    shape: &[usize],
    periodic: bool,
    bytes: u64,
) -> Result<Vec<Phase>, TopologyError> {
    let (axes, corners) = match kind {
        "stencil5" => (2, false),
        "stencil7" => (3, false),
        "stencil9" => (2, true),
        _ => (3, true),
    };
    if shape.len() != axes {
        let fitting = match shape.len() {
            2 => "stencil5 and stencil9",
            3 => "stencil7 and stencil27",
            _ => "no stencil (stencils are for two or three axes)",
        };
        return refuse!(
            "{kind} needs a job of {axes} axes: {} has {}; it fits {fitting}",
            coords::format_dims(shape),
            shape.len()
        );
    }
    let mut offsets = Vec::new();
    coords::for_each(&vec![3; axes], |c| {
        let offset: Vec<i64> = c.iter().map(|&v| v as i64 - 1).collect();
        let steps = offset.iter().filter(|&&v| v != 0).count();
        if steps == 1 || (corners && steps > 1) {
            offsets.push(offset);
        }
    });
    Ok(vec![from_offsets(shape, &offsets, periodic, bytes)])
}

fn direction(option: &str, shape: &[usize], bytes: u64) -> Result<Phase, TopologyError> {
    const NAMES: [char; 6] = ['x', 'y', 'z', 'a', 'b', 'c'];
    let mut letters = option.chars();
    let sign = match letters.next() {
        Some('+') => 1,
        Some('-') => -1,
        _ => 0,
    };
    let axis = letters.next().and_then(|c| NAMES.iter().position(|&n| n == c));
    match axis.filter(|&a| a < shape.len() && sign != 0 && letters.next().is_none()) {
        Some(axis) => {
            let mut offset = vec![0; shape.len()];
            offset[axis] = sign;
            Ok(from_offsets(shape, &[offset], false, bytes))
        }
        None => refuse!(
            "direction `{option}`: a sign and one of the axes {}, such as direction:+x",
            NAMES[..shape.len().min(6)].iter().collect::<String>()
        ),
    }
}

/// Ranks beyond a power of two first send their part to a partner, and get the result at the end.
fn fold(ranks: usize) -> (usize, Phase, Phase, impl Fn(usize) -> usize) {
    fold_with(ranks, 0)
}

fn fold_with(ranks: usize, bytes: u64) -> (usize, Phase, Phase, impl Fn(usize) -> usize) {
    let power = if ranks == 0 { 1 } else { 1 << ranks.ilog2() };
    let rest = ranks - power.min(ranks);
    let before = (0..rest).map(|i| message(2 * i, 2 * i + 1, bytes)).collect();
    let after = (0..rest).map(|i| message(2 * i + 1, 2 * i, bytes)).collect();
    let rank_of = move |new: usize| if new < rest { 2 * new + 1 } else { new + rest };
    (power, Phase::new(ranks, 1, before), Phase::new(ranks, 1, after), rank_of)
}

fn drop_empty(phases: Vec<Phase>) -> Vec<Phase> {
    phases.into_iter().filter(|p| !p.messages.is_empty()).collect()
}

fn recursive_doubling(ranks: usize, bytes: u64) -> Vec<Phase> {
    let (power, before, after, rank_of) = fold_with(ranks, bytes);
    let mut phases = vec![before];
    let mut distance = 1;
    while distance < power {
        let round = (0..power).map(|r| message(rank_of(r), rank_of(r ^ distance), bytes)).collect();
        phases.push(Phase::new(ranks, 1, round));
        distance *= 2;
    }
    phases.push(after);
    drop_empty(phases)
}

/// Reduce-scatter by recursive halving, then allgather by recursive doubling.
fn rabenseifner(ranks: usize, bytes: u64) -> Vec<Phase> {
    let (power, _, _, rank_of) = fold(ranks);
    let (_, before, after, _) = fold_with(ranks, bytes);
    let mut halving = Vec::new();
    let (mut distance, mut part) = (power / 2, bytes / 2);
    while distance > 0 {
        let round: Vec<RankMessage> =
            (0..power).map(|r| message(rank_of(r), rank_of(r ^ distance), part)).collect();
        halving.push(Phase::new(ranks, 1, round));
        (distance, part) = (distance / 2, part / 2);
    }
    let doubling: Vec<Phase> = halving.iter().rev().cloned().collect();
    let mut phases = vec![before];
    phases.extend(halving);
    phases.extend(doubling);
    phases.push(after);
    drop_empty(phases)
}

fn ring(ranks: usize, bytes: u64) -> Vec<Phase> {
    if ranks < 2 {
        return Vec::new();
    }
    let part = bytes.div_ceil(ranks as u64);
    let round = (0..ranks).map(|r| message(r, (r + 1) % ranks, part)).collect();
    vec![Phase::new(ranks, 2 * (ranks as u32 - 1), round)]
}

fn dissemination(ranks: usize, bytes: u64) -> Vec<Phase> {
    let mut phases = Vec::new();
    let mut distance = 1;
    while distance < ranks {
        let round = (0..ranks).map(|r| message(r, (r + distance) % ranks, bytes)).collect();
        phases.push(Phase::new(ranks, 1, round));
        distance *= 2;
    }
    phases
}

fn alltoall(ranks: usize, bytes: u64) -> Phase {
    // Every rank starts with its successor, so that not all send to rank 0 first.
    let messages = (0..ranks)
        .flat_map(|r| (1..ranks).map(move |d| message(r, (r + d) % ranks, bytes)))
        .collect();
    Phase::new(ranks, 1, messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str, shape: &[usize]) -> usize {
        Traffic::parse(text, shape, 8).unwrap().messages()
    }

    #[test]
    fn stencils_have_a_message_for_every_neighbour() {
        assert_eq!(count("stencil5", &[4, 3]), 2 * (3 * 3 + 4 * 2));
        assert_eq!(count("stencil5:periodic", &[4, 3]), 4 * 12);
        assert_eq!(count("stencil9:periodic", &[4, 3]), 8 * 12);
        assert_eq!(count("stencil7:periodic", &[3, 3, 3]), 6 * 27);
        assert_eq!(count("stencil27:periodic", &[3, 3, 3]), 26 * 27);
        assert_eq!(count("direction:+x", &[4, 3]), 3 * 3);
        assert_eq!(count("direction:-y", &[4, 3]), 4 * 2);
        assert_eq!(count("alltoall", &[3, 3]), 72);
    }

    /// After all phases every rank has every rank's part (a set union models the reduction).
    fn all_know_all(text: &str, ranks: usize) {
        let traffic = Traffic::parse(text, &[ranks], 1 << 20).unwrap();
        let mut known: Vec<Vec<bool>> =
            (0..ranks).map(|r| (0..ranks).map(|s| r == s).collect()).collect();
        for phase in &traffic.phases {
            for _ in 0..phase.repeat {
                let before = known.clone();
                for m in &phase.messages {
                    for (to, from) in known[m.to as usize].iter_mut().zip(&before[m.from as usize])
                    {
                        *to |= from;
                    }
                }
            }
        }
        assert!(known.iter().flatten().all(|&k| k), "{text} on {ranks}");
    }

    #[test]
    fn collectives_bring_every_part_to_every_rank() {
        for ranks in [1, 2, 3, 5, 8, 12, 17] {
            for text in [
                "allreduce",
                "allreduce:ring",
                "allreduce:rabenseifner",
                "allreduce:dissemination",
                "barrier",
                "barrier:recursive-doubling",
            ] {
                all_know_all(text, ranks);
            }
        }
    }

    #[test]
    fn rabenseifner_sends_two_vectors_where_doubling_sends_log_p() {
        let bytes = |text: &str| {
            let t = Traffic::parse(text, &[16], 1 << 20).unwrap();
            t.phases.iter().map(|p| p.messages[0].bytes).sum::<u64>()
        };
        assert_eq!(bytes("allreduce"), 4 << 20);
        assert_eq!(bytes("allreduce:rabenseifner"), 2 * ((1 << 20) - (1 << 16)));
    }

    #[test]
    fn a_matrix_survives_a_round_trip() {
        let traffic = Traffic::parse("stencil9", &[3, 4], 100).unwrap();
        let again = Traffic::from_matrix(&traffic.to_matrix(), 12).unwrap();
        assert_eq!(again.phases, traffic.phases);
        assert_eq!(
            Traffic::from_matrix("rank,rank,bytes,messages\n0,1,10,2\n", 2).unwrap().messages(),
            1
        );
    }

    #[test]
    fn messages_of_different_lengths_count_by_their_bytes() {
        let counts = |text: &str| -> Vec<u32> {
            let text = |_: &str| Ok(text.to_string());
            let read = Traffic::read(Some("matrix:f"), &[3], 8, &text).unwrap();
            read.phases[0].messages.iter().map(|m| m.count).collect()
        };
        assert_eq!(counts("0 1 80 2\n1 2 40 1"), [2, 1], "all have 40 bytes");
        assert_eq!(counts("0 1 5000 1\n1 2 2505 900\n2 0 1 7"), [1000, 501, 1]);
        let message = |from, to, bytes, count| RankMessage { from, to, bytes, count };
        let measured = |all: &[RankMessage]| Traffic::measured(3, all.to_vec());
        assert_eq!(measured(&[message(1, 1, 9, 9), message(0, 3, 9, 9)]), None);
        let of_two = measured(&[message(0, 1, 4000, 1), message(1, 2, 4, 1)]).unwrap();
        assert_eq!(of_two.phases[0].messages[0].count, 1000);
        assert_eq!(of_two.among(|rank| rank != 2).messages(), 1);
    }

    #[test]
    fn what_is_too_much_for_a_step_is_divided() {
        let (all, by) = within_bounds([(0, 1, 3 << 20, 8), (1, 0, 1, 1)].into_iter());
        assert_eq!((all[0].count, all[0].bytes, all[1].count, by), (1 << 20, 3, 1, 3));
    }

    #[test]
    fn errors_name_the_fault() {
        for (text, fault) in [
            ("stencil5", "needs a job of 2 axes"),
            ("stencil7:foo", "only `periodic`"),
            ("direction:x", "a sign and one of the axes xyz"),
            ("allreduce:magic", "allreduce algorithm `magic`"),
            ("gossip", "traffic `gossip`"),
        ] {
            let error = Traffic::parse(text, &[2, 2, 2], 1).unwrap_err().0;
            assert!(error.contains(fault), "{error}");
        }
        for (text, fault) in [
            ("0 1 2", "3 fields"),
            ("0 9 1 1", "rank `9` is not one of 0 to 3"),
            ("0 1 x 1", "bytes `x`"),
            ("0 1 1 -1", "messages `-1`"),
            ("0 0 1 1", "no message between"),
        ] {
            let error = Traffic::from_matrix(text, 4).unwrap_err().0;
            assert!(error.contains(fault), "{error}");
        }
    }
}
