// The section "Now": numbers of this second, charts, and what is wrong.

import { bytes, clockTime, fill, find, make, many, micros, number, rate, seconds, shown } from "./dom.js";
import { formats, lines } from "./charts.js";

/** The longest time that a chart shows. */
const KEPT_SECS = 3600;

// One list for each column, the oldest first: seconds since 1970, two rates, two latencies.
const columns = { at: [], admitted: [], refused: [], p50: [], p99: [] };
let span = 300;
let charts = null;

/** Prepares the charts, which show what the page sees from now on. */
export function start() {
  find("now-note").textContent =
    `The charts show what this page has seen since it was opened, at ${clockTime(Date.now())}.`;
  charts = {
    rates: lines(find("rates"), ["admitted", "refused"], formats.rate, ["admitted", "refused"]),
    latency: lines(find("latency"), ["p99", "p50"], formats.micros, ["p99"]),
  };
  find("span").addEventListener("change", ({ target }) => {
    span = Number(target.value);
    draw();
  });
  draw();
}

function append({ atMillis, latency }, { admitted, refused }, calls) {
  const at = atMillis / 1000;
  if (columns.at.length > 0 && at <= columns.at.at(-1)) return;
  columns.at.push(at);
  columns.admitted.push(admitted);
  columns.refused.push(refused);
  // Without calls there is no latency, and the line has a gap.
  columns.p50.push(calls > 0 ? latency.p50Micros : null);
  columns.p99.push(calls > 0 ? latency.p99Micros : null);
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

/** Shows a snapshot, and what has changed since the one before, if there was one. */
export function update(snapshot, changes) {
  fill(find("notices"), notices(snapshot));
  if (!changes) {
    fill(find("tiles"), tiles(snapshot, null, null));
    return;
  }
  const { totals, lengthMillis } = changes;
  const each = (count) => (count * 1000) / lengthMillis;
  const rates = { admitted: each(totals.ok), refused: each(totals.overLimit) };
  append(snapshot, rates, totals.calls);
  fill(find("tiles"), tiles(snapshot, totals, rates));
  draw();
  const { p50Micros, p99Micros } = snapshot.latency;
  find("rates").setAttribute(
    "aria-label",
    `Decisions per second over the last ${seconds(span)}; now ${rate(rates.admitted)} admitted and ` +
      `${rate(rates.refused)} refused`,
  );
  find("latency").setAttribute(
    "aria-label",
    `Latency of a decision over the last ${seconds(span)}; now p50 ${micros(p50Micros)} and ` +
      `p99 ${micros(p99Micros)}`,
  );
}

const tile = (name, value, more, state = "") =>
  make(
    "div",
    { class: `tile ${state}` },
    make("dt", {}, name),
    make("dd", {}, make("b", {}, value), make("span", {}, more)),
  );

function tiles({ latency, store, components, loads, residentBytes, counters }, totals, rates) {
  const all = rates ? rates.admitted + rates.refused : 0;
  const share = all > 0 ? `${((100 * rates.refused) / all).toFixed(1)} % of all` : "of all: none";
  const failures = totals ? totals.storeFailures + totals.badRequests : 0;
  const hasLatency = totals && totals.calls > 0;
  const without = all > 0 ? totals.withoutLimit / (totals.ok + totals.overLimit) : 0;
  return [
    tile("Decisions", rates ? rate(all) : "–", "a second"),
    tile(
      "Refused",
      rates ? rate(rates.refused) : "–",
      rates ? share : "",
      all > 0 && rates.refused > 0 ? "refused" : "",
    ),
    tile(
      "No limit applied",
      all > 0 ? `${(100 * without).toFixed(without < 0.1 ? 1 : 0)} %` : "–",
      "of decisions reach no rule",
      without > 0.5 ? "warn" : "",
    ),
    tile(
      "Latency p99",
      hasLatency ? micros(latency.p99Micros) : "–",
      hasLatency ? `p50 ${micros(latency.p50Micros)}` : "no calls over gRPC",
    ),
    tile("Failed", totals ? number(failures + totals.late) : "–", "or late, this second", failures > 0 ? "bad" : ""),
    storeTile(store, components),
    rules(loads),
    tile("Memory", bytes(residentBytes), many(counters, "counter")),
  ];
}

function storeTile({ storesLost, nodes, nodesLost, nodesSlow }, components) {
  const name = components.find((one) => one.name === "store")?.state ?? "unknown";
  if (name === "memory") return tile("Store", "memory", "no breaker", "good");
  if (storesLost || nodesLost) return tile("Store", "lost", `breaker open at ${nodesLost} of ${nodes}`, "bad");
  if (nodesSlow) return tile("Store", "slow", `${nodesSlow} of ${many(nodes, "server")}`, "warn");
  return tile("Store", name, `breaker closed at ${nodes} of ${nodes}`, "good");
}

function rules({ inUse, refused }) {
  const count = inUse ? `${number(inUse.rules)} in use` : "none";
  if (refused) return tile("Rules", count, `reload refused at ${clockTime(refused.atMillis)}`, "bad");
  if (!inUse) return tile("Rules", count, "not loaded", "warn");
  return tile("Rules", count, `loaded at ${clockTime(inUse.atMillis)}`, "good");
}

/** The errors of the last reload, and parts of the server that are not well. */
function notices({ store, loads: { refused }, loss, components }) {
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
      store.nodes > 1
        ? `Lost servers of the store: ${store.nodesLost} of ${store.nodes}. For counters there:`
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
