//! The way out: panic barrier, error envelope, common headers, metrics, access log.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{HeaderValue, StatusCode, header};

use super::Response;
use super::access_log::AccessEntry;
use super::error::{ApiError, Code};
use super::request_id::{REQUEST_ID, RequestId};
use super::routes::{HandlerFuture, Route};
use crate::app::App;

/// The response to one request. Whatever happens in the handler, there is one.
pub(crate) struct ResponseFuture {
    app: Arc<App>,
    route: Option<&'static Route>,
    request_id: RequestId,
    /// Present while the access log is on.
    access: Option<Arc<AccessEntry>>,
    /// The caller, if the request is a change.
    changed_by: Option<Box<str>>,
    /// Taken when it is ready.
    outcome: Option<Outcome>,
}

pub(super) enum Outcome {
    Pending(HandlerFuture),
    /// Refused before it reached a handler.
    Failed(ApiError),
}

impl ResponseFuture {
    pub(super) fn new(
        app: &Arc<App>,
        route: Option<&'static Route>,
        request_id: RequestId,
        access: Option<Arc<AccessEntry>>,
    ) -> Self {
        ResponseFuture { app: Arc::clone(app), route, request_id, access, changed_by: None, outcome: None }
    }

    pub(super) fn with(mut self, outcome: Outcome, changed_by: Option<Box<str>>) -> Self {
        (self.outcome, self.changed_by) = (Some(outcome), changed_by);
        self
    }
}

impl Future for ResponseFuture {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        let result = match &mut self.outcome {
            Some(Outcome::Pending(handler)) => ready!(poll_handler(handler, context)),
            _ => match self.outcome.take() {
                Some(Outcome::Failed(error)) => Err(error),
                _ => Err(ApiError::internal()),
            },
        };
        let mut code = None;
        let response = result.unwrap_or_else(|error| {
            if error.code() == Code::CallerLimited {
                self.app.metrics().count_refused_caller();
            }
            code = Some(error.code());
            error.into_response(self.request_id.as_str())
        });
        self.log(response.status(), code);
        Poll::Ready(self.finish(response))
    }
}

/// Polls a handler; a panic becomes an internal error.
fn poll_handler(handler: &mut HandlerFuture, context: &mut Context<'_>) -> Poll<Result<Response, ApiError>> {
    let polled = catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context)));
    polled.unwrap_or_else(|_| {
        tracing::error!("a handler panicked");
        Poll::Ready(Err(ApiError::internal()))
    })
}

impl ResponseFuture {
    /// Logs failures and changes, and the access. Never the path or the body: both may contain keys.
    fn log(&self, status: StatusCode, code: Option<Code>) {
        if let Some(access) = &self.access {
            let code = code.map(|code| code.to_string());
            access.log(&self.request_id, self.route, status.as_u16(), code.as_deref());
        }
        let request_id = self.request_id.as_str();
        let (method, route) = self.route.map_or(("", "other"), |route| (route.method.as_str(), route.path));
        let code = code.map(tracing::field::display);
        let is_outage = status == StatusCode::SERVICE_UNAVAILABLE;
        let status = status.as_u16();
        match &self.changed_by {
            // The start of an outage is logged once elsewhere; one line per request would hide it.
            _ if status >= 500 && !is_outage => {
                tracing::error!(request_id, method, route, status, code, "request failed");
            }
            Some(by) if status < 300 => {
                tracing::info!(request_id, method, route, status, %by, "change applied");
            }
            _ => {}
        }
    }

    /// Whether the response may be large enough to be declined.
    pub(super) fn may_be_large(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Pending(_))) && self.route.is_some_and(Route::may_be_large)
    }

    /// The response while responses that clients do not read use up the memory for them. Nothing was done yet.
    pub(super) fn declined(&self) -> Response {
        let message = "responses that clients have not read use up the memory for them; read the responses on this \
                       connection, or retry after Retry-After";
        let error = ApiError::new(Code::ServiceUnavailable, message);
        self.log(error.code().status(), Some(error.code()));
        self.finish(error.into_response(self.request_id.as_str()))
    }

    /// Counts the response and adds the headers that every response has.
    fn finish(&self, mut response: Response) -> Response {
        let path = self.route.map_or("other", |route| route.path);
        self.app.metrics().count_response(path, response.status().as_u16());
        let headers = response.headers_mut();
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        let policy = HeaderValue::from_static("frame-ancestors 'none'");
        headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(policy);
        headers.insert(REQUEST_ID, self.request_id.header());
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(deprecated) = self.route.and_then(|route| route.deprecated) {
            deprecated.put_headers(headers);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::super::routes::ROUTES;
    use super::*;

    async fn respond(route: &'static Route, handler: HandlerFuture) -> Response {
        let app = App::for_tests("");
        let request_id = app.request_ids().of(&HeaderMap::new());
        ResponseFuture::new(&app, Some(route), request_id, None).with(Outcome::Pending(handler), None).await
    }

    #[tokio::test]
    async fn handler_panic_becomes_500_with_request_id() {
        let response = respond(&ROUTES[0], Box::pin(async { panic!("a defect") })).await;
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key("x-request-id"));
    }

    #[tokio::test]
    async fn deprecated_route_announces_its_removal() {
        let headers = |route: &'static Route, outcome: Result<Response, ApiError>| async move {
            let response = respond(route, Box::pin(async { outcome })).await;
            let text =
                |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            ["deprecation", "sunset", "link"].map(text)
        };
        let announced =
            ["@1795000000", "Thu, 18 Nov 2027 11:06:40 GMT", "</docs#healthz>; rel=\"deprecation\""];
        let route = ROUTES.iter().find(|route| route.path == "/deprecated-in-tests").unwrap();
        for outcome in [Ok(Response::default()), Err(ApiError::internal())] {
            assert_eq!(headers(route, outcome).await, announced.map(|text| Some(text.to_owned())));
        }
        assert_eq!(headers(&ROUTES[0], Ok(Response::default())).await, [None, None, None]);
    }
}
