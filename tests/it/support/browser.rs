//! A real browser: headless Chromium, driven over its DevTools protocol.

use super::process::Process;
use super::wait::{in_time, wait_for};
use base64::Engine;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite::Message;

/// A cold start of Chromium on a busy machine takes several seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// A running browser; it ends with its owner.
pub struct Browser {
    wire: Arc<Wire>,
    _process: Process,
    _folder: TempDir,
}

impl Browser {
    /// Starts a browser with an empty profile.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// [`Browser::start`] with further switches.
    pub async fn start_with(switches: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromium");
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--no-first-run", "--disable-background-networking", "--remote-debugging-port=0"]);
        command.arg(format!("--user-data-dir={}", folder.path().display())).args(switches).arg("about:blank");
        let process = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let announced = folder.path().join("DevToolsActivePort");
        let (port, path) = wait_for("Chromium names its port", START_TIMEOUT, || async {
            let text = std::fs::read_to_string(&announced).ok()?;
            let (port, path) = text.split_once('\n')?;
            Some((port.parse::<u16>().ok()?, path.trim().to_owned()))
        })
        .await;
        let wire = Wire::connect(port, &path).await;
        Self { wire, _process: process, _folder: folder }
    }

    /// Opens a tab.
    pub async fn open(&self, url: &str) -> Page {
        let target = self.wire.call(None, "Target.createTarget", json!({ "url": "about:blank" })).await;
        let page = self.attach(&target["targetId"]).await;
        for domain in ["Page", "Runtime", "Network", "Log"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        page.call("Page.navigate", json!({ "url": url })).await;
        page
    }

    /// What the shared workers complained about since they began.
    pub async fn worker_errors(&self) -> Vec<String> {
        let targets = self.wire.call(None, "Target.getTargets", json!({})).await;
        let mut errors = Vec::new();
        for target in targets["targetInfos"].as_array().unwrap() {
            if target["type"] == "shared_worker" {
                let worker = self.attach(&target["targetId"]).await;
                // Says again what was said before anybody listened.
                worker.call("Runtime.enable", json!({})).await;
                errors.extend(worker.errors());
                let session = json!({ "sessionId": worker.session });
                self.wire.call(None, "Target.detachFromTarget", session).await;
            }
        }
        errors
    }

    async fn attach(&self, target: &Value) -> Page {
        let attach = json!({ "targetId": target, "flatten": true });
        let attached = self.wire.call(None, "Target.attachToTarget", attach).await;
        let session = attached["sessionId"].as_str().unwrap().to_owned();
        Page { wire: Arc::clone(&self.wire), session }
    }
}

/// A tab.
pub struct Page {
    wire: Arc<Wire>,
    session: String,
}

impl Page {
    /// The value of a JavaScript expression; promises are awaited.
    pub async fn eval(&self, expression: &str) -> Value {
        let arguments = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", arguments).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub async fn wait_until(&self, expression: &str, within: Duration) {
        let arguments = json!({ "expression": expression, "returnByValue": true });
        wait_for(expression, within, || async {
            // An expression may fail while the page is still loading.
            let answer = self.call("Runtime.evaluate", arguments.clone()).await;
            (answer["result"]["value"] == true).then_some(())
        })
        .await;
    }

    /// [`Page::wait_until`] for what a page shows once it has loaded. Chromium gives up what it loads when any interface
    /// of the machine comes or goes, as those of containers do; that page is loaded again.
    pub async fn wait_until_loaded(&self, expression: &str, within: Duration) {
        let arguments = json!({ "expression": expression, "returnByValue": true });
        let given_up = AtomicUsize::new(0);
        wait_for(expression, within, || async {
            let now = self.n_given_up();
            // Refused while the page of the error is still to come.
            if now > given_up.load(Ordering::Relaxed)
                && self.wire.try_call(Some(&self.session), "Page.reload", json!({})).await.is_ok()
            {
                given_up.store(now, Ordering::Relaxed);
            }
            let answer = self.call("Runtime.evaluate", arguments.clone()).await;
            (answer["result"]["value"] == true).then_some(())
        })
        .await;
    }

    /// Documents and scripts of the page that weren't loaded because the machine's interfaces changed. What opens later
    /// is the page's own business to repeat.
    fn n_given_up(&self) -> usize {
        let events = self.wire.events.lock().unwrap();
        let ours = events.iter().filter(|event| event["sessionId"] == self.session.as_str());
        let failed = ours.filter(|event| event["method"] == "Network.loadingFailed");
        failed
            .filter(|event| {
                let failed = &event["params"];
                failed["errorText"] == "net::ERR_NETWORK_CHANGED"
                    && matches!(failed["type"].as_str(), Some("Document" | "Script"))
            })
            .count()
    }

    /// What the page complained about so far: uncaught exceptions, `console.error`, failed loads.
    pub fn errors(&self) -> Vec<String> {
        let events = self.wire.events.lock().unwrap();
        let ours = events.iter().filter(|event| event["sessionId"] == self.session.as_str());
        ours.filter_map(|event| match event["method"].as_str()? {
            "Runtime.exceptionThrown" => Some(event["params"]["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if event["params"]["type"] == "error" => {
                Some(event["params"]["args"].to_string())
            }
            "Log.entryAdded" if event["params"]["entry"]["level"] == "error" => {
                Some(event["params"]["entry"].to_string())
            }
            _ => None,
        })
        .collect()
    }

    /// Takes the network away from the page, or gives it back.
    pub async fn offline(&self, offline: bool) {
        let conditions =
            json!({ "offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.call("Network.emulateNetworkConditions", conditions).await;
    }

    /// Freezes the page as a sleeping laptop does, or wakes it.
    pub async fn frozen(&self, frozen: bool) {
        let state = if frozen { "frozen" } else { "active" };
        self.call("Page.setWebLifecycleState", json!({ "state": state })).await;
    }

    /// Shows the page as on a screen of this size, light or dark.
    pub async fn screen(&self, width: u32, height: u32, scheme: &str) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Writes a picture of the page.
    pub async fn screenshot(&self, to: &Path) {
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" })).await;
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture["data"].as_str().unwrap());
        std::fs::write(to, bytes.unwrap()).unwrap();
    }

    /// Loads the page again.
    pub async fn reload(&self) {
        self.call("Page.reload", json!({})).await;
    }

    /// Any method of the DevTools protocol.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        self.wire.call(Some(&self.session), method, params).await
    }
}

type Waiting = Mutex<HashMap<u64, oneshot::Sender<Value>>>;

/// The connection to the browser.
struct Wire {
    say: mpsc::UnboundedSender<Message>,
    waiting: Arc<Waiting>,
    events: Arc<Mutex<Vec<Value>>>,
    next_id: Mutex<u64>,
}

impl Wire {
    async fn connect(port: u16, path: &str) -> Arc<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let url = format!("ws://127.0.0.1:{port}{path}");
        let (stream, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
        let (mut sink, mut stream) = stream.split();
        let (say, mut said) = mpsc::unbounded_channel();
        let (waiting, events) = (Arc::new(Waiting::default()), Arc::new(Mutex::new(Vec::new())));
        let wire = Arc::new(Self {
            say,
            waiting: Arc::clone(&waiting),
            events: Arc::clone(&events),
            next_id: Mutex::new(1),
        });
        tokio::spawn(async move {
            while let Some(message) = said.recv().await {
                if sink.send(message).await.is_err() {
                    break;
                }
            }
        });
        tokio::spawn(async move {
            while let Some(Ok(message)) = stream.next().await {
                let Ok(Ok(message)) = message.to_text().map(serde_json::from_str::<Value>) else { continue };
                let asked = message["id"].as_u64().and_then(|id| waiting.lock().unwrap().remove(&id));
                match asked {
                    Some(asked) => drop(asked.send(message)),
                    None => events.lock().unwrap().push(message),
                }
            }
        });
        wire
    }

    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Value {
        self.try_call(session, method, params).await.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    async fn try_call(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value, Value> {
        let id = {
            let mut next = self.next_id.lock().unwrap();
            *next += 1;
            *next
        };
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().unwrap().insert(id, answer);
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        self.say.send(Message::text(message.to_string())).expect("the browser is connected");
        let answer = in_time(method, CALL_TIMEOUT, answered).await.expect("the browser answers");
        if answer["error"].is_null() { Ok(answer["result"].clone()) } else { Err(answer["error"].clone()) }
    }
}
