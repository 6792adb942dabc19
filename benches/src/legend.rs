//! Where a legend hides nothing.
use plotters::chart::SeriesLabelPosition;
use std::ops::Range;

/// Pixels between the axes of a figure, about.
const PLOT: (f64, f64) = (600.0, 350.0);
/// Pixels of a letter, of a line of text, and of what surrounds the text.
const LETTER: f64 = 7.5;
const LINE: f64 = 19.0;
const AROUND: (f64, f64) = (60.0, 24.0);
/// Places of a line between two of its points.
const STEPS: u32 = 16;

/// A place for the names of lines, and how far the axis must reach downwards for it.
///
/// Both axes are logarithmic, `lines` the points of each line.
pub(crate) fn place(
    names: &[String],
    lines: &[Vec<(f64, f64)>],
    x: &Range<f64>,
    y: Range<f64>,
) -> (SeriesLabelPosition, Range<f64>) {
    let letters = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let width = (letters as f64 * LETTER + AROUND.0) / PLOT.0;
    let height = (names.len() as f64 * LINE + AROUND.1) / PLOT.1;
    let drawn: Vec<(f64, f64)> = lines.iter().flat_map(|line| along(line, x, &y)).collect();
    let is_free = |columns: Range<f64>, rows: Range<f64>| {
        !drawn.iter().any(|(at, up)| columns.contains(at) && rows.contains(up))
    };
    let (left, right) = (-0.1..width, 1.0 - width..1.1);
    let (low, high) = (-0.1..height, 1.0 - height..1.1);
    let corners = [
        (SeriesLabelPosition::LowerRight, &right, &low),
        (SeriesLabelPosition::UpperLeft, &left, &high),
        (SeriesLabelPosition::LowerLeft, &left, &low),
        (SeriesLabelPosition::UpperRight, &right, &high),
    ];
    let free =
        corners.into_iter().find(|(_, columns, rows)| is_free((*columns).clone(), (*rows).clone()));
    match free {
        Some((place, ..)) => (place, y),
        // Below everything.
        None => {
            let share = height.min(0.6);
            let more = (y.end / y.start).powf(share / (1.0 - share));
            (SeriesLabelPosition::LowerRight, y.start / more..y.end)
        }
    }
}

/// Places along a line, as shares of both axes.
fn along(line: &[(f64, f64)], x: &Range<f64>, y: &Range<f64>) -> Vec<(f64, f64)> {
    let share = |value: f64, axis: &Range<f64>| {
        (value.ln() - axis.start.ln()) / (axis.end.ln() - axis.start.ln())
    };
    let points: Vec<(f64, f64)> =
        line.iter().map(|(at, up)| (share(*at, x), share(*up, y))).collect();
    let between = points.windows(2).flat_map(|ends| {
        let [(x0, y0), (x1, y1)] = [ends[0], ends[1]];
        (0..STEPS).map(move |step| {
            let way = f64::from(step) / f64::from(STEPS);
            (x0 + (x1 - x0) * way, y0 + (y1 - y0) * way)
        })
    });
    between.chain(points.last().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(lines: &[Vec<(f64, f64)>]) -> (SeriesLabelPosition, Range<f64>) {
        place(&["a name".to_owned()], lines, &(1.0..1000.0), 1.0..1000.0)
    }

    #[test]
    fn a_free_corner_is_taken() {
        let rising = vec![(2.0, 2.0), (500.0, 500.0)];
        assert!(matches!(placed(&[rising]), (SeriesLabelPosition::LowerRight, _)));
        let low = vec![(2.0, 2.0), (500.0, 2.0)];
        assert!(matches!(placed(&[low]), (SeriesLabelPosition::UpperLeft, _)));
    }

    #[test]
    fn without_one_there_is_more_room_below() {
        let low = vec![(2.0, 2.0), (500.0, 2.0)];
        let high = vec![(2.0, 900.0), (500.0, 900.0)];
        let (place, y) = placed(&[low, high]);
        assert!(matches!(place, SeriesLabelPosition::LowerRight));
        assert!(y.start < 0.7 && y.end == 1000.0, "{y:?}");
    }
}
