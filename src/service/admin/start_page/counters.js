// The section "Counters": what they hold, resets and grants.

import { amount, ask, fill, find, make, many, number } from "./dom.js";
import { oldest, passing, problem, seconds, shown, table } from "./dom.js";
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

const request = (domain, list, hits) => ({
  domain,
  descriptors: [
    { entries: list.map(({ key, value }) => ({ key, value })), ...(hits && { hitsAddend: hits }) },
  ],
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
    const { rule, limit, hits, remaining, beyondLimit, resetSecs, leased, algorithm } = counter;
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
      amount(remaining, beyondLimit),
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
    button("Reset", () => confirm("Reset", domain, list, name)),
    button("Grant", () => confirm("Grant", domain, list, name)),
    button("Explain", () => openExplain(domain, list)),
  );
}

const texts = {
  Reset: "All counters of this descriptor will hold no hit.",
  Grant: "On each limit of this descriptor this many more hits pass, until its windows end.",
};

/** What a grant did to a counter. */
function effect({ granted, whyFewer, remaining, beyondLimit }) {
  const more = granted > 0 ? `${number(granted)} more granted` : "nothing granted";
  const why = whyFewer ? ` (${shown(whyFewer, 200)})` : "";
  return `, ${more}${why}, ${number(remaining ?? 0)} ${passing(beyondLimit)}`;
}

/** Asks before a change, and makes it. */
function confirm(change, domain, list, name) {
  const dialog = find("confirm");
  const hits = find("confirm-hits").querySelector("input");
  find("confirm-title").textContent = `${change} ${name}?`;
  find("confirm-text").textContent = texts[change];
  find("confirm-hits").hidden = change !== "Grant";
  hits.disabled = change !== "Grant";
  find("confirm-do").textContent = change;
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "do") apply(change, domain, list, name, hits.value);
  };
  dialog.showModal();
}

async function apply(change, domain, list, name, hits) {
  const isGrant = change === "Grant";
  const status = find("counter-status");
  try {
    const body = request(domain, list, isGrant ? hits : null);
    const path = isGrant ? "counters/grant" : "counters/reset";
    const { descriptors } = await ask(path, body, find("token").value);
    const [{ counters }] = descriptors;
    const changes = counters.map(
      ({ hitsBefore, hits: after, ...counter }) =>
        `${number(hitsBefore ?? 0)} → ${many(after ?? 0, "hit")}${isGrant ? effect(counter) : ""}`,
    );
    status.className = `notice ${counters.some(({ whyFewer }) => whyFewer) ? "warn" : "good"}`;
    status.textContent = `${isGrant ? "Grant to" : "Reset"} ${name}: ${changes.join("; ")}`;
    await run(last);
  } catch (error) {
    status.className = "notice bad";
    status.textContent = error.message;
  }
}
