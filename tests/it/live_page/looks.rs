//! What the page is to those who use a keyboard, a screen reader, little motion or a small screen.

use super::stage::{SOON, Stage};
use crate::support::browser::Page;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Width, height and theme of the screens that the page is looked at on.
const SCREENS: [(u32, u32, &str); 4] =
    [(1440, 900, "light"), (1440, 900, "dark"), (390, 844, "light"), (320, 640, "dark")];

async fn key(page: &Page, key: &str, code: u32) {
    for kind in ["rawKeyDown", "keyUp"] {
        let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
        page.call("Input.dispatchKeyEvent", event).await;
    }
}

/// Prices that rise and fall, so that every colour of the page is on it.
async fn with_prices(stage: &mut Stage, query: &str) -> Page {
    let page = stage.open(query).await;
    stage.is_live(&page).await;
    for _ in 0..2 {
        stage.shows_current(&page).await;
    }
    page
}

/// The rules of WCAG that a machine can check, by axe-core.
#[tokio::test]
async fn axe_finds_nothing_on_any_screen() {
    let axe = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/axe/axe.min.js");
    let Ok(axe) = std::fs::read_to_string(axe) else {
        eprintln!("NOT CHECKED: axe-core is not there; tests/js/setup.sh fetches it");
        return;
    };
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = with_prices(&mut stage, "transport=ws").await;
    for (width, height, scheme) in SCREENS {
        page.screen(width, height, scheme).await;
        page.eval(&format!("{axe}; 0")).await;
        // A price that has just changed has a ground of its own.
        stage.shows_current(&page).await;
        let found = page
            .eval(
                "axe.run(document, { resultTypes: ['violations'] }).then((run) => JSON.stringify({
                    n: run.passes.length,
                    broken: run.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 200) + n.failureSummary)]),
                }))",
            )
            .await;
        let found: Value = serde_json::from_str(found.as_str().unwrap()).unwrap();
        assert_eq!(found["broken"], json!([]), "{width} {scheme}: {found:#}");
        assert!(found["n"].as_u64().unwrap() > 30, "{found:#}");
    }
}

/// What is interactive has a name, and the landmarks that screen readers jump to are there.
#[tokio::test]
async fn screen_readers_are_told_what_everything_is() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = with_prices(&mut stage, "transport=ws").await;
    for (width, height, scheme) in SCREENS {
        page.screen(width, height, scheme).await;
        let tree = page.call("Accessibility.getFullAXTree", json!({})).await;
        let mut roles = Vec::new();
        for node in tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] == false) {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let name = node["name"]["value"].as_str().unwrap_or_default();
            let must_have_one = [
                "button",
                "textbox",
                "radio",
                "link",
                "table",
                "log",
                "image",
                "region",
                "columnheader",
                "rowheader",
            ];
            assert!(!must_have_one.contains(&role) || !name.trim().is_empty(), "a nameless {role}: {node:#}");
            roles.push(role);
        }
        for role in
            ["banner", "main", "contentinfo", "status", "table", "log", "image", "heading", "rowheader"]
        {
            assert!(roles.contains(&role), "no {role} at {width}: {roles:?}");
        }
    }
}

/// A tab stop per control, in the order of the page, each with an outline where it is; the first leads past the
/// controls.
#[tokio::test]
async fn the_tab_key_reaches_everything_in_order_and_shows_where_it_is() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = with_prices(&mut stage, "transport=ws").await;
    let mut stops = Vec::new();
    let began = Instant::now();
    loop {
        key(&page, "Tab", 9).await;
        let stop = page
            .eval(
                "(() => {
                    const at = document.activeElement;
                    if (!at || at === document.body) return null;
                    const seen = at.type === 'radio' ? at.nextElementSibling : at;
                    const { outlineStyle, outlineWidth } = getComputedStyle(seen);
                    return [at.name || at.id || at.textContent, outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2];
                })()",
            )
            .await;
        let Some(name) = stop[0].as_str() else { break };
        assert_eq!(stop[1], true, "{name} has the focus and doesn't show it");
        if stops.first().is_some_and(|first| first == name) {
            break;
        }
        stops.push(name.to_owned());
        assert!(began.elapsed() < SOON, "{stops:?}");
    }
    assert_eq!(
        stops,
        ["Skip to the prices", "transport", "rate", "Stream two answers", "ids", "Show", "log", "theme"]
    );
}

#[tokio::test]
async fn nothing_runs_over_the_edge_of_a_screen() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = with_prices(&mut stage, "transport=ws").await;
    for (width, height, scheme) in SCREENS {
        page.screen(width, height, scheme).await;
        let fits = "[document.scrollingElement, ...document.querySelectorAll('.panel')]
            .every((e) => e.scrollWidth <= e.clientWidth + 1)";
        page.wait_until(fits, SOON).await;
        let cut = page
            .eval(
                "JSON.stringify([...document.querySelectorAll('dt, dd, th, td, .segments span, button, h1, h2, h3, .figures')]
                    .filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && e.clientWidth)
                    .map((e) => e.outerHTML.slice(0, 120)))",
            )
            .await;
        assert_eq!(cut, "[]", "at {width}");
    }
}

/// Who asked the system for less motion gets no flash of a price, and the dot doesn't pulse.
#[tokio::test]
async fn little_motion_means_none() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = with_prices(&mut stage, "transport=ws").await;
    page.wait_until("document.getAnimations().length > 0", Duration::from_secs(10)).await;
    let features = json!({ "features": [{ "name": "prefers-reduced-motion", "value": "reduce" }] });
    page.call("Emulation.setEmulatedMedia", features).await;
    page.wait_until("document.getAnimations().length === 0", Duration::from_secs(10)).await;
    page.eval(
        "globalThis.moved = 0; document.getElementById('board').addEventListener('animationstart', () => moved++);
         const real = Element.prototype.animate;
         Element.prototype.animate = function (...how) { moved++; return real.apply(this, how); }; 0",
    )
    .await;
    stage.shows_current(&page).await;
    assert_eq!(page.eval("moved + document.getAnimations().length").await, 0);
}
