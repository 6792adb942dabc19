//! Figures: one for each kind of row that was measured over several sizes.
use crate::Result;
use crate::legend;
use crate::record::{Row, Summary, Unit};
use crate::table::{bytes, time};
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

/// Pixels of a figure.
const SIZE: (u32, u32) = (720, 460);
/// Figures beside one another in a file.
const COLUMNS: usize = 2;
/// Ours first; told apart by people who do not see red and green as well.
const OURS: RGBColor = RGBColor(0, 90, 181);
const LIMITS: [RGBColor; 3] =
    [RGBColor(60, 60, 60), RGBColor(140, 140, 140), RGBColor(190, 190, 190)];
const PEERS: [RGBColor; 4] =
    [RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167), RGBColor(230, 159, 0)];

/// The largest of a figure's sizes is at least so many times the smallest.
const LEAST_SPAN: u64 = 4;

/// The rows of one kind, by what grows along the axis.
pub(crate) struct Family<'a> {
    pub(crate) title: String,
    axis: Axis,
    rows: Vec<&'a Row>,
}

/// What grows to the right.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Bytes,
    Ranks,
}

/// Whether a line is ours, a limit's or a peer's, which says how it is drawn.
#[derive(Clone, Copy, PartialEq)]
enum Whose {
    Ours,
    Limit(usize),
    Peer(usize),
}

/// A line through points of size and time.
struct Line {
    names: Vec<String>,
    whose: Whose,
    points: Vec<(f64, Summary)>,
}

impl<'a> Family<'a> {
    /// All that were measured over sizes that differ enough to be drawn, and over ranks. Rows of
    /// several launches must be made one before.
    pub(crate) fn all(rows: &'a [Row]) -> Vec<Self> {
        let mut families: Vec<Self> = Vec::new();
        for row in rows.iter().filter(|row| row.unit == Unit::Nanoseconds) {
            for axis in [Axis::Bytes, Axis::Ranks] {
                let Some(title) = axis.title(row) else { continue };
                let same = |family: &&mut Self| family.axis == axis && family.title == title;
                match families.iter_mut().find(same) {
                    Some(family) => family.rows.push(row),
                    None => families.push(Self { title, axis, rows: vec![row] }),
                }
            }
        }
        families.retain(Self::is_wide);
        for family in &mut families {
            family.rows.sort_by_key(|row| family.axis.at(row));
        }
        families
    }

    fn is_wide(&self) -> bool {
        let all = || self.rows.iter().filter_map(|row| self.axis.at(row));
        let ends = all().min().zip(all().max());
        ends.is_some_and(|(least, most)| most >= LEAST_SPAN * least)
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines =
            vec![Line { names: vec!["rma".into()], whose: Whose::Ours, points: vec![] }];
        for row in &self.rows {
            let Some(at) = self.axis.at(row) else { continue };
            let at = at as f64;
            lines[0].points.push((at, row.ours));
            for (index, limit) in row.limits.iter().enumerate() {
                add(&mut lines, Whose::Limit(index), &limit.name, at, limit.summary);
            }
            for peer in &row.peers {
                let peers = lines.iter().filter(|line| matches!(line.whose, Whose::Peer(_)));
                let known = peers.clone().find(|line| line.names[0] == peer.name);
                let whose = known.map_or(Whose::Peer(peers.count()), |line| line.whose);
                add(&mut lines, whose, &peer.name, at, peer.summary);
            }
        }
        lines
    }
}

impl Axis {
    fn at(self, row: &Row) -> Option<u64> {
        match self {
            Self::Bytes => row.bytes,
            Self::Ranks => Some(row.ranks.into()),
        }
    }

    /// What all rows of a family have in common.
    fn title(self, row: &Row) -> Option<String> {
        let name = format!("{}: {}", row.benchmark, row.name);
        match (self, row.bytes) {
            (Self::Bytes, None) => None,
            (Self::Bytes, Some(_)) => Some(format!("{name}, {} ranks", row.ranks)),
            (Self::Ranks, None) => Some(name),
            (Self::Ranks, Some(count)) => Some(format!("{name}, {}B", bytes(count))),
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Bytes => "bytes of an operation",
            Self::Ranks => "ranks",
        }
    }
}

/// Adds a point to a line, and the line if it is the first. The limit of small sizes may be
/// another one than that of large ones: both are one line, with both names.
fn add(lines: &mut Vec<Line>, whose: Whose, name: &str, at: f64, summary: Summary) {
    let index = lines.iter().position(|line| line.whose == whose).unwrap_or_else(|| {
        lines.push(Line { names: Vec::new(), whose, points: Vec::new() });
        lines.len() - 1
    });
    let line = &mut lines[index];
    if line.names.iter().all(|known| known != name) {
        line.names.push(name.to_owned());
    }
    line.points.push((at, summary));
}

impl Line {
    fn medians(&self) -> impl Iterator<Item = (f64, f64)> + Clone {
        self.points.iter().map(|(at, summary)| (*at, summary.median))
    }

    fn name(&self) -> String {
        let names = self.names.join(", ");
        if matches!(self.whose, Whose::Limit(_)) { format!("limit: {names}") } else { names }
    }
}

impl Whose {
    fn color(self) -> RGBColor {
        match self {
            Self::Ours => OURS,
            Self::Limit(index) => LIMITS[index % LIMITS.len()],
            Self::Peer(index) => PEERS[index % PEERS.len()],
        }
    }

    fn stroke(self) -> ShapeStyle {
        self.color().stroke_width(if matches!(self, Self::Ours) { 3 } else { 2 })
    }

    /// Lengths of the dashes and of what is between them; limits only.
    fn dashes(self) -> Option<(i32, i32)> {
        matches!(self, Self::Limit(_)).then_some((7, 5))
    }
}

/// Writes every figure into one file.
pub(crate) fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let svg = sheet(&Family::all(rows))?;
    std::fs::write(path, svg).map_err(|error| format!("writing {}: {error}", path.display()).into())
}

/// Every figure, side by side, as SVG.
pub(crate) fn sheet(families: &[Family<'_>]) -> Result<String> {
    if families.is_empty() {
        return Err("there is no figure to draw: no row was measured over several sizes".into());
    }
    let columns = COLUMNS.min(families.len());
    let lines = families.len().div_ceil(columns);
    let size = (SIZE.0 * columns as u32, SIZE.1 * lines as u32);
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    area.fill(&WHITE).map_err(drawing)?;
    for (part, family) in area.split_evenly((lines, columns)).iter().zip(families) {
        draw(part, family)?;
    }
    area.present().map_err(drawing)?;
    drop(area);
    Ok(svg)
}

/// One figure, as SVG.
pub(crate) fn figure(family: &Family<'_>) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(drawing)?;
    draw(&area, family)?;
    area.present().map_err(drawing)?;
    drop(area);
    Ok(svg)
}

fn drawing(error: impl std::fmt::Display) -> String {
    format!("drawing a figure: {error}")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(area: &Area<'_>, family: &Family<'_>) -> Result<()> {
    let lines = family.lines();
    let all: Vec<Vec<(f64, f64)>> = lines.iter().map(|line| line.medians().collect()).collect();
    let points = || all.iter().flatten();
    let x = range(points().map(|(at, _)| *at), 1.3);
    let y = range(points().map(|(_, median)| *median), 2.0);
    let names: Vec<String> = lines.iter().map(Line::name).collect();
    let (legend_at, y) = legend::place(&names, &all, &x, y);
    let noisy = if family.rows.iter().any(|row| row.noisy) { " (noisy: repeat it)" } else { "" };
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}{noisy}", family.title), ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(74)
        .build_cartesian_2d(Sizes(x), y.log_scale())
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .max_light_lines(4)
        .x_desc(family.axis.label())
        .y_desc("time of an operation, and of the middle 80 %")
        .x_label_formatter(&|at| bytes(*at as u64))
        .y_label_formatter(&|ns| tick(*ns))
        .label_style(("sans-serif", 14))
        .light_line_style(RGBColor(238, 238, 238))
        .bold_line_style(RGBColor(215, 215, 215))
        .draw()
        .map_err(drawing)?;
    for line in &lines {
        draw_line(&mut chart, line)?;
    }
    chart
        .configure_series_labels()
        .position(legend_at)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 14))
        .draw()
        .map_err(drawing)?;
    Ok(())
}

type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Sizes, LogCoord<f64>>>;

fn draw_line(chart: &mut Chart<'_>, line: &Line) -> Result<()> {
    let whose = line.whose;
    let legend = match whose.dashes() {
        Some((length, gap)) => {
            chart.draw_series(DashedLineSeries::new(line.medians(), length, gap, whose.stroke()))
        }
        None => chart.draw_series(LineSeries::new(line.medians(), whose.stroke())),
    };
    let key = move |(x, y)| {
        let ends = if whose.dashes().is_some() { vec![(0, 8), (13, 21)] } else { vec![(0, 21)] };
        let piece = |(from, to)| vec![(x + from, y), (x + to, y)];
        let mut pieces = ends.into_iter().map(piece);
        let first = PathElement::new(pieces.next().unwrap_or_default(), whose.stroke());
        let second = PathElement::new(pieces.next().unwrap_or_default(), whose.stroke());
        EmptyElement::at((0, 0)) + first + second
    };
    legend.map_err(drawing)?.label(line.name()).legend(key);
    let spread = |(at, summary): &(f64, Summary)| {
        let ends = vec![(*at, summary.p10), (*at, summary.p90)];
        PathElement::new(ends, whose.color().stroke_width(1))
    };
    // Of peers only the extremes are known, which say nothing.
    if !matches!(whose, Whose::Peer(_)) {
        chart.draw_series(line.points.iter().map(spread)).map_err(drawing)?;
    }
    let dot = |point| Circle::new(point, 3, whose.color().filled());
    chart.draw_series(line.medians().map(dot)).map_err(drawing)?;
    Ok(())
}

/// Of all values, with some room at both ends of a logarithmic axis.
fn range(values: impl Iterator<Item = f64>, room: f64) -> Range<f64> {
    let (least, most) = values
        .fold((f64::INFINITY, 0.0f64), |(least, most), value| (least.min(value), most.max(value)));
    least / room..most * room
}

/// `10 ns` rather than `10.00 ns`. Only 1, 2 and 5 of each decade have a word: more would not fit.
fn tick(ns: f64) -> String {
    let time = time(ns).replace(".00", "");
    if time.starts_with(['1', '2', '5']) || time.starts_with("0.") { time } else { String::new() }
}

/// A logarithmic axis of sizes, with a mark at powers of two.
struct Sizes(Range<f64>);

impl ValueFormatter<f64> for Sizes {
    fn format(value: &f64) -> String {
        bytes(*value as u64)
    }
}

impl Ranged for Sizes {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (from, to) = (self.0.start.ln(), self.0.end.ln());
        let share = (value.ln() - from) / (to - from);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let (from, to) = (self.0.start.log2().ceil() as i32, self.0.end.log2().floor() as i32);
        let count = usize::try_from(to - from + 1).unwrap_or(0);
        let step = count.div_ceil(hint.max_num_points().clamp(1, 12)).max(1);
        (from..=to).step_by(step).map(|power| 2f64.powi(power)).collect()
    }

    fn range(&self) -> Range<f64> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Limit;

    fn rows() -> Vec<Row> {
        let one =
            |name: &str, bytes, ns| Row { bytes, ..Row::one("b", name, 2, Unit::Nanoseconds, ns) };
        let mut rows = vec![
            one("put", Some(4096), 40.0),
            one("put", Some(8), 8.0),
            one("alone", Some(8), 8.0),
            one("none", None, 8.0),
        ];
        for (row, name) in rows.iter_mut().zip(["memcpy", "store"]) {
            row.limits.push(Limit { name: name.into(), summary: row.ours, ratio: 1.0 });
            row.peers.push(Limit { name: "A <peer>".into(), summary: row.ours, ratio: 1.0 });
        }
        rows
    }

    #[test]
    fn a_family_has_several_sizes_in_order() {
        let rows = rows();
        let families = Family::all(&rows);
        assert_eq!(families.len(), 1);
        let sizes: Vec<_> = families[0].rows.iter().map(|row| row.bytes).collect();
        assert_eq!(sizes, [Some(8), Some(4096)]);
        let names: Vec<_> = families[0].lines().iter().map(Line::name).collect();
        assert_eq!(names, ["rma", "limit: store, memcpy", "A <peer>"]);
    }

    #[test]
    fn a_family_over_ranks_has_rows_that_differ_in_nothing_else() {
        let of = |ranks| Row::one("sync-many", "barrier", ranks, Unit::Nanoseconds, 8.0);
        let rows = [of(64), of(16), Row { bytes: Some(8), ..of(2) }];
        let families = Family::all(&rows);
        assert_eq!(families.len(), 1);
        assert_eq!(families[0].title, "sync-many: barrier");
        let ranks: Vec<_> = families[0].rows.iter().map(|row| row.ranks).collect();
        assert_eq!(ranks, [16, 64]);
    }

    #[test]
    fn marks_of_an_axis_have_short_words_and_few() {
        assert_eq!((tick(10.0), tick(2e6), tick(70.0)), ("10 ns".into(), "2 ms".into(), "".into()));
    }

    #[test]
    fn a_figure_names_its_lines() {
        let svg = figure(&Family::all(&rows())[0]).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("limit: store, memcpy"), "{svg}");
        assert!(svg.contains("A &lt;peer&gt;"), "{svg}");
        assert!(sheet(&[]).is_err());
    }
}
