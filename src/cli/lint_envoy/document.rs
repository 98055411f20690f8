//! Parses the text of an Envoy configuration into values that know their path and their position.

use std::{borrow::Cow, rc::Rc};

use tonic::codegen::http::uri::Authority;

use crate::config::{
    node::{NodeKind, YamlNode},
    parse::parse_all,
    position::{Lines, Position},
};

/// Deepest nesting. Real configurations have far fewer levels.
const MAX_DEPTH: usize = 100;

/// Why a file cannot be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{text}")]
    Syntax {
        position: Option<Position>,
        text: String,
    },
    #[error("not an Envoy configuration: there is no listener, cluster, filter or route in it")]
    NoEnvoy,
}

impl Unreadable {
    /// Where reading ended, if known.
    pub(crate) fn position(&self) -> Option<Position> {
        match self {
            Self::Syntax { position, .. } => *position,
            Self::NoEnvoy => None,
        }
    }

    /// The error with its position in an outer text.
    pub(super) fn moved(self, to_outer: impl Fn(Position) -> Position) -> Self {
        match self {
            Self::Syntax { position, text } => Self::Syntax {
                position: position.map(to_outer),
                text,
            },
            Self::NoEnvoy => Self::NoEnvoy,
        }
    }
}

/// The text of the file to which positions refer.
#[derive(Debug)]
struct FileText {
    text: String,
    lines: Lines,
}

impl FileText {
    fn of(text: &str) -> Rc<Self> {
        Rc::new(Self {
            lines: Lines::of(text),
            text: text.to_owned(),
        })
    }
}

/// One document of a file.
#[derive(Debug)]
pub(super) struct Document {
    root: YamlNode<'static>,
    file: Rc<FileText>,
    /// The start of every path if the file has several documents.
    prefix: String,
}

impl Document {
    /// Parses all documents of a file: JSON, or one or more YAML documents.
    ///
    /// # Errors
    ///
    /// If the text is neither.
    pub(super) fn parse_all(text: &str) -> Result<Vec<Self>, Unreadable> {
        if text.trim_start().starts_with('{')
            && let Ok(json) = serde_json::from_str(text)
        {
            return Ok(vec![Self {
                root: from_json(json),
                file: FileText::of(""),
                prefix: String::new(),
            }]);
        }
        let roots = parse_all(text).map_err(|error| syntax(&error))?;
        let file = FileText::of(text);
        let is_one = roots.len() == 1;
        let numbered = roots.into_iter().zip(1..).map(|(root, number)| Self {
            root: root.into_owned(),
            file: file.clone(),
            prefix: if is_one {
                String::new()
            } else {
                format!("document {number}: ")
            },
        });
        Ok(numbered.collect())
    }

    pub(super) fn root(&self) -> DocumentValue<'_> {
        DocumentValue {
            document: self,
            node: &self.root,
            path: String::new(),
            depth: 0,
        }
    }
}

fn syntax(error: &serde_yaml::Error) -> Unreadable {
    let text = error.to_string();
    let Some(location) = error.location() else {
        return Unreadable::Syntax {
            position: None,
            text,
        };
    };
    // The parser's text ends with the line within the document.
    let text = match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    };
    Unreadable::Syntax {
        position: Some(Position {
            line: location.line(),
            column: location.column(),
        }),
        text,
    }
}

fn from_json(value: serde_json::Value) -> YamlNode<'static> {
    let scalar = |text: String, is_plain| NodeKind::Scalar {
        text: Cow::Owned(text),
        is_plain,
    };
    let kind = match value {
        serde_json::Value::Null => scalar("null".to_owned(), true),
        serde_json::Value::Bool(is) => scalar(is.to_string(), true),
        serde_json::Value::Number(number) => scalar(number.to_string(), true),
        serde_json::Value::String(text) => scalar(text, false),
        serde_json::Value::Array(items) => {
            NodeKind::List(items.into_iter().map(from_json).collect())
        }
        serde_json::Value::Object(entries) => {
            let entry = |(key, value)| {
                let key = YamlNode {
                    kind: scalar(key, false),
                    offset: None,
                };
                (key, from_json(value))
            };
            NodeKind::Map(entries.into_iter().map(entry).collect())
        }
    };
    YamlNode { kind, offset: None }
}

/// A value in a document, and its path. Keys are found in both spellings that Envoy reads: `cluster_name` and
/// `clusterName`.
#[derive(Clone, Debug)]
pub(super) struct DocumentValue<'d> {
    document: &'d Document,
    node: &'d YamlNode<'d>,
    path: String,
    depth: usize,
}

impl<'d> DocumentValue<'d> {
    /// The path, such as `static_resources.clusters[0].name`.
    pub(super) fn path(&self) -> String {
        let path = if self.path.is_empty() {
            "the whole file"
        } else {
            &self.path
        };
        format!("{}{path}", self.document.prefix)
    }

    /// The position; `None` for JSON, and for values without a text of their own.
    pub(super) fn position(&self) -> Option<Position> {
        let document = self.document;
        let offset = self.node.offset?;
        let position = document.file.lines.position(&document.file.text, offset);
        Some(position)
    }

    fn child(&self, node: &'d YamlNode<'d>, step: &str) -> Self {
        let dot = if self.path.is_empty() || step.starts_with('[') {
            ""
        } else {
            "."
        };
        Self {
            document: self.document,
            node,
            path: format!("{}{dot}{step}", self.path),
            depth: self.depth + 1,
        }
    }

    /// The value of a key in snake_case; `None` for `null`.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        let NodeKind::Map(entries) = &self.node.kind else {
            return None;
        };
        let camel = camel(key);
        let is_key = |text: &str| text == key || text == camel;
        entries.iter().find_map(|(name, value)| match &name.kind {
            NodeKind::Scalar { text, .. } if is_key(text) && !value.is_null() => {
                Some(self.child(value, text))
            }
            _ => None,
        })
    }

    /// The value at the end of a path of keys.
    pub(super) fn at(&self, keys: &[&str]) -> Option<Self> {
        let mut value = self.clone();
        for key in keys {
            value = value.get(key)?;
        }
        Some(value)
    }

    /// Whether it is a map that is not empty.
    pub(super) fn is_map(&self) -> bool {
        matches!(&self.node.kind, NodeKind::Map(entries) if !entries.is_empty())
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&'d str> {
        match &self.node.kind {
            NodeKind::Scalar { text, .. } => Some(text),
            NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Tagged => None,
        }
    }

    /// The text of a key's scalar.
    pub(super) fn text_of(&self, key: &str) -> Option<&'d str> {
        self.get(key)?.text()
    }

    pub(super) fn is_true(&self, key: &str) -> bool {
        self.text_of(key) == Some("true")
    }

    /// The whole number at a key; 0 if there is none.
    pub(super) fn number(&self, key: &str) -> u64 {
        let text = self.text_of(key);
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// The items of a repeated field, which Envoy also reads from a single value, as a list of one.
    pub(super) fn list(&self, key: &str) -> Vec<Self> {
        self.get(key).map_or_else(Vec::new, |list| list.items())
    }

    /// The items of a list. Any other value is a list of itself, except that an empty map has no items.
    pub(super) fn items(&self) -> Vec<Self> {
        match &self.node.kind {
            NodeKind::List(_) => self.elements(),
            NodeKind::Map(entries) if entries.is_empty() => Vec::new(),
            NodeKind::Map(_) | NodeKind::Scalar { .. } => vec![self.clone()],
            NodeKind::Tagged => Vec::new(),
        }
    }

    /// The items of a list; none for any other value.
    pub(super) fn elements(&self) -> Vec<Self> {
        let NodeKind::List(items) = &self.node.kind else {
            return Vec::new();
        };
        let items = items.iter().enumerate();
        items
            .map(|(at, item)| self.child(item, &format!("[{at}]")))
            .collect()
    }

    /// The entries of a map by key.
    pub(super) fn entries(&self) -> Vec<(&'d str, Self)> {
        let NodeKind::Map(entries) = &self.node.kind else {
            return Vec::new();
        };
        let entries = entries.iter().filter_map(|(name, value)| match &name.kind {
            NodeKind::Scalar { text, .. } => Some((&**text, self.child(value, text))),
            NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Tagged => None,
        });
        entries.collect()
    }

    /// The direct children of a map or a list.
    pub(super) fn children(&self) -> Vec<Self> {
        if self.depth >= MAX_DEPTH {
            return Vec::new();
        }
        match self.node.kind {
            NodeKind::Map(_) => self.entries().into_iter().map(|(_, child)| child).collect(),
            _ => self.elements(),
        }
    }

    /// Whether it is a `TypedStruct`.
    pub(super) fn is_struct(&self) -> bool {
        let name = self.text_of("@type").unwrap_or_default();
        name.ends_with(".v1.TypedStruct") || name.ends_with(".v3.TypedStruct")
    }

    /// The name and the content of a message with an `@type`. A `TypedStruct` has the name of the message in it.
    pub(super) fn message(&self) -> Option<(&'d str, Self)> {
        let name = self.text_of("@type")?;
        let name = name.rsplit('/').next()?;
        if !self.is_struct() {
            return Some((name, self.clone()));
        }
        let carried = self.text_of("type_url")?.rsplit('/').next()?;
        Some((carried, self.get("value")?))
    }
}

/// `clusterName` for `cluster_name`.
pub(super) fn camel(snake: &str) -> String {
    let mut camel = String::with_capacity(snake.len());
    let mut is_first = false;
    for next in snake.chars() {
        match next {
            '_' => is_first = true,
            next if is_first => {
                camel.push(next.to_ascii_uppercase());
                is_first = false;
            }
            next => camel.push(next),
        }
    }
    camel
}

/// Whether HTTP/2 servers accept the name as an `:authority`.
pub(super) fn is_authority(name: &str) -> bool {
    Authority::try_from(name).is_ok()
}
