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
            routes: next("$ITEMS [{ actions: [$USER] }] }"),
        }
    }

    pub fn of(name: &str) -> Self {
        *CASES.iter().find(|case| case.name == name).unwrap()
    }

    /// Its listener, one line.
    pub fn listener(&self) -> String {
        let hosts = match self.routes.starts_with('[') {
            true => self.routes.replace('\n', " "),
            false => format!("[{{ $ALL {} }}] }}]", self.routes),
        };
        let chain = if self.filter == "tcp" {
            "$TCP_CHAIN"
        } else {
            "$HTTP_CHAIN"
        };
        let listener = full("    - $FRONT\n").replace("$CHAIN", &full(chain));
        let listener = listener.replace("$FILTERS", &full(&self.filters()));
        listener
            .replace("$HOSTS", &full(&hosts))
            .replace("$NAME", self.name)
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
        full(&format!(
            "domain: {}\ndescriptors: [{}]\n",
            self.name, self.rules
        ))
    }

    /// A bootstrap with its listener alone.
    pub fn file(&self) -> String {
        bootstrap(&self.listener(), 1)
    }
}

/// The text with the short forms of this table written out.
fn full(text: &str) -> String {
    written(&TABLE, text)
}

/// The text with the short forms of a table written out.
pub fn written(table: &str, text: &str) -> String {
    let forms = table.lines().filter(|line| line.starts_with('$'));
    let forms = forms.map(|line| line.split_once(" = ").unwrap());
    forms.fold(text.to_owned(), |text, (name, form)| {
        text.replace(name, form)
    })
}

const BOOTSTRAP: &str = "admin: { address: $ADDRESS 0 } } }
static_resources:
  listeners:
$LISTENERS    $UPSTREAM_LISTENER
  clusters:
    - { name: tollgate, type: STATIC, $H2, load_assignment: { cluster_name: tollgate, $ENDPOINTS } }
    - { name: plain, type: STATIC, load_assignment: { cluster_name: plain, $ENDPOINTS } }
    $UPSTREAM_CLUSTER
";

/// A bootstrap with these listeners, and with tollgate at a port.
pub fn bootstrap(listeners: &str, port: u16) -> String {
    let text = full(BOOTSTRAP).replace("$PORT", &port.to_string());
    with_upstream(&text.replace("$LISTENERS", listeners))
}
