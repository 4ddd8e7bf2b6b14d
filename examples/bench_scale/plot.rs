//! A plot of lines by the number of files, as SVG. Both axes are logarithmic.

use std::fmt::Write as _;

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

pub struct Panel<'a> {
    pub title: &'a str,
    pub lines: &'a [Line],
}

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 260.0;
/// A panel with its legend.
const PANEL: f64 = 500.0;
const COLOURS: [&str; 8] = ["#06c", "#c50", "#2a2", "#a2a", "#888", "#b22", "#099", "#b80"];

/// Draws the panels next to each other.
pub fn svg(panels: &[Panel<'_>]) -> String {
    let width = PANEL * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='-60 -40 {width} {}' font-family='sans-serif' font-size='12'>\n\
         <rect x='-60' y='-40' width='{width}' height='{0}' fill='white'/>\n",
        HEIGHT + 90.0
    );
    for (n, panel) in panels.iter().enumerate() {
        writeln!(svg, "<g transform='translate({} 0)'>", n as f64 * PANEL).unwrap();
        draw(&mut svg, panel);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

/// The powers of ten around some values.
fn range(values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (least, most) =
        values.fold((f64::MAX, 1e-9), |(least, most): (f64, f64), value| (least.min(value), most.max(value)));
    let from = (least.min(most).log10() + 1e-9).floor() as i32;
    (from, ((most.log10() - 1e-9).ceil() as i32).max(from + 1))
}

fn draw(svg: &mut String, panel: &Panel<'_>) {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let (x, y) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
    let at = |value: f64, (from, to): (i32, i32), length: f64| {
        (value.log10() - f64::from(from)) / f64::from(to - from) * length
    };
    writeln!(svg, "<text x='-50' y='-20'>{}</text>", panel.title).unwrap();
    for power in x.0..=x.1 {
        let x = at(10f64.powi(power), x, WIDTH);
        writeln!(
            svg,
            "<path d='M{x:.1} 0V{HEIGHT}' stroke='#ddd'/><text x='{:.1}' y='{}'>1e{power}</text>",
            x - 10.0,
            HEIGHT + 18.0
        )
        .unwrap();
    }
    for power in y.0..=y.1 {
        let y = HEIGHT - at(10f64.powi(power), y, HEIGHT);
        let name = 10f64.powi(power);
        writeln!(
            svg,
            "<path d='M0 {y:.1}H{WIDTH}' stroke='#ddd'/><text x='-45' y='{:.1}'>{name}</text>",
            y + 4.0
        )
        .unwrap();
    }
    writeln!(svg, "<text x='{}' y='{}'>files</text>", WIDTH - 20.0, HEIGHT + 36.0).unwrap();
    for (n, line) in panel.lines.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let mut path = String::new();
        for (files, value) in &line.points {
            let (x, y) = (at(*files, x, WIDTH), HEIGHT - at(*value, y, HEIGHT));
            write!(path, "{x:.1},{y:.1} ").unwrap();
            writeln!(svg, "<circle cx='{x:.1}' cy='{y:.1}' r='2.5' fill='{colour}'/>").unwrap();
        }
        writeln!(svg, "<polyline fill='none' stroke='{colour}' points='{}'/>", path.trim_end()).unwrap();
        let y = 12.0 + 18.0 * n as f64;
        writeln!(svg, "<text x='{}' y='{y}' fill='{colour}'>{}</text>", WIDTH + 12.0, line.name).unwrap();
    }
}
