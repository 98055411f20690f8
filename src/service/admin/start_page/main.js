// The page of the debug port: loads each section, and shows the snapshots of the server.

import { find } from "./dom.js";
import { follow } from "./snapshots.js";
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
  now.start();
  rules.start();
  await loadRules();
  await tables.loadTalkers();
  let loaded = null;
  follow((snapshot, changes) => {
    now.update(snapshot, changes);
    if (changes) rules.update(snapshot, changes);
    const { hash, atMillis } = snapshot.loads.inUse ?? {};
    const load = `${hash} ${atMillis}`;
    if (loaded !== null && loaded !== load) loadRules();
    loaded = load;
  }, connection);
  setInterval(() => document.hidden || tables.loadTalkers(), TALKERS_MILLIS);
}

begin();
