// The section "Rules": domains and rules as a tree, each with its limits and its hits.

import { ask, entry, fill, find, make, many, number, problem, rate, shown } from "./dom.js";
import { remove, sparkline } from "./charts.js";

/** Most nodes that are shown at once; the field above finds the others. */
const MOST_NODES = 300;

/** Points of a small chart. */
const POINTS = 120;

let domains = [];
/** The hits of each rule: seconds since 1970, and two rates. */
const tracks = new Map();
/** By path: the parts of a row that change. */
const rows = new Map();
let visible = null;

/** Domains, and for each the keys of its rules. */
export const known = () => ({
  domains: domains.map(({ domain }) => domain),
  keys: [...new Set(domains.flatMap(({ nodes }) => nodes.map(({ key }) => key)))].slice(0, 200),
});

/** The domain of a rule; paths do not tell, because names can have dots. */
export const domainOf = (path) =>
  domains.find(({ nodes }) => nodes.some(({ rule }) => rule === path))?.domain;

/** Rules that refuse nothing because of shadow mode, by path. */
let spared = new Set();
let areAllSpared = false;

export const isSpared = (path) => areAllSpared || spared.has(path);

/** The server is in shadow mode. */
export const spareAll = () => (areAllSpared = true);

/** Loads the tree again. */
export async function load() {
  try {
    ({ domains } = await ask("rules"));
    const all = domains.flatMap(({ nodes }) => nodes.filter(({ shadowMode }) => shadowMode));
    spared = new Set(all.map(({ rule }) => rule));
    draw();
  } catch (error) {
    fill(find("rule-tree"), problem(error));
  }
}

/** Prepares the field that finds rules. */
export const start = () => find("rule-filter").addEventListener("input", draw);

function trackOf(path) {
  if (!tracks.has(path)) tracks.set(path, { at: [], admitted: [], refused: [] });
  return tracks.get(path);
}

function push(track, at, admitted, refused) {
  if (track.at.length > 0 && at <= track.at.at(-1)) return;
  track.at.push(at);
  track.admitted.push(Math.max(0, admitted));
  track.refused.push(refused);
  for (const column of [track.at, track.admitted, track.refused]) {
    if (column.length > POINTS) column.splice(0, column.length - POINTS);
  }
}

/** Shows the hits since the snapshot before. */
export function update({ atMillis }, { lengthMillis, rules }) {
  const each = (count) => (count * 1000) / lengthMillis;
  const changed = new Map(rules.map((one) => [one.rule, one]));
  changed.forEach((_, path) => trackOf(path));
  for (const [path, track] of tracks) {
    const { hits = 0, over = 0, withoutStore = 0, refusedByLoss = 0, withoutRoom = 0 } = changed.get(path) ?? {};
    track.over = each(over);
    track.withoutStore = each(withoutStore);
    track.refusedByLoss = each(refusedByLoss);
    track.withoutRoom = each(withoutRoom);
    const refused = over + refusedByLoss + withoutRoom;
    push(track, atMillis / 1000, each(hits - refused), each(refused));
    // A rule that rests takes no memory.
    const isIdle = track.admitted.every((one) => one === 0) && track.refused.every((one) => one === 0);
    if (isIdle && track.at.length === POINTS) tracks.delete(path);
  }
  rows.forEach((row, path) => show(row, path));
}

function show(row, path) {
  const track = tracks.get(path);
  if (!track) return;
  const [admitted, refused] = [track.admitted.at(-1) ?? 0, track.refused.at(-1) ?? 0];
  row.rate.textContent = `${rate(admitted + refused)}/s`;
  const word = isSpared(path) ? "would be refused" : "refused";
  const texts = [
    track.over > 0 && `${rate(track.over)}/s ${word}`,
    track.withoutStore > 0 && `${rate(track.withoutStore)}/s not decided by the store`,
    track.refusedByLoss > 0 && `${rate(track.refusedByLoss)}/s refused by on_store_loss`,
    track.withoutRoom > 0 && `${rate(track.withoutRoom)}/s refused: no room for their counters`,
  ];
  row.refused.textContent = texts.filter(Boolean).join(", ");
  row.refused.classList.toggle("spared", isSpared(path));
  if (!row.isVisible) return;
  row.chart ??= sparkline(row.host, isSpared(path) ? "muted" : "refused");
  row.chart.setData([track.at, track.admitted, track.refused]);
}

function draw() {
  rows.forEach(({ chart }) => chart && remove(chart));
  rows.clear();
  visible?.disconnect();
  visible = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      const row = rows.get(target.dataset.rule);
      if (!row) continue;
      row.isVisible = isIntersecting;
      if (isIntersecting) {
        show(row, target.dataset.rule);
      } else if (row.chart) {
        remove(row.chart);
        row.chart = null;
      }
    }
  });
  const wanted = find("rule-filter").value.trim().toLowerCase();
  const all = domains.reduce((sum, { nodes }) => sum + nodes.length, 0);
  let room = MOST_NODES;
  let found = 0;
  const shownDomains = domains.map(({ domain, nodes }) => {
    const chosen = wanted ? matching(domain, nodes, wanted) : nodes;
    found += chosen.length;
    const part = chosen.slice(0, room);
    room -= part.length;
    return part.length > 0 || !wanted ? tree(domain, part) : null;
  });
  const omitted = found - (MOST_NODES - room);
  find("rules-note").textContent =
    `${number(found)} of ${many(all, "node")} in ${many(domains.length, "domain")}` +
    (omitted > 0 ? `; ${number(omitted)} of them are not shown, the field finds them` : "");
  fill(find("rule-tree"), shownDomains.filter(Boolean));
}

/** The nodes whose texts have `wanted`, with those above them. */
function matching(domain, nodes, wanted) {
  const has = (text) =>
    String(text ?? "")
      .toLowerCase()
      .includes(wanted);
  if (has(domain)) return nodes;
  const kept = new Set();
  const above = [];
  nodes.forEach((node, index) => {
    above.length = node.depth - 1;
    above.push(index);
    if (has(node.key) || has(node.value) || has(node.rule) || has(node.file)) {
      above.forEach((one) => kept.add(one));
    }
  });
  return nodes.filter((_, index) => kept.has(index));
}

function tree(domain, nodes) {
  const top = make("ul", { class: "tree" });
  // The last list and the last item of each depth.
  const [lists, items] = [[top], []];
  for (const node of nodes) {
    const level = node.depth - 1;
    lists.length = Math.min(lists.length, node.depth);
    if (!lists[level]) {
      lists[level] = make("ul", { class: "tree" });
      items[level - 1].append(lists[level]);
    }
    items[level] = make("li", {}, ruleRow(node));
    lists[level].append(items[level]);
  }
  const count = nodes.filter(({ rule }) => rule).length;
  return make(
    "details",
    { class: "domain-tree panel", open: true },
    make(
      "summary",
      {},
      make("b", {}, shown(domain)),
      make("span", { class: "muted" }, ` ${many(count, "rule")}`),
    ),
    top,
  );
}

function ruleRow(node) {
  const name = entry({ key: node.key, value: node.value, isAny: node.value == null });
  const place = node.file ? `${node.file}${node.line ? `:${node.line}` : ""}` : "";
  const row = make(
    "div",
    { class: "rule" },
    make("div", { class: "rule-name" }, name, make("span", { class: "place" }, shown(place, 300))),
  );
  if (!node.rule) return row;
  const host = make("div", { class: "spark", "aria-hidden": "true" });
  const [total, refused] = [make("span", { class: "rate" }), make("span", { class: "rate-refused" })];
  row.append(
    make("div", { class: "limits" }, limits(node)),
    make("div", { class: "hits" }, host, total, refused),
  );
  row.dataset.rule = node.rule;
  rows.set(node.rule, { host, rate: total, refused, chart: null, isVisible: false });
  visible.observe(row);
  return row;
}

function limits({ unlimited, limits = [], shadowMode, quotaMode, count, reserve, onStoreLoss, replaces }) {
  const chip = (text, kind = "") => make("span", { class: `chip ${kind}` }, text);
  const parts = limits.map(({ rate, algorithm, burst, zone, name }) => {
    const detail = [
      algorithm !== "fixed_window" && algorithm.replace("_", " "),
      burst != null && `burst ${number(burst)}`,
      zone,
      name && `“${shown(name, 40)}”`,
    ];
    return chip([rate, ...detail.filter(Boolean)].join(" · "), "limit");
  });
  if (unlimited) parts.push(chip("unlimited"));
  if (shadowMode) parts.push(chip("shadow mode", "warn"));
  if (quotaMode) parts.push(chip("quota mode"));
  if (reserve) {
    const estimate = reserve.estimate == null ? "of each request" : number(reserve.estimate);
    parts.push(chip(`tokens, estimate ${estimate}`));
  } else if (count) parts.push(chip(`counts ${count}`));
  if (onStoreLoss) parts.push(chip(`store loss: ${onStoreLoss}`));
  if (replaces) parts.push(chip(`replaces ${replaces.map((name) => shown(name, 40)).join(", ")}`));
  return parts;
}
