//! `/live`: the state of the server each second, as server-sent events (HTML standard, section 9.2).
//!
//! One task computes each event, for all readers together, and only while there are any. A reader that is slow gets
//! the last event only.

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

/// The last event of a reply whose time is over: the reader asks again.
const AGAIN: &[u8] = b"event: again\ndata:\n\n";

/// The events, for all readers.
#[derive(Clone, Debug)]
pub(crate) struct LiveFeed(Arc<Feed>);

struct Feed {
    source: LiveSource,
    events: watch::Sender<LiveEvent>,
    readers: Arc<Semaphore>,
    /// Notified of each new reader.
    wake: Notify,
    /// How long a reply lasts: less than the port gives it.
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
    /// There was none since readers came.
    None,
    Text(Bytes),
    /// The server drains.
    Over,
}

impl LiveFeed {
    /// A feed on a port that gives each reply `timeout`.
    pub(crate) fn new(source: LiveSource, timeout: Duration) -> Self {
        Self(Arc::new(Feed {
            source,
            events: watch::Sender::new(LiveEvent::None),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            wake: Notify::new(),
            lasts: timeout.mul_f32(0.75),
        }))
    }

    /// Makes events until `end`, and then ends all replies.
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

    /// Makes events while there are readers.
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
        // A later reader must not take an old state for that of now.
        self.0.events.send_replace(LiveEvent::None);
    }

    /// Answers a reader.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        // It could not read the events, but it could take the places of readers.
        if let Some(refusal) = refuse_foreign(headers) {
            return refusal;
        }
        let Ok(permit) = self.0.readers.clone().try_acquire_owned() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many readers\n");
        };
        let mut events = self.0.events.subscribe();
        match &*events.borrow() {
            LiveEvent::Over => return plain(StatusCode::SERVICE_UNAVAILABLE, "the server stops\n"),
            LiveEvent::None | LiveEvent::Text(_) => {}
        }
        // The last event, if there is one, is of this second.
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

/// The next event; the body ends if the server drains.
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
