//! The table of measured costs that sizes are computed from. `docs/sizing.md` shows it.

/// A line for each cost: name, value, unit, meaning and source, with tabs between them.
const TABLE: &str = include_str!("costs.tsv");

/// A measured cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Unique, as `redis.alone`.
    pub name: &'static str,
    pub value: f64,
    /// Empty for a ratio.
    pub unit: &'static str,
    /// A description for people.
    pub meaning: &'static str,
    /// The measurement that it comes from.
    pub source: &'static str,
}

/// All measured costs.
#[derive(Debug)]
pub struct Costs(Vec<Cost>);

impl Costs {
    /// The table that was compiled in.
    #[must_use]
    pub fn measured() -> Self {
        Self(TABLE.lines().map(cost).collect())
    }

    /// In the order of the table.
    #[must_use]
    pub fn all(&self) -> &[Cost] {
        &self.0
    }

    /// The value of the cost called `name`, in microseconds, bytes or as a ratio.
    ///
    /// # Panics
    ///
    /// If the table has no such cost.
    #[must_use]
    pub fn get(&self, name: &str) -> f64 {
        let cost = self.0.iter().find(|cost| cost.name == name);
        let cost = cost.expect("a test asks for every name");
        cost.value
            * match cost.unit {
                "kB" => 1e3,
                "MB" => 1e6,
                _ => 1.0,
            }
    }

    /// The processor time, in microseconds, of one of `together` simultaneous calls. `name` is the part of the table.
    ///
    /// A call takes a fixed time, and its share of the wake-ups and the system calls of all that are there at a time.
    #[must_use]
    pub fn call(&self, name: &str, together: f64) -> f64 {
        const MEASURED: f64 = 64.0;
        let few = self.get(&format!("{name}.alone"));
        let many = self.get(&format!("{name}.together"));
        let shared = (few - many) / (1.0 - 1.0 / MEASURED);
        few - shared + shared / together.clamp(1.0, MEASURED)
    }
}

fn cost(line: &'static str) -> Cost {
    const COMPLETE: &str = "a line of the table has five fields";
    let mut fields = line.split('\t');
    let mut field = || fields.next().expect(COMPLETE);
    Cost {
        name: field(),
        value: field().parse().expect("a value is a number"),
        unit: field(),
        meaning: field(),
        source: field(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_points_are_met() {
        let costs = Costs::measured();
        for name in ["memory", "redis", "redis_server"] {
            for (together, of) in [(1.0, "alone"), (64.0, "together")] {
                let measured = costs.get(&format!("{name}.{of}"));
                assert!((costs.call(name, together) - measured).abs() < 1e-9);
            }
            assert!(costs.call(name, 8.0) < costs.call(name, 2.0));
        }
    }

    #[test]
    fn every_cost_has_a_name_of_its_own_and_a_source() {
        let costs = Costs::measured();
        for (index, cost) in costs.all().iter().enumerate() {
            assert!(!cost.source.is_empty() && cost.value > 0.0, "{cost:?}");
            let mut others = costs.all()[..index].iter();
            assert!(others.all(|other| other.name != cost.name), "{cost:?}");
        }
    }
}
