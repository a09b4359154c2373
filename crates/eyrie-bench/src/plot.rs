//! Figures as SVG files.

use anyhow::anyhow;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 560);
/// Distinguishable for the colour-blind, too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Whether it is from the paper, not measured here.
    pub paper: bool,
}

/// A figure.
#[derive(Clone, Debug)]
pub enum Chart {
    /// Lines over sizes in bytes (`sizes`, on a logarithmic axis) or plain numbers.
    Lines { title: String, x: String, y: String, sizes: bool, series: Vec<Series> },
    /// Lines over numbers, both axes logarithmic.
    Growth { title: String, x: String, y: String, series: Vec<Series> },
    /// A bar for each label, with its parts stacked.
    Bars { title: String, y: String, parts: Vec<String>, bars: Vec<(String, Vec<f64>)> },
}

/// Writes an SVG file.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(chart: &Chart, path: &Path) -> anyhow::Result<()> {
    let failed = |e: &dyn std::fmt::Display| anyhow!("cannot draw {}: {e}", path.display());
    // In memory first: the backend by itself does not report a full disk.
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|e| failed(&e))?;
    match chart {
        Chart::Lines { title, x, y, sizes, series } => {
            let xs = bounds(series.iter().flat_map(|s| &s.points).map(|p| p.0));
            let ys = bounds(series.iter().flat_map(|s| &s.points).map(|p| p.1));
            // The names are above the lines.
            let y_range = ys.0.min(0.0)..ys.1 * (1.1 + 0.07 * series.len() as f64);
            let labels = (title.as_str(), x.as_str(), y.as_str());
            let drawn = if *sizes {
                let x_range = (xs.0..xs.1).log_scale().base(2.0);
                lines(&area, labels, x_range, y_range, size_label, series)
            } else {
                let x_range = xs.0.min(0.0)..xs.1 * 1.05;
                lines(&area, labels, x_range, y_range, number_label, series)
            };
            drawn.map_err(|e| failed(&e))?;
        }
        Chart::Growth { title, x, y, series } => {
            let xs = bounds(series.iter().flat_map(|s| &s.points).map(|p| p.0));
            let ys = bounds(series.iter().flat_map(|s| &s.points).map(|p| p.1));
            // Room for the names above the lines.
            let y_range = (ys.0 * 0.95..ys.1.max(2.0) * 3.0).log_scale();
            let labels = (title.as_str(), x.as_str(), y.as_str());
            let x_range = (xs.0..xs.1).log_scale().base(2.0);
            lines(&area, labels, x_range, y_range, plain_label, series).map_err(|e| failed(&e))?;
        }
        Chart::Bars { title, y, parts, bars } => {
            stacked(&area, title, y, parts, bars).map_err(|e| failed(&e))?;
        }
    }
    area.present().map_err(|e| failed(&e))?;
    drop(area);
    std::fs::write(path, svg).map_err(|e| failed(&e))
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)))
}

fn size_label(bytes: &f64) -> String {
    eyrie_units::bytes(*bytes as u64)
}

fn plain_label(value: &f64) -> String {
    format!("{value}")
}

fn number_label(value: &f64) -> String {
    format!("{value:.1}")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn lines<'a, X, Y>(
    area: &Area<'a>,
    (title, x, y): (&str, &str, &str),
    x_range: X,
    y_range: Y,
    x_label: fn(&f64) -> String,
    series: &[Series],
) -> Drawn<'a>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .margin_right(40)
        .x_label_area_size(46)
        .y_label_area_size(60)
        .build_cartesian_2d(x_range, y_range)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&x_label)
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 14))
        .draw()?;
    let papers = series.iter().filter(|s| s.paper).count();
    let mut measured = 0;
    let mut paper = 0;
    for s in series {
        if s.paper {
            // A line of the paper has the colour of the measured line that it belongs to.
            let colour =
                if papers * 2 == series.len() { COLOURS[paper % COLOURS.len()] } else { BLACK };
            paper += 1;
            let style = colour.mix(0.6).stroke_width(2);
            let line = DashedLineSeries::new(s.points.iter().copied(), 6, 5, style);
            chart
                .draw_series(line)?
                .label(s.name.as_str())
                .legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 18, y)], 5, 3, style));
        } else {
            let style = COLOURS[measured % COLOURS.len()].stroke_width(2);
            measured += 1;
            chart.draw_series(s.points.iter().map(|p| Circle::new(*p, 3, style.filled())))?;
            let line = LineSeries::new(s.points.iter().copied(), style);
            chart
                .draw_series(line)?
                .label(s.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()
}

fn stacked<'a>(
    area: &Area<'a>,
    title: &str,
    y: &str,
    parts: &[String],
    bars: &[(String, Vec<f64>)],
) -> Drawn<'a> {
    let highest = bars.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .margin_right(40)
        .x_label_area_size(46)
        .y_label_area_size(60)
        .build_cartesian_2d(
            (0..bars.len().saturating_sub(1)).into_segmented(),
            0.0..highest.max(1e-9) * 1.3,
        )?;
    let label = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(i) => bars.get(*i).map_or(String::new(), |(label, _)| label.clone()),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(bars.len())
        .x_label_formatter(&label)
        .y_desc(y)
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 13))
        .draw()?;
    for (part, name) in parts.iter().enumerate() {
        let colour = COLOURS[part % COLOURS.len()];
        let boxes = bars.iter().enumerate().map(|(i, (_, heights))| {
            let below: f64 = heights[..part].iter().sum();
            let corners = [
                (SegmentValue::Exact(i), below),
                (SegmentValue::Exact(i + 1), below + heights[part]),
            ];
            let mut bar = Rectangle::new(corners, colour.filled());
            bar.set_margin(0, 0, 22, 22);
            bar
        });
        chart
            .draw_series(boxes)?
            .label(name.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_name_their_series() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.svg");
        let series = |name: &str, paper| Series {
            name: name.into(),
            points: vec![(8.0, 2.0), (64.0, 1.5)],
            paper,
        };
        let title = "A title".to_string();
        let x = "bytes".to_string();
        let y = "ratio".to_string();
        let series = vec![series("measured line", false), series("the paper", true)];
        draw(&Chart::Lines { title, x, y, sizes: true, series }, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("measured line") && text.contains("the paper") && text.contains("64 B")
        );
        let bars = vec![("one".to_string(), vec![1.0, 2.0]), ("two".to_string(), vec![0.5, 0.1])];
        let parts = vec!["below".to_string(), "above".to_string()];
        draw(&Chart::Bars { title: "b".into(), y: "s".into(), parts, bars }, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("above") && text.contains("two") && text.matches("<rect").count() >= 5
        );
    }
}
