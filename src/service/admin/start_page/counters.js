// The section "Counters": what they hold, and resets.

import { amount, ask, fill, find, make, many, number } from "./dom.js";
import { oldest, problem, seconds, shown, table } from "./dom.js";
import { descriptorFields } from "./descriptor.js";
import { open as openExplain } from "./explain.js";
import { isSpared } from "./rules.js";

export let fields = null;
/** What is shown now, so that a change can show it again. */
let last = null;

export function start() {
  fields = descriptorFields(find("counter-descriptor"));
  find("counter-form").addEventListener("submit", (event) => {
    event.preventDefault();
    show();
  });
}

/** Shows the counters of a descriptor that another section shows. */
export function open(domain, list) {
  fields.set(domain, list);
  find("counters").scrollIntoView();
  show();
}

function show() {
  const [domain, [list]] = [fields.domain(), fields.descriptors()];
  last = () => one(domain, list);
  find("counter-status").textContent = "";
  return run(last);
}

async function run(work) {
  try {
    await work();
  } catch (error) {
    fill(find("counter-list"), problem(error));
  }
}

const request = (domain, list) => ({
  domain,
  descriptors: [{ entries: list.map(({ key, value }) => ({ key, value })) }],
});

async function one(domain, list) {
  const { descriptors } = await ask("counters/get", request(domain, list));
  const [{ counters, noLimit }] = descriptors;
  if (noLimit) {
    fill(find("counter-list"), make("p", { class: "notice warn" }, `No limit: ${shown(noLimit, 400)}`));
    return;
  }
  fill(find("counter-list"), actions(domain, list), counterTable(counters));
}

function counterTable(counters) {
  const rows = counters.map((counter) => {
    const { rule, limit, hits, remaining, resetSecs, leased, algorithm } = counter;
    const per = limit.unitMultiplier > 1 ? many(limit.unitMultiplier, limit.unit) : limit.unit;
    const rate = `${number(limit.requestsPerUnit)} ${per ? `per ${per}` : "in flight"}`;
    const isOver = remaining === 0 && !isSpared(rule);
    return make(
      "tr",
      { class: isOver ? "over" : "" },
      make("td", {}, make("code", {}, shown(rule ?? "", 120))),
      make("td", {}, rate, make("span", { class: "place" }, algorithm.replace("_", " "))),
      make(
        "td",
        { class: "number" },
        hits == null ? "–" : number(hits),
        leased > 0 && make("span", { class: "place" }, `${number(leased)} in a slice`),
      ),
      amount(remaining),
      make("td", {}, limit.ttlSecs ? oldest(counter) : seconds(resetSecs)),
    );
  });
  return table("List of counters", ["Rule", "Limit", "#Hits", "#Left", "Resets in"], rows);
}

function actions(domain, list) {
  const name = list.map(({ key, value }) => `${shown(key, 40)}=${shown(value, 60)}`).join(", ");
  const button = (text, action) =>
    make(
      "button",
      { type: "button", class: "quiet", "aria-label": `${text} ${name}`, onclick: action },
      text,
    );
  return make(
    "div",
    { class: "actions" },
    button("Reset", () => confirm(domain, list, name)),
    button("Explain", () => openExplain(domain, list)),
  );
}

/** Asks before a reset, and makes it. */
function confirm(domain, list, name) {
  const dialog = find("confirm");
  find("confirm-title").textContent = `Reset ${name}?`;
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "do") reset(domain, list, name);
  };
  dialog.showModal();
}

async function reset(domain, list, name) {
  const status = find("counter-status");
  try {
    const { descriptors } = await ask("counters/reset", request(domain, list), find("token").value);
    const [{ counters }] = descriptors;
    const changes = counters.map(
      ({ hitsBefore, hits }) => `${number(hitsBefore ?? 0)} → ${many(hits ?? 0, "hit")}`,
    );
    status.className = "notice good";
    status.textContent = `Reset ${name}: ${changes.join("; ")}`;
    await run(last);
  } catch (error) {
    status.className = "notice bad";
    status.textContent = error.message;
  }
}
