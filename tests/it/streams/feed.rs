//! `tickbridge feed --tokens` against a real Redis, read through the gateway.

use super::client::{BOTH, Client};
use super::producer::key;
use super::{closed_normally, world};
use crate::publish::run;
use serde_json::json;

#[tokio::test]
async fn answers_of_the_feed_are_whole_and_have_the_ids_that_it_prints() {
    let (redis, gateway) = world().await;
    let url = format!("redis://{}", redis.address());
    let mut args = vec!["feed", "--tokens", "--words", "7", "--interval", "5ms", "--redis", &url];
    let one = run(&args).await;
    assert_eq!((one.code, one.err.as_str()), (0, ""));
    args.extend(["--streams", "3", "--stream-id", "answer"]);
    let three = run(&args).await;
    assert_eq!((three.code, three.err.as_str()), (0, ""));
    let mut ids: Vec<&str> = three.out.lines().collect();
    ids.sort_unstable();
    assert_eq!(ids, ["answer-1", "answer-2", "answer-3"]);
    ids.extend(one.out.lines());
    assert_eq!(ids.len(), 4, "{}", one.out);
    for (id, transport) in ids.into_iter().zip(BOTH.repeat(2)) {
        let mut client = Client::resume(gateway.public, transport, id, None).await;
        assert_eq!(client.texts(7).await.concat().split(' ').count(), 7, "{id}");
        assert_eq!(client.next_of("end").await["status"], json!("done"));
        closed_normally(&mut client).await;
        assert!(redis.cmd::<i64>(&["PTTL", &key(id)]).await > 0, "{id} never expires");
    }
}
