//! What is published: a random walk, or the rows of a file.
//!
//! Both are iterators that never wait and never allocate per statement; pacing is the caller's business.
//! `feed` publishes them into Redis, `demo` into the embedded bus.

use crate::instrument::InstrumentId;
use crate::upstream::publish::statement::{Day, Decimal, Statement};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io::BufRead;
use std::sync::Arc;

/// Prices of the walk are in hundredths.
const PRICE_DIGITS: u8 = 2;
/// Changes in percent have four digits, as in the payloads of real publishers.
const PERCENT_DIGITS: u8 = 4;

/// An endless random walk of the instruments `1..=n`.
///
/// Each instrument moves once before any moves twice, so that all have a price soon.
pub struct RandomWalk {
    walkers: Vec<Walker>,
    n_steps: usize,
    random: SmallRng,
}

struct Walker {
    open: i64,
    high: i64,
    low: i64,
    price: i64,
    volume: u64,
}

impl RandomWalk {
    /// A walk of `n_instruments` (at least one), repeatable by its `seed`.
    pub fn new(n_instruments: usize, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let walkers = (0..n_instruments.max(1))
            .map(|_| {
                let open = random.random_range(1_000..10_000_000);
                Walker { open, high: open, low: open, price: open, volume: 0 }
            })
            .collect();
        Self { walkers, n_steps: 0, random }
    }
}

impl Iterator for RandomWalk {
    type Item = Statement;

    fn next(&mut self) -> Option<Statement> {
        let n = self.walkers.len();
        let at = if self.n_steps < n { self.n_steps } else { self.random.random_range(0..n) };
        self.n_steps += 1;
        let walker = &mut self.walkers[at];
        // A step is at most 0.1 % of the opening price; the floor keeps a long walk from reaching zero.
        let reach = (walker.open / 1_000).max(1);
        walker.price = (walker.price + self.random.random_range(-reach..=reach)).max(1);
        walker.high = walker.high.max(walker.price);
        walker.low = walker.low.min(walker.price);
        walker.volume += self.random.random_range(1..100);
        let price = |units| Decimal::Scaled { units, digits: PRICE_DIGITS };
        Some(Statement {
            id: InstrumentId::new(at as i64 + 1),
            price: price(walker.price),
            prev_day_change_pct: Some(percent((walker.price - walker.open) as f64 / walker.open as f64)),
            day: Some(Day { open: price(walker.open), high: price(walker.high), low: price(walker.low) }),
            volume: Some(walker.volume),
        })
    }
}

fn percent(ratio: f64) -> Decimal {
    let units = (ratio * 100.0 * 10_f64.powi(i32::from(PERCENT_DIGITS))).round() as i64;
    Decimal::Scaled { units, digits: PERCENT_DIGITS }
}

/// A file of prices, row by row: a header with a name per instrument, then one row per step. The first
/// column numbers the rows. Instruments get the ids 1, 2, … in the order of the header.
#[derive(Debug)]
pub struct Replay {
    columns: Vec<Column>,
    prices: Vec<Arc<str>>,
    at: usize,
    n_left: usize,
}

#[derive(Debug)]
struct Column {
    name: String,
    previous: Option<f64>,
}

/// Why a file can't be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file can't be read.
    #[error("cannot read the file to replay: {0}")]
    Read(#[from] std::io::Error),
    /// There is no instrument or no row.
    #[error("the file to replay needs a header with an instrument and at least one row")]
    Empty,
    /// A row has not one price per instrument.
    #[error("line {line} of the file to replay has {found} prices instead of {expected}")]
    Ragged {
        /// Line number, from 1.
        line: usize,
        /// Prices found.
        found: usize,
        /// Instruments in the header.
        expected: usize,
    },
    /// Something that is no JSON number, which could not be passed through.
    #[error("line {line} of the file to replay: `{text}` is no plain decimal number")]
    Number {
        /// Line number, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
}

impl Replay {
    /// Reads a whole file, to be replayed `loops` times.
    ///
    /// # Errors
    /// The first thing in it that can't be replayed.
    pub fn read(file: impl BufRead, loops: usize) -> Result<Self, ReplayError> {
        let mut lines = file.lines().enumerate();
        let header = lines.next().ok_or(ReplayError::Empty)?.1?;
        let columns: Vec<Column> =
            cells(&header).map(|name| Column { name: name.to_owned(), previous: None }).collect();
        let mut prices = Vec::new();
        for (at, row) in lines {
            let (row, line) = (row?, at + 1);
            if row.trim().is_empty() {
                continue;
            }
            let before = prices.len();
            for text in cells(&row) {
                if !is_json_decimal(text) {
                    return Err(ReplayError::Number { line, text: text.chars().take(40).collect() });
                }
                prices.push(Arc::from(text));
            }
            let (found, expected) = (prices.len() - before, columns.len());
            if found != expected {
                return Err(ReplayError::Ragged { line, found, expected });
            }
        }
        if columns.is_empty() || prices.is_empty() {
            return Err(ReplayError::Empty);
        }
        let n_left = prices.len().saturating_mul(loops);
        Ok(Self { columns, prices, at: 0, n_left })
    }

    /// The instruments' names in the order of their ids.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }
}

impl Iterator for Replay {
    type Item = Statement;

    fn next(&mut self) -> Option<Statement> {
        self.n_left = self.n_left.checked_sub(1)?;
        let text = Arc::clone(&self.prices[self.at]);
        let at = self.at % self.columns.len();
        self.at = (self.at + 1) % self.prices.len();
        let column = &mut self.columns[at];
        // Only the change is calculated; the price itself is the file's own text.
        let price: f64 = text.parse().expect("every cell was checked to be a number");
        let change = column
            .previous
            .filter(|&previous| previous != 0.0)
            .map(|previous| percent((price - previous) / previous));
        column.previous = Some(price);
        Some(Statement {
            id: InstrumentId::new(at as i64 + 1),
            price: Decimal::Text(text),
            prev_day_change_pct: change,
            day: None,
            volume: None,
        })
    }
}

/// The cells of a line behind the row's number, without the quotation marks that R writes around names.
fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').skip(1).map(|cell| cell.trim().trim_matches('"'))
}

/// Whether `text` is a JSON number without an exponent.
fn is_json_decimal(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    all_digits(whole) && all_digits(fraction) && (whole == "0" || !whole.starts_with('0'))
}

#[cfg(test)]
mod tests;
