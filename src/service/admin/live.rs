//! `/live`: the state of the server every second, as server-sent events (HTML standard, section 9.2).
//!
//! One task computes the events for all readers, and only while there are any. A slow reader skips all events but the
//! last.

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    http::{
        HeaderMap, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, MissedTickBehavior, timeout_at},
};

use super::{json::plain, origin::refuse_foreign, page::NextPiece};
use crate::foundation::blocking::blocking;
use state::{LiveSource, LiveState};

pub(crate) mod state;

/// Most readers at a time.
const MAX_READERS: usize = 16;

/// Time between events.
const INTERVAL: Duration = Duration::from_secs(1);

/// The last event of a reply whose time is up. The reader then asks again.
const AGAIN: &[u8] = b"event: again\ndata:\n\n";

/// The source of events for all readers.
#[derive(Clone, Debug)]
pub(crate) struct LiveFeed(Arc<Feed>);

struct Feed {
    source: LiveSource,
    events: watch::Sender<LiveEvent>,
    readers: Arc<Semaphore>,
    /// Notified of each new reader.
    wake: Notify,
    /// How long a reply lasts, which is less than the port allows.
    lasts: Duration,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

/// The last event.
#[derive(Clone, Debug)]
enum LiveEvent {
    /// There was none since the first reader came.
    None,
    Text(Bytes),
    /// The server is draining.
    Over,
}

impl LiveFeed {
    /// A feed on a port that allows each reply to take `timeout`.
    pub(crate) fn new(source: LiveSource, timeout: Duration) -> Self {
        Self(Arc::new(Feed {
            source,
            events: watch::Sender::new(LiveEvent::None),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            wake: Notify::new(),
            lasts: timeout.mul_f32(0.75),
        }))
    }

    /// Produces events until `end`, and then ends all replies.
    pub(crate) async fn run(self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                () = self.0.wake.notified() => {}
            }
            tokio::select! {
                () = &mut end => break,
                () = self.make_events() => {}
            }
        }
        self.0.events.send_replace(LiveEvent::Over);
    }

    /// Produces events while there are readers.
    async fn make_events(&self) {
        let mut before: Option<LiveState> = None;
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.0.events.receiver_count() > 0 {
            interval.tick().await;
            let feed = self.0.clone();
            let (state, text) = blocking(move || feed.source.read(before.as_ref())).await;
            before = Some(state);
            let event = format!("data: {text}\n\n").into();
            self.0.events.send_replace(LiveEvent::Text(event));
        }
        // A later reader must not mistake an old state for the current one.
        self.0.events.send_replace(LiveEvent::None);
    }

    /// Answers a reader.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        // A foreign page could not read the events, but could use up the places for readers.
        if let Some(refusal) = refuse_foreign(headers) {
            return refusal;
        }
        let Ok(permit) = self.0.readers.clone().try_acquire_owned() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many readers\n");
        };
        let mut events = self.0.events.subscribe();
        match &*events.borrow() {
            LiveEvent::Over => {
                return plain(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping\n");
            }
            LiveEvent::None | LiveEvent::Text(_) => {}
        }
        // If there is a last event, it is from this second.
        events.mark_changed();
        self.0.wake.notify_one();
        let reader = Reader {
            events,
            ends: Instant::now() + self.0.lasts,
            _permit: permit,
        };
        let headers = [
            (CONTENT_TYPE, "text/event-stream"),
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        (headers, next_event(reader).body()).into_response()
    }
}

struct Reader {
    events: watch::Receiver<LiveEvent>,
    ends: Instant,
    _permit: OwnedSemaphorePermit,
}

/// The next event. The body ends when the server drains.
fn next_event(mut reader: Reader) -> NextPiece {
    NextPiece::new(async move {
        loop {
            let changed = timeout_at(reader.ends, reader.events.changed()).await;
            let Ok(changed) = changed else {
                return Some((Bytes::from_static(AGAIN), None));
            };
            changed.ok()?;
            let event = reader.events.borrow_and_update().clone();
            match event {
                LiveEvent::None => {}
                LiveEvent::Text(text) => return Some((text, Some(next_event(reader)))),
                LiveEvent::Over => return None,
            }
        }
    })
}
