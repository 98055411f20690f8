//! Replies of a cluster that name another server for a command. The command was not carried out, so it
//! may be sent there.

use bb8_redis::redis::Value;

use super::packed::PackedCommands;
use crate::{
    net::endpoint::{BareIpv6, Endpoint, split},
    store::redis::{failure::is_try_again, topology::address::reported},
};

/// Whether a reply names another server.
pub(crate) fn is_redirect(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if matches!(error.code(), "MOVED" | "ASK"))
}

/// Another server for commands of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) target: Endpoint,
    /// The slot is moving there: the command needs ASKING in front, and the map stays as it is.
    pub(crate) is_ask: bool,
    /// The indexes of the commands in the pipeline, ascending.
    pub(crate) commands: Vec<usize>,
}

/// The commands that have to be sent again, by target; `asked` is the server that replied.
pub(crate) fn redirects(replies: &[Value], asked: &Endpoint) -> Vec<Redirect> {
    let mut redirects: Vec<Redirect> = Vec::new();
    for (command, reply) in replies.iter().enumerate() {
        let Some((target, is_ask)) = target(reply, asked) else {
            continue;
        };
        let known = redirects
            .iter_mut()
            .find(|known| known.target == target && known.is_ask == is_ask);
        match known {
            Some(known) => known.commands.push(command),
            None => redirects.push(Redirect {
                target,
                is_ask,
                commands: vec![command],
            }),
        }
    }
    redirects
}

fn target(reply: &Value, asked: &Endpoint) -> Option<(Endpoint, bool)> {
    let Value::ServerError(error) = reply else {
        return None;
    };
    let is_ask = match error.code() {
        "MOVED" => false,
        "ASK" => true,
        // Some keys of the command have moved and some have not; soon all will have.
        _ if is_try_again(reply) => return Some((asked.clone(), false)),
        _ => return None,
    };
    // `3999 127.0.0.1:6381`
    let (_slot, address) = error.details()?.split_once(' ')?;
    let (host, port) = split(address.trim(), BareIpv6::WithPort);
    Some((reported(host, port?.parse().ok()?, asked), is_ask))
}

impl Redirect {
    /// The commands in the form that the target needs.
    pub(crate) fn commands(&self, of: &PackedCommands) -> PackedCommands {
        let mut commands = PackedCommands::default();
        for command in &self.commands {
            if self.is_ask {
                commands.push(&[b"ASKING"]);
            }
            commands.copy(of, *command);
        }
        commands
    }

    /// Replaces the first replies by the target's.
    pub(crate) fn fill_in(&self, replies: &mut [Value], late: Vec<Value>) {
        let step = if self.is_ask { 2 } else { 1 };
        let late = late.into_iter().skip(step - 1).step_by(step);
        for (command, reply) in self.commands.iter().zip(late) {
            replies[*command] = reply;
        }
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::parse_redis_value;

    use super::*;

    fn endpoint(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp {
            host: host.into(),
            port,
        }
    }

    fn reply(text: &str) -> Value {
        parse_redis_value(format!("{text}\r\n").as_bytes()).unwrap()
    }

    #[test]
    fn only_what_was_not_carried_out_goes_elsewhere() {
        let replies = [
            ":1",
            "-MOVED 3999 10.0.0.1:6381",
            "-ERR no",
            "-ASK 4000 10.0.0.2:6382",
            "-MOVED 3999 10.0.0.1:6381",
            "-MOVED 5 :7",
            "-MOVED 5 ::1:7",
            "-TRYAGAIN Multiple keys request during rehashing of slot",
        ]
        .map(reply);
        let redirect = |host, port, is_ask, commands: &[usize]| Redirect {
            target: endpoint(host, port),
            is_ask,
            commands: commands.to_vec(),
        };
        assert_eq!(
            redirects(&replies, &endpoint("me", 1)),
            [
                redirect("10.0.0.1", 6381, false, &[1, 4]),
                redirect("10.0.0.2", 6382, true, &[3]),
                redirect("me", 7, false, &[5]),
                redirect("::1", 7, false, &[6]),
                redirect("me", 1, false, &[7]),
            ]
        );
    }

    #[test]
    fn late_replies_find_their_places() {
        let mut commands = PackedCommands::default();
        for key in [b"a", b"b", b"c"] {
            commands.push(&[b"GET", key]);
        }
        let mut redirect = Redirect {
            target: endpoint("h", 1),
            is_ask: true,
            commands: vec![0, 2],
        };
        let sent = redirect.commands(&commands);
        assert_eq!(sent.len(), 4);
        let mut replies = vec![Value::Nil, Value::Int(5), Value::Nil];
        let late = vec![Value::Okay, Value::Int(1), Value::Okay, Value::Int(2)];
        redirect.fill_in(&mut replies, late);
        assert_eq!(replies, [Value::Int(1), Value::Int(5), Value::Int(2)]);
        redirect.is_ask = false;
        assert_eq!(redirect.commands(&commands).len(), 2);
        redirect.fill_in(&mut replies, vec![Value::Int(8), Value::Int(9)]);
        assert_eq!(replies, [Value::Int(8), Value::Int(5), Value::Int(9)]);
    }
}
