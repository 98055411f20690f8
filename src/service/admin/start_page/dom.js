// Elements, texts and requests. No function here or elsewhere makes markup of a text: what clients and operators wrote
// is only ever the text of a node.

/** An element with attributes and children; a child that is no node becomes text. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

export const find = (id) => document.getElementById(id);

/** Most characters of a text that the page shows at once. */
const LONGEST = 160;

/** A text of a client as one line: characters without a glyph are escaped, and a long text is cut. */
export function shown(text, longest = LONGEST) {
  let line = "";
  let count = 0;
  for (const char of String(text)) {
    if (count++ >= longest) return `${line}… (${String(text).length} characters)`;
    line += isInvisible(char) ? escaped(char) : char;
  }
  return line;
}

// Controls, format characters (which can change the direction of a line), separators of lines, lone surrogates, and
// characters of private use.
const INVISIBLE = /^[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]$/u;
const isInvisible = (char) => INVISIBLE.test(char);

function escaped(char) {
  const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[char];
  return short ?? `\\u{${char.codePointAt(0).toString(16)}}`;
}

/** `key=value` as code; a value that is not known is left out. A rule can stand for any value. */
export function entry({ key, value, isAny, omittedBytes }) {
  const parts = [make("span", { class: "k" }, shown(key))];
  if (isAny) parts.push(make("span", { class: "muted" }, " any value"));
  if (value != null) {
    parts.push(make("span", { class: "eq" }, "="), make("span", { class: "v" }, shown(value)));
  }
  if (omittedBytes) parts.push(make("span", { class: "muted" }, ` … ${many(omittedBytes, "byte")} more`));
  return make("code", { class: "entry" }, parts);
}

export const entries = (list) =>
  make(
    "span",
    { class: "entries" },
    list.map((one) => entry(one)),
  );

/** A table with a caption for screen readers; it scrolls by itself where it is wider than the page. */
export function table(caption, heads, rows) {
  const head = heads.map((text) => {
    const isNumber = text.startsWith("#");
    return make("th", { scope: "col", class: isNumber && "number" }, text.replace("#", ""));
  });
  return make(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make(
      "table",
      {},
      make("caption", { class: "hidden" }, caption),
      make("thead", {}, make("tr", {}, head)),
      make("tbody", {}, rows),
    ),
  );
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => whole.format(value);

/** A number of things, which is one thing or several things. */
export const many = (value, thing) => `${number(value)} ${thing}${value === 1 ? "" : "s"}`;

/** A rate: with a decimal where it is small. */
export function rate(value) {
  if (value >= 10_000) return short.format(value);
  return whole.format(value < 10 ? Math.round(value * 10) / 10 : Math.round(value));
}

export function micros(value) {
  if (!value) return "–";
  if (value < 1000) return `${value} µs`;
  return value < 1e6 ? `${whole.format(value / 1000)} ms` : `${whole.format(value / 1e6)} s`;
}

export function bytes(value) {
  return value < 1 << 20 ? `${Math.round(value / 1024)} kB` : `${Math.round(value / (1 << 20))} MB`;
}

export function seconds(value) {
  if (value == null) return "–";
  const parts = [];
  let rest = value;
  for (const [unit, length] of [
    ["d", 86400],
    ["h", 3600],
    ["m", 60],
    ["s", 1],
  ]) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count > 0 && parts.length < 2) parts.push(`${count}${unit}`);
  }
  return parts.join(" ") || "0s";
}

/** How long the oldest request in flight has held its slot. */
export const oldest = ({ oldestSecs }) => (oldestSecs == null ? "–" : `oldest for ${seconds(oldestSecs)}`);

export const clockTime = (millis) =>
  new Date(millis).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A JSON page of the server. Refusals become errors with the server's own words. */
export async function ask(path, body, token) {
  const headers = {};
  if (body) headers["content-type"] = "application/json";
  if (token) headers.authorization = `Bearer ${token}`;
  const options = body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers };
  let reply;
  try {
    reply = await fetch(path, { ...options, cache: "no-store", credentials: "omit" });
  } catch {
    throw new Error("the server does not answer");
  }
  if (!reply.ok) {
    throw new Error(shown((await reply.text()).trim() || `status ${reply.status}`, 400));
  }
  return reply.json();
}

/** A cell of a table with a number. */
export const amount = (value) => make("td", { class: "number" }, value == null ? "–" : number(value));

/** Replaces what `node` shows. */
export const fill = (node, ...children) => node.replaceChildren(...children.flat(Infinity).filter(Boolean));

export const problem = (error) => make("p", { class: "notice bad", role: "alert" }, error.message);
