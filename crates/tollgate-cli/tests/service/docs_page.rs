//! The documentation page in a browser.

use std::collections::BTreeSet;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::harness::Service;

/// Window sizes of a desktop and a phone.
const WINDOWS: [(u32, u32, bool); 2] = [(1280, 800, false), (390, 844, true)];

const OPEN_ALL: &str = "document.querySelectorAll('details').forEach((box) => { box.open = true; })";

/// The page, once rendered.
fn opened() -> (Service, Browser) {
    let service = Service::unconfigured();
    let mut browser = Browser::start();
    open(&mut browser, &service);
    (service, browser)
}

fn open(browser: &mut Browser, service: &Service) {
    browser.open(&format!("http://{}/docs", service.address));
    browser
        .wait_for("document.readyState === 'complete' && document.querySelector('#routes details') !== null");
}

/// A JavaScript expression for the box of a route.
fn route(verb: &str, path: &str) -> String {
    format!(
        "[...document.querySelectorAll('details')].find((box) =>
            box.querySelector('.verb').innerText === '{verb}' && box.querySelector('.path').innerText === '{path}')"
    )
}

fn within(route: &str, selector: &str) -> String {
    format!("{route}.querySelector('{selector}')")
}

/// Sends the form of a route and returns the response that the page shows.
fn sent(browser: &mut Browser, route: &str) -> String {
    browser.evaluate(&format!("{}.textContent = ''", within(route, "pre")));
    browser.click(&within(route, "button"));
    browser.wait_for(&format!("{}.innerText", within(route, "pre"))).as_str().unwrap().to_owned()
}

/// Replaces the contents of a field by selecting and typing.
fn fill(browser: &mut Browser, field: &str, text: &str) {
    browser.click(field);
    browser.evaluate(&format!("{field}.select()"));
    browser.type_text(text);
}

#[test]
fn docs_page_lists_every_route() {
    let (service, mut browser) = opened();
    let description = service.get("/openapi.json").json();
    let mut described = Vec::new();
    for (path, operations) in description["paths"].as_object().unwrap() {
        for (verb, operation) in operations.as_object().unwrap() {
            let summary = operation["summary"].as_str().unwrap().replace('`', "");
            described.push([verb.to_uppercase(), path.clone(), summary]);
        }
    }
    let shown = browser.evaluate(
        "[...document.querySelectorAll('summary')].filter((line) => line.checkVisibility()).map((line) =>
            ['.verb', '.path', '.about'].map((part) => line.querySelector(part).innerText))",
    );
    let mut shown: Vec<[String; 3]> = serde_json::from_value(shown).unwrap();
    described.sort();
    shown.sort();
    assert!(described.len() > 40, "{described:?}");
    assert_eq!(shown, described);
}

#[test]
fn docs_page_shows_all_details_of_a_route() {
    let (_service, mut browser) = opened();
    let reset = route("POST", "/v1/rate-limit/reset");
    browser.click(&within(&reset, "summary"));
    let text = browser.wait_for(&format!("{reset}.open && {reset}.innerText"));
    let text = text.as_str().unwrap();
    // The description must be complete and must not replace the summary.
    assert!(text.contains("strategy and tier as in the checks."), "{text}");
    for part in ["Body", "user_id?", "string or null", "Responses", "400", "Response 200", "Try it"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn docs_page_loads_only_its_own_resources() {
    let (service, mut browser) = opened();
    let requested: BTreeSet<(String, String)> = browser.requests().into_iter().collect();
    let own = ["/docs", "/docs/docs.css", "/docs/docs.js", "/openapi.json"];
    let own = own.map(|path| (format!("http://{}{path}", service.address), "200".to_owned()));
    assert_eq!(requested, BTreeSet::from(own));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let styled = "getComputedStyle(document.querySelector('details')).borderTopStyle";
    assert_eq!(browser.evaluate(styled), "solid", "the style sheet must be applied");
}

/// Texts whose contrast is below WCAG 2.2 AA (4.5 to 1).
const LOW_CONTRAST: &str = r"(() => {
    const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
    const luminance = (colour) => {
        const [r, g, b] = parse(colour).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const isClear = (colour) => parse(colour)[3] === 0;
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (!isClear(colour)) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const contrast = (a, b) => {
        const [dark, bright] = [luminance(a), luminance(b)].sort((x, y) => x - y);
        return (bright + 0.05) / (dark + 0.05);
    };
    const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const texts = [];
    for (const element of document.body.querySelectorAll('*')) {
        if (!element.checkVisibility()) continue;
        if (hasText(element) || element.matches('input, textarea')) texts.push([element, getComputedStyle(element).color]);
        if (element.placeholder) texts.push([element, getComputedStyle(element, '::placeholder').color]);
    }
    const pale = texts.filter(([element, colour]) => contrast(colour, behind(element)) < 4.5);
    return { looked_at: texts.length, pale: [...new Set(pale.map(([element, colour]) =>
        [element.tagName, element.className, colour, behind(element)].join(' ')))] };
})()";

#[test]
fn docs_page_has_contrast_in_light_and_dark() {
    let (_service, mut browser) = opened();
    browser.evaluate(OPEN_ALL);
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer_colours(scheme);
        backgrounds.push(browser.evaluate("getComputedStyle(document.body).backgroundColor"));
        let found = browser.evaluate(LOW_CONTRAST);
        assert!(found["looked_at"].as_u64() > Some(500), "{found}");
        assert_eq!(found["pale"], json!([]), "{scheme}");
        // Without it, the browser draws scroll bars and fields for a light page.
        let drawn = "getComputedStyle(document.documentElement).colorScheme";
        assert_eq!(browser.evaluate(drawn), "light dark");
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
}

/// Elements beyond the right edge of the window that are not inside a scrollable box.
const TOO_WIDE: &str = "(() => {
    const scrolls = (element) => element && (getComputedStyle(element).overflowX !== 'visible' || scrolls(element.parentElement));
    const wide = [...document.body.querySelectorAll('*')].filter((element) =>
        element.checkVisibility() && element.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5
        && !scrolls(element.parentElement));
    return wide.map((element) => element.tagName + ' ' + element.innerText.slice(0, 60));
})()";

#[test]
fn docs_page_fits_the_window() {
    let (service, mut browser) = opened();
    for (width, height, is_phone) in WINDOWS {
        browser.set_window(width, height, is_phone);
        open(&mut browser, &service);
        for script in ["0", OPEN_ALL] {
            browser.evaluate(script);
            assert_eq!(browser.evaluate(TOO_WIDE), json!([]), "{width} after {script}");
            let needed = browser.evaluate("document.documentElement.scrollWidth");
            assert!(needed.as_u64() <= Some(width.into()), "{needed} of {width} after {script}");
        }
    }
}

#[test]
fn docs_page_can_send_a_request() {
    let (service, mut browser) = opened();
    let check = route("POST", "/v1/rate-limit/check");
    browser.click(&within(&check, "summary"));
    browser.wait_for(&format!("{check}.open"));
    let answer = sent(&mut browser, &check);
    assert!(answer.starts_with("200 ") && answer.contains("x-ratelimit-remaining: 99"), "{answer}");
    assert_eq!(service.metric(r#"tollgate_decisions_total{rule="default",decision="admitted"}"#), Some(1.0));
    fill(&mut browser, &within(&check, "textarea"), r#"{"user_id":7}"#);
    let answer = sent(&mut browser, &check);
    assert!(answer.starts_with("400 ") && answer.contains("user_id"), "{answer}");

    let rule = route("GET", "/v1/admin/rules/{name}");
    browser.click(&within(&rule, "summary"));
    fill(&mut browser, &within(&rule, "[aria-label=path]"), "/v1/admin/rules/default");
    let answer = sent(&mut browser, &rule);
    assert!(answer.starts_with("401 "), "{answer}");
    fill(&mut browser, &within(&rule, "[aria-label=key]"), &service.admin_key());
    let answer = sent(&mut browser, &rule);
    assert!(answer.starts_with("200 "), "{answer}");
    let (_, body) = answer.split_once("\n\n").unwrap();
    assert_eq!(serde_json::from_str::<Value>(body).unwrap()["name"], "default");
}

#[test]
fn docs_page_sends_keys_to_no_other_host() {
    let (service, mut browser) = opened();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let rules = route("GET", "/v1/admin/rules");
    browser.click(&within(&rules, "summary"));
    fill(&mut browser, &within(&rules, "[aria-label=key]"), &service.admin_key());
    let elsewhere = format!("http://{}/", stranger.local_addr().unwrap());
    fill(&mut browser, &within(&rules, "[aria-label=path]"), &elsewhere);
    let answer = sent(&mut browser, &rules);
    assert!(answer.contains("Failed to fetch"), "{answer}");
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.accept().is_err(), "a connection arrived");
    let complaints = browser.complaints();
    assert!(complaints.iter().any(|text| text.contains("connect-src 'self'")), "{complaints:?}");
}
