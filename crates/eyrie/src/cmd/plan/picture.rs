//! `--picture`: the grid of the job as SVG, nodes by what happened to them, links between neighbours coloured by load.
//! Two axes are drawn as they are; of more axes every plane of the first two is a slice of its own.

use std::collections::HashSet;
use std::fmt::Write;

use eyrie_placement::plan::Placed;
use eyrie_topology::{coords, NodeId};

use super::instance::Instance;
use super::seconds;

const RANK: &str = "#c9d3dc";
const MOVED: &str = "#f2a13c";
const SPARE: &str = "#ffffff";
const LEFT: &str = "#e9e2f5";
const FAILED: &str = "#222222";

/// The colour of a link that carries `load` of at most `most` messages.
fn heat(load: u64, most: u64) -> String {
    if load == 0 {
        return "#e4e4e4".into();
    }
    // From blue (one message) over yellow to red (the busiest).
    let t = if most <= 1 { 0.0 } else { (load - 1) as f64 / (most - 1) as f64 };
    let mix = |a: f64, b: f64, t: f64| (a + (b - a) * t).round() as u8;
    let (r, g, b) = if t < 0.5 {
        (mix(66.0, 240.0, 2.0 * t), mix(133.0, 190.0, 2.0 * t), mix(190.0, 60.0, 2.0 * t))
    } else {
        let t = 2.0 * t - 1.0;
        (mix(240.0, 200.0, t), mix(190.0, 30.0, t), mix(60.0, 40.0, t))
    };
    format!("#{r:02x}{g:02x}{b:02x}")
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
        let (column, row) = (slice % self.slices_a_row, slice / self.slices_a_row);
        // Axis x runs to the right, y downwards.
        let y = c.get(1).copied().unwrap_or(0) as f64;
        (
            slice,
            MARGIN + column as f64 * self.slice_width + (c[0] as f64 + 0.5) * self.pitch,
            TOP + row as f64 * self.slice_height + (y + 0.5) * self.pitch,
        )
    }
}

/// The whole picture.
pub fn svg(instance: &Instance, failed: &[NodeId], placed: &Placed) -> String {
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
    let slice_height = dims[1] as f64 * pitch + 34.0;
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
    let undrawn = if folded { None } else { Some(links(&mut out, &canvas, placed, most)) };
    nodes(&mut out, &canvas, failed, placed, folded);
    if slices > 1 {
        for slice in 0..slices {
            let c = coords::of(slice, &canvas.dims[2..]);
            let (x, y) = (
                MARGIN + (slice % slices_a_row) as f64 * slice_width,
                TOP + (slice / slices_a_row) as f64 * slice_height - 5.0,
            );
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

fn heading(out: &mut String, instance: &Instance, failed: &[NodeId], placed: &Placed) {
    let names: Vec<String> = failed.iter().take(8).map(|&n| instance.node_name(n)).collect();
    let more = if failed.len() > 8 { " …" } else { "" };
    let first = format!(
        "{}, job {}, spares {}, {}",
        instance.network.describe(),
        coords::format_dims(&instance.laid.shape),
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

/// Draws every link between grid neighbours, both directions beside each other; returns the busiest link that is no
/// such neighbour link (Tofu's folded axes, wrap-around, planes), which only the legend can tell.
fn links(out: &mut String, canvas: &Canvas, placed: &Placed, most: u64) -> u64 {
    let (network, layout) = (canvas.instance.network.as_ref(), &canvas.instance.laid.layout);
    let load = |link: u32| {
        placed.loads.loads.iter().map(|l| l.of_link(network, link).messages).max().unwrap_or(0)
    };
    let (mut undrawn, mut next) = (0, Vec::new());
    let stroke = (canvas.pitch / 9.0).clamp(1.2, 4.0);
    let inset = canvas.pitch * 0.30;
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
                if load > 0 && canvas.dims.len() > 2 && other.is_some() {
                    // A message to or from another slice: a dot in the node's corner, coloured by load.
                    let r = (canvas.pitch / 9.0).clamp(1.0, 3.0);
                    let up = other > Some(cell);
                    let d = canvas.pitch * 0.3 * if up { 1.0 } else { -1.0 };
                    let _ = writeln!(
                        out,
                        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{r:.1}\" fill=\"{}\"/>",
                        x + d,
                        y + d,
                        heat(load, most)
                    );
                }
                continue;
            };
            // The two directions lie side by side, each to the right of its way.
            let (dx, dy) = ((ox - x) / canvas.pitch, (oy - y) / canvas.pitch);
            let side = stroke * 0.62;
            let _ = writeln!(
                out,
                "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" stroke-width=\"{stroke:.1}\"/>",
                x + dx * inset - dy * side,
                y + dy * inset + dx * side,
                ox - dx * inset - dy * side,
                oy - dy * inset + dx * side,
                heat(load, most)
            );
        }
    }
    undrawn
}

fn nodes(out: &mut String, canvas: &Canvas, failed: &[NodeId], placed: &Placed, folded: bool) {
    let (instance, layout) = (canvas.instance, &canvas.instance.laid.layout);
    let failed: HashSet<NodeId> = failed.iter().copied().collect();
    let spares: HashSet<NodeId> = instance.laid.spares.iter().copied().collect();
    let mut rank_on = vec![None; instance.network.nodes()];
    for (rank, &node) in placed.placement.iter().enumerate() {
        rank_on[node as usize] = Some(rank);
    }
    let home: HashSet<NodeId> = instance.laid.home.iter().copied().collect();
    let half = canvas.pitch * 0.30;
    let label = canvas.pitch >= 26.0;
    for cell in 0..layout.cells() {
        let node = layout.node(cell);
        let (_, x, y) = if folded {
            let width = canvas.dims[0];
            let c = coords::index(&[cell % width, cell / width], &canvas.dims);
            canvas.place(c)
        } else {
            canvas.place(cell)
        };
        let rank = rank_on[node as usize].filter(|_| !failed.contains(&node));
        let (fill, edge) = match rank {
            _ if failed.contains(&node) => (FAILED, "#000000"),
            Some(rank) if instance.laid.home[rank] != node => (MOVED, "#9a5a00"),
            Some(_) => (RANK, "#7c8a96"),
            None if home.contains(&node) => (LEFT, "#8d79b5"),
            None if spares.contains(&node) => (SPARE, "#2f7d3b"),
            None => ("#f6f6f6", "#dddddd"),
        };
        let side = 2.0 * half;
        let thick = if spares.contains(&node) { 1.6 } else { 0.8 };
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{side:.1}\" height=\"{side:.1}\" rx=\"1.5\" fill=\"{fill}\" stroke=\"{edge}\" stroke-width=\"{thick}\"/>",
            x - half,
            y - half
        );
        if failed.contains(&node) {
            let r = half * 0.6;
            let _ = writeln!(out, "<path d=\"M{:.1} {:.1}l{:.1} {:.1}m0 -{:.1}l-{:.1} {:.1}\" stroke=\"#ff5a5a\" stroke-width=\"1.6\"/>", x - r, y - r, 2.0 * r, 2.0 * r, 2.0 * r, 2.0 * r, 2.0 * r);
        } else if let Some(rank) = rank.filter(|_| label) {
            let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"{:.0}\" text-anchor=\"middle\" fill=\"#1d1d1d\">{rank}</text>", y + 3.0, (canvas.pitch / 4.4).min(10.0));
        }
    }
}

fn legend(out: &mut String, y: f64, most: u64, undrawn: Option<u64>, slices: bool) {
    let mut x = MARGIN;
    let kinds = [
        (RANK, "#7c8a96", "rank"),
        (MOVED, "#9a5a00", "rank that moved"),
        (SPARE, "#2f7d3b", "spare"),
        (LEFT, "#8d79b5", "node that a rank left"),
        (FAILED, "#000000", "failed"),
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
            Some(format!("dots: links to other planes; links off the grid carry at most {load}"))
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
