// Events of the server, one a second, while the page is visible.

const RETRY_MILLIS = 2000;

/** Calls `take` with each event, and `change` with the state of the connection: live, waiting or paused. */
export function follow(take, change) {
  let source = null;
  let retry = 0;

  const close = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    source = new EventSource("live");
    source.onmessage = ({ data }) => {
      change("live");
      take(JSON.parse(data));
    };
    // A reply lasts for less than the port gives it.
    source.addEventListener("again", open);
    source.onerror = () => {
      change("waiting");
      close();
      retry = setTimeout(open, RETRY_MILLIS);
    };
  };
  const follow = () => {
    if (document.hidden) {
      close();
      change("paused");
    } else {
      open();
    }
  };
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && follow());
  follow();
}
