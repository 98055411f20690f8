// The fields for a domain and the entries of descriptors.

import { fill, make, shown } from "./dom.js";

let editors = 0;

/**
 * Fields in `host`. Values that were put in by `set` stay as they are, byte for byte, until someone types: a text field
 * would change their line breaks.
 */
export function descriptorFields(host, { areSeveral = false } = {}) {
  const id = `descriptor-${++editors}`;
  const domain = make("input", {
    list: `${id}-domains`,
    required: true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const domains = make("datalist", { id: `${id}-domains` });
  const keys = make("datalist", { id: `${id}-keys` });
  const sets = make("div");
  const quiet = (text, onclick) => make("button", { type: "button", class: "quiet", onclick }, text);
  fill(
    host,
    make("label", { class: "domain" }, "Domain ", domain),
    sets,
    areSeveral && quiet("Add a descriptor", () => addDescriptor().querySelector("input").focus()),
    domains,
    keys,
  );
  /** Numbers the descriptors again; the form has changed. */
  const changed = () => {
    const one = sets.children.length === 1;
    [...sets.children].forEach((set, index) => {
      set.firstChild.textContent = one ? "Entries of the descriptor" : `Entries of descriptor ${index + 1}`;
    });
    host.dispatchEvent(new Event("input", { bubbles: true }));
  };

  const field = (tag, label, attributes, text) => {
    const node = make(tag, { ...attributes, "aria-label": label, spellcheck: "false", autocomplete: "off" });
    exact.set(node, text);
    node.value = shown(text);
    // What someone types replaces the exact text.
    node.addEventListener("input", () => exact.delete(node));
    return node;
  };
  const add = (rows, { key = "", value = "" } = {}) => {
    const count = rows.children.length + 1;
    const keyField = field("input", `Key ${count}`, { list: `${id}-keys`, placeholder: "key" }, key);
    const valueField = field("textarea", `Value ${count}`, { rows: "1", placeholder: "value" }, value);
    const drop = () => {
      row.remove();
      // Without entries there is no descriptor, but one stays to be filled in.
      const isLast = rows.children.length === 0 && sets.children.length > 1;
      if (isLast) rows.parentNode.remove();
      (isLast ? sets.firstChild : rows.parentNode).lastChild.focus();
      changed();
    };
    const button = make(
      "button",
      { type: "button", class: "quiet icon", "aria-label": `Remove entry ${count}`, onclick: drop },
      "×",
    );
    const row = make(
      "div",
      { class: "entry-row" },
      keyField,
      make("span", { class: "eq", "aria-hidden": "true" }, "="),
      valueField,
      button,
    );
    rows.append(row);
    changed();
    return keyField;
  };
  const addDescriptor = (entries = [{}]) => {
    const rows = make("div", { class: "entry-rows" });
    const more = quiet("Add an entry", () => add(rows).focus());
    const set = make("fieldset", {}, make("legend"), rows, more);
    sets.append(set);
    entries.forEach((one) => add(rows, one));
    return set;
  };
  addDescriptor();

  return {
    /** Offers domains and keys. */
    offer(allDomains, allKeys) {
      fill(
        domains,
        allDomains.map((name) => make("option", { value: name })),
      );
      fill(
        keys,
        allKeys.map((name) => make("option", { value: name })),
      );
      if (!domain.value && allDomains.length > 0) domain.value = allDomains[0];
    },
    set(name, entries) {
      exact.set(domain, name);
      domain.value = shown(name);
      domain.addEventListener("input", () => exact.delete(domain), { once: true });
      sets.replaceChildren();
      addDescriptor(entries.length > 0 ? entries : undefined);
    },
    domain: () => text(domain),
    /** For each descriptor the entries whose keys are filled in. */
    descriptors() {
      const pair = (row) => {
        const [key, value] = [row.querySelector("input"), row.querySelector("textarea")];
        return { key: text(key), value: text(value) };
      };
      const pairs = (set) => [...set.querySelectorAll(".entry-row")].map(pair);
      return [...sets.children].map((set) => pairs(set).filter(({ key }) => key !== ""));
    },
  };
}

/** The exact texts of fields that show them otherwise. */
const exact = new WeakMap();

const text = (field) => exact.get(field) ?? field.value;
