//! Charts as inline SVG. Axis labels are HTML beside the drawing, so that they keep their size on a narrow screen.

use std::fmt::Write as _;

use super::html::{compact, escaped};

/// The height of the drawing; its width is 1 per period.
const HEIGHT: f64 = 100.0;
const LABELS_X: usize = 7;

/// One series: its CSS class, its name and a value per period.
pub(super) struct Series {
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) values: Vec<u64>,
}

/// Stacked bars, one per period.
pub(super) fn bars(periods: &[String], series: &[Series], unit: &str) -> String {
    let sum = |position: usize| series.iter().map(|each| each.values[position]).sum::<u64>();
    let top = axis_end((0..periods.len()).map(sum).max().unwrap_or(0));
    let mut drawing = String::new();
    for (position, period) in periods.iter().enumerate() {
        if sum(position) == 0 {
            continue;
        }
        let _ = write!(drawing, "<g><title>{}</title>", tooltip(period, series, position, unit));
        let mut y = HEIGHT;
        for each in series.iter().filter(|each| each.values[position] > 0) {
            let height = share(each.values[position], top) * HEIGHT;
            y -= height;
            let class = each.class;
            let _ = write!(
                drawing,
                "<rect class=\"{class}\" x=\"{position}.05\" width=\"0.9\" y=\"{y:.3}\" height=\"{height:.3}\"/>"
            );
        }
        drawing.push_str("</g>");
    }
    frame(&drawing, periods, series, top, unit)
}

/// One line per series. A period without a value interrupts it.
pub(super) fn lines(periods: &[String], series: &[Series], unit: &str) -> String {
    let largest = series.iter().flat_map(|each| each.values.iter()).copied().max().unwrap_or(0);
    let top = axis_end(largest);
    let mut drawing = String::new();
    for each in series {
        let mut path = String::new();
        let mut is_drawing = false;
        for (position, value) in each.values.iter().enumerate() {
            if *value > 0 {
                let (command, y) = (if is_drawing { 'L' } else { 'M' }, HEIGHT - share(*value, top) * HEIGHT);
                // A line of no length, so that a single value is visible as a dot.
                let dot = if is_drawing { "" } else { "h0.01" };
                let _ = write!(path, "{command}{position}.5 {y:.3}{dot}");
            }
            is_drawing = *value > 0;
        }
        let _ = write!(drawing, "<path class=\"{}\" d=\"{path}\"/>", each.class);
    }
    for (position, period) in periods.iter().enumerate() {
        if series.iter().any(|each| each.values[position] > 0) {
            let text = tooltip(period, series, position, unit);
            let _ = write!(
                drawing,
                "<rect class=\"hover\" x=\"{position}\" width=\"1\" y=\"0\" height=\"{HEIGHT}\"><title>{text}</title></rect>"
            );
        }
    }
    frame(&drawing, periods, series, top, unit)
}

/// The drawing with its axes and legend.
fn frame(drawing: &str, periods: &[String], series: &[Series], top: u64, unit: &str) -> String {
    let mut out = String::from("<figure class=\"chart\"><figcaption>");
    for each in series {
        let _ = write!(out, "<span class=\"key {}\">{}</span>", each.class, each.name);
    }
    let (half, top_label) = (compact(top / 2), compact(top));
    let _ = write!(
        out,
        "</figcaption><div class=\"plot\"><div class=\"y\"><span>{top_label}{unit}</span><span>{half}{unit}</span>\
         <span>0</span></div><svg viewBox=\"0 0 {} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\">\
         <path class=\"grid\" d=\"M0 0H{width}M0 50H{width}M0 100H{width}\"/>{drawing}</svg></div><div class=\"x\">",
        periods.len(),
        width = periods.len(),
    );
    for label in labels(periods) {
        let _ = write!(out, "<span>{}</span>", escaped(label));
    }
    out.push_str("</div></figure>");
    out
}

fn tooltip(period: &str, series: &[Series], position: usize, unit: &str) -> String {
    let values = series.iter().map(|each| format!("{} {}{unit}", each.name, each.values[position]));
    escaped(&format!("{period}: {}", values.collect::<Vec<_>>().join(", ")))
}

/// Some periods, evenly spaced.
fn labels(periods: &[String]) -> Vec<&str> {
    let last = periods.len().saturating_sub(1);
    let count = LABELS_X.min(periods.len());
    (0..count).map(|number| &*periods[number * last / count.saturating_sub(1).max(1)]).collect()
}

/// The next value of 1, 2, 5, 10, 20, 50 and so on that is even, for a label at its half.
fn axis_end(largest: u64) -> u64 {
    let mut step = 1;
    loop {
        for factor in [2_u64, 4, 10] {
            let end = step * factor;
            if end >= largest || step > u64::MAX / 100 {
                return end;
            }
        }
        step *= 10;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a pixel needs no exact count")]
fn share(value: u64, of: u64) -> f64 {
    value as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_ends_at_a_round_number() {
        let ends = [0, 1, 3, 4, 5, 11, 99, 100, 101, 4_001].map(axis_end);
        assert_eq!(ends, [2, 2, 4, 4, 10, 20, 100, 100, 200, 10_000]);
        assert!(axis_end(u64::MAX) > 0);
    }

    #[test]
    fn labels_are_spread_over_all_periods() {
        let periods: Vec<String> = (0..24).map(|hour| format!("{hour}")).collect();
        assert_eq!(labels(&periods), ["0", "3", "7", "11", "15", "19", "23"]);
        assert_eq!(labels(&periods[..2]), ["0", "1"]);
        assert_eq!(labels(&periods[..1]), ["0"]);
        assert_eq!(labels(&[]), [""; 0]);
    }

    #[test]
    fn names_in_charts_are_escaped() {
        let series = [Series { class: "a", name: "<b>", values: vec![1] }];
        let chart = bars(&["\"<x>&".to_owned()], &series, "");
        assert!(!chart.contains("<x>") && chart.contains("&quot;&lt;x&gt;&amp;"), "{chart}");
    }
}
