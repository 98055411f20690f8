//! Settings of statistics: statsd, DogStatsD and Prometheus.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::shapes::ArgShape as _;
use super::values::{address, file_path, path, port, some_time, tag};
use crate::observe::metrics::{
    mogrifier::{Mogrifier, MogrifierError},
    statsd,
};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Statistics")]
pub(crate) struct Stats {
    /// Send statistics to a statsd collector
    #[arg(long, env = "USE_STATSD", boolean = false)]
    pub statsd: bool,

    /// Host of the collector
    #[arg(long, env = "STATSD_HOST", text = ("HOST", "localhost"))]
    pub statsd_host: String,

    /// Port of the collector
    #[arg(long, env = "STATSD_PORT", default_value_t = 8125, value_parser = port, value_name = "PORT")]
    pub statsd_port: u16,

    /// Transport to a statsd collector
    #[arg(long, env = "STATSD_PROTOCOL", choice = ("PROTOCOL", "tcp"))]
    pub statsd_protocol: StatsdProtocol,

    /// Send statistics to a DogStatsD agent, over UDP
    #[arg(long, env = "USE_DOG_STATSD", boolean = false)]
    pub dog_statsd: bool,

    /// Names of rules that rewrite metric names for DogStatsD; the variables DOG_STATSD_MOGRIFIER_NAME_PATTERN, …_NAME
    /// and …_TAGS, with such a name in place of NAME, define each rule
    #[arg(
        long,
        env = "USE_DOG_STATSD_MOGRIFIERS",
        value_delimiter = ',',
        value_name = "NAME,…"
    )]
    pub dog_statsd_mogrifiers: Vec<String>,

    /// Tags for all statistics, as tag:value pairs
    #[arg(long, env = "EXTRA_TAGS", value_delimiter = ',', value_parser = tag, value_name = "TAG:VALUE,…")]
    pub extra_tags: Vec<(String, String)>,

    /// How often statistics are sent
    #[arg(long, env = "STATS_FLUSH_INTERVAL", value_parser = some_time, time = "10s")]
    pub stats_flush_interval: Duration,

    /// Send no statistics, whatever other flags say; the debug port still shows them
    #[arg(long, env = "DISABLE_STATS", boolean = false)]
    pub disable_stats: bool,

    /// Serve statistics for Prometheus on a separate port
    #[arg(long, env = "USE_PROMETHEUS", boolean = false)]
    pub prometheus: bool,

    /// Address of the Prometheus port; without a host, all addresses
    #[arg(long, env = "PROMETHEUS_ADDR", default_value = ":9090", value_parser = address, value_name = "[HOST]:PORT")]
    pub prometheus_address: SocketAddr,

    /// Path of the page
    #[arg(long, env = "PROMETHEUS_PATH", default_value = "/metrics", value_parser = path, value_name = "PATH")]
    pub prometheus_path: String,

    /// File that maps statsd names to Prometheus names, as for statsd_exporter; a missing file is logged and ignored
    #[arg(long, env = "PROMETHEUS_MAPPER_YAML", value_parser = file_path, value_name = "FILE")]
    pub prometheus_mapping: Option<PathBuf>,

    /// Show response times in milliseconds, unless the mapping file says otherwise
    #[arg(
        long,
        env = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        boolean = false
    )]
    pub prometheus_milliseconds: bool,
}

impl Stats {
    /// The collectors that get statistics, and how to send to them.
    ///
    /// # Errors
    ///
    /// If the variables of a mogrifier do not make a valid rule.
    pub(crate) fn sinks(&self) -> Result<Vec<statsd::Options>, MogrifierError> {
        let mut sinks = Vec::new();
        let sink = |transport, dialect| statsd::Options {
            host: self.statsd_host.clone(),
            port: self.statsd_port,
            transport,
            dialect,
            extra_tags: self.extra_tags.clone(),
            flush_interval: self.stats_flush_interval,
        };
        if self.disable_stats {
            return Ok(sinks);
        }
        if self.statsd && !self.dog_statsd {
            let transport = match self.statsd_protocol {
                StatsdProtocol::Tcp => statsd::Transport::Tcp,
                StatsdProtocol::Udp => statsd::Transport::Udp,
            };
            sinks.push(sink(transport, statsd::Dialect::Statsd));
        }
        if self.dog_statsd {
            let names = self
                .dog_statsd_mogrifiers
                .iter()
                .filter(|name| !name.is_empty());
            let rules = names
                .map(|name| mogrifier(name))
                .collect::<Result<_, _>>()?;
            sinks.push(sink(
                statsd::Transport::Udp,
                statsd::Dialect::DogStatsd(rules),
            ));
        }
        Ok(sinks)
    }
}

/// The rule that the variables of the mogrifier `name` define.
fn mogrifier(name: &str) -> Result<Mogrifier, MogrifierError> {
    #[expect(clippy::disallowed_methods, reason = "this file reads the environment")]
    let part = |part: &str| {
        std::env::var(format!("DOG_STATSD_MOGRIFIER_{name}_{part}")).unwrap_or_default()
    };
    let tags = part("TAGS");
    let tags: Vec<_> = tags
        .split(',')
        .filter(|tag| !tag.is_empty())
        .map(|tag| {
            let (tag, value) = tag.split_once(':').unwrap_or((tag, ""));
            (tag.to_owned(), value.to_owned())
        })
        .collect();
    Mogrifier::new(name, &part("PATTERN"), &part("NAME"), &tags)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsdProtocol {
    Tcp,
    Udp,
}
