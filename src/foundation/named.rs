//! Values that settings, rules and reports name.

/// A choice by name.
pub(crate) trait Named: Copy + PartialEq + Send + Sync + 'static {
    /// All of them.
    const NAMES: &'static [(&'static str, Self)];

    fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, value)| *value == self);
        found.map_or("", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Named for bool {
        const NAMES: &'static [(&'static str, Self)] = &[("on", true), ("off", false)];
    }

    #[test]
    fn each_choice_has_its_name() {
        assert_eq!([true, false].map(Named::name), ["on", "off"]);
    }
}
