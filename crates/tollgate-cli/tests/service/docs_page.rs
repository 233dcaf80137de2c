//! The documentation page in a browser.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::harness::{Service, description};

/// Window sizes of a desktop, a phone and a small phone.
const WINDOWS: [(u32, u32, bool); 3] = [(1280, 800, false), (390, 844, true), (360, 640, true)];

/// Opens everything, and what that adds.
pub(crate) const OPEN_ALL: &str = "for (let round = 0; round < 3; round++) document.querySelectorAll('details:not([open])').forEach((box) =>
    { if (box.reveal) box.reveal(); else box.open = true; })";

/// The page, once rendered.
pub(crate) fn opened() -> (Service, Browser) {
    let service = Service::unconfigured();
    let mut browser = Browser::start();
    open(&mut browser, &service, "");
    (service, browser)
}

/// Opens the page at a fragment. A page with the same address would only scroll, so this leaves it first.
pub(crate) fn open(browser: &mut Browser, service: &Service, fragment: &str) {
    browser.open("about:blank");
    browser.open(&format!("http://{}/docs{fragment}", service.address));
    browser.wait_for("document.readyState === 'complete' && document.querySelector('.operation') !== null");
}

/// A JavaScript expression for an element of an operation.
pub(crate) fn within(operation: &str, selector: &str) -> String {
    format!("document.querySelector('#{operation} {selector}')")
}

/// Opens an operation by its summary.
pub(crate) fn expand(browser: &mut Browser, operation: &str) {
    browser.click(&within(operation, "> summary"));
    browser.wait_for(&format!("{} !== null", within(operation, ".try")));
}

/// Sends the form of an operation; returns the status and the body that the page shows.
pub(crate) fn sent(browser: &mut Browser, operation: &str) -> (String, String) {
    browser.evaluate(&format!("{}.replaceChildren()", within(operation, ".answer")));
    browser.click(&within(operation, ".primary"));
    let shown = |selector: &str| format!("({0} || {{}}).textContent", within(operation, selector));
    let status = browser.wait_for(&shown(".answer .status")).as_str().unwrap().to_owned();
    let body = browser.evaluate(&shown(".answer .body"));
    (status, body.as_str().unwrap_or_default().to_owned())
}

/// Replaces the contents of a field by selecting and typing.
pub(crate) fn fill(browser: &mut Browser, field: &str, text: &str) {
    browser.click(field);
    browser.evaluate(&format!("{field}.select()"));
    browser.type_text(text);
}

pub(crate) fn enter_key(browser: &mut Browser, service: &Service) {
    fill(browser, "document.getElementById('page-key')", &service.admin_key());
}

/// Ids of the operations or schemas that are visible.
fn visible(browser: &mut Browser, class: &str) -> Vec<String> {
    let script = format!(
        "[...document.querySelectorAll('.{class}')].filter((box) => box.checkVisibility()).map((box) => box.id)"
    );
    serde_json::from_value(browser.evaluate(&script)).unwrap()
}

/// Every operation: method, path, summary, and its description.
fn operations() -> Vec<(String, String, &'static Value)> {
    let paths = description()["paths"].as_object().unwrap();
    let of = |(path, verbs): (&String, &'static Value)| {
        let path = path.clone();
        verbs
            .as_object()
            .unwrap()
            .iter()
            .map(move |(verb, operation)| (verb.to_uppercase(), path.clone(), operation))
    };
    paths.iter().flat_map(of).collect()
}

#[test]
fn docs_page_lists_every_operation_in_its_group() {
    let (_service, mut browser) = opened();
    let mut described = BTreeSet::new();
    for group in description()["x-tagGroups"].as_array().unwrap() {
        for (verb, path, operation) in operations() {
            if group["tags"].as_array().unwrap().contains(&operation["tags"][0]) {
                let security = operation["security"].as_array().unwrap();
                let scope = security.last().map_or("", |key| key["key"][0].as_str().unwrap()).to_owned();
                let summary = operation["summary"].as_str().unwrap().replace('`', "");
                described.insert([group["name"].as_str().unwrap().to_owned(), verb, path, summary, scope]);
            }
        }
    }
    assert_eq!(described.len(), operations().len(), "every tag is in one group");
    let shown = browser.evaluate(
        "[...document.querySelectorAll('.operation')].filter((box) => box.checkVisibility()).map((box) =>
            [box.closest('.group').querySelector('h2').innerText, ...['.method', '.path', '.about'].map((part) =>
                box.querySelector('summary ' + part).innerText), (box.querySelector('.scope')?.innerText || 'scope ').split(' ')[1]])",
    );
    let shown: BTreeSet<[String; 5]> = serde_json::from_value(shown).unwrap();
    assert_eq!(shown, described);
    let links = browser.evaluate("document.querySelectorAll('nav li a').length").as_u64();
    let schemas = description()["components"]["schemas"].as_object().unwrap().len();
    assert_eq!(links, Some((operations().len() + schemas) as u64));
}

#[test]
fn docs_page_searches_paths_summaries_and_fields() {
    let (_service, mut browser) = opened();
    let all = visible(&mut browser, "operation");
    let mut search = |text: &str| {
        fill(&mut browser, "document.getElementById('page-search')", text);
        let found = (visible(&mut browser, "operation"), visible(&mut browser, "schema"));
        (
            found,
            browser
                .evaluate("document.getElementById('page-content').innerText")
                .as_str()
                .unwrap()
                .to_owned(),
        )
    };
    let ((by_path, _), _) = search("admin/tiers");
    assert!(
        by_path.iter().all(|id| id.contains("tier")) && by_path.contains(&"put_tier".to_owned()),
        "{by_path:?}"
    );
    let ((by_words, _), _) = search("Explains  REQUEST");
    assert_eq!(by_words, ["explain"]);
    let ((by_field, schemas), text) = search("burst_capacity");
    assert!(
        by_field.contains(&"write_config".to_owned()) && !by_field.contains(&"check".to_owned()),
        "{by_field:?}"
    );
    assert!(schemas.contains(&"schema-ConfigBody".to_owned()), "{schemas:?}");
    assert!(text.contains("fields: burst_capacity"), "{text}");
    let ((nothing, _), _) = search("no such thing");
    assert!(nothing.is_empty());
    browser.press("Escape", 27, "");
    assert_eq!(visible(&mut browser, "operation"), all);
}

#[test]
fn docs_page_links_open_operations_and_schemas() {
    let (service, mut browser) = opened();
    // A narrow window has no links to single operations.
    browser.set_window(1280, 800, false);
    for (target, text) in [("put_rule", "Request body"), ("schema-LimitInput", "requests")] {
        open(&mut browser, &service, &format!("#{target}"));
        let in_view = format!(
            "(() => {{
                const box = document.getElementById('{target}');
                const top = box.getBoundingClientRect().top;
                return box.open && top >= 0 && top < innerHeight && document.activeElement === box.firstChild && box.innerText;
            }})()"
        );
        let shown = browser.wait_for(&in_view);
        assert!(shown.as_str().unwrap().to_lowercase().contains(&text.to_lowercase()), "{shown}");
        browser.reload();
        browser.wait_for(&format!("document.getElementById('{target}') !== null && {in_view}"));
    }
    open(&mut browser, &service, "");
    // Opening one by hand changes the address, so that it can be copied.
    expand(&mut browser, "explain");
    assert_eq!(browser.evaluate("location.hash"), "#explain");
    browser.click("document.querySelector('nav a[href=\"#check\"]')");
    browser.wait_for("document.getElementById('check').open && location.hash === '#check'");
}

#[test]
fn docs_page_shows_fields_responses_and_nested_schemas() {
    let (_service, mut browser) = opened();
    for (_, _, operation) in operations() {
        let id = operation["operationId"].as_str().unwrap();
        browser.evaluate(&format!("document.getElementById('{id}').reveal()"));
        let statuses = browser.evaluate(&format!(
            "[...document.querySelectorAll('#{id} .response > summary .status')].map((status) => status.innerText)"
        ));
        let described: Vec<&String> = operation["responses"].as_object().unwrap().keys().collect();
        assert_eq!(statuses, json!(described), "{id}");
    }
    // innerText has line breaks and capitals as displayed.
    let text = |browser: &mut Browser, selector: &str| {
        let text = browser.evaluate(&format!("document.querySelector('{selector}').innerText"));
        text.as_str().unwrap().split_whitespace().collect::<Vec<&str>>().join(" ")
    };
    let check = text(&mut browser, "#check .reference");
    for part in [
        "endpoint string required",
        "1 to 2,048 characters",
        "string or null",
        "X-RateLimit-Remaining integer",
    ] {
        assert!(check.contains(part), "{part}: {check}");
    }
    let limits = "#create_rule .nested";
    browser.evaluate(&format!("document.querySelector('{limits}').reveal()"));
    let nested = text(&mut browser, limits);
    assert!(nested.starts_with("LimitInput") && nested.contains("requests integer required"), "{nested}");
}

#[test]
fn docs_page_prefills_every_body_with_its_example() {
    let (_service, mut browser) = opened();
    let mut bodies = 0;
    for (_, _, operation) in
        operations().iter().filter(|(_, _, operation)| operation["requestBody"].is_object())
    {
        let id = operation["operationId"].as_str().unwrap();
        browser.evaluate(&format!("document.getElementById('{id}').reveal()"));
        let body = browser.evaluate(&format!("JSON.parse({}.value)", within(id, "textarea")));
        assert_eq!(body, operation["requestBody"]["content"]["application/json"]["example"], "{id}");
        bodies += 1;
    }
    assert!(bodies > 15, "{bodies}");
}

#[test]
fn docs_page_loads_only_its_own_resources() {
    let (service, mut browser) = opened();
    let requested: BTreeSet<(String, String)> = browser.requests().into_iter().collect();
    let files = ["", "/docs.css", "/docs.js", "/dom.js", "/operation.js", "/request.js", "/schema.js"];
    let paths = files.map(|file| format!("/docs{file}")).into_iter().chain(["/openapi.json".to_owned()]);
    let own = paths.map(|path| (format!("http://{}{path}", service.address), "200".to_owned()));
    assert_eq!(requested, own.collect());
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let styled = "getComputedStyle(document.querySelector('.operation')).borderTopStyle";
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
        open(&mut browser, &service, "");
        for script in ["0", OPEN_ALL] {
            browser.evaluate(script);
            assert_eq!(browser.evaluate(TOO_WIDE), json!([]), "{width} after {script}");
            let needed = browser.evaluate("document.documentElement.scrollWidth");
            assert!(needed.as_u64() <= Some(width.into()), "{needed} of {width} after {script}");
        }
    }
}

#[test]
fn docs_page_works_by_keyboard() {
    let (_service, mut browser) = opened();
    let focused = |browser: &mut Browser| {
        browser.evaluate("document.activeElement.className || document.activeElement.id")
    };
    browser.press("Tab", 9, "");
    assert_eq!(focused(&mut browser), "skip");
    let outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid", "focus must be visible");
    browser.press("Enter", 13, "\r");
    assert_eq!(focused(&mut browser), "page-main");
    browser.press("/", 191, "/");
    assert_eq!(focused(&mut browser), "page-search");
    browser.type_text("batch-check");
    browser.press("Enter", 13, "\r");
    let box_state = |state: &str| format!("document.getElementById('batch_check').open === {state}");
    browser.wait_for(&box_state("true"));
    browser.wait_for("document.activeElement === document.querySelector('#batch_check > summary')");
    browser.press(" ", 32, " ");
    browser.wait_for(&box_state("false"));
    browser.press("Enter", 13, "\r");
    browser.wait_for(&box_state("true"));
    // From the summary, Tab leads through the reference to the form.
    let in_form = "document.activeElement.matches('#batch_check textarea')";
    for _ in 0..60 {
        if browser.evaluate(in_form) == true {
            break;
        }
        browser.press("Tab", 9, "");
    }
    assert_eq!(browser.evaluate(in_form), true);
    // A slash is text in a field.
    browser.press("/", 191, "/");
    assert_eq!(browser.evaluate(in_form), true);
}
