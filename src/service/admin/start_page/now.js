// The section "Now": numbers of this second, charts, and what is wrong.

import { bytes, clockTime, fill, find, make, many, micros, number, rate, seconds, shown } from "./dom.js";
import { formats, lines } from "./charts.js";

/** The longest time that a chart shows. */
const KEPT_SECS = 3600;

// One list for each column, the oldest first: seconds since 1970, two rates, two latencies.
const columns = { at: [], admitted: [], refused: [], p50: [], p99: [] };
let span = 300;
let charts = null;

/** Prepares the charts, and fills them from `/history`. */
export function start(history) {
  charts = {
    rates: lines(find("rates"), ["admitted", "refused"], formats.rate, ["admitted", "refused"]),
    latency: lines(find("latency"), ["p99", "p50"], formats.micros, ["p99"]),
  };
  const { endMillis, lengthMillis, process } = history;
  endMillis.forEach((end, index) => {
    // The last step has only begun, and its rates would jump.
    if (lengthMillis[index] < 1000) return;
    const step = Object.fromEntries(Object.entries(process).map(([name, list]) => [name, list[index]]));
    append(end, lengthMillis[index], step);
  });
  find("span").addEventListener("change", ({ target }) => {
    span = Number(target.value);
    draw();
  });
  draw();
}

function append(endMillis, lengthMillis, step) {
  const at = endMillis / 1000;
  if (columns.at.length > 0 && at <= columns.at.at(-1)) return;
  const each = (count) => (count * 1000) / lengthMillis;
  columns.at.push(at);
  columns.admitted.push(each(step.ok));
  columns.refused.push(each(step.overLimit));
  // Without calls there is no latency, and the line has a gap.
  columns.p50.push(step.calls > 0 ? step.p50Micros : null);
  columns.p99.push(step.calls > 0 ? step.p99Micros : null);
  const old = columns.at.findIndex((known) => known >= at - KEPT_SECS);
  if (old > 0) Object.values(columns).forEach((column) => column.splice(0, old));
}

function draw() {
  const { at } = columns;
  const end = at.at(-1) ?? Date.now() / 1000;
  const first = Math.max(
    0,
    at.findIndex((time) => time >= end - span),
  );
  const cut = (column) => column.slice(first);
  const show = (chart, ...names) => {
    chart.setData([cut(at), ...names.map((name) => cut(columns[name]))]);
    chart.setScale("x", { min: end - span, max: end });
  };
  show(charts.rates, "admitted", "refused");
  show(charts.latency, "p99", "p50");
  const isEmpty = cut(columns.p50).every((value) => value == null);
  find("latency").hidden = isEmpty;
  find("no-latency").hidden = !isEmpty;
}

/** Shows an event. */
export function update(event) {
  const { process, lengthMillis } = event;
  fill(find("notices"), notices(event));
  if (lengthMillis < 200) {
    fill(find("tiles"), tiles(event, null));
    return;
  }
  append(event.endMillis, lengthMillis, process);
  const each = (count) => (count * 1000) / lengthMillis;
  const rates = { admitted: each(process.ok), refused: each(process.overLimit) };
  fill(find("tiles"), tiles(event, rates));
  draw();
  find("rates").setAttribute(
    "aria-label",
    `Decisions per second over the last ${seconds(span)}; now ${rate(rates.admitted)} admitted and ` +
      `${rate(rates.refused)} refused`,
  );
  find("latency").setAttribute(
    "aria-label",
    `Latency of a decision over the last ${seconds(span)}; now p50 ${micros(process.p50Micros)} and ` +
      `p99 ${micros(process.p99Micros)}`,
  );
}

const tile = (name, value, more, state = "") =>
  make(
    "div",
    { class: `tile ${state}` },
    make("dt", {}, name),
    make("dd", {}, make("b", {}, value), make("span", {}, more)),
  );

function tiles({ process, loads, components, nodes }, rates) {
  const all = rates ? rates.admitted + rates.refused : 0;
  const share = all > 0 ? `${((100 * rates.refused) / all).toFixed(1)} % of all` : "of all: none";
  const failures = process.storeFailures + process.badRequests;
  return [
    tile("Decisions", rates ? rate(all) : "–", "a second"),
    tile(
      "Refused",
      rates ? rate(rates.refused) : "–",
      rates ? share : "",
      all > 0 && rates.refused > 0 ? "refused" : "",
    ),
    tile(
      "Latency p99",
      micros(process.p99Micros),
      process.calls > 0 ? `p50 ${micros(process.p50Micros)}` : "no calls over gRPC",
    ),
    tile("Failed", number(failures + process.late), "or late, this second", failures > 0 ? "bad" : ""),
    store(process, components, nodes),
    rules(loads),
    tile("Memory", bytes(process.residentBytes), many(process.counters, "counter")),
  ];
}

function store(process, components, nodes) {
  const name = components.find((one) => one.name === "store")?.state ?? "unknown";
  if (name === "memory") return tile("Store", "memory", "no breaker", "good");
  if (process.storesLost || process.nodesLost) {
    return tile("Store", "lost", `breaker open at ${process.nodesLost} of ${nodes}`, "bad");
  }
  if (process.nodesSuspected)
    return tile("Store", "silent", `${process.nodesSuspected} of ${many(nodes, "server")}`, "warn");
  return tile("Store", name, `breaker closed at ${nodes} of ${nodes}`, "good");
}

function rules({ inUse, refused }) {
  const count = inUse ? `${number(inUse.rules)} in use` : "none";
  if (refused) return tile("Rules", count, `reload refused at ${clockTime(refused.atMillis)}`, "bad");
  if (!inUse) return tile("Rules", count, "not loaded", "warn");
  return tile("Rules", count, `loaded at ${clockTime(inUse.atMillis)}`, "good");
}

/** The errors of the last reload, and parts of the server that are not well. */
function notices({ process, nodes, loads: { refused }, loss, components }) {
  const found = [];
  if (refused) {
    const errors = refused.errors.map((text) => make("li", {}, make("code", {}, shown(text, 500))));
    if (refused.omitted) errors.push(make("li", {}, `${number(refused.omitted)} more, in the log`));
    found.push(
      make(
        "div",
        { class: "notice bad" },
        make(
          "p",
          {},
          `The reload at ${clockTime(refused.atMillis)} was refused. The last good rules stay in use.`,
        ),
        make("ul", {}, errors),
      ),
    );
  }
  if (loss.length > 0) {
    const items = loss.flatMap((effects) => effects.split("; ")).map((text) => make("li", {}, text));
    const lost =
      nodes > 1
        ? `Lost servers of the store: ${process.nodesLost} of ${nodes}. For counters there:`
        : "The store is lost. Meanwhile:";
    found.push(make("div", { class: "notice bad" }, make("p", {}, lost), make("ul", {}, items)));
  }
  const parts = components.filter(({ name, state }) => name.startsWith("redis") && state !== "ok");
  if (parts.length > 0) {
    const items = parts.map(({ name, state }) =>
      make("li", {}, make("code", {}, shown(`${name}: ${state}`, 300))),
    );
    found.push(make("div", { class: "notice warn" }, make("ul", {}, items)));
  }
  return found;
}
