// The fields for a domain and the entries of a descriptor.

import { fill, make, shown } from "./dom.js";

let editors = 0;

/**
 * Fields in `host`. Values that were put in by `set` stay as they are, byte for byte, until someone types: a text field
 * would change their line breaks.
 */
export function descriptorFields(host, { isOptional = false } = {}) {
  const id = `descriptor-${++editors}`;
  const domain = make("input", {
    list: `${id}-domains`,
    required: true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const domains = make("datalist", { id: `${id}-domains` });
  const keys = make("datalist", { id: `${id}-keys` });
  const rows = make("div", { class: "entry-rows" });
  const more = make(
    "button",
    { type: "button", class: "quiet", onclick: () => add().key.focus() },
    "Add an entry",
  );
  const legend = isOptional ? "Entries of one descriptor (optional)" : "Entries of the descriptor";
  fill(
    host,
    make("label", { class: "domain" }, "Domain ", domain),
    make("fieldset", {}, make("legend", {}, legend), rows, more),
    domains,
    keys,
  );

  const field = (tag, label, attributes, text) => {
    const node = make(tag, { ...attributes, "aria-label": label, spellcheck: "false", autocomplete: "off" });
    exact.set(node, text);
    node.value = shown(text);
    // What someone types replaces the exact text.
    node.addEventListener("input", () => exact.delete(node));
    return node;
  };
  const add = ({ key = "", value = "" } = {}) => {
    const count = rows.children.length + 1;
    const keyField = field("input", `Key ${count}`, { list: `${id}-keys`, placeholder: "key" }, key);
    const valueField = field("textarea", `Value ${count}`, { rows: "1", placeholder: "value" }, value);
    const drop = () => {
      row.remove();
      more.focus();
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
    return { key: keyField };
  };
  add();

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
      rows.replaceChildren();
      entries.forEach(add);
      if (entries.length === 0) add();
    },
    domain: () => text(domain),
    /** The entries whose keys are filled in. */
    entries() {
      const all = [...rows.children].map((row) => {
        const [key, value] = [row.querySelector("input"), row.querySelector("textarea")];
        return { key: text(key), value: text(value) };
      });
      return all.filter(({ key }) => key !== "");
    },
  };
}

/** The exact texts of fields that show them otherwise. */
const exact = new WeakMap();

const text = (field) => exact.get(field) ?? field.value;
