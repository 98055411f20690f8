// Snapshots of the server, one a second, while the page is visible.

import { ask } from "./dom.js";

/** Time between an answer and the next question. */
const PAUSE_MILLIS = 1000;
const RETRY_MILLIS = 2000;

/** An answer that takes longer is one of a server that is away. */
const LATE_MILLIS = 5000;

/**
 * Calls `take` with each snapshot and what has changed since the one before, and `change` with the state of the
 * connection: live, waiting or paused.
 */
export function follow(take, change) {
  let before = null;
  let timer = 0;
  // Answers to questions of earlier turns come too late.
  let turn = 0;

  const next = async (own) => {
    const late = setTimeout(() => own === turn && change("waiting"), LATE_MILLIS);
    const snapshot = await ask("snapshot").catch(() => null);
    clearTimeout(late);
    if (own !== turn) return;
    timer = setTimeout(next, snapshot ? PAUSE_MILLIS : RETRY_MILLIS, own);
    change(snapshot ? "live" : "waiting");
    // Another page has asked a moment before.
    if (!snapshot || snapshot.upMillis === before?.upMillis) return;
    take(snapshot, before && changes(snapshot, before));
    before = snapshot;
  };
  const begin = () => {
    clearTimeout(timer);
    turn += 1;
    if (document.hidden) change("paused");
    else next(turn);
  };
  document.addEventListener("visibilitychange", begin);
  addEventListener("pageshow", (event) => event.persisted && begin());
  begin();
}

/** The time and the counts between two snapshots; null if the server has started again. */
function changes(now, before) {
  const lengthMillis = now.upMillis - before.upMillis;
  const totals = Object.entries(now.totals).map(([name, count]) => [name, count - before.totals[name]]);
  if (lengthMillis < 0 || totals.some(([, count]) => count < 0)) return null;
  const known = new Map(before.rules.map((one) => [one.rule, one]));
  const rules = now.rules.map((one) => {
    // One that had no room before is not new.
    const old = known.get(one.rule) ?? (before.omittedRules ? one : {});
    const counts = Object.entries(one).filter(([name]) => name !== "rule");
    return { rule: one.rule, ...Object.fromEntries(counts.map(([name, count]) => [name, count - (old[name] ?? 0)])) };
  });
  const isHit = (one) => Object.entries(one).some(([name, count]) => name !== "rule" && count);
  return { lengthMillis, totals: Object.fromEntries(totals), rules: rules.filter(isHit) };
}
