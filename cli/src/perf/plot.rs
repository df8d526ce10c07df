//! Draws latency, rate and bandwidth over the message size as SVG, with one line per transport.

use super::figures::Outcome;
use super::job::Job;
use crate::args::Test;
use crate::error::{Error, local};
use crate::output::EMULATOR;
use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// One point of the drawing.
#[derive(Debug, Clone)]
pub(super) struct Point {
    /// The line of the point.
    series: String,
    test: Test,
    size: f64,
    /// Microseconds.
    latency: f64,
    /// Of the latency, the same.
    p99: f64,
    /// Messages per second.
    rate: f64,
    /// Bytes per second.
    bandwidth: f64,
    emulator: bool,
}

impl Point {
    pub(super) fn new(job: &Job, outcome: &Outcome) -> Self {
        Self {
            series: format!("{} {}", job.choice.transport, job.choice.device),
            test: job.plan.test,
            size: job.plan.size() as f64,
            latency: outcome.figures.typical,
            p99: outcome.percentiles.p99,
            rate: outcome.figures.rate,
            bandwidth: outcome.figures.bandwidth,
            emulator: job.choice.is_emulator(),
        }
    }
}

/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"];
/// Pixels: the plot area of a panel, its margins, and the lines of the legend.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 50.0;
const LINE: f64 = 18.0;

/// Checks that the drawing can be written, before anything is measured.
pub(super) fn check(file: &Path) -> Result<(), Error> {
    let is_new = !file.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .and_then(|_| if is_new { fs::remove_file(file) } else { Ok(()) })
        .map_err(|error| local(cannot_write(file), &error))
}

/// Writes the drawing to a file.
pub(super) fn write(file: &Path, points: &[Point]) -> Result<(), Error> {
    let what = || cannot_write(file);
    let drawing = draw(points, &place())
        .ok_or_else(|| Error::Usage(format!("{}: nothing was measured", what())))?;
    fs::write(file, drawing).map_err(|error| local(what(), &error))
}

fn cannot_write(file: &Path) -> String {
    format!("cannot write the plot '{}'", file.display())
}

/// The program, the host and the day of the measurement.
fn place() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = date((seconds / 86400) as i64);
    format!("barewire {} on {host}, {year}-{month:02}-{day:02}", env!("CARGO_PKG_VERSION"))
}

/// The date of a day, counted from 1970-01-01, in the Gregorian calendar.
fn date(days: i64) -> (i64, i64, i64) {
    // Years start in March here, so that the leap day is the last of its year.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// The drawing, if there is anything to draw.
fn draw(points: &[Point], place: &str) -> Option<String> {
    let mut series: Vec<&str> = Vec::new();
    for point in points {
        if !series.contains(&point.series.as_str()) {
            series.push(&point.series);
        }
    }
    // Latency is that of a ping-pong if there is one, rate that of a stream.
    let of_kind = |stream: bool| -> Vec<&Point> {
        let of_kind: Vec<&Point> =
            points.iter().filter(|point| point.test.is_stream() == stream).collect();
        if of_kind.is_empty() { points.iter().collect() } else { of_kind }
    };
    let streams_only = points.iter().all(|point| point.test.is_stream());
    let time = if streams_only { "time per message (usec)" } else { "latency (usec)" };
    let mut panels = vec![
        Panel::new(time, &of_kind(false), |point| (point.latency, point.p99))?,
        Panel::new("messages per second", &of_kind(true), |point| (point.rate, point.rate))?,
    ];
    if points.iter().any(|point| point.test.is_stream()) {
        let bandwidth = |point: &Point| (point.bandwidth, point.bandwidth);
        panels.push(Panel::new("bytes per second", &of_kind(true), bandwidth)?);
    }
    let (across, down) = (LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    let emulator = points.iter().any(|point| point.emulator);
    let mut notes =
        vec![format!("{place}; bars reach from the median of the times to their 99th percentile")];
    notes.extend(emulator.then(|| format!("soft0: {EMULATOR}")));
    let lines = series.len() + notes.len();
    let whole = (across * panels.len() as f64, down + LINE * (lines as f64 + 1.0));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n<title>{2}</title>\n\
         <rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
        whole.0,
        whole.1,
        escaped(&heading(&panels, &series))
    );
    for (at, panel) in panels.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate({},{TOP})\">", LEFT + across * at as f64);
        panel.axes(&mut svg);
        for (name, colour) in series.iter().zip(COLOURS.iter().cycle()) {
            panel.line(&mut svg, name, colour);
        }
        svg.push_str("</g>\n");
    }
    let row = |at: usize| down + LINE * (at as f64 + 0.5);
    for ((at, name), colour) in series.iter().enumerate().zip(COLOURS.iter().cycle()) {
        let y = row(at);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{2}\" y=\"{3}\">{4}</text>",
            y - 4.0,
            LEFT + 24.0,
            LEFT + 32.0,
            y,
            escaped(name)
        );
    }
    for (at, note) in notes.iter().enumerate() {
        let y = row(series.len() + at);
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y}\">{}</text>", escaped(note));
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// What the drawing shows, for readers of its text.
fn heading(panels: &[Panel<'_>], series: &[&str]) -> String {
    let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
    format!("{} over the message size, of {}", titles.join(", "), series.join(", "))
}

/// One of the diagrams.
struct Panel<'a> {
    title: String,
    /// Series, size, value, and the end of the bar at the value.
    points: Vec<(&'a str, f64, f64, f64)>,
    x: Axis,
    y: Axis,
}

/// A logarithmic axis between two powers of its base.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    base: f64,
    first: i32,
    last: i32,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, base: f64) -> Option<Self> {
        let (mut least, mut most) = (f64::INFINITY, 0.0f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (least, most) = (least.min(value), most.max(value));
        }
        if most == 0.0 {
            return None;
        }
        let first = least.log(base).floor() as i32;
        // An axis with a single value still needs two ends.
        let last = (most.log(base).ceil() as i32).max(first + 1);
        Some(Self { base, first, last })
    }

    /// The position of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        (value.log(self.base) - f64::from(self.first)) / f64::from(self.last - self.first)
    }

    /// The powers with a line and a label, about ten at most: the first, the last, and even steps
    /// between.
    fn ticks(self) -> Vec<i32> {
        let step = (self.last - self.first) / 10 + 1;
        let mut powers: Vec<i32> = (self.first..self.last).step_by(step as usize).collect();
        if powers.len() > 1 && powers.last().is_some_and(|power| self.last - power < step) {
            powers.pop();
        }
        powers.push(self.last);
        powers
    }
}

impl<'a> Panel<'a> {
    fn new(unit: &str, points: &[&'a Point], value: fn(&Point) -> (f64, f64)) -> Option<Self> {
        let mut tests: Vec<&str> = Vec::new();
        for point in points {
            if !tests.contains(&point.test.name()) {
                tests.push(point.test.name());
            }
        }
        let title = format!("{unit}: {}", tests.join(", "));
        let points: Vec<_> = points
            .iter()
            .map(|point| {
                let (value, end) = value(point);
                (point.series.as_str(), point.size.max(1.0), value, end.max(value))
            })
            .filter(|(_, _, value, _)| *value > 0.0)
            .collect();
        let x = Axis::over(points.iter().map(|(_, size, _, _)| *size), 2.0)?;
        let y = Axis::over(points.iter().flat_map(|(_, _, value, end)| [*value, *end]), 10.0)?;
        Some(Self { title, points, x, y })
    }

    fn axes(&self, svg: &mut String) {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"-14\" text-anchor=\"middle\" font-size=\"14\">{}</text>",
            WIDTH / 2.0,
            escaped(&self.title)
        );
        for power in self.x.ticks() {
            let x = self.x.place(2f64.powi(power)) * WIDTH;
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{HEIGHT}\" stroke=\"#dddddd\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT + 18.0,
                binary(power)
            );
        }
        for power in self.y.ticks() {
            let y = (1.0 - self.y.place(10f64.powi(power))) * HEIGHT;
            let _ = writeln!(
                svg,
                "<line x1=\"0\" y1=\"{y:.1}\" x2=\"{WIDTH}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
                 <text x=\"-8\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                y + 4.0,
                decimal(power)
            );
        }
        let _ = writeln!(
            svg,
            "<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"black\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">message size (bytes)</text>",
            WIDTH / 2.0,
            HEIGHT + 38.0
        );
    }

    fn line(&self, svg: &mut String, series: &str, colour: &str) {
        let of_series = self.points.iter().filter(|(name, ..)| *name == series);
        let height = |value: f64| (1.0 - self.y.place(value)) * HEIGHT;
        let places: Vec<(f64, f64, f64)> = of_series
            .map(|(_, size, value, end)| {
                (self.x.place(*size) * WIDTH, height(*value), height(*end))
            })
            .collect();
        let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y, end) in places {
            if end < y {
                let _ = writeln!(
                    svg,
                    "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{x:.1}\" y2=\"{end:.1}\" stroke=\"{colour}\"/>"
                );
            }
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
        }
    }
}

/// A power of two in the notation of sizes: `64K`.
fn binary(power: i32) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let unit = (power.max(0) / 10).min(4);
    format!("{}{}", 2f64.powi(power - unit * 10), UNITS[unit as usize])
}

/// A power of ten in decimal notation: `0.01`, `100 k`.
fn decimal(power: i32) -> String {
    match power {
        9.. => format!("{} G", 10f64.powi(power - 9)),
        6.. => format!("{} M", 10f64.powi(power - 6)),
        3.. => format!("{} k", 10f64.powi(power - 3)),
        _ => format!("{}", 10f64.powi(power)),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(series: &str, test: Test, size: f64, latency: f64) -> Point {
        let rate = 1e6 / latency;
        let (p99, bandwidth) = (latency * 2.0, rate * size);
        Point { series: series.into(), test, size, latency, p99, rate, bandwidth, emulator: false }
    }

    #[test]
    fn a_line_for_each_transport_in_each_half() {
        let points = [
            point("shm <memory>", Test::AmLat, 8.0, 0.5),
            point("shm <memory>", Test::AmLat, 64.0, 0.7),
            point("shm <memory>", Test::AmBw, 8.0, 0.1),
            point("tcp", Test::AmLat, 8.0, 20.0),
        ];
        let svg = draw(&points, "barewire on <host>").unwrap();
        // Two transports in each of three panels.
        assert_eq!(svg.matches("<polyline").count(), 6);
        // Three latencies with bars, one rate and one bandwidth.
        assert_eq!(svg.matches("<circle").count(), 5);
        assert!(
            svg.contains("barewire on &lt;host&gt;") && svg.contains("<title>latency"),
            "{svg}"
        );
        assert!(
            svg.contains("shm &lt;memory&gt;") && svg.contains("latency (usec): am_lat"),
            "{svg}"
        );
        assert!(
            svg.contains("per second: am_bw") && !svg.contains("NaN") && !svg.contains("inf"),
            "{svg}"
        );
    }

    #[test]
    fn nothing_and_one_point() {
        assert!(draw(&[], "").is_none());
        assert!(draw(&[point("a", Test::Get, 8.0, 0.0)], "").is_none());
        let svg = draw(&[point("a", Test::Get, 8.0, 1.0)], "").unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn axes_hold_their_values() {
        let axis = Axis::over([8.0, 65536.0].into_iter(), 2.0).unwrap();
        assert_eq!((axis.first, axis.last), (3, 16));
        assert_eq!(axis.ticks(), [3, 5, 7, 9, 11, 13, 16]);
        assert_eq!(Axis { base: 10.0, first: -2, last: 1 }.ticks(), [-2, -1, 0, 1]);
        assert!(axis.place(8.0).abs() < 1e-9 && (axis.place(65536.0) - 1.0).abs() < 1e-9);
        assert_eq!(
            (binary(3), binary(16), decimal(5), decimal(-1)),
            ("8".into(), "64K".into(), "100 k".into(), "0.1".into())
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(20_089), (2025, 1, 1));
        assert_eq!(date(-1), (1969, 12, 31));
    }
}
