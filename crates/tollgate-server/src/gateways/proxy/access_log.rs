//! The access log of the proxy: one line per request on standard output, in the combined format or as JSON.
//!
//! A thread writes the lines. Lines that do not fit into its queue are dropped and counted, so that a slow reader of standard output
//! delays no request.

use std::io::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName, Method, Request, Response, Version};
use hyper::body::Body;
use jiff::Timestamp;
use serde_json::json;
use tollgate::Decision;

use super::Outcome;
use crate::config::settings::AccessLogFormat;
use crate::http::request_id::RequestId;
use crate::listener::Payload;
use crate::records::refusal_log::loggable;

const LINES_MAX: usize = 8_192;

/// Writes lines.
pub(crate) struct AccessLog {
    format: AccessLogFormat,
    lines: Option<SyncSender<String>>,
    pub(crate) dropped: AtomicU64,
}

/// The facts of one request.
pub(crate) struct Exchange {
    started: Instant,
    at: Timestamp,
    request_id: String,
    method: Method,
    path: String,
    version: Version,
    /// Those of the request, which the client's address is read from.
    pub(super) headers: HeaderMap,
}

impl AccessLog {
    pub(super) fn start(format: AccessLogFormat) -> Self {
        let lines = (format != AccessLogFormat::Off).then(|| {
            let (sender, receiver) = sync_channel(LINES_MAX);
            let started =
                std::thread::Builder::new().name("access-log".to_owned()).spawn(move || write(&receiver));
            (sender, started.is_ok())
        });
        let lines = lines.and_then(|(sender, is_started)| is_started.then_some(sender));
        AccessLog { format, lines, dropped: AtomicU64::new(0) }
    }

    /// The entry of a request, if the log is on. The query is left out: it may contain keys.
    pub(super) fn begin<B>(&self, request: &Request<B>, request_id: &RequestId) -> Option<Exchange> {
        self.lines.as_ref()?;
        Some(Exchange {
            started: Instant::now(),
            at: Timestamp::now(),
            request_id: request_id.as_str().to_owned(),
            method: request.method().clone(),
            path: loggable(request.uri().path()),
            version: request.version(),
            headers: request.headers().clone(),
        })
    }

    /// Writes the line.
    pub(super) fn end(
        &self,
        exchange: &Exchange,
        client: Option<IpAddr>,
        outcome: &Outcome,
        response: &Response<Payload>,
    ) {
        let Some(lines) = &self.lines else { return };
        let line = match self.format {
            AccessLogFormat::Json => exchange.json(client, outcome, response),
            _ => exchange.combined(client, response),
        };
        if lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Exchange {
    fn combined(&self, client: Option<IpAddr>, response: &Response<Payload>) -> String {
        let client = client.map_or_else(|| "-".to_owned(), |client| client.to_string());
        let bytes =
            response.body().size_hint().exact().map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let at = self.at.strftime("%d/%b/%Y:%H:%M:%S +0000");
        format!(
            "{client} - - [{at}] \"{} {} {:?}\" {} {bytes} \"{}\" \"{}\"\n",
            self.method,
            self.path,
            self.version,
            response.status().as_u16(),
            text_of(&self.headers, &REFERER),
            text_of(&self.headers, &USER_AGENT),
        )
    }

    fn json(&self, client: Option<IpAddr>, outcome: &Outcome, response: &Response<Payload>) -> String {
        let line = json!({
            "time": self.at.to_string(),
            "request_id": self.request_id,
            "client": client,
            "method": self.method.as_str(),
            "path": self.path,
            "protocol": format!("{:?}", self.version),
            "route": outcome.route.as_ref().map(|route| &*route.name),
            "rule": outcome.decision.as_ref().and_then(Decision::rule_name),
            "status": response.status().as_u16(),
            "bytes": response.body().size_hint().exact(),
            "duration_us": u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            "referer": text_of(&self.headers, &REFERER),
            "user_agent": text_of(&self.headers, &USER_AGENT),
        });
        format!("{line}\n")
    }
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> String {
    let value =
        headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).replace('"', "\\x22"));
    value.as_deref().map_or_else(|| "-".to_owned(), loggable)
}

fn write(lines: &Receiver<String>) {
    while let Ok(line) = lines.recv() {
        let mut out = std::io::stdout().lock();
        // Nobody reads the log any more: requests go on.
        let _ = out.write_all(line.as_bytes());
        while let Ok(line) = lines.try_recv() {
            let _ = out.write_all(line.as_bytes());
        }
        let _ = out.flush();
    }
}
