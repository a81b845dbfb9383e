//! The page: goals, curves, every scenario, the studies, and how it was measured.

use super::goals::GOALS;
use super::summary::{Figure, Summary};
use super::svg::{Series, plot, short};
use crate::schedule::Arrival;
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = "
:root{color-scheme:light dark;--g:#8884;--ok:#0a7d33;--bad:#c0392b}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13px}
th,td{padding:.25rem .5rem;border-bottom:1px solid var(--g);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
small{opacity:.7}.ok{color:var(--ok)}.bad{color:var(--bad)}
svg{width:100%;max-width:46rem;display:block;margin:1rem 0}
svg text{fill:currentColor;font:11px system-ui,sans-serif}svg .t{font-size:14px;font-weight:600}
svg .g{stroke:currentColor;opacity:.15}.w{overflow-x:auto}";

const METHOD: &str = "Load is open-loop: every publication has an intended time, drawn before the run, that \
waits for nobody. Latency is from that time to the moment the load generator has read the event; staleness \
counts from the oldest version that an event replaces, so that conflation cannot hide. Versions are counted per \
session and topic: between two that arrived is conflated, after the last is lost. Server, Redis, publisher and load \
generator share the machine. CPU is the scheduler's run time of all threads per delivered event. A run is invalid when \
others used more than 0.25 cores, or when publisher or load generator lagged. Figures are medians of the valid \
runs with lowest and highest beside them.";

/// The two studies that are repeated, with what they found on their own machines.
const STUDIES: [(&str, &str); 2] = [
    (
        "In-process fan-out",
        "400 events to each of 50 to 1,000 subscribers with buffers of 64. Paced: the next event follows when the last \
         has reached everybody; flat out: at once. The study's figures with 1,000 subscribers: worker pool 3.78 M \
         deliveries per second at a p99 of 346 µs, task per delivery 1.78 M at 955 µs; serial lost 54.6 %.",
    ),
    (
        "Token streams: SSE against WebSocket",
        "Streams of 50 tokens, one every 30 ms, 1,500 ms in the ideal. The study's figures (generator in process): SSE \
         100 % success, handshake p50/p95 4.14/7.69 ms, completion 1.66/1.70 s, 49 MB received, 8,386 tokens per \
         second; WebSocket 78.8 %, 8.52/110.37 ms, 1.61/2.32 s, 14 MB, 15,153 per second.",
    ),
];

/// Lines of the plots: who, and the beginning of its scenarios' names.
const LINES: [(&str, &str); 6] = [
    ("WebSocket", "ws-10k-uniform-"),
    ("WebSocket, bursts", "ws-10k-burst-"),
    ("SSE", "sse-10k-uniform-"),
    ("nchan WebSocket", "nchan-ws-"),
    ("nchan SSE", "nchan-sse-"),
    ("nats-server", "nats-ws-"),
];

/// The whole page; `summaries` machine by machine.
pub fn page(summaries: &[Summary], studies: &[Option<Value>; 2]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>tickbridge benchmarks</title><style>{STYLE}</style><h1>tickbridge \
         benchmarks</h1><p>{METHOD}</p>"
    );
    for of_machine in summaries.chunk_by(|a, b| a.machine == b.machine) {
        let n: usize = of_machine.iter().map(|s| s.valid_runs).sum();
        let _ = write!(out, "<h2>{}</h2><p>{n} valid runs.</p>", of_machine[0].machine);
        goals(&mut out, of_machine);
        curves(&mut out, of_machine);
        scenarios(&mut out, of_machine);
        saturation(&mut out, of_machine);
        remarks(&mut out, of_machine);
    }
    for (study, (title, theirs)) in studies.iter().zip(STUDIES) {
        if let Some(rows) = study {
            let _ = write!(out, "<h2>{title}</h2><p>{theirs}</p>");
            table(&mut out, rows);
        }
    }
    out.push_str("</html>\n");
    out
}

fn cell(figure: Option<Figure>) -> String {
    figure.map_or("–".into(), |f| {
        if (f.high - f.low).abs() < f.median.abs() * 0.005 {
            return short(f.median);
        }
        format!("{} <small>{}–{}</small>", short(f.median), short(f.low), short(f.high))
    })
}

fn goals(out: &mut String, summaries: &[Summary]) {
    out.push_str(
        "<h3>Goals</h3><div class=w><table><tr><th>what<th>at least<th>aim<th>measured<th>runs<th>verdict</tr>",
    );
    for goal in &GOALS {
        let Some(summary) = summaries.iter().find(|s| s.scenario.name == goal.scenario) else { continue };
        let figure = summary.figure(goal.figure);
        let verdict = figure.map_or("no valid run", |f| goal.judge(f.median));
        let class = if verdict.starts_with("no") { "bad" } else { "ok" };
        let _ = write!(
            out,
            "<tr><td>{}<td>{} {u}<td>{} {u}<td>{} {u}<td>{}<td class={class}>{verdict}</tr>",
            goal.what,
            short(goal.least),
            short(goal.aim),
            cell(figure),
            summary.valid_runs,
            u = goal.unit,
        );
    }
    out.push_str("</table></div>");
}

fn curves(out: &mut String, summaries: &[Summary]) {
    let plots = [
        ("p99 latency", "p99_ms", "ms"),
        ("Staleness at p99", "stale_p99_ms", "ms"),
        ("CPU of the server per delivery", "server_cpu_us", "µs"),
        ("Fresh deliveries", "fresh_per_s", "per second"),
        ("Resident memory of the server after the window", "rss_end_mib", "MiB"),
    ];
    out.push_str("<h3>Over the load, 10,000 sessions × 20 of 1,000 instruments</h3>");
    for (title, figure, unit) in plots {
        let series: Vec<_> = LINES
            .iter()
            .map(|(name, prefix)| {
                let of = summaries.iter().filter(|s| s.scenario.name.starts_with(prefix));
                let points = of.filter_map(|s| Some((s.figure("offered_per_s")?.median, s.figure(figure)?)));
                let mut points: Vec<_> = points.collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                Series { name: (*name).into(), points }
            })
            .collect();
        out.push_str(&plot(title, "offered deliveries per second", unit, &series));
    }
}

/// A server whose p99 is above this many milliseconds has more to do than it can: what it delivers is late by ever more.
const SATURATED_MS: f64 = 250.0;

/// The most fresh deliveries per second that each server kept up with, and the latency that they had.
fn saturation(out: &mut String, summaries: &[Summary]) {
    out.push_str(
        "<h3>Saturation</h3><p>The most fresh deliveries per second with a p99 of at most 250 ms among the loads \
         that were offered to it, 10,000 sessions × 20; the ratio is WebSocket's to it.</p><div class=w><table><tr><th>server<th>scenario<th>fresh/s<th>p99 \
         ms<th>ratio</tr>",
    );
    let most = |prefix: &str| {
        let of = summaries.iter().filter(|s| s.scenario.name.starts_with(prefix));
        let kept_up = of.filter(|s| s.figure("p99_ms").is_some_and(|p99| p99.median <= SATURATED_MS));
        let rates = kept_up.filter_map(|s| Some((s.figure("fresh_per_s")?, s)));
        rates.max_by(|a, b| a.0.median.total_cmp(&b.0.median))
    };
    let ours = most(LINES[0].1).map_or(f64::NAN, |(fresh, _)| fresh.median);
    for (name, (fresh, summary)) in LINES.iter().filter_map(|(name, prefix)| Some((name, most(prefix)?))) {
        let _ = write!(
            out,
            "<tr><td>{name}<td>{}<td>{}<td>{}<td>{:.2}</tr>",
            summary.scenario.name,
            cell(Some(fresh)),
            cell(summary.figure("p99_ms")),
            ours / fresh.median,
        );
    }
    out.push_str("</table></div>");
}

fn scenarios(out: &mut String, summaries: &[Summary]) {
    const COLUMNS: [(&str, &str); 14] = [
        ("offered/s", "offered_per_s"),
        ("fresh", "fresh"),
        ("conflated", "conflated"),
        ("lost", "lost"),
        ("p50 ms", "p50_ms"),
        ("p95 ms", "p95_ms"),
        ("p99 ms", "p99_ms"),
        ("p99.9 ms", "p999_ms"),
        ("stale p99 ms", "stale_p99_ms"),
        ("server µs", "server_cpu_us"),
        ("client µs", "client_cpu_us"),
        ("events/read", "events_per_read"),
        ("KiB/session", "rss_per_session_kib"),
        ("connect s", "connect_s"),
    ];
    out.push_str("<h3>Every scenario</h3><div class=w><table><tr><th>scenario<th>runs<th>arrival");
    COLUMNS.iter().for_each(|(title, _)| {
        let _ = write!(out, "<th>{title}");
    });
    out.push_str("<th>counters agree</tr>");
    for summary in summaries {
        let s = &summary.scenario;
        let arrival = match s.arrival {
            _ if s.rate == 0.0 => "idle",
            Arrival::Uniform => "uniform",
            Arrival::Burst => "bursts",
            Arrival::Regular => "regular",
        };
        let _ = write!(out, "<tr><td>{}<td>{}<td>{arrival}", s.name, summary.valid_runs);
        for (_, figure) in COLUMNS {
            let meaningless = s.rate == 0.0 && !figure.starts_with("rss") && figure != "connect_s";
            let value = if meaningless { None } else { summary.figure(figure) };
            let _ = write!(out, "<td>{}", cell(value));
        }
        let agrees = summary.accounting_agrees.map_or("–", |a| if a { "yes" } else { "no" });
        let _ = write!(out, "<td>{agrees}</tr>");
    }
    out.push_str("</table></div>");
}

/// A study's rows, whose fields name the columns.
fn table(out: &mut String, rows: &Value) {
    let Some(rows) = rows.as_array() else { return };
    let Some(first) = rows.first().and_then(Value::as_object) else { return };
    out.push_str("<div class=w><table><tr>");
    first.keys().for_each(|key| {
        let _ = write!(out, "<th>{}", key.replace('_', " "));
    });
    out.push_str("</tr>");
    for row in rows.iter().filter_map(Value::as_object) {
        out.push_str("<tr>");
        for value in row.values() {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(n) => short(n.as_f64().unwrap_or(0.0)),
                Value::Array(pair) => {
                    let ends: Vec<_> = pair.iter().filter_map(Value::as_f64).map(short).collect();
                    ends.join("–")
                }
                _ => "–".into(),
            };
            let _ = write!(out, "<td>{text}");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
}

fn remarks(out: &mut String, summaries: &[Summary]) {
    out.push_str("<h3>Invalid runs and faults</h3><ul>");
    for summary in summaries {
        for (kind, list) in [("invalid", &summary.invalid), ("fault", &summary.faults)] {
            for text in list {
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let _ = write!(out, "<li>{} {kind}: {text}", summary.scenario.name);
            }
        }
    }
    out.push_str("</ul>");
}
