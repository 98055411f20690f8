// Charts by uPlot, in the colours of the theme.

/* global uPlot */
import { micros, rate } from "./dom.js";

const isDark = matchMedia("(prefers-color-scheme: dark)");
const charts = new Set();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A series under the name of its colour. */
const series = (name, isFilled) => ({
  label: name,
  stroke: () => colour(name),
  fill: isFilled ? () => colour(`${name}-fill`) : undefined,
  width: 1.5,
  points: { show: false },
  spanGaps: false,
});

const clock = (chart, splits) =>
  splits.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }));

function axes(format) {
  const common = {
    stroke: () => colour("muted"),
    font: "12px system-ui, sans-serif",
    ticks: { show: false },
  };
  return [
    { ...common, size: 26, gap: 4, values: clock, grid: { show: false }, space: 70 },
    {
      ...common,
      size: 58,
      space: 34,
      values: (chart, splits) => splits.map(format),
      grid: { stroke: () => colour("line"), width: 1 },
    },
  ];
}

/** A chart of `names` in `host`, which follows its width. */
export function lines(host, names, format, filled = []) {
  const height = 190;
  const options = {
    width: Math.max(host.clientWidth, 100),
    height,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    padding: [10, 8, 0, 0],
    scales: { x: { time: true }, y: { range: (chart, low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: axes(format),
    series: [{}, ...names.map((name) => series(name, filled.includes(name)))],
  };
  const chart = new uPlot(options, [[], ...names.map(() => [])], host);
  charts.add(chart);
  new ResizeObserver(() => {
    const width = Math.floor(host.clientWidth);
    if (width > 0 && width !== chart.width) chart.setSize({ width, height });
  }).observe(host);
  return chart;
}

/** A small chart without axes: hits, and those over a limit in the colour of this name. */
export function sparkline(host, over) {
  const options = {
    width: 120,
    height: 26,
    legend: { show: false },
    cursor: { show: false },
    padding: [2, 0, 1, 0],
    scales: { x: { time: true }, y: { range: (chart, low, high) => [0, Math.max(high, 1)] } },
    axes: [{ show: false }, { show: false }],
    series: [{}, series("admitted", true), series(over, true)],
  };
  const chart = new uPlot(options, [[], [], []], host);
  charts.add(chart);
  return chart;
}

export function remove(chart) {
  charts.delete(chart);
  chart.destroy();
}

isDark.addEventListener("change", () => charts.forEach((chart) => chart.redraw(false, true)));

export const formats = {
  rate: (value) => rate(value),
  micros: (value) => (value === 0 ? "0" : micros(value)),
};
