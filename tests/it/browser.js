// Drives a headless Chromium by its DevTools protocol, and checks the page of the debug port in it.
//
// node browser.js SCENARIO PAGE-URL [FRONT-URL] [FOLDER]: ends with 0 if all checks hold. `CHROMIUM` is the browser.
"use strict";

const { spawn } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const assert = require("node:assert/strict");
const smallPng = require("./small_png.js");

const PATIENCE_MILLIS = 30_000;

const pause = (millis) => new Promise((resolve) => setTimeout(resolve, millis));

/** Waits until `is_so` returns something true, and returns that. */
async function until(what, isSo) {
  const deadline = Date.now() + PATIENCE_MILLIS;
  for (;;) {
    const found = await isSo();
    if (found) return found;
    assert.ok(Date.now() < deadline, `not so in time: ${what}`);
    await pause(50);
  }
}

/** A browser process with an empty profile. */
class Browser {
  static async start() {
    const profile = fs.mkdtempSync(path.join(os.tmpdir(), "tollgate-browser-"));
    // It ends when this process does, because the pipe ends then.
    const flags =
      "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking " +
      `--disable-component-update --disable-sync --remote-debugging-pipe --user-data-dir=${profile} about:blank`;
    const stdio = ["ignore", "ignore", "ignore", "pipe", "pipe"];
    const child = spawn(process.env.CHROMIUM, flags.split(" "), { stdio, detached: true });
    const browser = new Browser();
    Object.assign(browser, { child, profile, calls: new Map(), pages: new Map(), next: 1 });
    process.on("exit", () => browser.kill());
    child.on("exit", (code) => {
      console.error(`the browser has ended with ${code}`);
      process.exit(1);
    });
    let rest = "";
    child.stdio[4].setEncoding("utf8").on("data", (text) => {
      const messages = (rest + text).split("\0");
      rest = messages.pop();
      messages.forEach((message) => browser.take(JSON.parse(message)));
    });
    return browser;
  }

  take({ id, result, error, method, params, sessionId }) {
    if (id == null) return this.pages.get(sessionId)?.event(method, params);
    const { resolve, reject } = this.calls.get(id);
    this.calls.delete(id);
    error ? reject(new Error(error.message)) : resolve(result);
  }

  call(method, params = {}, sessionId = undefined) {
    const id = this.next++;
    this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.calls.set(id, { resolve, reject }));
  }

  kill() {
    try {
      process.kill(-this.child.pid, "SIGKILL");
    } catch {
      // It has ended.
    }
    fs.rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }

  /** Opens `url` in a tab. */
  async open(url, { width = 1280, height = 900, theme = "light", passesPolicy = false } = {}) {
    const { targetId } = await this.call("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.call("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId, targetId, url);
    this.pages.set(sessionId, page);
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await page.call(`${domain}.enable`);
    await page.resize({ width, height });
    await page.theme(theme);
    // axe is put into the page by a script that no page may load.
    if (passesPolicy) await page.call("Page.setBypassCSP", { enabled: true });
    await page.call("Page.navigate", { url });
    const isLive = () => document.querySelector("#connection")?.dataset.state === "live";
    await page.until("the page is live", isLive);
    await page.until("numbers are there", () => document.querySelectorAll(".tile").length >= 7);
    return page;
  }
}

/** A tab, with all that it requested and complained about. */
class Page {
  constructor(browser, sessionId, targetId, url) {
    Object.assign(this, { browser, sessionId, targetId, origin: new URL(url).origin });
    Object.assign(this, { requests: [], complaints: [] });
  }

  call(method, params) {
    return this.browser.call(method, params, this.sessionId);
  }

  event(method, params) {
    if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
    const complain = (about) => this.complaints.push(JSON.stringify(about));
    const isBad = (kind) => ["error", "warning", "assert"].includes(kind);
    if (method === "Runtime.exceptionThrown") complain(params.exceptionDetails);
    if (method === "Runtime.consoleAPICalled" && isBad(params.type)) complain(params.args);
    if (method === "Log.entryAdded" && isBad(params.entry.level)) complain(params.entry);
  }

  /** Runs a function in the page and returns its value. */
  async run(body, ...args) {
    const expression = `(${body})(...${JSON.stringify(args)})`;
    const options = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await this.call("Runtime.evaluate", options);
    assert.ok(!exceptionDetails, JSON.stringify(exceptionDetails));
    return result.value;
  }

  /** Waits until `isSo` returns something true; otherwise prints all that the page shows. */
  async wait(what, isSo) {
    try {
      return await until(what, isSo);
    } catch (error) {
      console.error(this.complaints, await this.text("body"));
      throw error;
    }
  }

  until(what, body, ...args) {
    return this.wait(what, () => this.run(body, ...args));
  }

  /** Waits for an element. */
  shows(selector) {
    return this.until(`${selector} is there`, (selector) => document.querySelector(selector) !== null, selector);
  }

  /** Checks that nothing is wider than the window. */
  async checkWidth() {
    const [content, window] = await this.run(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(content <= window, `${content} pixels in a window of ${window}`);
  }

  resize(size) {
    return this.call("Emulation.setDeviceMetricsOverride", { ...size, deviceScaleFactor: 1, mobile: false });
  }

  theme(value) {
    const features = [{ name: "prefers-color-scheme", value }];
    return this.call("Emulation.setEmulatedMedia", { features });
  }

  /** Clicks with the mouse in the middle of an element, again if the element moved meanwhile. */
  async click(selector) {
    await this.wait(`${selector} is clicked`, async () => {
      const point = await this.run(async (selector) => {
        const node = document.querySelector(selector);
        node?.scrollIntoView({ block: "center" });
        const place = () => node?.getBoundingClientRect() ?? {};
        const { left, top, width, height } = place();
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        if (!width || place().top !== top) return null;
        window.isClicked = false;
        // The section may draw itself anew, so the node that is clicked may be another one.
        const record = ({ target }) => (window.isClicked = target.closest(selector) !== null);
        document.addEventListener("click", record, { capture: true, once: true });
        return { x: left + width / 2, y: top + height / 2 };
      }, selector);
      if (!point) return false;
      const mouse = (type) =>
        this.call("Input.dispatchMouseEvent", { type, ...point, button: "left", clickCount: 1 });
      await mouse("mousePressed");
      await mouse("mouseReleased");
      return this.run(() => window.isClicked);
    });
  }

  /** Puts a text into a field as if it were typed. */
  async type(selector, text) {
    await this.run((selector) => {
      const field = document.querySelector(selector);
      field.focus();
      field.select();
    }, selector);
    await this.call("Input.insertText", { text });
  }

  async press(key, modifiers = 0) {
    const codes = { Tab: 9, Enter: 13, Escape: 27, " ": 32, ArrowRight: 39, ArrowLeft: 37 };
    const text = { Enter: "\r", " ": " " }[key];
    const options = { key, code: key === " " ? "Space" : key, windowsVirtualKeyCode: codes[key], modifiers };
    await this.call("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", text, ...options });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", ...options });
  }

  text(selector) {
    return this.run((selector) => document.querySelector(selector)?.innerText ?? "", selector);
  }

  /** A picture of what the window shows. */
  async picture(file) {
    const { data } = await this.call("Page.captureScreenshot", { format: "png" });
    fs.writeFileSync(file, smallPng(Buffer.from(data, "base64")));
  }

  /** Checks that the page asked its own server only, and complained about nothing. */
  checkCalm() {
    const foreign = this.requests.filter((url) => !url.startsWith(`${this.origin}/`));
    assert.deepEqual(foreign, [], "requests to elsewhere");
    assert.deepEqual(this.complaints, [], "errors in the console");
    assert.ok(this.requests.length > 10, "the page requests its files");
  }

  async close() {
    await this.browser.call("Target.closeTarget", { targetId: this.targetId });
  }
}

/** The number in a tile. */
const tile = (name) => {
  const tiles = [...document.querySelectorAll(".tile")];
  const found = tiles.find((tile) => tile.querySelector("dt").innerText === name);
  return Number(found?.querySelector("b").innerText.replace(/[^\d.]/g, "") || "0");
};

/** The pixels of a chart. */
const pixels = (selector) => document.querySelector(`${selector} canvas`).toDataURL();

const status = async (front, client) => {
  const reply = await fetch(front, { headers: { "x-forwarded-for": client } });
  await reply.arrayBuffer();
  return reply.status;
};

/** A real Envoy asks for each request of FRONT-URL: numbers and charts move, and a reset frees a client. */
async function traffic(browser, url, front) {
  const client = "192.0.2.99";
  while ((await status(front, client)) === 200);
  const page = await browser.open(url);
  await page.until("refused decisions are counted", `() => (${tile})("Refused") > 0`);
  await page.until("decisions are counted", `() => (${tile})("Decisions") > 0`);
  for (const chart of ["#rates", "#latency", ".rule .spark"]) {
    await page.shows(`${chart} canvas`);
    if (chart === ".rule .spark") continue;
    const before = await page.run(`() => (${pixels})("${chart}")`);
    await page.until(`${chart} moves`, `(before) => (${pixels})("${chart}") !== before`, before);
  }
  assert.match(await page.run(() => document.querySelector("#rates").ariaLabel), /now [\d.]+ admitted/);
  const tree = await page.text("#rule-tree");
  for (const part of [/remote_address/, /rules\.yaml:\d+/, /3\/second/]) assert.match(tree, part);

  // Top talkers name the client, and its button explains it.
  const explain = `[aria-label="Explain remote_address=${client}"]`;
  await page.shows(explain);
  await page.click(explain);
  await page.shows("#explanation .badge");
  const explanation = await page.text("#explanation");
  assert.match(explanation, /over limit/i);
  assert.match(explanation, /rules\.yaml:\d+/);
  assert.ok(explanation.includes(client), explanation);

  // A reset from the page, and the client passes again.
  assert.equal(await status(front, client), 429);
  await page.click(`#talkers [aria-label="Counters remote_address=${client}"]`);
  await page.click(`#counter-list [aria-label="Reset remote_address=${client}"]`);
  await page.until("it asks first", () => document.querySelector("#confirm").open);
  assert.equal(await status(front, client), 429);
  await page.click("#confirm-do");
  await page.until("it is done", () =>
    /^Reset .* → 0 /.test(document.querySelector("#counter-status").innerText),
  );
  assert.equal(await status(front, client), 200);

  await page.click(`#counter-list [aria-label="Explain remote_address=${client}"]`);
  await page.wait("it is explained again", async () => /OK/.test(await page.text("#explanation .badge")));
  page.checkCalm();
}

const scenarios = { traffic };

module.exports = { Browser, Page, assert, fs, path, pause, scenarios, tile, until };

async function main() {
  const [scenario, ...args] = process.argv.slice(2);
  // The other scenarios are in files of their own.
  Object.assign(scenarios, require("./browser_checks.js"));
  const browser = await Browser.start();
  await scenarios[scenario](browser, ...args);
}

if (require.main === module) {
  main().then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}
