//! `--picture`: the grid of the job as SVG, nodes by what happened to them, links between
//! neighbours coloured by load. Two axes are drawn as they are; of more axes every plane of the
//! first two is a slice of its own.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use eyrie_placement::{Instance, Placed};
use eyrie_topology::{coords, NetworkNode};

use super::seconds;

const RANK: &str = "#c9d3dc";
const MOVED: &str = "#f2a13c";
const SPARE: &str = "#ffffff";
const LEFT: &str = "#e9e2f5";
const FAILED: &str = "#222222";
const FAILED_EDGE: &str = "#d40000";

/// The colour of a link that carries `load` of at most `most` messages.
fn heat(load: u64, most: u64) -> String {
    if load == 0 {
        return "#e4e4e4".into();
    }
    // From blue (one message) over green and yellow to red (the busiest).
    const COLORS: [[f64; 3]; 4] =
        [[66.0, 133.0, 190.0], [95.0, 180.0, 105.0], [245.0, 185.0, 45.0], [200.0, 30.0, 40.0]];
    let t = if most <= 1 { 0.0 } else { 3.0 * (load - 1) as f64 / (most - 1) as f64 };
    let low = (t as usize).min(2);
    let mix = |i: usize| {
        let a = COLORS[low][i];
        let b = COLORS[low + 1][i];
        (a + (b - a) * (t - low as f64)).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

struct Canvas<'a> {
    instance: &'a Instance,
    dims: Vec<usize>,
    /// Side of a cell in pixels.
    pitch: f64,
    slices_a_row: usize,
    slice_width: f64,
    slice_height: f64,
}

const MARGIN: f64 = 30.0;
const TOP: f64 = 78.0;

impl Canvas<'_> {
    /// Slice number and place of a cell's middle.
    fn place(&self, cell: usize) -> (usize, f64, f64) {
        let c = coords::of(cell, &self.dims);
        let slice = if c.len() > 2 { coords::index(&c[2..], &self.dims[2..]) } else { 0 };
        // Axis x runs to the right, y downwards.
        let y = c.get(1).copied().unwrap_or(0) as f64;
        let (left, top) = self.corner(slice);
        (slice, left + (c[0] as f64 + 0.5) * self.pitch, top + (y + 0.5) * self.pitch)
    }

    /// The upper left corner of a slice.
    fn corner(&self, slice: usize) -> (f64, f64) {
        let column = slice % self.slices_a_row;
        let row = slice / self.slices_a_row;
        (MARGIN + column as f64 * self.slice_width, TOP + row as f64 * self.slice_height)
    }
}

/// The whole picture.
pub fn svg(instance: &Instance, failed: &[NetworkNode], placed: &Placed) -> String {
    let dims = match instance.laid.layout.dims() {
        // A long line of nodes without a grid is folded into a near-square.
        [n] => {
            let width = (*n as f64).sqrt().ceil() as usize;
            vec![width, n.div_ceil(width)]
        }
        dims => dims.to_vec(),
    };
    let folded = instance.laid.layout.dims().len() == 1;
    let slices: usize = dims[2.min(dims.len())..].iter().product();
    let largest = dims[0].max(dims[1]);
    let pitch = if slices == 1 {
        (900.0 / largest as f64).clamp(6.0, 44.0)
    } else {
        (260.0 / largest as f64).clamp(7.0, 22.0)
    };
    let slice_width = dims[0] as f64 * pitch + 22.0;
    let slice_height = dims[1] as f64 * pitch + 40.0;
    let slices_a_row =
        ((slices as f64 * slice_height / slice_width).sqrt().ceil() as usize).clamp(1, slices);
    let canvas = Canvas { instance, dims, pitch, slices_a_row, slice_width, slice_height };
    let rows = slices.div_ceil(slices_a_row);
    let width = (2.0 * MARGIN + slices_a_row as f64 * slice_width).max(760.0);
    let height = TOP + rows as f64 * slice_height + 96.0;

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"DejaVu Sans, sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    heading(&mut out, instance, failed, placed);
    let most = placed.score.messages;
    nodes(&mut out, &canvas, failed, placed, folded);
    let undrawn = if folded { None } else { Some(links(&mut out, &canvas, placed, most)) };
    if !folded {
        axes(&mut out, &canvas, slices);
    }
    if slices > 1 {
        for slice in 0..slices {
            let c = coords::of(slice, &canvas.dims[2..]);
            let (x, y) = canvas.corner(slice);
            let y = y - 5.0;
            let names = ["z", "a", "b", "c"];
            let label: Vec<String> =
                c.iter().zip(names).map(|(v, n)| format!("{n} = {v}")).collect();
            let _ = writeln!(
                out,
                "<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"11\" fill=\"#555\">{}</text>",
                label.join(", ")
            );
        }
    }
    legend(&mut out, height - 66.0, most, undrawn, slices > 1);
    out + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn heading(out: &mut String, instance: &Instance, failed: &[NetworkNode], placed: &Placed) {
    let names: Vec<String> = failed.iter().take(8).map(|&n| instance.node_name(n)).collect();
    let more = if failed.len() > 8 { " …" } else { "" };
    let first = format!(
        "{}, job {}, spares {}, {}",
        instance.network.describe(),
        coords::format_dims(&instance.shape),
        instance.spares,
        instance.job.traffic.name
    );
    let second = format!(
        "failed {}{more}: busiest link {} messages, step {} ({:.2}x), {} ranks moved",
        names.join("  "),
        placed.score.messages,
        seconds(placed.step_s),
        placed.ratio,
        placed.moved
    );
    let _ =
        writeln!(out, "<text x=\"{MARGIN}\" y=\"24\" font-size=\"15\">{}</text>", escape(&first));
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"44\" fill=\"#333\">{}</text>", escape(&second));
}

/// Draws every link between grid neighbours, both directions beside each other, the busiest on top;
/// returns the busiest link that is no such neighbour link (Tofu's folded axes, wrap-around,
/// planes), which only the legend can tell.
fn links(out: &mut String, canvas: &Canvas, placed: &Placed, most: u64) -> u64 {
    let network = canvas.instance.network.as_ref();
    let layout = &canvas.instance.laid.layout;
    let load = |link: u32| {
        placed.loads.loads.iter().map(|l| l.of_link(network, link).messages).max().unwrap_or(0)
    };
    let mut undrawn = 0;
    let mut next = Vec::new();
    let stroke = (canvas.pitch / 9.0).clamp(1.2, 4.0);
    let inset = canvas.pitch * 0.30;
    // One path for each load: lines of links between neighbours, dots of links to other slices.
    let (mut lines, mut dots) = (BTreeMap::<u64, String>::new(), BTreeMap::<u64, String>::new());
    for cell in 0..layout.cells() {
        next.clear();
        network.out_links(layout.node(cell), &mut next);
        let (slice, x, y) = canvas.place(cell);
        for &(link, to) in &next {
            let load = load(link);
            let other = if (to as usize) < network.nodes() { layout.cell(to) } else { None };
            let drawn = other.map(|c| canvas.place(c)).filter(|&(s, ox, oy)| {
                s == slice && ((ox - x).abs() + (oy - y).abs() - canvas.pitch).abs() < 0.5
            });
            let Some((_, ox, oy)) = drawn else {
                undrawn = undrawn.max(load);
                if load > 1 && canvas.dims.len() > 2 && other.is_some() {
                    // In the node's corner, one for each way.
                    let d = inset * if other > Some(cell) { 1.0 } else { -1.0 };
                    let _ = write!(dots.entry(load).or_default(), "M{:.1} {:.1}h0", x + d, y + d);
                }
                continue;
            };
            // The two directions lie side by side, each to the right of its way.
            let (dx, dy) = ((ox - x) / canvas.pitch, (oy - y) / canvas.pitch);
            let side = stroke * 0.62;
            let _ = write!(
                lines.entry(load).or_default(),
                "M{:.1} {:.1}L{:.1} {:.1}",
                x + dx * inset - dy * side,
                y + dy * inset + dx * side,
                ox - dx * inset - dy * side,
                oy - dy * inset + dx * side,
            );
        }
    }
    let dot = (canvas.pitch / 4.5).clamp(2.4, 6.0);
    for (paths, width, cap) in [(lines, stroke, "butt"), (dots, dot, "round")] {
        for (load, path) in paths {
            let color = heat(load, most);
            let _ = writeln!(
                out,
                "<path d=\"{path}\" stroke=\"{color}\" stroke-width=\"{width:.1}\" stroke-linecap=\"{cap}\"/>"
            );
        }
    }
    undrawn
}

/// Coordinates along the sides of each slice, as many as can be read.
fn axes(out: &mut String, canvas: &Canvas, slices: usize) {
    let size = if canvas.pitch >= 26.0 { 10.0 } else { 8.0 };
    let every = (26.0 / canvas.pitch).ceil() as usize;
    for slice in 0..slices {
        let (left, top) = canvas.corner(slice);
        let bottom = top + canvas.dims[1] as f64 * canvas.pitch + size;
        for c in (0..canvas.dims[0]).step_by(every) {
            let x = left + (c as f64 + 0.5) * canvas.pitch;
            let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{bottom:.1}\" font-size=\"{size}\" text-anchor=\"middle\" fill=\"#666\">{c}</text>");
        }
        for c in (0..canvas.dims[1]).step_by(every) {
            let y = top + (c as f64 + 0.5) * canvas.pitch + 0.35 * size;
            let x = left - 2.0;
            let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"end\" fill=\"#666\">{c}</text>");
        }
    }
}

fn nodes(out: &mut String, canvas: &Canvas, failed: &[NetworkNode], placed: &Placed, folded: bool) {
    let instance = canvas.instance;
    let layout = &canvas.instance.laid.layout;
    let failed: HashSet<NetworkNode> = failed.iter().copied().collect();
    let spares: HashSet<NetworkNode> = instance.laid.spares.iter().copied().collect();
    let mut ranks_on = vec![Vec::new(); instance.network.nodes()];
    for (rank, &node) in placed.placement.iter().enumerate() {
        ranks_on[node as usize].push(rank);
    }
    let home: HashSet<NetworkNode> = instance.laid.home.iter().copied().collect();
    let half = canvas.pitch * 0.30;
    let label = canvas.pitch >= 26.0;
    // One path for each look (fill, edge, width of the edge), the failed ones last; what stands on
    // nodes comes after them.
    let mut squares: BTreeMap<(bool, &str, &str, bool), String> = BTreeMap::new();
    let mut marks = String::new();
    for cell in 0..layout.cells() {
        let node = layout.node(cell);
        let (_, x, y) = if folded {
            let width = canvas.dims[0];
            canvas.place(coords::index(&[cell % width, cell / width], &canvas.dims))
        } else {
            canvas.place(cell)
        };
        let dead = failed.contains(&node);
        let ranks = &ranks_on[node as usize];
        let (fill, edge) = match ranks[..] {
            _ if dead => (FAILED, FAILED_EDGE),
            [] if home.contains(&node) => (LEFT, "#8d79b5"),
            [] if spares.contains(&node) => (SPARE, "#2f7d3b"),
            [] => ("#f6f6f6", "#dddddd"),
            _ if ranks.iter().any(|rank| instance.job.home[*rank] != node) => (MOVED, "#9a5a00"),
            _ => (RANK, "#7c8a96"),
        };
        let square = squares.entry((dead, fill, edge, dead || spares.contains(&node))).or_default();
        let side = 2.0 * half;
        let _ = write!(square, "M{:.1} {:.1}h{side:.1}v{side:.1}h-{side:.1}z", x - half, y - half);
        if dead && label {
            let r = half * 0.6;
            let _ = writeln!(marks, "<path d=\"M{:.1} {:.1}l{:.1} {:.1}m0 -{:.1}l-{:.1} {:.1}\" stroke=\"#ff5a5a\" stroke-width=\"1.6\"/>", x - r, y - r, 2.0 * r, 2.0 * r, 2.0 * r, 2.0 * r, 2.0 * r);
        } else if let Some(ranks) = numbers(ranks).filter(|_| label) {
            let _ = writeln!(marks, "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"{:.0}\" text-anchor=\"middle\" fill=\"#1d1d1d\">{ranks}</text>", y + 3.0, (canvas.pitch / 4.4).min(10.0));
        }
    }
    for ((_, fill, edge, thick), path) in squares {
        let width = if thick { 1.8 } else { 0.8 };
        let _ = writeln!(out, "<path d=\"{path}\" fill=\"{fill}\" stroke=\"{edge}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"/>");
    }
    out.push_str(&marks);
}

/// The ranks of a node as they fit on it: one, or the first and the last where they follow each
/// other, or how many there are.
fn numbers(ranks: &[usize]) -> Option<String> {
    match *ranks {
        [] => None,
        [rank] => Some(rank.to_string()),
        [first, .., last] if last - first + 1 == ranks.len() => Some(format!("{first}-{last}")),
        _ => Some(format!("{} ranks", ranks.len())),
    }
}

fn legend(out: &mut String, y: f64, most: u64, undrawn: Option<u64>, slices: bool) {
    let mut x = MARGIN;
    let kinds = [
        (RANK, "#7c8a96", "rank"),
        (MOVED, "#9a5a00", "rank that moved"),
        (SPARE, "#2f7d3b", "spare"),
        (LEFT, "#8d79b5", "node that a rank left"),
        (FAILED, FAILED_EDGE, "failed"),
    ];
    for (fill, edge, name) in kinds {
        let _ = writeln!(out, "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"13\" height=\"13\" rx=\"1.5\" fill=\"{fill}\" stroke=\"{edge}\"/><text x=\"{:.0}\" y=\"{:.0}\">{name}</text>", x + 19.0, y + 11.0);
        x += 42.0 + 7.2 * name.len() as f64;
    }
    let y = y + 26.0;
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{:.0}\">messages on a link:</text>", y + 10.0);
    let mut x = MARGIN + 135.0;
    let steps: Vec<u64> = match most {
        0..=8 => (0..=most).collect(),
        _ => [0, 1, most / 4, most / 2, 3 * most / 4, most].to_vec(),
    };
    for load in steps {
        let _ = writeln!(out, "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"26\" height=\"6\" fill=\"{}\"/><text x=\"{:.0}\" y=\"{:.0}\">{load}</text>", y + 3.0, heat(load, most), x + 31.0, y + 10.0);
        x += 46.0 + 8.0 * load.to_string().len() as f64;
    }
    let note = match undrawn {
        None => {
            Some("a network without a grid: nodes in order, its links are not drawn".to_string())
        }
        Some(load) if slices => {
            Some(format!("x to the right, y downwards; dots: links to other planes with more than one message; links off the grid carry at most {load}"))
        }
        Some(load) if load > 0 => {
            Some(format!("links off the grid (wrap-around, switches) carry at most {load}"))
        }
        Some(_) => None,
    };
    if let Some(note) = note {
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{:.0}\" fill=\"#555\" font-size=\"11\">{note}</text>",
            y + 30.0
        );
    }
}
