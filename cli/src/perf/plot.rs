//! Draws latency, and of streams bandwidth, over the message size as SVG, with one line per
//! transport.

use super::figures::Outcome;
use super::job::{self, Job};
use crate::error::{Error, local};
use crate::output::{EMULATOR, check_file, wrapped, write_file};
use crate::test::Test;
use crate::units;
use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// One point of the drawing.
#[derive(Debug, Clone)]
pub(super) struct Point {
    /// The line of the point.
    series: String,
    test: Test,
    size: f64,
    /// Microseconds.
    latency: f64,
    /// What the latency is the time of.
    latency_is: &'static str,
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
            latency_is: job.latency_is(),
            p99: outcome.percentiles.p99,
            bandwidth: outcome.figures.bandwidth,
            emulator: job.choice.is_emulator(),
        }
    }
}

/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0x99, 0x99, 0x33),
];
/// Pixels: a diagram with its axes, the names of its lines beside it, and the distance of lines of
/// text.
const WIDTH: u32 = 670;
const NAMES: u32 = 150;
const HEIGHT: u32 = 430;
const LINE: u32 = 18;
/// Characters in a line of text below one diagram.
const NOTE: usize = 110;
/// Most labels of an axis.
const LABELS: usize = 9;
/// Pixels: the cap of a bar, and about the diameter of a point.
const BAR: u32 = 5;
/// Relative distance of the points of neighbouring lines at the same size, so that bars of equal
/// values do not cover each other.
const APART: f64 = 1.06;
/// The file, in errors.
const PLOT: &str = "the plot";

/// Checks that the drawing can be written, before anything is measured.
pub(super) fn check(file: &Path) -> Result<(), Error> {
    if file.extension().is_some_and(|name| !name.eq_ignore_ascii_case("svg")) {
        return Err(Error::Usage(format!(
            "the plot is an SVG file: give '{}' a name that ends in .svg",
            file.display()
        )));
    }
    check_file(PLOT, file)
}

/// Writes the drawing to a file. `missing` names what has no line, and why,
/// and points that are doubtful.
pub(super) fn write(file: &Path, points: &[Point], missing: &[String]) -> Result<(), Error> {
    let lines =
        |note: &String| wrapped(note, 4, NOTE).split('\n').map(str::to_owned).collect::<Vec<_>>();
    let missing: Vec<String> = missing.iter().flat_map(lines).collect();
    let drawing = draw(points, &place(), &missing)
        .map_err(|error| local(format!("cannot draw '{}'", file.display()), &error))?;
    let drawing = drawing.ok_or_else(|| Error::Usage("nothing was measured".to_owned()))?;
    write_file(PLOT, file, &drawing)
}

/// The program, the host and the day of the measurement.
fn place() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let day = now.split('T').next().unwrap_or_default();
    format!("barewire {} on {host}, {day}", env!("CARGO_PKG_VERSION"))
}

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The drawing, if there is anything to draw.
fn draw(
    points: &[Point],
    place: &str,
    missing: &[String],
) -> Result<Option<String>, DrawingAreaErrorKind<io::Error>> {
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
        Panel::new("latency", latency_is(points), time, &series, &of_kind(false), latency),
        Panel::new("bandwidth", "bandwidth".to_owned(), rate, &series, &of_kind(true), bandwidth),
    ];
    let panels: Vec<Panel<'_>> = panels.into_iter().flatten().collect();
    if panels.is_empty() {
        return Ok(None);
    }
    let mut notes = vec![place.to_owned()];
    notes.extend(missing.iter().cloned());
    if series.len() > 1 {
        notes.push("Points of one size are drawn side by side, around it.".to_owned());
    }
    if points.iter().any(|point| !point.test.is_stream()) {
        notes.push("Bars reach from the median of the times to their 99th percentile.".to_owned());
    }
    if points.iter().any(|point| point.emulator) {
        notes.push(format!("soft0: {EMULATOR}"));
    }
    let size = ((WIDTH + NAMES) * panels.len() as u32, HEIGHT + LINE * (notes.len() as u32 + 1));
    let mut svg = String::new();
    {
        let whole = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let (above, below) = whole.split_vertically(HEIGHT);
        for (area, panel) in above.split_evenly((1, panels.len())).iter().zip(&panels) {
            panel.draw(area)?;
        }
        for (note, line) in notes.iter().zip(0..) {
            let at = (LINE as i32, LINE as i32 * line);
            below.draw(&Text::new(note.as_str(), at, ("sans-serif", 14)))?;
        }
        whole.present()?;
    }
    Ok(Some(svg))
}

/// The title of the axis of latencies: what they are the times of, if it is the same for all.
fn latency_is(points: &[Point]) -> String {
    let mut all = points.iter().filter(|point| !point.test.is_stream());
    match all.next() {
        Some(Point { latency_is, .. }) if all.all(|point| point.latency_is == *latency_is) => {
            format!("median time, {latency_is}")
        }
        _ => "median time".to_owned(),
    }
}

/// One of the diagrams.
struct Panel<'a> {
    title: String,
    /// What the vertical axis shows.
    value: String,
    lines: Vec<Line<'a>>,
    x: Range<f64>,
    y: Range<f64>,
    /// The text of a value on the vertical axis.
    unit: fn(f64) -> String,
}

/// The values of one transport.
struct Line<'a> {
    series: &'a str,
    colour: RGBColor,
    /// Size, value, and the end of the bar at the value.
    points: Vec<(f64, f64, f64)>,
}

/// The range between the powers of `base` around all values; `None` without a value.
fn powers(values: impl Iterator<Item = f64>, base: f64) -> Option<Range<f64>> {
    let (mut least, mut most) = (f64::INFINITY, 0.0f64);
    for value in values.filter(|value| value.is_finite() && *value > 0.0) {
        (least, most) = (least.min(value), most.max(value));
    }
    let first = least.log(base).floor();
    // A single value still needs two ends.
    let last = most.log(base).ceil().max(first + 1.0);
    // Both powers lie within the range, whatever is rounded.
    (most > 0.0).then(|| base.powf(first) * 0.999..base.powf(last) * 1.001)
}

impl<'a> Panel<'a> {
    /// Lines of the points, in the order and the colours of `series`; `None` without a value.
    fn new(
        what: &str,
        axis: String,
        unit: fn(f64) -> String,
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
        let middle = (series.len() as f64 - 1.0) / 2.0;
        let of_series = |(at, (series, colour)): (usize, (&&'a str, &RGBColor))| {
            let points = points.iter().filter(|point| point.series == **series);
            let points = points.map(|point| {
                let (value, end) = value(point);
                (point.size.max(1.0) * APART.powf(at as f64 - middle), value, end.max(value))
            });
            let points: Vec<_> = points.filter(|(_, value, _)| *value > 0.0).collect();
            (!points.is_empty()).then_some(Line { series, colour: *colour, points })
        };
        let lines: Vec<_> =
            series.iter().zip(COLOURS.iter().cycle()).enumerate().filter_map(of_series).collect();
        let all = || lines.iter().flat_map(|line| &line.points);
        let x = powers(points.iter().map(|point| point.size.max(1.0)), 2.0)?;
        // Room for the points beside the first and the last size.
        let beside = APART.powf(middle + 1.0);
        let x = x.start / beside..x.end * beside;
        let y = powers(all().flat_map(|(_, value, end)| [*value, *end]), 10.0)?;
        Some(Self { title, value: axis, lines, x, y, unit })
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let (area, beside) = area.split_horizontally(WIDTH);
        self.draw_names(&beside)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(50)
            .y_label_area_size(95)
            .build_cartesian_2d(
                self.x.clone().log_scale().base(2.0),
                self.y.clone().log_scale().base(10.0),
            )?;
        chart
            .configure_mesh()
            .x_desc("message size (bytes)")
            .x_labels(LABELS)
            .x_label_formatter(&|size| job::size_name(size.round() as usize))
            .y_desc(self.value.as_str())
            .y_labels(LABELS)
            .y_label_formatter(&|value| (self.unit)(*value))
            .draw()?;
        for Line { colour, points, .. } in &self.lines {
            let (colour, line) = (*colour, points.iter().map(|(size, value, _)| (*size, *value)));
            chart.draw_series(LineSeries::new(line, colour))?;
            // A point, and the bar above it.
            chart.draw_series(points.iter().map(|(size, value, end)| {
                ErrorBar::new_vertical(*size, *value, *value, *end, colour.filled(), BAR)
            }))?;
        }
        Ok(())
    }

    /// Draws the names of the lines, beside the diagram, so that they cover none of it.
    fn draw_names(&self, area: &Area<'_>) -> Drawn {
        for (Line { series, colour, .. }, row) in self.lines.iter().zip(2..) {
            let y = row * LINE as i32;
            area.draw(&Rectangle::new([(0, y), (10, y + 10)], colour.filled()))?;
            area.draw(&Text::new(*series, (16, y - 1), ("sans-serif", 13)))?;
        }
        Ok(())
    }
}

/// Microseconds as text.
fn time(microseconds: f64) -> String {
    units::time(Duration::from_secs_f64(microseconds / 1e6))
}

/// Bytes per second as text.
fn rate(bandwidth: f64) -> String {
    units::rate(bandwidth.round() as u64, Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(series: &str, test: Test, size: f64, latency: f64) -> Point {
        let rate = 1e6 / latency;
        let (p99, bandwidth) = (latency * 2.0, rate * size);
        let (series, latency_is) = (series.into(), "half a round trip");
        Point { series, test, size, latency, latency_is, p99, bandwidth, emulator: false }
    }

    #[test]
    fn a_line_for_each_transport_in_each_half() {
        let points = [
            point("shm <memory>", Test::AmLat, 8.0, 0.5),
            point("shm <memory>", Test::AmLat, 64.0, 0.7),
            point("shm <memory>", Test::AmBw, 8.0, 0.1),
            point("tcp", Test::AmLat, 8.0, 20.0),
        ];
        let svg =
            draw(&points, "barewire on <host>", &["without am_lat: cma".into()]).unwrap().unwrap();
        let texts = [
            "on &lt;host&gt;",
            "latency: am_lat",
            "median time, half a round trip",
            "bandwidth: am_bw",
            "(bytes)",
            "\n16\n",
            "without am_lat: cma",
        ];
        for text in texts {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 4, "{svg}");
        // Two transports in the first half, and one of them in the second.
        let names = svg.lines().filter(|line| line.trim() == "shm &lt;memory&gt;").count();
        assert_eq!((names, svg.lines().filter(|line| line.trim() == "tcp").count()), (2, 1));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn ping_pongs_have_no_rate_and_streams_no_latency() {
        let of = |test| {
            let points = [point("a", test, 8.0, 1.0), point("a", test, 16.0, 1.0)];
            draw(&points, "", &[]).unwrap().unwrap()
        };
        let (ping_pong, stream) = (of(Test::PutLat), of(Test::PutBw));
        assert!(ping_pong.contains("latency:") && !ping_pong.contains("B/s"), "{ping_pong}");
        assert!(stream.contains("bandwidth:") && !stream.contains(" us\n"), "{stream}");
    }

    #[test]
    fn equal_lines_show_every_point_and_bar() {
        let series = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let points = series.map(|series| point(series, Test::PutLat, 8.0, 1.0));
        let svg = draw(&points, "", &[]).unwrap().unwrap();
        let mut points: Vec<&str> =
            svg.lines().filter(|line| line.starts_with("<circle")).collect();
        points.sort_unstable();
        points.dedup();
        assert_eq!(points.len(), 8, "{svg}");
    }

    /// The left edges of what has one, in pixels.
    fn edges(svg: &str, element: &str, attribute: &str) -> Vec<u32> {
        let lines = svg.lines().filter(|line| line.starts_with(element));
        let edge = |line: &str| line.split(attribute).nth(1)?.split('"').next()?.parse().ok();
        lines.filter_map(edge).collect()
    }

    #[test]
    fn names_are_beside_the_points() {
        let points = [8.0, 64.0, 65536.0].map(|size| point("shm memory", Test::PutLat, size, 1.0));
        let svg = draw(&points, "", &[]).unwrap().unwrap();
        let last = edges(&svg, "<circle", " cx=\"").into_iter().max().unwrap();
        let squares = edges(&svg, "<rect", " x=\"").into_iter().max().unwrap();
        assert!(last < WIDTH && squares >= WIDTH, "{last} {squares} {svg}");
    }

    #[test]
    fn nothing_and_one_point() {
        assert!(draw(&[], "", &[]).unwrap().is_none());
        assert!(draw(&[point("a", Test::Get, 8.0, 0.0)], "", &[]).unwrap().is_none());
        let svg = draw(&[point("a", Test::Get, 8.0, 1.0)], "", &[]).unwrap().unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
