//! Lists keys, page by page, with SCAN.
//!
//! It uses a connection of its own, and asks for few keys at a time, so that decisions pass in between.

use bb8_redis::redis::{self, Value};

use super::{
    connection::{Connection, ReplyBounds},
    node::Node,
};
use crate::store::{
    contract::KeyPage,
    redis::{
        batch::packed::PackedCommands,
        health::{failure::NodeFailure, running::within},
        topology::servers::Servers,
    },
};

/// Where a listing goes on: a master, in the order of their addresses, one of the prefixes, and the cursor of SCAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanCursor {
    node: usize,
    prefix: usize,
    scan: u64,
}

/// Why keys are not listed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    #[error("a server of Redis {0}")]
    Node(NodeFailure),
    #[error("a server of Redis refused SCAN ({0})")]
    Refused(String),
}

/// Keys that a server looks at for one command. It answers no other command meanwhile, which takes it less than
/// half a millisecond.
const LOOKED_AT_ONCE: &[u8] = b"500";

/// The most commands for one page: on a server with many keys, few of which are wanted, pages are empty.
const MAX_SCANS: usize = 64;

impl ScanCursor {
    /// The cursor in `text`; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.');
        let mut next = || numbers.next()?.parse::<u64>().ok();
        let [node, prefix, scan] = [next()?, next()?, next()?];
        numbers.next().is_none().then_some(Self {
            node: usize::try_from(node).ok()?,
            prefix: usize::try_from(prefix).ok()?,
            scan,
        })
    }

    pub(crate) fn text(self) -> String {
        format!("{}.{}.{}", self.node, self.prefix, self.scan)
    }

    /// The cursor after a reply that ended with `scan`; 0 ends the keys of this prefix on this server.
    fn after(self, scan: u64, prefixes: usize) -> Self {
        match (scan, self.prefix + 1 < prefixes) {
            (0, true) => Self {
                prefix: self.prefix + 1,
                scan: 0,
                ..self
            },
            (0, false) => Self {
                node: self.node.saturating_add(1),
                ..Self::default()
            },
            (scan, _) => Self { scan, ..self },
        }
    }
}

impl Servers {
    /// Keys that begin with `key_prefix` and one of `prefixes`, from `cursor` on, without the `key_prefix`: about
    /// `most` of them, or fewer if many others were looked at.
    ///
    /// # Errors
    ///
    /// If a master does not list its keys.
    pub(crate) async fn keys(
        &self,
        key_prefix: &[u8],
        prefixes: &[Vec<u8>],
        cursor: ScanCursor,
        most: usize,
    ) -> Result<KeyPage, ScanError> {
        let map = self.map();
        let mut nodes: Vec<&Node> = map.nodes.iter().map(|node| &**node).collect();
        nodes.sort_by_key(|node| node.endpoint.to_string());
        let (mut keys, mut at) = (Vec::new(), cursor);
        let mut last: Option<(usize, Connection)> = None;
        for _ in 0..MAX_SCANS {
            let (Some(node), Some(prefix)) = (nodes.get(at.node), prefixes.get(at.prefix)) else {
                break;
            };
            if keys.len() >= most {
                break;
            }
            let mut connection = match last.take() {
                Some((of, connection)) if of == at.node => connection,
                _ => self.connect(node).await?,
            };
            let pattern = pattern(&[key_prefix, prefix].concat());
            let (scan, found) = self.scan(&mut connection, at.scan, &pattern).await?;
            let own = |key: &Vec<u8>| key.strip_prefix(key_prefix).map(Into::into);
            keys.extend(found.iter().filter_map(own));
            last = Some((at.node, connection));
            at = at.after(scan, prefixes.len());
        }
        keys.sort();
        keys.dedup();
        Ok(KeyPage {
            keys,
            cursor: (at.node < nodes.len()).then(|| at.text()),
            is_per_second: false,
        })
    }

    async fn connect(&self, node: &Node) -> Result<Connection, ScanError> {
        let connected = self.0.connector.connect(&node.endpoint).await;
        connected.map_err(ScanError::Node)
    }

    async fn scan(
        &self,
        connection: &mut Connection,
        from: u64,
        pattern: &[u8],
    ) -> Result<(u64, Vec<Vec<u8>>), ScanError> {
        let from = from.to_string();
        let words = [
            b"SCAN",
            from.as_bytes(),
            b"MATCH",
            pattern,
            b"COUNT",
            LOOKED_AT_ONCE,
        ];
        let command = PackedCommands::one(&words);
        let asked = within(
            self.0.connector.timeout,
            connection.ask_within(&command, ReplyBounds::LIST),
        )
        .await;
        let replies = asked.unwrap_or(Err(NodeFailure::Silent));
        match replies.map_err(ScanError::Node)?.into_iter().next() {
            Some(Value::ServerError(error)) => Err(ScanError::Refused(error.code().to_owned())),
            Some(reply) => redis::from_redis_value(reply)
                .map_err(|_| ScanError::Refused("a reply of another form".to_owned())),
            None => Err(ScanError::Node(NodeFailure::Silent)),
        }
    }
}

/// The pattern of keys that begin with `prefix`, whatever characters that has.
fn pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(prefix.len() + 1);
    for &byte in prefix {
        if br"*?[]\".contains(&byte) {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern.push(b'*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_through_all_prefixes_of_a_server_and_then_to_the_next() {
        let at = ScanCursor::parse("0.0.17").unwrap();
        let texts =
            |cursors: &[ScanCursor]| cursors.iter().map(|one| one.text()).collect::<Vec<_>>();
        let next = at.after(u64::MAX, 2);
        let second = next.after(0, 2);
        let last = second.after(0, 2);
        let expected = ["0.0.18446744073709551615", "0.1.0", "1.0.0"];
        assert_eq!(texts(&[next, second, last]), expected);
        for text in ["", "0", "0.0", "0.0.0.0", "x.0.0", "0.0.-1"] {
            assert_eq!(ScanCursor::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_prefix_stands_for_itself_in_a_pattern() {
        assert_eq!(pattern(br"a*{4:[x]?\"), br"a\*{4:\[x\]\?\\*");
    }
}
