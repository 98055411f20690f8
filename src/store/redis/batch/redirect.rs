//! Replies of a cluster that name another server for a command. The command was not carried out, so it
//! may be sent there.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::redis::Value;

use super::{packed::PackedCommands, step::load_step};
use crate::{
    net::endpoint::{BareIpv6, Endpoint, split},
    store::redis::{
        connection::Connection,
        failure::{NodeFailure, is_try_again},
        node::Node,
        topology::{address::reported, servers::Servers},
        wait::within,
    },
};

/// How many redirects a command may follow: MOVED by an old map, ASK by the slot's owner, and one more
/// for a slot that moves meanwhile.
const MAX_REDIRECTS: usize = 3;

/// The most connections for redirected commands. No more servers than that give away slots at once.
const MAX_REDIRECT_CONNECTIONS: usize = 16;

/// Sends the redirected commands of one worker and node on.
#[derive(Debug)]
pub(crate) struct Redirects {
    node: Arc<Node>,
    servers: Arc<Servers>,
    /// How long the servers that replies name may take in all.
    deadline: Duration,
    connections: HashMap<Endpoint, Connection>,
}

impl Redirects {
    pub(crate) fn new(node: Arc<Node>, servers: Arc<Servers>, deadline: Duration) -> Self {
        Self {
            node,
            servers,
            deadline,
            connections: HashMap::new(),
        }
    }

    /// Closes the connections.
    pub(crate) fn close(&mut self) {
        self.connections.clear();
    }

    /// Sends the commands to the servers that `replies` name, and replaces these replies. Only commands that were not
    /// carried out are sent again.
    pub(crate) async fn follow(&mut self, commands: &PackedCommands, replies: &mut [Value]) {
        let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
        if !replies.iter().any(is_error) {
            return;
        }
        let followed = within(self.deadline, self.send_on(commands, replies));
        if followed.await.is_none() {
            // One of the servers is silent, and may answer these commands at any time.
            self.close();
        }
    }

    async fn send_on(&mut self, commands: &PackedCommands, replies: &mut [Value]) {
        for _ in 0..MAX_REDIRECTS {
            let redirects = redirects(replies, &self.node.endpoint);
            if redirects.is_empty() {
                return;
            }
            if redirects.iter().any(|redirect| !redirect.is_ask) {
                self.servers.redirected();
            }
            for redirect in redirects {
                let count = redirect.commands.len() as u64;
                self.node.stats.redirects.fetch_add(count, Relaxed);
                let commands = redirect.commands(commands);
                match self.ask(&redirect.target, &commands).await {
                    Ok(late) => redirect.fill_in(replies, late),
                    Err(failure) => {
                        tracing::debug!(node = %redirect.target, %failure, "following a redirect failed");
                        self.connections.remove(&redirect.target);
                        return;
                    }
                }
            }
        }
    }

    /// One round trip to a server that need not be on the map.
    async fn ask(
        &mut self,
        target: &Endpoint,
        commands: &PackedCommands,
    ) -> Result<Vec<Value>, NodeFailure> {
        if !self.connections.contains_key(target) {
            if self.connections.len() >= MAX_REDIRECT_CONNECTIONS {
                self.close();
            }
            let mut connection = self.servers.connector.connect(target).await?;
            // A server that refuses it is sent the text when it has to run it.
            connection.ask(&load_step()).await?;
            self.connections.insert(target.clone(), connection);
        }
        let connection = self.connections.get_mut(target);
        let connection = connection.expect("it was put there a line above");
        self.servers.stats.record_pipeline(commands.len());
        connection.ask(commands).await
    }
}

/// Another server for commands of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Redirect {
    target: Endpoint,
    /// The slot is moving there: the command needs ASKING in front, and the map stays as it is.
    is_ask: bool,
    /// The indexes of the commands in the pipeline, ascending.
    commands: Vec<usize>,
}

/// The commands that have to be sent again, by target; `asked` is the server that replied.
fn redirects(replies: &[Value], asked: &Endpoint) -> Vec<Redirect> {
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
    fn commands(&self, of: &PackedCommands) -> PackedCommands {
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
    fn fill_in(&self, replies: &mut [Value], late: Vec<Value>) {
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
