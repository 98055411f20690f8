//! The attack on memory as a sum: full counters, connections, pages, bodies and rules, where little is allowed.

use std::{fmt::Write as _, fs};

use prost::Message as _;

use super::attack::{Kept, calls_without_message, connections, slow_bodies};
use crate::it::support::{
    ask::{descriptor, request},
    hoard::{Hoarder, framed, who_does_not_read},
    tollgate::Tollgate,
    wait_until,
};

/// As where the limit of the container is 256 MiB.
pub const ARGS: &str = "--max-counter-bytes 89478485 --max-connections 1016";

const VALUE: usize = 120;

pub fn carry_out(server: &Tollgate) -> Kept {
    let messages = (0..430).map(|thousand| {
        let value = |number| format!("{:0>VALUE$}", thousand * 1_000 + number);
        let descriptors = (0..1_000).map(|number| descriptor(&[("two", &value(number))]));
        request("d", descriptors.collect()).encode_to_vec()
    });
    let mut flood = Hoarder::connect(server.grpc, 1 << 30);
    for (before, message) in messages.enumerate() {
        assert!(flood.call(&framed(&message), true));
        while flood.ended == before && flood.hear() {}
    }
    let page = b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n".repeat(20);
    let pages = (0..900).map(|_| who_does_not_read(server.http));
    let kept = (
        calls_without_message(server.grpc),
        connections(server.debug, 900, &page),
        pages.collect::<Vec<_>>(),
        slow_bodies(server.http, 600),
        flood,
    );
    load_rules(server, 5_000);
    Box::new(kept)
}

/// Gives the server so many rules more, and waits until it has taken or refused them.
fn load_rules(server: &Tollgate, count: usize) {
    let mut text = "domain: e\ndescriptors:\n".to_owned();
    for number in 0..count {
        let _ = writeln!(text, "- {{key: k{number}, rate_limits: [{number}/day]}}");
    }
    let loads = || {
        let log = server.log().text();
        log.matches("rules loaded").count() + log.matches("the rules were not reloaded").count()
    };
    let before = loads();
    let hidden = server.rules().join(".new");
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, server.rules().join("more.yaml")).unwrap();
    wait_until("the rules are taken or refused", || loads() > before);
}
