//! Line plots with logarithmic axes, as inline SVG.

use super::summary::Figure;
use std::fmt::Write;

/// One line of a plot.
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Values of x with the figure there.
    pub points: Vec<(f64, Figure)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 40.0;
/// Told apart by people who don't see all colours (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];

struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).max(1e-3);
        let high = values.fold(0.0, f64::max).max(low * 2.0);
        Self { low: low.log10() - 0.05, high: high.log10() + 0.05, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(1e-3).log10() - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        let decades = (self.low.floor() as i32)..=(self.high.ceil() as i32);
        let all = decades.flat_map(|d| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(d)));
        all.filter(|t| (self.low..=self.high).contains(&t.log10())).collect()
    }
}

/// A number as people write it.
pub fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", trim(v / 1e6)),
        v if v >= 1e3 => format!("{} k", trim(v / 1e3)),
        v => trim(v),
    }
}

fn trim(value: f64) -> String {
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A plot; empty when there is nothing to show.
pub fn plot(title: &str, x_title: &str, y_title: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|s| &s.points);
    if points().next().is_none() {
        return String::new();
    }
    let x = Axis::over(points().map(|p| p.0), LEFT, WIDTH - RIGHT);
    let y = Axis::over(points().flat_map(|p| [p.1.low, p.1.high]), HEIGHT - BOTTOM, TOP);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\"><text class=\"t\" x=\"{LEFT}\" \
         y=\"16\">{title}</text>"
    );
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            out,
            "<line class=\"g\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{b:.1}\"/><text class=\"l\" \
             text-anchor=\"middle\" x=\"{at:.1}\" y=\"{l:.1}\">{t}</text>",
            b = HEIGHT - BOTTOM,
            l = HEIGHT - BOTTOM + 14.0,
            t = short(tick),
        );
    }
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = write!(
            out,
            "<line class=\"g\" x1=\"{LEFT}\" x2=\"{r:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"l\" \
             text-anchor=\"end\" x=\"{l:.1}\" y=\"{b:.1}\">{t}</text>",
            r = WIDTH - RIGHT,
            l = LEFT - 5.0,
            b = at + 4.0,
            t = short(tick),
        );
    }
    let _ = write!(
        out,
        "<text class=\"l\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{x_title}</text><text class=\"l\" x=\"4\" \
         y=\"{:.1}\">{y_title}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0,
        TOP - 2.0,
    );
    for (i, one) in series.iter().filter(|s| !s.points.is_empty()).enumerate() {
        line(&mut out, one, i, &x, &y);
    }
    out.push_str("</svg>");
    out
}

fn line(out: &mut String, series: &Series, i: usize, x: &Axis, y: &Axis) {
    let colour = COLOURS[i % COLOURS.len()];
    let path: Vec<_> =
        series.points.iter().map(|(at, f)| format!("{:.1},{:.1}", x.at(*at), y.at(f.median))).collect();
    let _ = write!(
        out,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
        path.join(" ")
    );
    for (at, figure) in &series.points {
        let (cx, low, high) = (x.at(*at), y.at(figure.low), y.at(figure.high));
        let _ = write!(
            out,
            "<line stroke=\"{colour}\" x1=\"{cx:.1}\" x2=\"{cx:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/><circle \
             fill=\"{colour}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\"><title>{name}: {m} ({l}–{h})</title></circle>",
            cy = y.at(figure.median),
            name = series.name,
            m = short(figure.median),
            l = short(figure.low),
            h = short(figure.high),
        );
    }
    let at = TOP + 14.0 + 18.0 * i as f64;
    let left = WIDTH - RIGHT + 12.0;
    let _ = write!(
        out,
        "<line stroke=\"{colour}\" stroke-width=\"3\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text \
         class=\"l\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        left + 18.0,
        left + 23.0,
        at + 4.0,
        series.name,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_balanced_and_inside_its_frame() {
        let figure = Figure { median: 5.0, low: 4.0, high: 90.0 };
        let series = [Series { name: "a".into(), points: vec![(5e4, figure), (1e6, figure)] }];
        let svg = plot("t", "x", "y", &series);
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(short(1_000_000.0), "1 M");
        assert_eq!(short(0.61), "0.61");
    }
}
