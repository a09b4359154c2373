//! Traffic as a heat map in SVG: a row for each sender, a column for each receiver, dark where much
//! is sent; beside it what each rank sends, below it what each receives. Lines part the nodes.

use super::blocks::Blocks;
use eyrie_interface::traffic::Traffic;
use eyrie_units::{bytes, counted, time};
use eyrie_wire::traffic::Sent;
use eyrie_wire::NodeId;
use std::fmt::Write;

/// Side of the grid in pixels, as far as its cells can be that large.
const GRID: f64 = 640.0;
const LEFT: f64 = 72.0;
const TOP: f64 = 96.0;
/// Longest bar, and its distance from the grid.
const BAR: f64 = 90.0;
const GAP: f64 = 10.0;
/// Room on the right and below, for numbers and the legend.
const RIGHT: f64 = 96.0;
const BELOW: f64 = 92.0;

const INK: &str = "#1b1e23";
const FAINT: &str = "#6b7280";
const EMPTY: &str = "#f4f4f1";
const BARS: &str = "#7a4fa3";

/// From little to much; it is also one from light to dark.
const RAMP: [[f64; 3]; 6] = [
    [254.0, 236.0, 184.0],
    [253.0, 191.0, 111.0],
    [244.0, 121.0, 76.0],
    [205.0, 56.0, 90.0],
    [128.0, 25.0, 107.0],
    [48.0, 10.0, 72.0],
];

/// The colour at `share` of the way from the least to the most, 0 to 1.
fn color(share: f64) -> String {
    let at = share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let low = (at as usize).min(RAMP.len() - 2);
    let mix = |i: usize| {
        (RAMP[low][i] + (RAMP[low + 1][i] - RAMP[low][i]) * (at - low as f64)).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

/// The scale of colours: by the logarithm, from the fewest bytes of a cell to the most.
struct Scale {
    least: u64,
    most: u64,
}

impl Scale {
    fn of(blocks: &Blocks) -> Scale {
        let sizes = || blocks.cells.values().map(|sent| sent.bytes).filter(|bytes| *bytes > 0);
        Scale { least: sizes().min().unwrap_or(0), most: sizes().max().unwrap_or(0) }
    }

    /// Messages without any bytes have the colour of the fewest.
    fn share(&self, bytes: u64) -> f64 {
        if self.least == self.most {
            return if bytes == 0 { 0.0 } else { 1.0 };
        }
        let log = |n: u64| (n.max(1) as f64).ln();
        (log(bytes.max(self.least)) - log(self.least)) / (log(self.most) - log(self.least))
    }
}

struct Canvas<'a> {
    traffic: &'a Traffic,
    blocks: &'a Blocks,
    /// Side of a cell in pixels.
    cell: f64,
    /// Side of the grid.
    side: f64,
}

impl Canvas<'_> {
    fn x(&self, block: u32) -> f64 {
        LEFT + f64::from(block) * self.cell
    }

    fn y(&self, block: u32) -> f64 {
        TOP + f64::from(block) * self.cell
    }

    fn name(&self, block: u32) -> String {
        self.blocks.name(block, self.traffic.ranks)
    }
}

/// The whole picture; `nodes`: of each rank.
pub fn svg(traffic: &Traffic, nodes: &[NodeId]) -> String {
    let blocks = &Blocks::of(traffic);
    let cell = (GRID / f64::from(blocks.count.max(1))).clamp(5.0, 56.0);
    let side = cell * f64::from(blocks.count);
    let canvas = Canvas { traffic, blocks, cell, side };
    let width = (LEFT + side + GAP + BAR + RIGHT).max(560.0);
    let height = TOP + side + GAP + BAR + BELOW;
    let scale = Scale::of(blocks);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans, sans-serif\" \
         font-size=\"11\" fill=\"{INK}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    heading(&mut out, traffic);
    cells(&mut out, &canvas, &scale);
    if blocks.size == 1 {
        part_nodes(&mut out, &canvas, nodes);
    }
    axes(&mut out, &canvas);
    bars(&mut out, &canvas);
    legend(&mut out, &scale, height - 44.0);
    out + "</svg>\n"
}

fn text(out: &mut String, (x, y): (f64, f64), attributes: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>");
}

fn heading(out: &mut String, traffic: &Traffic) {
    let sum = |of: fn(Sent) -> u64| traffic.pairs.iter().map(|pair| of(pair.sent)).sum::<u64>();
    let first = format!("What the ranks of {} send each other", traffic.job);
    let second = format!(
        "{}, {}, {} in {}",
        counted(traffic.ranks, "rank"),
        counted(sum(|sent| sent.messages), "message"),
        bytes(sum(|sent| sent.bytes)),
        time(traffic.over)
    );
    text(out, (24.0, 30.0), "font-size=\"16\" font-weight=\"bold\"", &first);
    text(out, (24.0, 50.0), &format!("font-size=\"12\" fill=\"{FAINT}\""), &second);
}

fn cells(out: &mut String, canvas: &Canvas, scale: &Scale) {
    let Canvas { blocks, cell, side, .. } = canvas;
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{side:.1}\" height=\"{side:.1}\" fill=\"{EMPTY}\"/>"
    );
    // Small cells touch each other.
    let gap = if *cell >= 12.0 { 1.0 } else { 0.0 };
    for ((from, to), sent) in &blocks.cells {
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{w:.1}\" height=\"{w:.1}\" fill=\"{}\">\
             <title>{} to {}: {}, {}</title></rect>",
            canvas.x(*to) + gap / 2.0,
            canvas.y(*from) + gap / 2.0,
            color(scale.share(sent.bytes)),
            canvas.name(*from),
            canvas.name(*to),
            counted(sent.messages, "message"),
            bytes(sent.bytes),
            w = cell - gap
        );
    }
}

/// Lines between ranks that follow each other and are on different nodes.
fn part_nodes(out: &mut String, canvas: &Canvas, nodes: &[NodeId]) {
    let borders = nodes.windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]);
    let mut path = String::new();
    for (before, _) in borders {
        let rank = before as u32 + 1;
        if rank >= canvas.blocks.count {
            break;
        }
        let (x, y) = (canvas.x(rank), canvas.y(rank));
        let _ = write!(path, "M{x:.1} {TOP}v{s:.1}M{LEFT} {y:.1}h{s:.1}", s = canvas.side);
    }
    if !path.is_empty() {
        let _ = writeln!(
            out,
            "<path d=\"{path}\" stroke=\"{FAINT}\" stroke-width=\"0.8\" \
             stroke-dasharray=\"3 2\" fill=\"none\"/>"
        );
    }
}

/// Numbers of ranks along the grid, so many that they do not touch.
fn axes(out: &mut String, canvas: &Canvas) {
    let Canvas { blocks, cell, side, .. } = canvas;
    let fit = (26.0 / cell).ceil().max(1.0) as u32;
    let step = [1, 2, 4, 8, 16, 32, 64].into_iter().find(|step| *step >= fit).unwrap_or(64);
    for block in (0..blocks.count).step_by(step as usize) {
        let rank = (block * blocks.size).to_string();
        let middle = cell / 2.0;
        text(out, (canvas.x(block) + middle, TOP - 6.0), "text-anchor=\"middle\"", &rank);
        let left = (LEFT - 7.0, canvas.y(block) + middle + 4.0);
        text(out, left, "text-anchor=\"end\"", &rank);
    }
    let faint = format!("text-anchor=\"middle\" fill=\"{FAINT}\"");
    let middle = side / 2.0;
    text(out, (LEFT + middle, TOP - 22.0), &faint, "to rank");
    let (x, y) = (LEFT - 42.0, TOP + middle);
    text(out, (x, y), &format!("{faint} transform=\"rotate(-90 {x:.1} {y:.1})\""), "from rank");
}

/// What each block sends, on the right; what it receives, below.
fn bars(out: &mut String, canvas: &Canvas) {
    let Canvas { blocks, cell, side, .. } = canvas;
    let (sent, received) = blocks.sums();
    let most = sent.iter().chain(&received).copied().max().unwrap_or(0).max(1);
    let length = |bytes: u64| BAR * bytes as f64 / most as f64;
    let thick = if *cell >= 12.0 { cell * 0.7 } else { *cell };
    let inset = (cell - thick) / 2.0;
    let mut bar = |(x, y): (f64, f64), (w, h): (f64, f64), title: String| {
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" fill=\"{BARS}\">\
             <title>{title}</title></rect>"
        );
    };
    let right = LEFT + side + GAP;
    let below = TOP + side + GAP;
    for (block, (sent, received)) in (0..).zip(sent.iter().zip(&received)) {
        let name = canvas.name(block);
        let y = canvas.y(block) + inset;
        let title = format!("{name}: sends {}", bytes(*sent));
        bar((right, y), (length(*sent), thick), title);
        let x = canvas.x(block) + inset;
        let title = format!("{name}: receives {}", bytes(*received));
        bar((x, below), (thick, length(*received)), title);
    }
    let faint = format!("fill=\"{FAINT}\"");
    text(out, (right, TOP - 22.0), &faint, "sends");
    text(out, (right, TOP - 8.0), &faint, &format!("(full bar {})", bytes(most)));
    text(out, (LEFT - 7.0, below + 10.0), &format!("{faint} text-anchor=\"end\""), "receives");
}

fn legend(out: &mut String, scale: &Scale, y: f64) {
    const STEPS: u32 = 48;
    const WIDTH: f64 = 240.0;
    let step = WIDTH / f64::from(STEPS);
    for n in 0..STEPS {
        let share = f64::from(n) / f64::from(STEPS - 1);
        let x = LEFT + f64::from(n) * step;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{}\"/>",
            step + 0.5,
            color(share)
        );
    }
    let numbers = y + 26.0;
    text(out, (LEFT, numbers), "", &bytes(scale.least));
    text(out, (LEFT + WIDTH, numbers), "text-anchor=\"end\"", &bytes(scale.most));
    let words = "logarithmic; empty: nothing was sent";
    text(out, (LEFT + WIDTH + 12.0, y + 10.0), &format!("fill=\"{FAINT}\""), words);
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_interface::traffic::Pair;
    use eyrie_wire::Rank;
    use std::time::Duration;

    fn traffic(ranks: u32, pairs: impl Iterator<Item = (u32, u32, u64)>) -> Traffic {
        let pair = |(from, to, bytes)| Pair::from((Rank(from), Rank(to), 1, bytes));
        let over = Duration::from_secs(1);
        Traffic { job: "a<b".into(), ranks, over, pairs: pairs.map(pair).collect() }
    }

    #[test]
    fn much_is_dark_little_is_light_and_nothing_is_empty() {
        let picture = svg(&traffic(3, [(0, 1, 1 << 20), (1, 2, 8), (2, 0, 0)].into_iter()), &[]);
        let cell = |title: &str| {
            let line = picture.lines().find(|line| line.contains(title)).expect(title);
            line.split("fill=\"").nth(1).unwrap()[..7].to_string()
        };
        assert_eq!(cell("rank 0 to rank 1: 1 message, 1 MiB"), color(1.0));
        assert_eq!(cell("rank 1 to rank 2: 1 message, 8 B"), color(0.0));
        assert_eq!(cell("rank 2 to rank 0: 1 message, 0 B"), color(0.0));
        assert!(!picture.contains("rank 1 to rank 0"), "nothing was sent there");
        assert!(picture.contains("ranks of a&lt;b") && !picture.contains("a<b"));
    }

    #[test]
    fn nodes_are_parted_and_a_thousand_ranks_fit_into_a_small_file() {
        let ring = |ranks: u32| traffic(ranks, (0..ranks).map(move |r| (r, (r + 1) % ranks, 5)));
        let nodes = [0, 0, 1, 1].map(NodeId);
        assert_eq!(svg(&ring(4), &nodes).matches('M').count(), 2, "one line each way");
        assert!(!svg(&ring(4), &[NodeId(0); 4]).contains("stroke-dasharray"));
        let all = (0..1000).flat_map(|a| (0..1000).map(move |b| (a, b, u64::from(a + b))));
        let picture = svg(&traffic(1000, all), &[]);
        assert!(picture.contains("ranks 0 to 7 to ranks 992 to 999"));
        assert!(picture.len() < 4 << 20, "{} bytes", picture.len());
        assert!(svg(&traffic(1, std::iter::empty()), &[]).ends_with("</svg>\n"));
    }
}
