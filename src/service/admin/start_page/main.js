// The page of the debug port: loads each section, and shows the events of the server.

import { ask, find } from "./dom.js";
import { follow } from "./live.js";
import * as now from "./now.js";
import * as rules from "./rules.js";
import * as explain from "./explain.js";
import * as counters from "./counters.js";
import * as tables from "./tables.js";

/** Time between looks at the top talkers. */
const TALKERS_MILLIS = 5000;

const words = { live: "live", waiting: "no connection", paused: "paused" };

function connection(state) {
  const pill = find("connection");
  // Each change is read aloud, so that only changes are made.
  if (pill.dataset.state === state) return;
  pill.dataset.state = state;
  pill.textContent = words[state];
  pill.className = `pill ${state}`;
}

async function loadRules() {
  await rules.load();
  const { domains, keys } = rules.known();
  explain.fields.offer(domains, keys);
  counters.fields.offer(domains, keys);
}

async function begin() {
  find("address").textContent = new URL(".", location.href).href;
  explain.start();
  counters.start();
  tables.loadSettings();
  const empty = { endMillis: [], lengthMillis: [], process: {}, rules: [] };
  const history = await ask("history").catch(() => empty);
  now.start(history);
  rules.start(history);
  await loadRules();
  await tables.loadTalkers();
  let loaded = null;
  follow((event) => {
    now.update(event);
    rules.update(event);
    const { hash, atMillis } = event.loads.inUse ?? {};
    const load = `${hash} ${atMillis}`;
    if (loaded !== null && loaded !== load) loadRules();
    loaded = load;
  }, connection);
  setInterval(() => document.hidden || tables.loadTalkers(), TALKERS_MILLIS);
}

begin();
