//! `/` of the debug port: a page for browsers, and the list of paths for other clients. The files of the page are part
//! of the program, and the page asks no other server.

use axum::{
    http::{
        HeaderMap, HeaderName, StatusCode,
        header::{
            ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
            X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
};

use super::json::plain;

const INDEX: &[u8] = include_bytes!("start_page/index.html");

/// Files by their paths in the sources.
macro_rules! files {
    ($($path:literal,)*) => {
        [$(($path, include_bytes!(concat!("start_page/", $path)) as &[u8])),*]
    };
}

/// The files of the page, by the last part of their paths.
const FILES: [(&str, &[u8]); 14] = files![
    "page.css",
    "icon.svg",
    "uPlot/uPlot.iife.min.js",
    "uPlot/uPlot.min.css",
    "main.js",
    "snapshots.js",
    "dom.js",
    "charts.js",
    "now.js",
    "rules.js",
    "descriptor.js",
    "explain.js",
    "counters.js",
    "tables.js",
];

/// The headers of all files. The page loads nothing from elsewhere, runs only its own scripts, and never turns text
/// into markup: Trusted Types refuse `innerHTML` and the like.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    // Cached files of another version would not fit these.
    (CACHE_CONTROL, "no-store"),
];

/// The page if the caller prefers HTML, or else `listing`.
pub(super) fn start_page(headers: &HeaderMap, listing: &'static str) -> Response {
    let mut reply = if prefers_html(headers) {
        let content_type = [(CONTENT_TYPE, "text/html; charset=utf-8")];
        (HEADERS, content_type, INDEX).into_response()
    } else {
        plain(StatusCode::OK, listing)
    };
    let vary = axum::http::HeaderValue::from_static("accept");
    reply.headers_mut().insert(VARY, vary);
    reply
}

/// A file of the page.
pub(super) fn file(name: &str) -> Response {
    let mut files = FILES.iter();
    let Some((path, bytes)) = files.find(|(path, _)| path.rsplit('/').next() == Some(name)) else {
        return plain(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    let content_type = match path.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    };
    (HEADERS, [(CONTENT_TYPE, content_type)], *bytes).into_response()
}

/// Whether the caller accepts HTML by name, and prefers it to plain text.
fn prefers_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let accepted = accepted.filter_map(|value| value.to_str().ok());
    let (mut html, mut text) = (0.0, 0.0);
    for range in accepted.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let quality = parts.find_map(|parameter| parameter.strip_prefix("q="));
        let quality = quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
        if media_type.eq_ignore_ascii_case("text/html") {
            html = quality;
        } else if media_type.eq_ignore_ascii_case("text/plain") {
            text = quality;
        }
    }
    html > text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &[&str], expected: bool) {
        let headers = accept.iter().map(|value| (ACCEPT, value.parse().unwrap()));
        assert_eq!(prefers_html(&headers.collect()), expected, "{accept:?}");
    }

    #[test]
    fn browsers_get_the_page_and_all_else_the_list() {
        check(&["text/html,application/xhtml+xml,*/*;q=0.8"], true);
        check(&["*/*;q=0.1", "TEXT/HTML ; q=0.5"], true);
        check(&["text/plain;q=0.4, text/html;q=0.5"], true);
        for other in [
            "",
            "*/*",
            "text/*",
            "application/json",
            "text/html;q=0",
            "text/htmlx",
        ] {
            check(&[other], false);
        }
        check(&["text/html, text/plain"], false);
        check(&["text/html;q=x"], false);
        check(&[], false);
    }

    /// The page is measured by all its files together, uncompressed.
    #[test]
    fn the_page_is_small() {
        let bytes = FILES.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() + INDEX.len();
        assert!(bytes < 150_000, "{bytes}");
    }
}
