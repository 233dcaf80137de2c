//! Responses that the proxy makes itself, in the form that the client accepts: JSON, problem details (RFC 9457) or HTML.

use std::borrow::Cow;

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value as Json, json};
use tollgate::decision::LimitReport;
use tollgate::headers::retry_after_secs;
use tollgate::{Answer, Decision, Timestamp};

use crate::http::error::ApiError;
use crate::listener::Payload;

/// A response of the proxy itself.
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// A stable word for programs.
    pub(super) code: Cow<'static, str>,
    pub(super) message: String,
    pub(super) details: Json,
    /// Besides those of every refusal.
    headers: Box<HeaderMap>,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let (code, message) = (error.code(), error.message().to_owned());
        let mut headers = Box::new(error.into_response("").into_parts().0.headers);
        headers.remove(CONTENT_LENGTH);
        Refusal { status: code.status(), code: code.to_string().into(), message, details: json!({}), headers }
    }
}

/// The form of a body.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Problem,
    Html,
}

impl Form {
    /// The form that the client prefers; JSON if it does not say.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let known = [
            ("application/json", Form::Json),
            ("application/problem+json", Form::Problem),
            ("text/html", Form::Html),
        ];
        let mut best = (Form::Json, 0_u32);
        for value in headers.get_all(ACCEPT) {
            for range in value.to_str().unwrap_or_default().split(',') {
                let mut parts = range.split(';').map(str::trim);
                let media_type = parts.next().unwrap_or_default();
                let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(1000, weight);
                let named = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(media_type));
                if let Some((_, form)) = named.filter(|_| weight > best.1) {
                    best = (*form, weight);
                }
            }
        }
        best.0
    }
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Refusal {
            status,
            code: code.into(),
            message: message.into(),
            details: json!({}),
            headers: Box::default(),
        }
    }

    /// The refusal of a decision that does not admit.
    pub(super) fn of_decision(decision: &Decision) -> Self {
        let rule = decision.rule();
        let written = rule.and_then(|rule| rule.response.message.as_deref()).map(str::to_owned);
        let (status, code, message) = match decision.answer {
            Answer::Block => {
                let reason = decision.block().map(|block| block.reason).filter(|reason| !reason.is_empty());
                let message = reason.map_or_else(|| "The client is blocked.".to_owned(), str::to_owned);
                (StatusCode::FORBIDDEN, "BLOCKED", message)
            }
            Answer::Unavailable => {
                let message = "Rate limits cannot be checked at the moment.".to_owned();
                (StatusCode::SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE", message)
            }
            Answer::Admit { .. } | Answer::Refuse { .. } => {
                let status = rule.and_then(|rule| StatusCode::from_u16(rule.response.status).ok());
                let status = status.unwrap_or(StatusCode::TOO_MANY_REQUESTS);
                (status, "RATE_LIMITED", exceeded(decision.binding()))
            }
        };
        let details = json!({
            "limit": decision.binding().map(|report| report.requests),
            "remaining": decision.binding().map(LimitReport::remaining),
            "reset_at": decision.reset_at().map(Timestamp::as_secs_ceil),
            "retry_after": decision.retry_after().map(retry_after_secs),
        });
        Refusal {
            status,
            code: code.into(),
            message: written.unwrap_or(message),
            details,
            headers: Box::default(),
        }
    }

    /// The response to a client.
    pub(super) fn respond(self, form: Form, request_id: &str) -> Response<Payload> {
        let (media_type, body) = match form {
            Form::Json => {
                let error = json!({ "code": self.code, "message": self.message, "details": self.details, "request_id": request_id });
                ("application/json", json!({ "error": error }).to_string())
            }
            Form::Problem => ("application/problem+json", self.problem(request_id).to_string()),
            Form::Html => ("text/html; charset=utf-8", self.html(request_id)),
        };
        let mut response = Response::new(Payload::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.extend(*self.headers);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn problem(&self, request_id: &str) -> Json {
        // The type of the IETF draft for exceeded quotas.
        let kind = match &*self.code {
            "RATE_LIMITED" => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            _ => "about:blank",
        };
        let mut problem = json!({
            "type": kind,
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.message,
            "code": self.code,
            "request_id": request_id,
        });
        if let (Some(problem), Some(details)) = (problem.as_object_mut(), self.details.as_object()) {
            problem.extend(details.clone());
        }
        problem
    }

    fn html(&self, request_id: &str) -> String {
        let title = self.status.canonical_reason().unwrap_or("Error");
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{status} {title}</title>\
             <body><h1>{status} {title}</h1><p>{message}</p><p><small>{request_id}</small></p></body></html>",
            status = self.status.as_u16(),
            message = escaped(&self.message),
            request_id = escaped(request_id),
        )
    }
}

fn exceeded(report: Option<&LimitReport>) -> String {
    match report {
        Some(report) => {
            format!(
                "Rate limit exceeded. {} requests per {} allowed.",
                report.requests,
                report.window.describe()
            )
        }
        None => "Rate limit exceeded.".to_owned(),
    }
}

/// Text for HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A weight of `Accept`, in thousandths.
fn weight(text: &str) -> u32 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    match whole {
        "1" => 1000,
        "0" => format!("{fraction:0<3}").get(..3).and_then(|digits| digits.parse().ok()).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferred(accept: &'static str) -> Form {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        Form::of(&headers)
    }

    #[test]
    fn client_chooses_the_form() {
        assert_eq!(Form::of(&HeaderMap::new()), Form::Json);
        assert_eq!(preferred("*/*"), Form::Json);
        assert_eq!(preferred("text/html,application/xhtml+xml,*/*;q=0.8"), Form::Html);
        assert_eq!(preferred("application/problem+json, application/json;q=0.9"), Form::Problem);
        assert_eq!(preferred("text/html;q=0.5, application/json"), Form::Json);
        assert_eq!(preferred("text/html;q=0"), Form::Json);
    }

    #[test]
    fn html_escapes_the_message() {
        let refusal = Refusal::new(StatusCode::FORBIDDEN, "BLOCKED", "<script>alert(1)</script>");
        assert!(refusal.html("a&b").contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    }
}
