//! Pages that are written piece by piece on the blocking pool, each piece when the one before has been sent.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use hyper::body::Frame;
use tokio::sync::Mutex;

use crate::{
    foundation::lock::lock,
    service::budget::{Account, Reservation},
};

/// Runs slow work on the blocking pool, one piece at a time, so that it delays neither probes nor the accepting of
/// gRPC connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockingQueue {
    turn: Arc<Mutex<()>>,
    /// Readers of pages, the oldest first.
    readers: Arc<std::sync::Mutex<VecDeque<PageReader>>>,
}

/// Pages that may be under way at a time. One more ends the oldest, whose reader is slow.
const MAX_PAGES: usize = 4;

/// Bytes of a page that are written at a time.
pub(super) const PIECE_BYTES: usize = 32 << 10;

#[derive(Debug)]
struct PageReader {
    /// Dies with the page.
    reads: Weak<()>,
    account: Weak<Account>,
}

/// Appends the next part of a page to the text; returns whether more follows.
pub(super) type PageWriter = Box<dyn FnMut(&mut String) -> bool + Send>;

impl BlockingQueue {
    /// Runs `work` when it is its turn.
    pub(super) fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static {
        let turn = self.turn.clone();
        async move {
            let turn = turn.lock_owned().await;
            let done = tokio::task::spawn_blocking(move || {
                // Held until the work is done, even if its caller has stopped waiting.
                let _turn = turn;
                work()
            });
            done.await
                .expect("it does not panic, and ends with the process")
        }
    }

    /// A page that the writer from `begin` writes piece by piece, each after the piece before it was sent. `begin`
    /// also returns how many bytes its writer holds.
    pub(super) fn page(
        &self,
        account: Arc<Account>,
        begin: impl FnOnce() -> (PageWriter, usize) + Send + 'static,
    ) -> Body {
        let reads = Arc::new(());
        self.make_room_for(PageReader {
            reads: Arc::downgrade(&reads),
            account: Arc::downgrade(&account),
        });
        let first = self.work(move || {
            let (mut writer, bytes) = begin();
            let held = Reservation::new(&account, bytes);
            let writer: PageWriter = Box::new(move |text| {
                // Lives as long as the writer.
                let (_held, _reads) = (&held, &reads);
                writer(text)
            });
            piece(writer)
        });
        Body::new(PageBody {
            blocking: self.clone(),
            next: Some(Box::pin(first)),
        })
    }

    fn make_room_for(&self, reader: PageReader) {
        let mut readers = lock(&self.readers);
        readers.retain(|reader| reader.reads.strong_count() > 0);
        while readers.len() >= MAX_PAGES {
            let oldest = readers.pop_front();
            if let Some(account) = oldest.and_then(|oldest| oldest.account.upgrade()) {
                account.end();
            }
        }
        readers.push_back(reader);
    }
}

/// The next piece of a page, with the writer unless it was the last.
fn piece(mut writer: PageWriter) -> (String, Option<PageWriter>) {
    let mut text = String::with_capacity(PIECE_BYTES + PIECE_BYTES / 8);
    let goes_on = writer(&mut text);
    (text, goes_on.then_some(writer))
}

/// The body of a page.
struct PageBody {
    blocking: BlockingQueue,
    next: Option<NextPiece>,
}

type NextPiece = Pin<Box<dyn Future<Output = (String, Option<PageWriter>)> + Send>>;

impl hyper::body::Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (text, writer) = ready!(next.as_mut().poll(context));
        let next = writer.map(|writer| -> NextPiece {
            let next = self.blocking.work(move || piece(writer));
            Box::pin(next)
        });
        self.next = next;
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}

/// Writes each of `things` with `write` and frees it right after.
pub(super) fn each_of<T: 'static>(
    mut things: impl Iterator<Item = T> + Send + 'static,
    write: fn(&T, &mut String),
) -> PageWriter {
    Box::new(move |text| {
        while text.len() < PIECE_BYTES {
            match things.next() {
                Some(thing) => write(&thing, text),
                None => return false,
            }
        }
        true
    })
}

/// A page of plain text.
pub(super) fn text_page(page: Body) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response()
}
