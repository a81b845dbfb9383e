//! Makes one page and one summary from the runs' JSON files.
//!
//! The page stands alone: plots are inline SVG, nothing is loaded. Every figure is a median over the
//! valid runs of a scenario on one machine, with the lowest and highest beside it.

pub mod goals;
pub mod html;
pub mod summary;
pub mod svg;

use crate::outcome::Outcome;
use anyhow::{Context, Result};
use std::path::Path;
use summary::Summary;

/// Reads the JSON files in `runs` under `dir` and in its folders, of which each machine may have one, and writes
/// `summary.json` and `report.html` to `dir`.
///
/// # Errors
/// When a file can't be read or written.
pub fn write(dir: &Path) -> Result<()> {
    let mut outcomes = Vec::new();
    read(&dir.join("runs"), &mut outcomes)?;
    let order: Vec<_> = crate::scenario::all().into_iter().map(|s| s.name).collect();
    let summaries = Summary::all(&outcomes, &order);
    let studies = ["fanout", "streams"].map(|name| {
        let text = std::fs::read_to_string(dir.join(format!("{name}.json"))).ok()?;
        serde_json::from_str(&text).ok()
    });
    std::fs::write(dir.join("summary.json"), serde_json::to_string_pretty(&summaries)?)?;
    std::fs::write(dir.join("report.html"), html::page(&summaries, &studies))?;
    println!("{} runs: {}", outcomes.len(), dir.join("report.html").display());
    Ok(())
}

fn read(dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, outcomes)?;
        } else if path.extension().is_some_and(|e| e == "json") {
            let text = std::fs::read_to_string(&path)?;
            outcomes.push(serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(())
}
