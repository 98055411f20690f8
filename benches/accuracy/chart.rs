//! Draws the requests that each algorithm admits in a burst around an edge of windows.

use std::{collections::VecDeque, fmt::Write as _};

use tollgate::Limit;

use crate::{Contestant, START_MILLIS, Simulated, contestants, real, seconds};

/// The limit: this many in ten seconds.
const LIMIT: u32 = 100;
const PERIOD_SECS: u32 = 10;
const PERIOD: u64 = PERIOD_SECS as u64 * 1_000;

/// Milliseconds per bar.
const STEP: u64 = 100;
/// Milliseconds shown before and after the edge.
const BEFORE: u64 = 10_000;
const AFTER: u64 = 14_000;

/// A single hit this long before the edge begins the window of `first_hit`.
const EARLY: u64 = 9_000;
/// From this long before the edge on, there are always more requests than the limit admits.
const BURST: u64 = 1_000;
/// Requests in each step of the burst.
const LOAD: u64 = 20;

/// Admitted requests in one step, and in the period up to it.
#[derive(Clone, Copy, Debug)]
struct Bar {
    admitted: u32,
    trailing: u32,
}

fn bars(contestant: &Contestant) -> Vec<Bar> {
    let limit = Limit {
        algorithm: contestant.algorithm.clone(),
        ..Limit::fixed(LIMIT.into(), seconds(PERIOD_SECS))
    };
    let counter = Simulated::new(limit);
    let first = START_MILLIS - BEFORE;
    let mut trailing = VecDeque::new();
    let mut bars = Vec::new();
    for step in 0..(BEFORE + AFTER) / STEP {
        let at = first + step * STEP;
        let requests = if at >= START_MILLIS - BURST {
            LOAD
        } else {
            u64::from(at == START_MILLIS - EARLY)
        };
        let mut bar = Bar {
            admitted: 0,
            trailing: 0,
        };
        for request in 0..LOAD {
            let at = at + request * STEP / LOAD;
            if request < requests && counter.hit(0, at).is_admitted {
                bar.admitted += 1;
                trailing.push_back(at);
            }
            while trailing.front().is_some_and(|first| first + PERIOD <= at) {
                trailing.pop_front();
            }
            let held = u32::try_from(trailing.len()).expect("few");
            bar.trailing = bar.trailing.max(held);
        }
        bars.push(bar);
    }
    bars
}

const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 10px; fill: #57606a }
  .title { font-weight: 600 }
  .axis { stroke: #afb8c1; fill: none }
  .edge { stroke: #afb8c1; stroke-dasharray: 1 2 }
  .limit { stroke: #57606a; stroke-dasharray: 4 3 }
  .bar { fill: #0969da }
  .rate { stroke: #bc4c00; stroke-width: 1.5; fill: none }
  .over { fill: #bc4c00; font-size: 10px }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #8b949e }
    .axis, .edge { stroke: #484f58 }
    .limit { stroke: #8b949e }
    .bar { fill: #58a6ff }
    .rate { stroke: #f0883e }
    .over { fill: #f0883e }
  }
";

const COLUMNS: usize = 3;
const MARGIN: f64 = 16.0;
const HEAD: f64 = 58.0;
const PANEL: (f64, f64) = (300.0, 236.0);
/// Left edge and width of the drawing within a panel.
const LEFT: f64 = 30.0;
const WIDTH: f64 = 252.0;
/// Base and height of the bars, and of the line below them.
const BARS: (f64, f64) = (90.0, 62.0);
const LINE: (f64, f64) = (196.0, 88.0);

/// The whole chart as SVG.
pub(crate) fn edge_burst() -> String {
    let contestants = contestants(LIMIT.into());
    let rows = contestants.len().div_ceil(COLUMNS);
    let width = 2.0 * MARGIN + PANEL.0 * whole(COLUMNS);
    let height = HEAD + PANEL.1 * whole(rows) + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"What each algorithm admits of a burst around an edge of windows\">\n\
         <style>{STYLE}</style>\n"
    );
    text(
        &mut svg,
        (MARGIN, 22.0),
        "title",
        &format!("A burst around an edge of windows, limit {LIMIT} in {PERIOD_SECS} s"),
    );
    let about = format!(
        "One request {} s before the edge; from {} s before it on {} a second. Bars: admitted in each \
         {STEP} ms. Line: admitted in the {PERIOD_SECS} s up to then, with the limit dashed.",
        EARLY / 1_000,
        BURST / 1_000,
        LOAD * 1_000 / STEP,
    );
    text(&mut svg, (MARGIN, 40.0), "small", &about);
    for (index, contestant) in contestants.iter().enumerate() {
        let x = MARGIN + PANEL.0 * whole(index % COLUMNS);
        let y = HEAD + PANEL.1 * whole(index / COLUMNS);
        writeln!(svg, "<g transform=\"translate({x} {y})\">").expect("a text takes all");
        panel(&mut svg, contestant);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, contestant: &Contestant) {
    let bars = bars(contestant);
    let most = bars.iter().map(|bar| bar.trailing).max().unwrap_or(0);
    text(svg, (LEFT, 14.0), "title", contestant.name);
    let bar_height = |admitted: u32| BARS.1 * f64::from(admitted) / real(LOAD);
    let line_y = |count: u32| LINE.0 - LINE.1 * f64::from(count) / f64::from(2 * LIMIT);
    let x = |step: usize| LEFT + WIDTH * whole(step) / whole(bars.len());
    let edge = LEFT + WIDTH * real(BEFORE) / real(BEFORE + AFTER);
    line(svg, "edge", (edge, BARS.0 - BARS.1), (edge, LINE.0));
    let mut path = String::new();
    for (step, bar) in bars.iter().enumerate().filter(|(_, bar)| bar.admitted > 0) {
        let height = bar_height(bar.admitted);
        let top = BARS.0 - height;
        let wide = WIDTH / whole(bars.len());
        write!(
            path,
            "M{:.1} {top:.1}h{wide:.2}v{height:.1}h-{wide:.2}z",
            x(step)
        )
        .expect("a text takes all");
    }
    writeln!(svg, "<path class=\"bar\" d=\"{path}\"/>").expect("a text takes all");
    line(svg, "axis", (LEFT, BARS.0), (LEFT + WIDTH, BARS.0));
    line(svg, "axis", (LEFT, LINE.0), (LEFT + WIDTH, LINE.0));
    line(
        svg,
        "limit",
        (LEFT, line_y(LIMIT)),
        (LEFT + WIDTH, line_y(LIMIT)),
    );
    let points: Vec<String> = bars
        .iter()
        .enumerate()
        .map(|(step, bar)| format!("{:.1},{:.1}", x(step), line_y(bar.trailing)))
        .collect();
    writeln!(
        svg,
        "<polyline class=\"rate\" points=\"{}\"/>",
        points.join(" ")
    )
    .expect("a text takes all");
    text(
        svg,
        (0.0, BARS.0 - BARS.1 + 8.0),
        "small",
        &LOAD.to_string(),
    );
    text(svg, (0.0, line_y(LIMIT) + 4.0), "small", &LIMIT.to_string());
    text(
        svg,
        (0.0, line_y(2 * LIMIT) + 4.0),
        "small",
        &(2 * LIMIT).to_string(),
    );
    let class = if most > LIMIT { "over" } else { "small" };
    let reported = format!("at most {most} in {PERIOD_SECS} s");
    text(svg, (LEFT + 2.0, LINE.0 - LINE.1 + 2.0), class, &reported);
    for (moment, label) in [(0, "-10 s"), (BEFORE, "edge"), (BEFORE + PERIOD, "+10 s")] {
        let at = LEFT + WIDTH * real(moment) / real(BEFORE + AFTER);
        text(svg, (at - 10.0, LINE.0 + 14.0), "small", label);
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
    )
    .expect("a text takes all");
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    )
    .expect("a text takes all");
}

fn whole(number: usize) -> f64 {
    real(number as u64)
}
