//! Requests from the documentation page: forms, keys, curl commands, and text that must not become markup.

use std::net::TcpListener;
use std::process::Command;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::docs_page::{OPEN_ALL, enter_key, expand, fill, open, opened, sent, within};
use crate::harness::Service;

/// Breaks out of quotes and markup wherever it is not treated as text.
const HOSTILE: &str = r#"</pre><img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'"$(touch pwned)`touch pwned`\\"#;

/// Elements that only markup in the data could have created.
const INJECTED: &str =
    "document.querySelectorAll('img, svg, iframe, object, main script, [onerror], [onload]').length";

#[test]
fn docs_page_sends_requests() {
    let (service, mut browser) = opened();
    expand(&mut browser, "check");
    let (status, body) = sent(&mut browser, "check");
    assert_eq!(status, "200 OK", "{body}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["remaining"], 99);
    let headers = browser.evaluate(&format!("{}.textContent", within("check", ".answer .headers")));
    assert!(headers.as_str().unwrap().contains("x-ratelimit-remaining: 99"), "{headers}");
    assert_eq!(service.metric(r#"tollgate_decisions_total{rule="default",decision="admitted"}"#), Some(1.0));
    fill(&mut browser, &within("check", "textarea"), r#"{"user_id":7}"#);
    let (status, body) = sent(&mut browser, "check");
    assert!(status.starts_with("400 ") && body.contains("user_id"), "{status} {body}");
}

#[test]
fn docs_page_takes_the_key_once_and_stores_it_nowhere() {
    let (service, mut browser) = opened();
    expand(&mut browser, "read_rule");
    fill(&mut browser, &within("read_rule", "[data-name=name]"), "default");
    assert!(sent(&mut browser, "read_rule").0.starts_with("401 "));
    enter_key(&mut browser, &service);
    let (status, body) = sent(&mut browser, "read_rule");
    assert_eq!(status, "200 OK", "{body}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["name"], "default");
    expand(&mut browser, "list_tiers");
    assert_eq!(sent(&mut browser, "list_tiers").0, "200 OK");
    let stored = "localStorage.length + sessionStorage.length + document.cookie.length";
    assert_eq!(browser.evaluate(stored), 0);
    open(&mut browser, &service, "");
    assert_eq!(browser.evaluate("document.getElementById('page-key').value"), "");
}

#[test]
fn docs_page_prefills_writes_as_dry_runs() {
    let (service, mut browser) = opened();
    enter_key(&mut browser, &service);
    expand(&mut browser, "create_rule");
    let (status, body) = sent(&mut browser, "create_rule");
    assert_eq!(status, "200 OK", "{body}");
    assert_eq!(service.admin("GET", "/v1/admin/rules/uploads", "").status, 404);
    browser.evaluate(&format!(
        "(() => {{ const field = {}; field.value = ''; field.dispatchEvent(new Event('change', {{ bubbles: true }})); }})()",
        within("create_rule", "[data-name=dry_run]")
    ));
    assert_eq!(sent(&mut browser, "create_rule").0, "201 Created");
    assert_eq!(service.admin("GET", "/v1/admin/rules/uploads", "").status, 200);
}

/// Runs a command in an empty folder and returns the body of the response.
fn run(command: &str, service: &Service) -> String {
    let folder = tempfile::TempDir::new().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder.path()).env("TOLLGATE_KEY", service.admin_key());
    let output = shell.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the shell ran a part of: {command}");
    let (_, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{command}: {text} {output:?}"));
    body.to_owned()
}

fn curl(browser: &mut Browser, operation: &str) -> String {
    browser.click(&within(operation, ".buttons button:last-child"));
    browser
        .wait_for(&format!("{}.textContent === 'Copied'", within(operation, ".buttons button:last-child")));
    let copied = browser.evaluate("navigator.clipboard.readText()").as_str().unwrap().to_owned();
    assert_eq!(copied, browser.evaluate(&format!("{}.textContent", within(operation, ".curl"))));
    copied
}

#[test]
fn copied_curl_command_sends_the_same_request() {
    let (service, mut browser) = opened();
    browser.allow_clipboard();
    enter_key(&mut browser, &service);
    expand(&mut browser, "put_block");
    fill(&mut browser, &within("put_block", "[data-name=client]"), "user:it's/a \"b\"?&#%[1]{2}$HOME");
    let body = json!({ "reason": HOSTILE, "for": "1h" }).to_string();
    fill(&mut browser, &within("put_block", "textarea"), &body);
    let command = curl(&mut browser, "put_block").replace("?dry_run=true", "");
    assert!(!command.contains(&service.admin_key()), "the key belongs in no shell history: {command}");
    let written: Value = serde_json::from_str(&run(&command, &service)).unwrap();
    assert_eq!(written["reason"], HOSTILE);
    assert_eq!(written["client"], "user:it's/a \"b\"?&#%[1]{2}$HOME");

    expand(&mut browser, "list_blocks");
    let (_, shown) = sent(&mut browser, "list_blocks");
    let read = run(&curl(&mut browser, "list_blocks"), &service);
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(parsed(&read), parsed(&shown));
    assert_eq!(parsed(&shown)["blocks"][0]["reason"], HOSTILE);
    expand(&mut browser, "explain");
    let (_, shown) = sent(&mut browser, "explain");
    let read = run(&curl(&mut browser, "explain"), &service);
    let without_time = |text: &str| {
        let mut rules = parsed(text)["rules"].take();
        rules[0]["limits"][0]["reset_at"].take();
        rules
    };
    assert_eq!(without_time(&read)[0]["name"], "default");
    assert_eq!(without_time(&read), without_time(&shown));
}

#[test]
fn hostile_text_in_responses_stays_text() {
    let (service, mut browser) = opened();
    let body = json!({ "client": "user:a", "reason": HOSTILE }).to_string();
    assert_eq!(service.admin("POST", "/v1/admin/blocks", &body).status, 201);
    enter_key(&mut browser, &service);
    expand(&mut browser, "list_blocks");
    let (_, shown) = sent(&mut browser, "list_blocks");
    assert!(shown.contains("<img src=x"), "{shown}");
    assert_eq!(browser.evaluate(INJECTED), 0);
    assert_eq!(browser.evaluate("window.pwned"), Value::Null);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Puts hostile text into all texts and names of fields in the description that the page gets, and adds a hostile operation and schema.
const FORGED: &str = "const honest = window.fetch;
    window.fetch = async (address) => {
        const api = await (await honest(address)).json();
        const forge = (value, parent) => {
            if (typeof value === 'string') return ['$ref', 'in', 'type', 'operationId'].includes(parent) ? value : value + HOSTILE;
            if (Array.isArray(value)) return value.map((each) => forge(each, parent));
            if (!value || typeof value !== 'object') return value;
            return Object.fromEntries(Object.entries(value).map(([key, each]) =>
                [parent === 'properties' ? key + HOSTILE : key, forge(each, key)]));
        };
        const forged = forge(api, '');
        forged.paths['/' + HOSTILE] = { get: { operationId: HOSTILE, tags: [HOSTILE], security: [{ key: [HOSTILE] }],
            parameters: [{ name: HOSTILE, in: 'query', example: HOSTILE }], responses: { [HOSTILE]: { description: HOSTILE } } } };
        forged.components.schemas[HOSTILE] = { type: 'string', pattern: HOSTILE };
        return new Response(JSON.stringify(forged));
    };";

#[test]
fn hostile_text_in_the_description_stays_text() {
    let service = Service::unconfigured();
    let mut browser = Browser::start();
    browser.run_before_pages(&format!("const HOSTILE = {}; {FORGED}", json!(HOSTILE)));
    open(&mut browser, &service, "#check");
    browser.evaluate(OPEN_ALL);
    let hits =
        browser.evaluate("document.getElementById('page-content').textContent.split('<img src=x').length");
    assert!(hits.as_u64() > Some(1000), "{hits}");
    assert_eq!(browser.evaluate(INJECTED), 0);
    assert_eq!(browser.evaluate("window.pwned"), Value::Null);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn docs_page_sends_keys_to_no_other_host() {
    let (service, mut browser) = opened();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = format!("//{}/", stranger.local_addr().unwrap());
    enter_key(&mut browser, &service);
    for (operation, field) in [("read_rule", "name"), ("read_block", "client")] {
        expand(&mut browser, operation);
        fill(&mut browser, &within(operation, &format!("[data-name={field}]")), &elsewhere);
        let (status, _) = sent(&mut browser, operation);
        assert!(status.starts_with("400 ") || status.starts_with("404 "), "{status}");
    }
    // Even a script of the page could not.
    let refused =
        browser.evaluate(&format!("fetch('http:{elsewhere}').then(() => 'sent', (error) => String(error))"));
    assert!(refused.as_str().unwrap().contains("Failed to fetch"), "{refused}");
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.accept().is_err(), "a connection arrived");
    let complaints = browser.complaints();
    assert!(complaints.iter().any(|text| text.contains("connect-src 'self'")), "{complaints:?}");
}
