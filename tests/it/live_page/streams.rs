//! Lossless streams in a real browser: an answer stays whole while its connection is cut, its replica killed, and
//! the next one drained.

use super::stage::{SOON, Stage};
use crate::support::browser::Page;
use crate::support::redis::RedisServer;

const TRANSPORTS: [&str; 2] = ["sse", "ws"];

async fn write(redis: &RedisServer, n: usize) {
    redis.cmd::<String>(&["XADD", "stream:{a-1}", "*", "event", "token", "data", &format!("w{n} ")]).await;
}

/// What is on the page, and was written, of both answers.
async fn has(page: &Page, n: usize) {
    let all = format!("got.sse.length >= {n} && got.ws.length >= {n}");
    page.wait_until(&all, SOON).await;
}

#[tokio::test]
async fn an_answer_stays_whole_through_cuts_a_killed_replica_and_a_drain() {
    let mut stage = Stage::set(2, |builder| builder).await;
    let page = stage.open("transport=ws").await;
    stage.is_live(&page).await;
    page.eval(
        "globalThis.got = {}; globalThis.ends = {};
         import('/assets/client/streams.js').then(({ openStream }) => {
            for (const transport of ['sse', 'ws']) (async () => {
                const seen = (got[transport] = []);
                const stream = openStream('a-1', { transport, heartbeatMs: 2000, maxBackoffMs: 2000 });
                for await (const message of stream) seen.push(message.type === 'entry' ? message.data : message.type);
                ends[transport] = stream.state.reason;
            })().catch((error) => (ends[transport] = `${error}`));
         })",
    )
    .await;
    let mut n = 0;
    for fault in 0..4 {
        for _ in 0..10 {
            write(&stage.redis, n).await;
            n += 1;
        }
        has(&page, n).await;
        match fault {
            0 => stage.network.drop_connections(),
            1 => stage.gateways[0].process().kill9(),
            2 => {
                stage.gateways[0].restart().await;
                stage.gateways[1].process().stop();
            }
            _ => stage.network.black_hole(),
        }
        // These come while nobody is connected, or somebody only thinks so.
        for _ in 0..10 {
            write(&stage.redis, n).await;
            n += 1;
        }
        stage.network.restore();
        has(&page, n).await;
    }
    stage.redis.cmd::<String>(&["XADD", "stream:{a-1}", "*", "end", "done"]).await;
    for transport in TRANSPORTS {
        page.wait_until(&format!("ends.{transport} === 'done'"), SOON).await;
        let expected: String = (0..n).map(|n| format!("w{n} ")).collect();
        assert_eq!(page.eval(&format!("got.{transport}.join('')")).await, format!("{expected}end"));
    }
    stage.ends_well(&page).await;
}

/// Waits until both answers on the page have so many words.
async fn has_words(page: &Page, n: usize) {
    let words = "[...document.querySelectorAll('[data-text]')].map((p) => p.textContent.split(/\\s+/).filter(Boolean).length)";
    page.wait_until(&format!("{words}.join() === '{n},{n}'"), SOON).await;
}

/// Waits until both answers have been compared with what is stored; gives what the page says of each.
async fn verdicts(page: &Page) -> Vec<String> {
    page.wait_until("document.querySelectorAll('[data-progress=whole]').length === 2", SOON).await;
    let said =
        "JSON.stringify([...document.querySelectorAll('[data-said]')].map((said) => said.textContent))";
    serde_json::from_str(page.eval(said).await.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn two_answers_on_the_page_are_cut_in_the_middle_and_whole_in_the_end() {
    let stage = Stage::set(2, |builder| builder.set("demo.streams", "64")).await;
    let page = stage.open("transport=ws").await;
    stage.is_live(&page).await;
    let press = |button: usize| format!("document.querySelectorAll('#answers button')[{button}].click()");
    page.eval(&press(0)).await;
    for said in verdicts(&page).await {
        assert!(said.starts_with("50 words in ") && said.ends_with("none lost, none doubled"), "{said}");
    }
    has_words(&page, 50).await;

    // The next two are written here, so that the cut comes in the middle on the slowest machine.
    page.eval(
        "const real = fetch; let n = 0;
         globalThis.fetch = (url, how) => url !== '/stream/demo' ? real(url, how)
            : Promise.resolve(new Response(JSON.stringify({ id: `mine-${n++}` }))); 0",
    )
    .await;
    let write = async |words: std::ops::Range<usize>| {
        for n in words {
            for id in 0..2 {
                let key = format!("stream:{{mine-{id}}}");
                stage
                    .redis
                    .cmd::<String>(&["XADD", &key, "*", "event", "token", "data", &format!(" w{n}")])
                    .await;
            }
        }
    };
    page.eval(&press(0)).await;
    write(0..25).await;
    has_words(&page, 25).await;
    page.eval(&press(1)).await;
    page.wait_until("document.querySelectorAll('[data-text] i').length >= 2", SOON).await;
    write(25..50).await;
    for id in 0..2 {
        stage.redis.cmd::<String>(&["XADD", &format!("stream:{{mine-{id}}}"), "*", "end", "done"]).await;
    }
    for said in verdicts(&page).await {
        let cut = said.contains(" cut, ") || said.contains(" cuts, ");
        assert!(said.starts_with("50 words in ") && cut && !said.contains(" 0 cuts"), "{said}");
        assert!(said.ends_with("none lost, none doubled"), "{said}");
    }
    let texts = "[...document.querySelectorAll('[data-text]')].map((p) => p.textContent).join()";
    let answer: String = (0..50).map(|n| format!(" w{n}")).collect();
    assert_eq!(page.eval(texts).await, format!("{answer},{answer}"));
    stage.is_quiet(&page).await;
}
