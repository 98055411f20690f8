//! Pages that are written piece by piece on the blocking pool, each piece after the previous one was sent.

use std::{
    collections::VecDeque,
    convert::Infallible,
    iter, mem,
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
    service::held_bytes::{Account, HeldBytes},
};

/// Runs slow work on the blocking pool, one piece at a time, so that neither probes nor new gRPC connections have to
/// wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockingQueue {
    turn: Arc<Mutex<()>>,
    /// Readers of pages, oldest first.
    readers: Arc<std::sync::Mutex<VecDeque<PageReader>>>,
}

/// Most pages that are written at a time. One more ends the oldest, whose reader is slow.
const MAX_PAGES: usize = 4;

/// Bytes of a page that are written at a time.
pub(super) const PIECE_BYTES: usize = 32 << 10;

#[derive(Debug)]
struct PageReader {
    /// Gone when the page is dropped.
    reads: Weak<()>,
    account: Weak<Account>,
}

/// Appends the next part of a page to a text, and returns whether more follows.
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
                // The turn is held until the work is done, even if its caller has stopped waiting.
                let _turn = turn;
                work()
            });
            done.await
                .expect("it does not panic, and ends with the process")
        }
    }

    /// A page that is written piece by piece, each after the previous one was sent. `begin` returns the writer, and how
    /// many bytes it holds.
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
        let first = Box::new(move || {
            let (mut writer, bytes) = begin();
            let held = HeldBytes::new(&account, bytes);
            let writer: PageWriter = Box::new(move |text| {
                // These live as long as the writer.
                let (_held, _reads) = (&held, &reads);
                writer(text)
            });
            piece(writer)
        });
        NextPiece::of_page(self.clone(), first).body()
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

/// Writes the next piece of a page. Returns the writer too, unless the piece was the last.
fn piece(mut writer: PageWriter) -> (String, Option<PageWriter>) {
    let mut text = String::with_capacity(PIECE_BYTES + PIECE_BYTES / 8);
    let goes_on = writer(&mut text);
    (text, goes_on.then_some(writer))
}

/// The next piece of a body, which is still to be produced, with the piece after it; `None` at the end of the body.
struct NextPiece(Pin<Box<dyn Future<Output = Option<Piece>> + Send>>);

type Piece = (Bytes, Option<NextPiece>);

type WritePiece = Box<dyn FnOnce() -> (String, Option<PageWriter>) + Send>;

impl NextPiece {
    /// The piece that `write` writes, followed by the pieces of the writer that it returns.
    fn of_page(blocking: BlockingQueue, write: WritePiece) -> Self {
        Self(Box::pin(async move {
            let (text, writer) = blocking.work(write).await;
            let next = writer.map(|writer| Self::of_page(blocking, Box::new(|| piece(writer))));
            Some((text.into(), next))
        }))
    }

    /// The body that begins with this piece.
    fn body(self) -> Body {
        Body::new(PieceBody(Some(self)))
    }
}

struct PieceBody(Option<NextPiece>);

impl hyper::body::Body for PieceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(NextPiece(next)) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let (text, next) = ready!(next.as_mut().poll(context)).unzip();
        self.0 = next.flatten();
        Poll::Ready(text.map(|text| Ok(Frame::data(text))))
    }
}

/// Writes a JSON object that ends with a list, item by item. `head` ends with the bracket that opens the list, and
/// `tail` begins with the one that closes it.
pub(super) fn json_list(
    head: String,
    items: impl Iterator<Item = String> + Send + 'static,
    tail: String,
) -> PageWriter {
    let mut separator = "\n";
    let items = items.map(move |item| [mem::replace(&mut separator, ",\n"), &item].concat());
    texts(iter::once(head).chain(items).chain(iter::once(tail)))
}

/// Writes the texts, each of which is produced only when it is written.
pub(super) fn texts(mut texts: impl Iterator<Item = String> + Send + 'static) -> PageWriter {
    Box::new(move |page| {
        while page.len() < PIECE_BYTES {
            match texts.next() {
                Some(text) => page.push_str(&text),
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
