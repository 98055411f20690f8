// Scenarios of browser.js about the page alone: people who use a keyboard or a screen reader, small windows, texts of
// clients who mean harm, and pictures.
"use strict";

const { assert, fs, path, pause, until } = require("./browser.js");

const SIZES = [{ width: 1280, height: 900 }, { width: 390, height: 844 }];
const THEMES = ["light", "dark"];

/** Whether the form of counters has a domain, which comes with the rules: without one it asks nothing. */
const isDomainFilledIn = () => document.querySelector("#counter-descriptor .domain input").value !== "";

/** Opens all parts of the page that a click opens. */
async function openAll(page) {
  await page.run(() => document.querySelector("#settings-all").click());
  await page.shows("#talkers .actions button");
  await page.run(() => {
    document.querySelector("#talkers .actions").querySelectorAll("button").forEach((one) => one.click());
  });
  await page.shows("#counter-list tbody tr");
  await page.shows("#explanation table");
  await page.run(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
}

/** axe finds no violation in either theme and in no width, and nothing is wider than the window. */
async function accessible(browser, url) {
  const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
  for (const size of SIZES) {
    for (const theme of THEMES) {
      const page = await browser.open(url, { ...size, theme, passesPolicy: true });
      await openAll(page);
      await page.call("Runtime.evaluate", { expression: axe });
      for (const dialog of [false, true]) {
        if (dialog) await page.run(() => document.querySelector("#counter-list .actions button").click());
        const found = await page.run(async () => {
          const { violations, passes } = await axe.run(document, { resultTypes: ["violations"] });
          const node = ({ html, failureSummary }) => `${html} ${failureSummary}`;
          const about = ({ id, nodes }) => `${id}: ${nodes.map(node).join("\n")}`;
          return { violations: violations.map(about), passes: passes.length };
        });
        assert.deepEqual(found.violations, [], `${size.width} ${theme}`);
        assert.ok(found.passes > 10, "axe looked at the page");
      }
      await page.checkWidth();
      await page.close();
    }
  }
}

/** All that a mouse can do is done by keys alone. */
async function keyboard(browser, url) {
  const page = await browser.open(url);
  await page.shows("#talkers .actions button");
  const focused = () =>
    page.run(() => {
      const at = document.activeElement;
      const style = getComputedStyle(at.matches(".choice input") ? at.nextElementSibling : at);
      const name = at.getAttribute("aria-label") ?? at.labels?.[0]?.innerText ?? at.innerText;
      return { id: at.id, tag: at.tagName, name: name.trim(), hasOutline: style.outlineStyle !== "none" };
    });
  const walked = [];
  /** Presses the Tab key until the element with this name has the focus. */
  const walk = async (name) => {
    for (let steps = 0; steps < 200; steps++) {
      await page.press("Tab");
      const now = await focused();
      walked.push(now);
      if (now.name.startsWith(name)) return now;
    }
    assert.fail(`the Tab key does not lead to ${name}: ${walked.map((one) => one.name)}`);
  };
  await walk("Skip to the content");
  await page.press("Enter");
  assert.equal((await focused()).id, "main");
  await walk("5 min");
  await page.press("ArrowRight");
  assert.equal(await page.run(() => document.querySelector("#span :checked").value), "3600");
  await walk("Find");
  await page.call("Input.insertText", { text: "no such rule" });
  const isNoneFound = () => document.querySelector("#rules-note").innerText.startsWith("0 of");
  await page.until("no rule is found", isNoneFound);
  await page.run(() => document.activeElement.select());
  await page.call("Input.insertText", { text: "remote" });
  await page.shows("#rule-tree .rule");
  // The value with the most hits over a limit comes first.
  const [key] = (await walk("Counters ")).name.slice("Counters ".length).split("=");
  await page.press("Enter");
  await page.shows("#counter-list .actions");
  await walk(`Explain ${key}=`);
  await page.press("Enter");
  await page.until("the focus is at the explanation", () => document.activeElement.id === "explanation");
  assert.ok((await page.text("#explanation")).includes(`${key}=`));
  await walk("Show");
  await walk("Admin token");
  await walk("Reset ");
  await page.press("Enter");
  await page.until("it asks", () => document.querySelector("#confirm").open);
  await page.press("Escape");
  await page.until("it does nothing", () => !document.querySelector("#confirm").open);
  assert.match((await focused()).name, /^Reset /);
  assert.equal(await page.text("#counter-status"), "");
  await walk("with defaults");
  await page.press(" ");
  const areAll = () => document.querySelectorAll("#setting-list tbody tr").length > 50;
  await page.until("all settings are there", areAll);
  const unseen = walked.filter(({ hasOutline, tag }) => !hasOutline && tag !== "BODY");
  assert.deepEqual(unseen, [], "the focus is seen everywhere");
  page.checkCalm();
}

/** Texts of clients stay texts. TEXTS is a file with a list of them; each was refused as the value of `api_key`. */
async function hostile(browser, url, file) {
  const texts = JSON.parse(fs.readFileSync(file, "utf8"));
  const page = await browser.open(url);
  await page.run(() => (window.counted = 0));
  const countOf = (least) => {
    const found = document.querySelectorAll("#talkers li").length;
    return found >= least && found;
  };
  const count = await page.until("all texts are top talkers", countOf, Math.min(texts.length, 8));
  for (let nth = 0; nth < count; nth++) {
    const has = await page.run((nth) => {
      const button = document.querySelectorAll("#talkers li")[nth].querySelector("button");
      button?.click();
      return Boolean(button);
    }, nth);
    // Long ones are cut by the server, and no button asks about a part.
    if (!has) continue;
    await page.shows("#explanation .badge");
    await page.run(() => document.querySelector("#explanation").replaceChildren());
  }
  for (const value of texts) {
    await page.run((value) => {
      const form = document.querySelector("#explain-descriptor");
      form.querySelector(".entry-row input").value = "api_key";
      form.querySelector("textarea").value = value;
      for (const one of form.querySelectorAll("input, textarea")) {
        one.dispatchEvent(new Event("input", { bubbles: true }));
      }
      document.querySelector("#explain-form .primary").click();
    }, value);
    await page.shows("#explanation .badge");
    const text = await page.text("#explanation");
    assert.match(text, /api_key/);
    // No line break, no control character and no change of direction comes through.
    // eslint-disable-next-line no-control-regex
    const odd = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/;
    assert.doesNotMatch(text, odd);
    await page.run(() => document.querySelector("#explanation").replaceChildren());
  }
  // So do counters.
  await page.run(() => document.querySelector('#talkers [aria-label^="Counters "]').click());
  await page.shows("#counter-list tbody tr");
  const planted = await page.run(() => {
    const planted = "[onerror], [onload], main img, main script, iframe, marquee, a[href^='javascript']";
    return [document.querySelectorAll(planted).length, document.title, window.counted];
  });
  assert.deepEqual(planted, [0, "tollgate", 0]);
  await page.checkWidth();
  page.checkCalm();
}

/** A reload that is refused shows its errors, and one that is good the new rules; the end of the server shows too. */
async function reload(browser, url, folder) {
  const page = await browser.open(url);
  const rules = path.join(folder, "rules.yaml");
  const good = fs.readFileSync(rules, "utf8");
  const write = (text) => {
    fs.writeFileSync(`${rules}.new`, text);
    fs.renameSync(`${rules}.new`, rules);
  };
  write(`${good}  - {key: <b>new</b>, rate_limits: [3/fortnight]}\n`);
  const hasErrors = () => /rules\.yaml:\d+.*fortnight/.test(document.querySelector("#notices").innerText);
  await page.until("the errors are there", hasErrors);
  assert.match(await page.text("#tiles"), /reload refused at/);
  write(`${good}  - {key: <b>new</b>, rate_limits: [3/year]}\n`);
  const hasRule = () => document.querySelector("#rule-tree").innerText.includes("<b>new</b>");
  await page.until("the new rule is there", hasRule);
  await page.until("the errors are gone", () => document.querySelector("#notices").children.length === 0);
  page.checkCalm();
  console.log("reloaded");
  // The caller stops the server now.
  const isWaiting = () => document.querySelector("#connection").dataset.state === "waiting";
  await page.until("the page says so", isWaiting);
}

/** Where a token is set, a page may change counters with it. */
async function token(browser, url) {
  const page = await browser.open(url);
  await page.until("the domain is filled in", isDomainFilledIn);
  await page.type("#counter-descriptor .entry-row input", "remote_address");
  await page.type("#counter-descriptor .entry-row textarea", "192.0.2.1");
  const change = async () => {
    await page.run(() => document.querySelector("#counter-form .primary").click());
    await page.click('#counter-list [aria-label^="Reset "]');
    await page.until("it asks", () => document.querySelector("#confirm").open);
    await page.click("#confirm-do");
  };
  await change();
  const says = (text) => new RegExp(text).test(document.querySelector("#counter-status").innerText);
  await page.until("it is refused", says, "change only with");
  await page.type("#token", "sesame");
  await change();
  await page.until("it is done", says, "^Reset ");
  const kept = await page.run(() => [document.cookie, localStorage.length, sessionStorage.length]);
  assert.deepEqual(kept, ["", 0, 0]);
  assert.ok(!(await page.run(() => location.href)).includes("sesame"));
  const refusals = page.complaints.filter((text) => !text.includes("403"));
  assert.deepEqual(refusals, []);
}

/** Pictures of the page in both themes and both widths. */
async function pictures(browser, url, folder) {
  const page = await browser.open(url);
  await page.shows("#talkers .actions button");
  await page.call("Emulation.setScrollbarsHidden", { hidden: true });
  // Charts show what the page has seen: five minutes.
  await pause(310_000);
  for (const size of SIZES) {
    for (const theme of THEMES) {
      await page.resize(size);
      await page.theme(theme);
      await pause(3000);
      const kind = size.width > 800 ? "wide" : "narrow";
      await page.picture(path.join(folder, `${kind}-${theme}.png`));
    }
  }
  page.checkCalm();
}

/** Words and colours of the page. All calls come over JSON-URL; MODE is "global" if the server is in shadow mode. */
async function truths(browser, url, json, mode) {
  const hit = (...keys) => {
    const descriptors = keys.map((key) => ({ entries: [{ key, value: "v" }] }));
    return fetch(json, { method: "POST", body: JSON.stringify({ domain: "several", descriptors }) });
  };
  const page = await browser.open(url);
  assert.ok((await page.text("footer")).includes(`curl ${url} `), "the footer has the address of the page");
  // A line of the latency is there only after calls over gRPC.
  assert.equal(await page.text("#no-latency"), "No calls over gRPC.");
  assert.equal(await page.run(() => document.querySelector("#latency").offsetHeight), 0);
  // What shadow mode spares is not said to be refused.
  const spared = await page.wait("both rules are hit", async () => {
    await Promise.all([hit("tried"), hit("real")]);
    return page.run(() => {
      const rows = ["tried", "real"].map((key) =>
        document.querySelector(`[data-rule="several.${key}"] .rate-refused`),
      );
      const isThere = rows.every((row) => row?.innerText);
      const look = (row) => [row.innerText.replace(/^[\d.]+/, ""), getComputedStyle(row).color];
      return isThere && rows.map(look);
    });
  });
  const [[tried, calm], [real, loud]] = spared;
  assert.equal(tried, "/s would be refused");
  assert.equal(real, mode === "global" ? tried : "/s refused");
  assert.equal(calm === loud, mode === "global", "red is for hits that are refused");
  await page.until("there are top talkers", () => document.querySelectorAll("#talkers h3").length === 2);
  const talkers = await page.text("#talkers");
  assert.equal(talkers.match(/in shadow mode/g).length, mode === "global" ? 2 : 1);

  // One thing is not several.
  await page.type("#rule-filter", "only");
  const isOne = () => document.querySelector("#rules-note").innerText.startsWith("1 of 3 nodes in 2 domains");
  await page.until("one rule is found", isOne);
  assert.match(await page.text("#rule-tree"), /one 1 rule$/m);
  await page.type("#explain-descriptor .domain input", "one");
  await page.type("#counter-descriptor .domain input", "one");
  await page.type("#counter-descriptor .entry-row input", "only");
  await page.click("#counter-form .primary");
  await page.shows("#counter-list td");
  assert.match(await page.text("#counter-list"), /9 per 2 hours/);
  await page.until("a second passes", () => document.querySelectorAll(".tile").length === 8);
  const all = await page.text("body");
  assert.doesNotMatch(all, /\b1 (rule|node|domain|counter|hit|value|setting|server|byte)s\b/);

  // A suggestion is made once.
  const explain = async (isThere) => {
    await page.click("#explain-form .primary");
    await page.shows("#explanation .badge");
    const text = await page.text("#explanation");
    assert.ok(text.includes(isThere), text);
    return text;
  };
  await page.type("#explain-descriptor .entry-row input", "onli");
  const advice = await explain("No limit: `onli` is no key here (entry 1). Suggestion: write `only` as the key.");
  assert.doesNotMatch(advice, /did you mean|\?\./);

  // An explanation is of the form as it is, and a request may have several descriptors.
  const isGone = () => page.until("it is gone", () => !document.querySelector("#explanation").innerText);
  await page.type("#explain-descriptor .entry-row input", "only");
  await isGone();
  await explain("OK");
  // Without a number of hits the estimate of the rule counts, as for Envoy.
  const descriptors = [{ entries: [{ key: "only" }], hitsAddend: 1 }];
  await fetch(json, { method: "POST", body: JSON.stringify({ domain: "one", descriptors }) });
  await explain("is over the limit");
  for (const [hits, verdict] of [["8", "no limit is over"], ["10", "is over the limit"]]) {
    await page.type("#explain-form [name=hits]", hits);
    await isGone();
    await explain(verdict);
  }
  await page.run(() => {
    const buttons = [...document.querySelectorAll("#explain-descriptor button")];
    buttons.find((one) => one.innerText === "Add a descriptor").click();
  });
  await isGone();
  assert.match(await page.text("#explain-descriptor"), /descriptor 1[^]*descriptor 2/);
  await page.call("Input.insertText", { text: "none" });
  assert.match(await explain("none="), /1\.\s+only=[^]*2\.\s+none=/);
  await page.click('#explain-descriptor fieldset:nth-child(2) [aria-label="Remove entry 1"]');
  await isGone();
  assert.equal(await page.run(() => document.querySelectorAll("#explain-descriptor fieldset").length), 1);
  page.checkCalm();
}

/** While the store is lost, the page says what clients get. */
async function lost(browser, url) {
  const page = await browser.open(url);
  await page.until("the loss is there", () => document.querySelector("#notices").innerText.includes("lost"));
  const notice = await page.text("#notices");
  for (const text of [
    "The store is lost. Meanwhile:",
    "2 rules answer `error`: Envoy lets their requests pass unless failure_mode_deny is set",
    "1 rule answers `deny`: its requests are refused",
  ]) {
    assert.ok(notice.includes(text), notice);
  }
  page.checkCalm();
}

/** The page answers, and its counts move. */
async function moves(browser, url) {
  const page = await browser.open(url);
  await page.until("decisions are counted", () => Number(document.querySelector(".tile b").innerText) > 0);
  await until("charts are drawn", () => page.run(() => document.querySelector("#rates canvas")));
  assert.match(await page.text("#now-note"), /has seen since it was opened, at \d\d:\d\d:\d\d\.$/);
  page.checkCalm();
}

module.exports = { accessible, keyboard, hostile, reload, token, truths, lost, pictures, moves };
