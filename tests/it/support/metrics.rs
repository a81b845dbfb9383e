//! A reading of `/metrics`.

/// One scrape, parsed.
#[derive(Debug, Clone)]
pub struct Metrics {
    samples: Vec<Sample>,
    /// The text as it came.
    pub text: String,
}

#[derive(Debug, Clone)]
struct Sample {
    name: String,
    labels: String,
    value: f64,
}

impl Metrics {
    /// Reads the text exposition.
    pub fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            Sample { name: name.to_owned(), labels: labels.to_owned(), value: value.parse().unwrap() }
        });
        Self { samples: samples.collect(), text: text.to_owned() }
    }

    /// The sum of all series of `name` (without prefix) whose labels contain all of `labels`.
    ///
    /// # Panics
    /// When there is no such series: each is registered at zero, so that a missing one is a mistake.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let name = format!("tickbridge_{name}");
        let fits = |sample: &&Sample| {
            let has = |(k, v): &(&str, &str)| sample.labels.contains(&format!("{k}=\"{v}\""));
            sample.name == name && labels.iter().all(has)
        };
        let found: Vec<f64> = self.samples.iter().filter(fits).map(|sample| sample.value).collect();
        assert!(!found.is_empty(), "no series {name} {labels:?}; there are {:?}", self.names());
        found.iter().sum()
    }

    /// Names of all series, each once, in the order rendered.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.samples.iter().map(|sample| sample.name.as_str()).collect();
        names.dedup();
        names
    }

    /// How many series there are.
    pub fn n_series(&self) -> usize {
        self.samples.len()
    }
}
