// The sections "Top talkers" and "Settings".

import { ask, clockTime, entries, fill, find, make, many, number, problem, shown, table } from "./dom.js";
import { open as openExplain } from "./explain.js";
import { open as openCounters } from "./counters.js";
import { domainOf, isSpared, spareAll } from "./rules.js";

/** Most values of a rule that are shown at once. */
const MOST_TALKERS = 8;

/** Most rules that are shown. */
const MOST_RULES = 20;

/** Loads the top talkers again. */
export async function loadTalkers() {
  const host = find("talkers");
  // A button that has the focus must not vanish.
  if (host.contains(document.activeElement)) return;
  let top;
  try {
    top = await ask("top");
  } catch (error) {
    return fill(host, problem(error));
  }
  find("top-note").textContent =
    `Values near a limit or over it since ${clockTime(top.sinceMillis)}: how much of it they used at most, and their refused hits.`;
  const rules = top.rules.toSorted((a, b) => b.hits - a.hits).slice(0, MOST_RULES);
  if (rules.length === 0) return fill(host, make("p", { class: "empty" }, "No value came near a limit."));
  fill(host, make("div", { class: "cards" }, rules.map(card)));
}

function card({ rule, hits, talkers }) {
  const rows = talkers.slice(0, MOST_TALKERS).map((talker) => {
    const { atLeast, atMost, usedPercent } = talker;
    const range = atLeast === atMost ? number(atMost) : `${number(atLeast)}–${number(atMost)}`;
    const share = usedPercent < 100 ? `${usedPercent} % used` : `${range} refused`;
    const bar = make("meter", { min: "0", max: "100", value: String(usedPercent), "aria-hidden": "true" });
    return make(
      "li",
      {},
      make("div", { class: "who" }, entries(talker.entries), bar),
      make("span", { class: "number" }, share),
      make("div", { class: "actions" }, buttons(rule, talker)),
    );
  });
  const rest = talkers.length - rows.length;
  return make(
    "article",
    { class: `panel ${isSpared(rule) ? "spared" : ""}` },
    make("h3", {}, make("code", {}, shown(rule, 120))),
    make(
      "p",
      { class: "muted" },
      `${many(hits, "refused hit")}${rest > 0 ? ` of ${many(talkers.length, "value")}` : ""}`,
      isSpared(rule) && " in shadow mode",
    ),
    make("ol", { class: "talkers" }, rows),
  );
}

/** A descriptor whose values are known as a whole can be asked about. */
function buttons(rule, talker) {
  const domain = domainOf(rule);
  const list = talker.entries;
  const isWhole = ({ omittedBytes, hex }) => !omittedBytes && hex == null;
  if (domain == null || talker.omittedEntries || !list.every(isWhole)) return [];
  const name = list.map(({ key, value }) => `${shown(key, 40)}=${shown(value, 60)}`).join(", ");
  const button = (text, open) =>
    make(
      "button",
      { type: "button", class: "quiet", "aria-label": `${text} ${name}`, onclick: () => open(domain, list) },
      text,
    );
  return [button("Explain", openExplain), button("Counters", openCounters)];
}

let settings = [];

/** Loads the settings, which do not change while the server runs. */
export async function loadSettings() {
  const box = find("settings-all");
  box.addEventListener("change", drawSettings);
  try {
    ({ settings } = await ask("settings"));
    if (settings.some(({ flag, value }) => flag === "--shadow-mode" && value === "true")) spareAll();
    drawSettings();
  } catch (error) {
    fill(find("setting-list"), problem(error));
  }
}

function drawSettings() {
  const hasAll = find("settings-all").checked;
  const chosen = settings.filter(({ source }) => hasAll || source !== "default");
  const others = settings.length - chosen.length;
  const rest = others > 0 ? `; ${number(others)} more by default` : "";
  find("settings-note").textContent =
    `${many(chosen.length, "setting")}${rest}. Passwords are never sent to this page.`;
  const rows = chosen.map(({ group, flag, variable, value, secret, source }) =>
    make(
      "tr",
      {},
      make("td", {}, make("code", {}, flag), make("span", { class: "place" }, variable ?? "")),
      make(
        "td",
        { class: "value" },
        secret
          ? make("em", {}, "secret")
          : value == null
            ? make("em", {}, "none")
            : make("code", {}, shown(value, 300)),
      ),
      make("td", {}, source),
      make("td", { class: "muted" }, group),
    ),
  );
  fill(
    find("setting-list"),
    rows.length > 0
      ? table("List of settings", ["Setting", "Value", "From", "Group"], rows)
      : make("p", { class: "empty" }, "All settings have their defaults."),
  );
}
