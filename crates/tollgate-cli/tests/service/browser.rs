//! Drives a real browser.
//!
//! Chromium reads commands of the `DevTools` protocol from descriptor 3 and writes responses to 4, as JSON with a zero byte
//! behind it. This needs no port and no WebSocket, and the browser exits when the pipe closes. Rejected: `--dump-dom` and
//! `--screenshot`, which can neither click nor emulate a phone.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Generous, for a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A name of another site that resolves to this machine.
pub(crate) const REBOUND: &str = "evil.example";

const FLAGS: [&str; 13] = [
    "--headless",
    "--no-sandbox",            // often not permitted in containers; the pages are our own
    "--disable-dev-shm-usage", // often small in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--host-resolver-rules=MAP evil.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", // only this machine
    "--remote-debugging-pipe",
    "about:blank",
];

/// A browser with one page; closed on drop.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    /// Events of the page, in order.
    events: Vec<Value>,
    session: Option<String>,
    last_id: u64,
    folder: TempDir,
}

impl Browser {
    /// With an empty page and profile.
    pub(crate) fn start() -> Self {
        let found = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("chromium").is_file()));
        assert!(found, "chromium is not installed: run scripts/install-tools test");
        let folder = TempDir::new().unwrap();
        let mut child = command(folder.path()).spawn().unwrap();
        let (sender, messages) = channel();
        let answers = child.stdout.take().unwrap();
        std::thread::spawn(move || read_messages(answers, &sender));
        let commands = child.stdin.take().unwrap();
        let mut browser =
            Browser { child, commands, messages, events: Vec::new(), session: None, last_id: 0, folder };
        browser.attach();
        browser
    }

    /// Creates a page and subscribes to its network and console events.
    fn attach(&mut self) {
        let target = self.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attached =
            self.call("Target.attachToTarget", &json!({"targetId": target["targetId"], "flatten": true}));
        self.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), &json!({}));
        }
    }

    /// Emulates a phone: a narrow window into which wider pages are scaled.
    pub(crate) fn set_window(&mut self, width: u32, height: u32, is_phone: bool) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Emulates the color scheme of the system, `light` or `dark`.
    pub(crate) fn prefer_colours(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Opens a URL; returns when the previous page is gone.
    pub(crate) fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", &json!({"url": url}));
        assert_eq!(answer["errorText"], Value::Null, "{url}");
        let is_there = |event: &Value| {
            event["method"] == "Page.frameNavigated"
                && event["params"]["frame"]["loaderId"] == answer["loaderId"]
        };
        let deadline = Instant::now() + TIMEOUT;
        while !self.events.iter().any(is_there) {
            let event = self.receive(url, deadline);
            self.events.push(event);
        }
    }

    /// Loads the page again; returns when the previous one is gone.
    pub(crate) fn reload(&mut self) {
        let navigations =
            |events: &[Value]| events.iter().filter(|event| event["method"] == "Page.frameNavigated").count();
        let before = navigations(&self.events);
        self.call("Page.reload", &json!({}));
        let deadline = Instant::now() + TIMEOUT;
        while navigations(&self.events) == before {
            let event = self.receive("reload", deadline);
            self.events.push(event);
        }
    }

    /// The value of an expression; for a promise, its result.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &parameters);
        assert_eq!(answer["exceptionDetails"], Value::Null, "{expression}");
        answer["result"]["value"].clone()
    }

    /// Polls an expression until it is neither false, null nor empty.
    pub(crate) fn wait_for(&mut self, expression: &str) -> Value {
        let started = Instant::now();
        loop {
            let value = self.evaluate(expression);
            if ![json!(null), json!(false), json!("")].contains(&value) {
                return value;
            }
            assert!(started.elapsed() < TIMEOUT, "timed out waiting for {expression}; {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Clicks with the mouse on an element; an element on top of it gets the click instead.
    pub(crate) fn click(&mut self, element: &str) {
        let middle = self.evaluate(&format!(
            "(() => {{
                const element = {element};
                element.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({"type": kind, "x": middle[0], "y": middle[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    /// Types at the cursor.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", &json!({"text": text}));
    }

    /// Presses and releases a key: its name, its Windows code, and the text that it types.
    pub(crate) fn press(&mut self, key: &str, code: u32, text: &str) {
        let event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "text": text});
        self.call("Input.dispatchKeyEvent", &event);
        let event = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", &event);
    }

    /// Lets pages use the clipboard without asking.
    pub(crate) fn allow_clipboard(&mut self) {
        let permissions = json!(["clipboardReadWrite", "clipboardSanitizedWrite"]);
        self.call("Browser.grantPermissions", &json!({"permissions": permissions}));
    }

    /// Runs a script in every new page before its own scripts.
    pub(crate) fn run_before_pages(&mut self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", &json!({"source": script}));
    }

    /// The URLs requested so far, with status or error.
    pub(crate) fn requests(&mut self) -> Vec<(String, String)> {
        self.evaluate("0"); // flushes all earlier events
        let of = |event: &Value, id: &Value| event["params"]["requestId"] == *id;
        let outcome = |id: &Value| {
            self.events.iter().filter(|event| of(event, id)).find_map(|event| {
                match event["method"].as_str()? {
                    "Network.responseReceived" => Some(event["params"]["response"]["status"].to_string()),
                    "Network.loadingFailed" => {
                        Some(format!("{} {}", event["params"]["errorText"], event["params"]["blockedReason"]))
                    }
                    _ => None,
                }
            })
        };
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| {
            let url = event["params"]["request"]["url"].as_str().unwrap().to_owned();
            (url, outcome(&event["params"]["requestId"]).unwrap_or_default())
        })
        .collect()
    }

    /// Console messages, including script errors and policy violations.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        self.evaluate("0");
        let methods = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        let messages =
            self.events.iter().filter(|event| methods.iter().any(|method| event["method"] == *method));
        // Ignores hints: key fields are outside of forms on purpose, so that the browser does not offer to store the key.
        let messages = messages.filter(|event| event["params"]["entry"]["level"] != "verbose");
        messages.map(|event| event["params"].to_string()).collect()
    }

    /// Sends one command and returns its response; events in between are kept.
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        if let Err(error) = self.commands.write_all(format!("{message}\0").as_bytes()) {
            panic!("chromium takes no commands: {error}; {}", self.log());
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut message = self.receive(method, deadline);
            if message["id"] == self.last_id {
                assert_eq!(message["error"], Value::Null, "{method}");
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    fn receive(&self, what: &str, deadline: Instant) -> Value {
        let left = deadline.saturating_duration_since(Instant::now());
        let message = self.messages.recv_timeout(left);
        message.unwrap_or_else(|error| panic!("no response from chromium to {what}: {error}; {}", self.log()))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A requested close ends the helpers first; they might otherwise write into the folder while it is removed.
        let _ = self.commands.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let started = Instant::now();
        while started.elapsed() < TIMEOUT && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Chromium with its pipes at the expected descriptors, and all of its files in the folder.
fn command(folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >&2"#, "chromium"]);
    command.arg(format!("--user-data-dir={}", folder.join("profile").display())).args(FLAGS);
    command.env("HOME", folder).env("TMPDIR", folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    // An interrupt is for the test; the browser exits when its pipe closes.
    command.stderr(fs::File::create(folder.join("log")).unwrap()).process_group(0);
    command
}

fn read_messages(answers: ChildStdout, sender: &Sender<Value>) {
    let mut answers = BufReader::new(answers);
    let mut bytes = Vec::new();
    while answers.read_until(0, &mut bytes).is_ok_and(|count| count > 0) {
        let message = serde_json::from_slice(bytes.strip_suffix(b"\0").unwrap_or(&bytes));
        if message.is_ok_and(|message| sender.send(message).is_err()) {
            return;
        }
        bytes.clear();
    }
}
