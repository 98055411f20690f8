//! The table of measured costs from which sizes are computed. `docs/run/sizing.md` refers to it.

/// One line for each cost: name, value, unit, meaning and source, separated by tabs.
const TABLE: &str = include_str!("costs.tsv");

/// Numbers of simultaneous calls, and how the names of the costs end that were measured with that many.
const MEASURED: [(f64, &str); 4] = [
    (1.0, "calls_1"),
    (4.0, "calls_4"),
    (16.0, "calls_16"),
    (64.0, "calls_64"),
];

/// A measured cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// A unique name, such as `redis.calls_1`.
    pub name: String,
    pub value: f64,
    /// Empty for a ratio.
    pub unit: String,
    /// A description for people.
    pub meaning: String,
    /// The measurement that yielded it.
    pub source: String,
}

/// Why a text is not a table of costs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostsError {
    #[error(
        "line {0} does not have five tab-separated fields: name, value, unit, meaning and source"
    )]
    Fields(usize),
    #[error("line {line}: the value must be a number above 0, not '{value}'")]
    Value { line: usize, value: String },
    #[error("line {line}: there is no cost '{name}', or it has two lines")]
    Name { line: usize, name: String },
    #[error("line {line}: the unit of '{name}' must be '{unit}'")]
    Unit {
        line: usize,
        name: String,
        unit: String,
    },
    #[error("the cost '{0}' is missing")]
    Missing(String),
}

/// All measured costs.
#[derive(Debug)]
pub struct Costs(Vec<Cost>);

impl Costs {
    /// The built-in table.
    ///
    /// # Panics
    ///
    /// Never, as a test reads it.
    #[must_use]
    pub fn measured() -> Self {
        Self::lines(TABLE).expect("a test reads the table")
    }

    /// Parses a table in the format of `src/cli/size/costs.tsv`. It must have each of these costs once, in any order.
    ///
    /// # Errors
    ///
    /// If a line or a cost is wrong or missing.
    pub fn parse(text: &str) -> Result<Self, CostsError> {
        let (known, mut costs) = (Self::measured(), Self::lines(text)?);
        for (index, cost) in costs.0.iter().enumerate() {
            let (line, name) = (index + 1, cost.name.clone());
            let is_first = costs.0[..index].iter().all(|other| other.name != name);
            match known.find(&name).filter(|_| is_first) {
                None => return Err(CostsError::Name { line, name }),
                Some(Cost { unit, .. }) if *unit != cost.unit => {
                    let unit = unit.clone();
                    return Err(CostsError::Unit { line, name, unit });
                }
                Some(_) => {}
            }
        }
        let mut all = known.0.iter();
        if let Some(missing) = all.find(|known| costs.find(&known.name).is_none()) {
            return Err(CostsError::Missing(missing.name.clone()));
        }
        costs
            .0
            .sort_by_key(|cost| known.0.iter().position(|known| known.name == cost.name));
        Ok(costs)
    }

    fn find(&self, name: &str) -> Option<&Cost> {
        self.0.iter().find(|cost| cost.name == name)
    }

    fn lines(text: &str) -> Result<Self, CostsError> {
        let lines = (1..).zip(text.lines());
        lines
            .map(|(line, text)| cost(line, text))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// All costs, in the order of the table.
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
        let cost = self.find(name).expect("a test asks for every name");
        cost.value
            * match &*cost.unit {
                "kB" => 1e3,
                "MB" => 1e6,
                _ => 1.0,
            }
    }

    /// The processor time of one call, in microseconds, if there are `together` simultaneous calls. `name` is the start
    /// of the names of the costs to use.
    ///
    /// Calls that arrive together share wake-ups and system calls. Between two measured numbers of calls, the time is
    /// interpolated as a power of the number of calls; below the lowest and above the highest it is constant.
    #[must_use]
    pub fn call(&self, name: &str, together: f64) -> f64 {
        let time = |ending: &str| self.get(&format!("{name}.{ending}"));
        let [(least, _), .., (most, _)] = MEASURED;
        let together = together.clamp(least, most);
        let next = MEASURED
            .partition_point(|(calls, _)| *calls < together)
            .max(1);
        let [(less, few), (more, many)] = [MEASURED[next - 1], MEASURED[next]];
        let exponent = (time(many) / time(few)).ln() / (more / less).ln();
        time(few) * (together / less).powf(exponent)
    }
}

fn cost(line: usize, text: &str) -> Result<Cost, CostsError> {
    let fields: Vec<_> = text.split('\t').collect();
    let [name, value, unit, meaning, source] = fields[..] else {
        return Err(CostsError::Fields(line));
    };
    let number = value
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0);
    let value = number.ok_or_else(|| CostsError::Value {
        line,
        value: value.to_owned(),
    })?;
    Ok(Cost {
        name: name.to_owned(),
        value,
        unit: unit.to_owned(),
        meaning: meaning.to_owned(),
        source: source.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_points_are_met() {
        let costs = Costs::measured();
        for name in ["memory", "redis", "redis_server"] {
            for (together, of) in MEASURED {
                let measured = costs.get(&format!("{name}.{of}"));
                assert!((costs.call(name, together) - measured).abs() < 1e-9);
            }
            let falling = [1.0, 2.0, 5.0, 15.0, 17.0, 64.0].map(|calls| costs.call(name, calls));
            assert!(
                falling.is_sorted_by(|more, less| more > less),
                "{falling:?}"
            );
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

    #[test]
    fn a_table_is_read_as_it_was_written_in_any_order() {
        let turned: String = TABLE
            .lines()
            .rev()
            .map(|line| format!("{line}\n"))
            .collect();
        for text in [TABLE, &turned] {
            let read = Costs::parse(text).unwrap();
            assert_eq!(read.all(), Costs::measured().all());
        }
    }

    #[test]
    fn a_table_with_a_mistake_is_refused_with_its_line() {
        let check = |from: &str, to: &str, expected: &str| {
            let error = Costs::parse(&TABLE.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        let value = Costs::measured().get("memory.calls_64");
        let first = &format!("memory.calls_64\t{value}\tµs\t");
        check(
            first,
            &first.replacen('\t', " ", 1),
            "line 1 does not have five tab-separated fields: name, value, unit, meaning and source",
        );
        for value in ["0", "-1", "NaN", "inf", "", "4,05"] {
            let said = format!("line 1: the value must be a number above 0, not '{value}'");
            check(first, &format!("memory.calls_64\t{value}\tµs\t"), &said);
        }
        check(
            first,
            "memory.apart\t4\tµs\t",
            "line 1: there is no cost 'memory.apart', or it has two lines",
        );
        check(
            first,
            "memory.calls_16\t4\tµs\t",
            "line 2: there is no cost 'memory.calls_16', or it has two lines",
        );
        check(
            first,
            "memory.calls_64\t4\tms\t",
            "line 1: the unit of 'memory.calls_64' must be 'µs'",
        );
        let (first, rest) = TABLE.split_once('\n').unwrap();
        let (name, _) = first.split_once('\t').unwrap();
        assert_eq!(
            Costs::parse(rest).unwrap_err(),
            CostsError::Missing(name.to_owned())
        );
        let short: String = TABLE
            .lines()
            .take(3)
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(matches!(Costs::parse(&short), Err(CostsError::Missing(_))));
    }
}
