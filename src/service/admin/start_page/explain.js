// The section "Explain a request".

import { amount, ask, entries, entry, fill, find, make, many } from "./dom.js";
import { number, oldest, problem, seconds, shown, table } from "./dom.js";
import { descriptorFields } from "./descriptor.js";

export let fields = null;
/** Counts the changes of the form: an explanation belongs to one. */
let version = 0;

export function start() {
  fields = descriptorFields(find("explain-descriptor"), { areSeveral: true });
  find("explain-form").addEventListener("input", clear);
  find("explain-form").addEventListener("submit", (event) => {
    event.preventDefault();
    explain();
  });
}

function clear() {
  version += 1;
  fill(find("explanation"));
}

/** Explains a descriptor that another section shows. */
export function open(domain, list) {
  fields.set(domain, list);
  find("explain").scrollIntoView();
  explain();
}

async function explain() {
  const output = find("explanation");
  const hitsAddend = find("explain-form").elements.hits.value;
  const descriptors = fields.descriptors().map((list) => ({ entries: list, ...(hitsAddend && { hitsAddend }) }));
  clear();
  const own = version;
  const answer = await ask("explain", { domain: fields.domain(), descriptors }).then(account, problem);
  // The form may have changed meanwhile.
  if (own !== version) return;
  fill(output, answer);
  output.focus({ preventScroll: true });
}

const codes = { OK: ["OK", "good"], OVER_LIMIT: ["over limit", "refused"] };

function badge(code) {
  const [text, kind] = codes[code] ?? ["unknown", "warn"];
  return make("span", { class: `badge ${kind}` }, text);
}

function account({ code, why, retrySecs, descriptors, omitted, error }) {
  const head = [badge(code), " ", shown(why, 600)];
  if (retrySecs != null) {
    const isLatest = descriptors.some(({ limits }) => limits.some((limit) => limit.over && !limit.unit));
    head.push(make("span", { class: "muted" }, ` Retry in ${wait(retrySecs, isLatest)}.`));
  }
  return make(
    "div",
    { class: "panel" },
    make("p", { class: "answer" }, head),
    error && make("p", { class: "notice warn" }, shown(error, 400)),
    descriptors.map((one, index) =>
      descriptor(one, descriptors.length > 1 && `${index + 1}. `, code === "OVER_LIMIT"),
    ),
    omitted > 0 && make("p", { class: "muted" }, `${many(omitted, "more descriptor")} of the request`),
  );
}

/** A wait; slots can be free before they leave by themselves. */
const wait = (secs, isLatest) => `${seconds(secs)}${isLatest ? " at the latest" : ""}`;

function descriptor(one, nth, refuses) {
  return [
    make("h3", {}, nth, entries(one.entries)),
    make("ol", { class: "steps" }, one.path.map(step)),
    result(one),
    one.limits.length > 0 && limitTable(one.limits, refuses && one.code !== "OK"),
  ];
}

const forms = {
  exact: "matches the rule with this key and value",
  joined: "matches a rule that reads alike once key and value are joined",
  wildcard: "matches a wildcard",
  key: "matches the key, which stands for every value",
  joined_key: "matches a key that reads like key and value joined",
  none: "matches no rule here",
};

const place = ({ file, line }) => (file ? shown(`${file}${line ? `:${line}` : ""}`, 300) : "");

function node(one) {
  return [entry({ ...one, isAny: one.value == null }), make("span", { class: "place" }, place(one))];
}

function step({ key, value, match, node: chosen, others, omitted }) {
  const item = make(
    "li",
    { class: match === "none" ? "missed" : "" },
    entry({ key, value }),
    ` ${forms[match] ?? match}`,
  );
  if (chosen) item.append(": ", ...node(chosen));
  if (others.length === 0) return item;
  const rest = others.map((other) =>
    make("li", {}, node(other), make("span", { class: "muted" }, ` ${shown(other.why, 300)}`)),
  );
  if (omitted) rest.push(make("li", {}, `${number(omitted)} more`));
  const title = `${many(others.length + omitted, "other rule")} of this level`;
  item.append(make("details", {}, make("summary", {}, title), make("ul", {}, rest)));
  return item;
}

function result({ result: kind, rule, why, suggestion, nearest }) {
  if (kind === "own_limit") return make("p", {}, "The request brings a limit of its own.");
  if (kind === "limited") {
    const modes = [rule.shadowMode && "shadow mode", rule.quotaMode && "quota mode"].filter(Boolean);
    return make(
      "p",
      {},
      "Rule ",
      make("code", {}, shown(rule.path, 300)),
      make("span", { class: "place" }, place(rule)),
      modes.map((mode) => [" ", make("span", { class: "chip warn" }, mode)]),
    );
  }
  // A suggestion has the words of the question at the end.
  const cause = suggestion ? why.replace(/; did you mean .*\?$/, "") : why;
  return make(
    "p",
    { class: "notice warn" },
    `No limit: ${shown(cause, 400)}. `,
    suggestion && `Suggestion: ${shown(suggestion, 400)}. `,
    nearest && [
      "Nearest rule: ",
      make("code", {}, shown(nearest.path, 300)),
      make("span", { class: "place" }, place(nearest)),
    ],
  );
}

function limitTable(limits, areRefused) {
  const cell = (...children) => make("td", {}, children);
  const rows = limits.map((limit) => {
    const name = limit.name ? ` “${shown(limit.name, 60)}”` : "";
    if (limit.replaced) {
      return make(
        "tr",
        {},
        cell(limit.rate, name),
        make("td", { colspan: "6" }, "replaced by another rule of the request"),
      );
    }
    return make(
      "tr",
      { class: limit.over && areRefused ? "over" : "" },
      cell(limit.rate, name),
      cell(limit.algorithm.replace("_", " ")),
      amount(limit.count),
      amount(limit.remaining),
      cell(limit.unit ? seconds(limit.resetSecs) : oldest(limit)),
      cell(limit.over ? wait(limit.retrySecs, !limit.unit) : "–"),
      cell(
        make("code", { class: "counter-key" }, shown(limit.counter, 200)),
        make("span", { class: "muted" }, limit.charged ? " charged" : " not charged"),
      ),
    );
  });
  return table(
    "Limits of the rule",
    ["Limit", "Algorithm", "#Count", "#Left", "Resets in", "Retry in", "Counter"],
    rows,
  );
}
