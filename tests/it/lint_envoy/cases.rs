//! Configurations of one connection manager each: the findings, and the requests that pass a real Envoy.

use std::sync::LazyLock;

use crate::support::envoy::with_upstream;

/// One configuration, a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// That of its listener and of its domain.
    pub name: &'static str,
    /// Such as `error stage, warning catch-all`.
    pub finds: &'static str,
    pub passing: usize,
    pub filter: &'static str,
    pub rules: &'static str,
    pub routes: &'static str,
}

/// The table with each row and each form on one line.
static TABLE: LazyLock<String> = LazyLock::new(|| include_str!("cases.txt").replace("\n  ", " "));

/// Each line of the list of findings, and of the table of orders.
pub static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let is_case = |line: &&str| !line.is_empty() && !line.starts_with(['#', '$']);
    TABLE.lines().filter(is_case).map(Case::parse).collect()
});

impl Case {
    fn parse(row: &'static str) -> Self {
        let mut columns = row.split('|').map(str::trim);
        let mut next = |usual| {
            let column = columns.next().filter(|column| !column.is_empty());
            column.unwrap_or(usual)
        };
        Self {
            name: next(""),
            finds: next(""),
            passing: next("4").parse().unwrap(),
            filter: next(""),
            rules: next("$TWO"),
            routes: next("$ITEMS[{ actions: [$USER] }] }"),
        }
    }

    pub fn of(name: &str) -> Self {
        *CASES.iter().find(|case| case.name == name).unwrap()
    }

    /// Its listener, one line.
    pub fn listener(&self) -> String {
        let filters = written(&TABLE, &self.filters());
        let hosts = written(&TABLE, self.routes).replace('\n', " ");
        let hosts = match hosts.starts_with('[') {
            true => hosts,
            false => format!(
                "[{{ name: all, domains: ['*'], routes: [{{ match: {{ prefix: / }}, {hosts} }}] }}]"
            ),
        };
        let chain = written(
            &TABLE,
            match self.filter {
                "tcp" => "$TCP_CHAIN",
                _ => "$HTTP_CHAIN",
            },
        );
        let chain = chain.replace("$HOSTS", &hosts);
        let chain = chain
            .replace("$FILTERS", &filters)
            .replace("$NAME", self.name);
        let (name, address) = (self.name, written(&TABLE, "$ADDRESS 0 } }"));
        format!(
            "    - {{ name: {name}, address: {address}, filter_chains: [{{ filters: [{chain}] }}] }}\n"
        )
    }

    /// The rate limit filter, and the filters before it.
    fn filters(&self) -> String {
        let part = |name: &str, usual: &'static str| {
            let mut parts = self.filter.split("; ");
            let part = parts.find_map(|part| part.strip_prefix(name)?.strip_prefix(' '));
            part.unwrap_or(usual)
        };
        let before = part("before", "");
        let name = part("name", "envoy.filters.http.ratelimit");
        let (domain, more) = (part("domain", self.name), part("more", ""));
        let cluster = part("cluster", "tollgate, authority: tollgate");
        match self.filter {
            "-" => String::new(),
            _ => format!(
                "{before} {{ name: {name}, $RATE {domain}, {more} $ASK {cluster} }} }} }} }} }},"
            ),
        }
    }

    pub fn rules(&self) -> String {
        written(
            &TABLE,
            &format!("domain: {}\ndescriptors: [{}]\n", self.name, self.rules),
        )
    }

    /// A bootstrap with its listener alone.
    pub fn file(&self) -> String {
        bootstrap(&self.listener(), 1)
    }
}

/// The text with the short forms of a table written out.
pub fn written(table: &str, text: &str) -> String {
    let forms = table.lines().filter(|line| line.starts_with('$'));
    let forms = forms.map(|line| line.split_once(" = ").unwrap());
    forms.fold(text.to_owned(), |text, (name, form)| {
        text.replace(name, form)
    })
}

/// A bootstrap with these listeners, and with tollgate at a port.
pub fn bootstrap(listeners: &str, port: u16) -> String {
    let text = written(
        &TABLE,
        "admin: { address: $ADDRESS 0 } } }
static_resources:
  listeners:
$LISTENERS    $UPSTREAM_LISTENER
  clusters:
    - { name: tollgate, type: STATIC, $H2, load_assignment: { cluster_name: tollgate, $ENDPOINTS } }
    - { name: plain, type: STATIC, load_assignment: { cluster_name: plain, $ENDPOINTS } }
    $UPSTREAM_CLUSTER
",
    );
    let text = text.replace("$PORT", &port.to_string());
    with_upstream(&text.replace("$LISTENERS", listeners))
}
