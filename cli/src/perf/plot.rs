//! Draws latency, and of streams bandwidth, over the message size as SVG, with one line per
//! transport.

use super::figures::Outcome;
use super::job::Job;
use crate::error::{Error, local};
use crate::output::EMULATOR;
use crate::test::Test;
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
            bandwidth: outcome.figures.bandwidth,
            emulator: job.choice.is_emulator(),
        }
    }
}

/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"];
/// Pixels: the plot area of a panel, its margins, of which the right one has the names of the lines,
/// and the lines of text below it.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 130.0;
const BOTTOM: f64 = 50.0;
const LINE: f64 = 18.0;
const NOTE: f64 = 12.0;
/// Pixels: the room beside the first and the last point, the distance between points of the same
/// size, half the width of a bar's cap, and the height of a name.
const EDGE: f64 = 16.0;
const APART: f64 = 3.0;
const CAP: f64 = 1.5;
const NAME: f64 = 13.0;

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
    let of_kind = |stream: bool| -> Vec<&Point> {
        points.iter().filter(|point| point.test.is_stream() == stream).collect()
    };
    let latency = |point: &Point| (point.latency, point.p99);
    let bandwidth = |point: &Point| (point.bandwidth, point.bandwidth);
    let panels = [
        Panel::new("latency", time, &series, &of_kind(false), latency),
        Panel::new("bandwidth", rate, &series, &of_kind(true), bandwidth),
    ];
    let panels: Vec<Panel<'_>> = panels.into_iter().flatten().collect();
    if panels.is_empty() {
        return None;
    }
    let has_bars = points.iter().any(|point| !point.test.is_stream());
    let (across, down) = (LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    let emulator = points.iter().any(|point| point.emulator);
    let mut notes = vec![place.to_owned()];
    let bars = "Bars reach from the median of the times to their 99th percentile.";
    notes.extend(has_bars.then(|| bars.to_owned()));
    notes.extend(emulator.then(|| format!("soft0: {EMULATOR}")));
    let whole = (across * panels.len() as f64, down + LINE * (notes.len() as f64 + 0.5));
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
        for line in 0..panel.lines.len() {
            panel.line(&mut svg, line);
        }
        panel.names(&mut svg);
        svg.push_str("</g>\n");
    }
    for (at, note) in notes.iter().enumerate() {
        let y = down + LINE * (at as f64 + 0.5);
        let _ = writeln!(svg, "<text x=\"{NOTE}\" y=\"{y}\">{}</text>", escaped(note));
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
    lines: Vec<Line<'a>>,
    x: Axis,
    y: Axis,
    /// The text of a power of ten on the vertical axis.
    unit: fn(i32) -> String,
}

/// The values of one transport.
struct Line<'a> {
    series: &'a str,
    colour: &'static str,
    /// Size, value, and the end of the bar at the value.
    points: Vec<(f64, f64, f64)>,
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

    /// The powers with a line and a label, ten at most, in even steps from the first.
    fn ticks(self) -> Vec<i32> {
        let step = (self.last - self.first) / 10 + 1;
        (self.first..=self.last).step_by(step as usize).collect()
    }
}

impl<'a> Panel<'a> {
    /// Lines of the points, in the order and the colours of `series`; `None` without a value.
    fn new(
        what: &str,
        unit: fn(i32) -> String,
        series: &[&'a str],
        points: &[&'a Point],
        value: fn(&Point) -> (f64, f64),
    ) -> Option<Self> {
        let mut tests: Vec<&str> = Vec::new();
        for point in points {
            if !tests.contains(&point.test.name()) {
                tests.push(point.test.name());
            }
        }
        let title = format!("{what}: {}", tests.join(", "));
        let of_series = |(series, colour): (&&'a str, &&'static str)| {
            let points = points.iter().filter(|point| point.series == **series);
            let points = points.map(|point| {
                let (value, end) = value(point);
                (point.size.max(1.0), value, end.max(value))
            });
            let points: Vec<_> = points.filter(|(_, value, _)| *value > 0.0).collect();
            (!points.is_empty()).then_some(Line { series, colour, points })
        };
        let lines: Vec<_> =
            series.iter().zip(COLOURS.iter().cycle()).filter_map(of_series).collect();
        let all = || lines.iter().flat_map(|line| &line.points);
        let x = Axis::over(all().map(|(size, ..)| *size), 2.0)?;
        let y = Axis::over(all().flat_map(|(_, value, end)| [*value, *end]), 10.0)?;
        Some(Self { title, lines, x, y, unit })
    }

    /// The horizontal position of a size, and the vertical one of a value.
    fn across(&self, size: f64) -> f64 {
        EDGE + self.x.place(size) * (WIDTH - 2.0 * EDGE)
    }

    fn down(&self, value: f64) -> f64 {
        (1.0 - self.y.place(value)) * HEIGHT
    }

    fn axes(&self, svg: &mut String) {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"-14\" text-anchor=\"middle\" font-size=\"14\">{}</text>",
            WIDTH / 2.0,
            escaped(&self.title)
        );
        for power in self.x.ticks() {
            let x = self.across(2f64.powi(power));
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{HEIGHT}\" stroke=\"#dddddd\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT + 18.0,
                binary(power)
            );
        }
        for power in self.y.ticks() {
            let y = self.down(10f64.powi(power));
            let _ = writeln!(
                svg,
                "<line x1=\"0\" y1=\"{y:.1}\" x2=\"{WIDTH}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
                 <text x=\"-8\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                y + 4.0,
                (self.unit)(power)
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

    /// Draws a line. Its points are beside those of the other lines, so that bars of equal values
    /// do not cover each other.
    fn line(&self, svg: &mut String, at: usize) {
        let Line { colour, points, .. } = &self.lines[at];
        let aside = APART * (at as f64 - (self.lines.len() as f64 - 1.0) / 2.0);
        let places: Vec<(f64, f64, f64)> = points
            .iter()
            .map(|(size, value, end)| {
                (self.across(*size) + aside, self.down(*value), self.down(*end))
            })
            .collect();
        let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            path.join(" ")
        );
        for (x, y, end) in places {
            if end < y {
                let _ = writeln!(
                    svg,
                    "<path d=\"M{x:.1},{y:.1}V{end:.1}M{:.1},{end:.1}h{:.1}\" stroke=\"{colour}\"/>",
                    x - CAP,
                    2.0 * CAP
                );
            }
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
        }
    }

    /// Writes the name of each line at its end, or as near as other names permit.
    fn names(&self, svg: &mut String) {
        let last = |line: &Line<'_>| line.points.last().map_or(0.0, |point| self.down(point.1));
        let mut ends: Vec<(f64, &Line<'_>)> =
            self.lines.iter().map(|line| (last(line), line)).collect();
        ends.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let mut free = f64::NEG_INFINITY;
        for (y, _) in &mut ends {
            *y = y.max(free);
            free = *y + NAME;
        }
        let mut free = HEIGHT;
        for (y, _) in ends.iter_mut().rev() {
            *y = y.min(free);
            free = *y - NAME;
        }
        for (y, line) in ends {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{}\">{}</text>",
                WIDTH + 6.0,
                y + 4.0,
                line.colour,
                escaped(line.series)
            );
        }
    }
}

/// A power of two in the notation of sizes: `64K`.
fn binary(power: i32) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let unit = (power.max(0) / 10).min(4);
    format!("{}{}", 2f64.powi(power - unit * 10), UNITS[unit as usize])
}

/// A power of ten microseconds: `100 ns`, `10 ms`.
fn time(power: i32) -> String {
    match power {
        6.. => format!("{} s", 10f64.powi(power - 6)),
        3.. => format!("{} ms", 10f64.powi(power - 3)),
        0.. => format!("{} us", 10f64.powi(power)),
        _ => format!("{} ns", 10f64.powi(power + 3)),
    }
}

/// A power of ten bytes per second: `100 kB/s`.
fn rate(power: i32) -> String {
    match power {
        9.. => format!("{} GB/s", 10f64.powi(power - 9)),
        6.. => format!("{} MB/s", 10f64.powi(power - 6)),
        3.. => format!("{} kB/s", 10f64.powi(power - 3)),
        _ => format!("{} B/s", 10f64.powi(power)),
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
        Point { series: series.into(), test, size, latency, p99, bandwidth, emulator: false }
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
        // Latencies of two transports, with bars, and one bandwidth.
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(svg.matches("<path").count(), 3);
        assert!(
            svg.contains("barewire on &lt;host&gt;") && svg.contains("<title>latency"),
            "{svg}"
        );
        assert!(svg.contains("shm &lt;memory&gt;") && svg.contains("latency: am_lat"), "{svg}");
        assert!(
            svg.contains("bandwidth: am_bw") && !svg.contains("NaN") && !svg.contains("inf"),
            "{svg}"
        );
    }

    #[test]
    fn ping_pongs_have_no_rate_and_streams_no_latency() {
        let of = |test| draw(&[point("a", test, 8.0, 1.0), point("a", test, 16.0, 1.0)], "");
        let (ping_pong, stream) = (of(Test::PutLat).unwrap(), of(Test::PutBw).unwrap());
        assert!(ping_pong.contains("latency:") && !ping_pong.contains("B/s"), "{ping_pong}");
        assert!(stream.contains("bandwidth:") && !stream.contains(" us<"), "{stream}");
    }

    #[test]
    fn equal_lines_show_every_point_bar_and_name() {
        let series = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let points = series.map(|series| point(series, Test::PutLat, 8.0, 1.0));
        let svg = draw(&points, "").unwrap();
        let places = |tag: &str, field: &str| {
            let tags = svg.split(tag).skip(1);
            let place = tags.map(|tag| tag.split(field).nth(1).unwrap().split('"').next().unwrap());
            let mut places: Vec<&str> = place.collect();
            let all = places.len();
            places.sort_unstable();
            places.dedup();
            (all, places.len())
        };
        assert_eq!(places("<circle ", "cx=\""), (8, 8), "{svg}");
        assert_eq!(places("<path ", "d=\""), (8, 8), "{svg}");
        let names =
            svg.lines().filter(|line| line.contains("fill=\"#") && line.starts_with("<text"));
        let heights: Vec<f64> = names
            .map(|name| name.split("y=\"").nth(1).unwrap().split('"').next().unwrap())
            .map(|y| y.parse().unwrap())
            .collect();
        assert_eq!(heights.len(), 8);
        assert!(heights.windows(2).all(|two| two[1] - two[0] > 12.0), "{heights:?}");
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
        assert_eq!(axis.ticks(), [3, 5, 7, 9, 11, 13, 15]);
        assert_eq!(Axis { base: 10.0, first: -2, last: 1 }.ticks(), [-2, -1, 0, 1]);
        assert!(axis.place(8.0).abs() < 1e-9 && (axis.place(65536.0) - 1.0).abs() < 1e-9);
        assert_eq!(
            (binary(3), binary(16), time(4), time(-1), rate(8)),
            ("8".into(), "64K".into(), "10 ms".into(), "100 ns".into(), "100 MB/s".into())
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
