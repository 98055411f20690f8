//! Pages that are written piece by piece on the blocking pool, each piece after the previous one was sent.

use std::{
    collections::VecDeque,
    fmt, io, iter, mem,
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

use crate::foundation::lock::lock;

/// Runs slow work on the blocking pool, one piece at a time, so that neither probes nor new gRPC connections have to
/// wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockingQueue {
    turn: Arc<Mutex<()>>,
    /// The pages that are read, oldest first.
    pages: Arc<std::sync::Mutex<VecDeque<Weak<Page>>>>,
}

/// Most pages that are written at a time, because a page of statistics can hold some megabytes. One more ends the
/// oldest, whose reader is slow.
const MAX_PAGES: usize = 4;

/// Bytes of a page that are written at a time.
pub(super) const PIECE_BYTES: usize = 32 << 10;

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

    /// A page that is written piece by piece, each after the previous one was sent.
    pub(super) fn page(&self, begin: impl FnOnce() -> PageWriter + Send + 'static) -> Body {
        let (page, pages) = (Arc::new(Page(None.into())), self.pages.clone());
        let first = {
            let page = page.clone();
            // No other piece is written meanwhile.
            move || {
                end_oldest(&mut lock(&pages), &page);
                *lock(&page.0) = Some(begin());
                page.piece()
            }
        };
        Body::new(PageBody {
            next: Some(Box::pin(self.work(first))),
            blocking: self.clone(),
            page,
        })
    }
}

/// A page that is read. Its writer is gone once the page was ended.
struct Page(std::sync::Mutex<Option<PageWriter>>);

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").finish_non_exhaustive()
    }
}

/// Text of a page, and whether more follows; `None` if the page was ended.
type Piece = Option<(String, bool)>;

impl Page {
    fn piece(&self) -> Piece {
        let mut text = String::with_capacity(PIECE_BYTES + PIECE_BYTES / 8);
        let goes_on = lock(&self.0).as_mut()?(&mut text);
        Some((text, goes_on))
    }
}

/// Makes room for `new`, and appends it.
fn end_oldest(pages: &mut VecDeque<Weak<Page>>, new: &Arc<Page>) {
    pages.retain(|page| page.strong_count() > 0);
    while pages.len() >= MAX_PAGES {
        if let Some(oldest) = pages.pop_front().and_then(|oldest| oldest.upgrade()) {
            *lock(&oldest.0) = None;
        }
    }
    pages.push_back(Arc::downgrade(new));
}

struct PageBody {
    blocking: BlockingQueue,
    page: Arc<Page>,
    /// The next piece; `None` at the end.
    next: Option<Pin<Box<dyn Future<Output = Piece> + Send>>>,
}

impl hyper::body::Body for PageBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let piece = ready!(next.as_mut().poll(context));
        self.next = None;
        Poll::Ready(Some(match piece {
            None => Err(io::Error::other("newer pages took the place of this one")),
            Some((text, goes_on)) => {
                if goes_on {
                    let page = self.page.clone();
                    self.next = Some(Box::pin(self.blocking.work(move || page.piece())));
                }
                Ok(Frame::data(text.into()))
            }
        }))
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
