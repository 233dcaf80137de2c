//! Normalization of ids, paths and methods.

use std::sync::{Arc, Mutex};

use tollgate::accounts::{AccountLimits, BlockTarget, Key};
use tollgate::counters::conformance::block_on;
use tollgate::identity::{
    DescriptorNormalization, HeadCounting, IdNormalization, NormalForm, Normalization, Scratch,
};
use tollgate::inspect::EndpointScope;
use tollgate::record::{Record, RecordSink};
use tollgate::rules::overrides::Override;
use tollgate::{
    Accounts, Algorithm, ApiKey, Client, Endpoint, Id, Limit, Limiter, MemoryCounters, Method, Request,
    RuleSet, Seed, Span, Window,
};

use crate::{NOW, admitted, asked, blocks, id, look, request};

/// One name in four forms that normalize to the same.
const VARIANTS: [&str; 4] = ["Zoë Straße", "zoe\u{308} strasse", "ZOË STRASSE", "zoë straße"];
const NORMALIZED: &str = "zoë strasse";

fn caseless() -> Normalization {
    let form = NormalForm::NfcCasefold;
    Normalization {
        ids: IdNormalization { user: form, tenant: form, login: form },
        descriptors: DescriptorNormalization::All(form),
        ..Normalization::default()
    }
}

fn rules(toml: &str, normalization: Normalization) -> RuleSet {
    RuleSet::from_toml(toml).unwrap_or_else(|problems| panic!("{problems}")).with_normalization(normalization)
}

fn limiter(toml: &str, normalization: Normalization) -> Limiter<MemoryCounters> {
    Limiter::new(rules(toml, normalization), MemoryCounters::default())
}

fn per(dimension: &str) -> String {
    format!("[[rules]]\nname = \"a\"\nper = [\"{dimension}\"]\nrequests_per_hour = 4")
}

/// Runs `look` with a request that has `name` as its value of `dimension`.
fn named(dimension: &str, name: &str, look: impl FnOnce(&Request<'_>)) {
    let name = id(name).unwrap();
    let pairs = [(id("mail").unwrap(), name)];
    let mut request = request("/", "somebody");
    match dimension {
        "user" => request.user = Some(name),
        "tenant" => request.tenant = Some(name),
        "login" => request.login = Some(name),
        _ => request.descriptors = &pairs,
    }
    look(&request);
}

#[test]
fn variants_share_a_counter_only_if_normalized() {
    for dimension in ["user", "tenant", "login", "descriptor:mail"] {
        let exact = limiter(&per(dimension), Normalization::default());
        let normalizing = limiter(&per(dimension), caseless());
        for (number, name) in (0..).zip(VARIANTS) {
            named(dimension, name, |request| {
                assert!(exact.check_now(request, NOW).admits());
                let mut decision = exact.check_now(request, NOW);
                assert_eq!(decision.binding().unwrap().remaining(), 2, "{dimension} {name}");
                decision = normalizing.check_now(request, NOW);
                assert_eq!(decision.binding().unwrap().remaining(), 3 - number, "{dimension} {name}");
            });
        }
        for name in VARIANTS {
            named(dimension, name, |request| assert!(!normalizing.check_now(request, NOW).admits()));
        }
    }
}

#[test]
fn only_configured_dimensions_are_normalized() {
    let user = Normalization {
        ids: IdNormalization { user: NormalForm::Casefold, ..IdNormalization::default() },
        ..Normalization::default()
    };
    let mail = DescriptorNormalization::Named(vec![("mail".into(), NormalForm::Casefold)]);
    let mail = Normalization { descriptors: mail, ..Normalization::default() };
    for (dimension, normalization, is_one) in [
        ("user", &user, true),
        ("tenant", &user, false),
        ("login", &user, false),
        ("descriptor:mail", &user, false),
        ("descriptor:mail", &mail, true),
        ("user", &mail, false),
    ] {
        let limiter = limiter(&per(dimension), normalization.clone());
        named(dimension, "Alice", |request| assert_eq!(admitted(&limiter, request), 4));
        named(dimension, "alice", |request| assert_eq!(limiter.check_now(request, NOW).admits(), !is_one));
    }
    let other = Request { descriptors: &[(id("plan").unwrap(), id("EU").unwrap())], ..request("/", "a") };
    let mut scratch = Scratch::default();
    let rules = rules("", mail);
    assert_eq!(
        rules.normalize(&other, &mut scratch).descriptor("plan"),
        id("EU"),
        "other descriptors are exact"
    );
}

#[test]
fn api_keys_and_tiers_are_never_normalized() {
    let limiter = limiter(&per("api_key"), caseless());
    let with = |key| Request { api_key: ApiKey::parse(key).ok(), ..request("/", "a") };
    assert_eq!(admitted(&limiter, &with("Key")), 4);
    assert_eq!(admitted(&limiter, &with("key")), 4);
    let plan = Request { tier: id("Pro"), ..request("/", "a") };
    let rules = limiter.rules();
    assert_eq!(rules.normalize(&plan, &mut Scratch::default()).tier, id("Pro"));
}

#[test]
fn rule_conditions_match_every_variant() {
    let toml = "[[rules]]\nname = \"user\"\npriority = 1\nwhen = { users = [\"ZOË STRASSE\"] }\naction = \"block\"\n\
                [[rules]]\nname = \"tenant\"\nwhen = { tenants = [\"Zoë Straße\"] }\naction = \"block\"\n\
                [[rules]]\nname = \"mail\"\nwhen = { descriptors = { mail = [\"x\", \"zoë STRASSE\"] } }\naction = \"block\"\n";
    let (exact, normalizing) = (limiter(toml, Normalization::default()), limiter(toml, caseless()));
    for dimension in ["user", "tenant", "descriptor:mail"] {
        for name in VARIANTS {
            named(dimension, name, |request| assert!(blocks(&normalizing, request), "{dimension} {name}"));
        }
        named(dimension, VARIANTS[1], |request| assert!(!blocks(&exact, request), "{dimension}"));
    }
}

#[test]
fn exemptions_match_every_variant() {
    let toml = "default_limit = 1\n[[exemptions]]\ntype = \"user_id\"\nvalue = \"Zoë Straße\"\n";
    let limiter = limiter(toml, caseless());
    for name in VARIANTS {
        assert!(asked(&look(&limiter, &request("/", name))).is_empty(), "{name}");
    }
}

#[test]
fn status_explain_inspect_and_reset_normalize() {
    let limiter = limiter(&per("user"), caseless());
    assert_eq!(admitted(&limiter, &request("/", VARIANTS[0])), 4);
    for name in VARIANTS {
        let request = request("/", name);
        assert!(!block_on(limiter.snapshot().peek(&request, NOW)).admits());
        let explanation = block_on(limiter.snapshot().explain(&request, NOW));
        assert!(!explanation.decision.admits());
        let mut scratch = Scratch::default();
        let client = explanation.resolved(&request, &mut scratch).request.client();
        assert_eq!(client, Some(Client::User(id("zoë strasse").unwrap())));
        let seen = block_on(limiter.snapshot().inspect(&request, EndpointScope::All, NOW)).unwrap();
        assert_eq!(seen.counters[0].used(), 4);
    }
    assert_eq!(block_on(limiter.snapshot().reset(&request("/", VARIANTS[1]))).unwrap().counters, 1);
    assert_eq!(admitted(&limiter, &request("/", VARIANTS[2])), 4);
}

fn limit_for(user: &str, path: &str, requests: u32) -> Override {
    let minute = Window::Length(Span::from_secs(60));
    let limit = Limit::new(Algorithm::TokenBucket, requests, minute).unwrap();
    Override::new(Id::parse(user).unwrap(), &Endpoint::parse(path).unwrap(), limit, NOW)
}

#[test]
fn overrides_apply_to_every_variant() {
    let limiter = limiter("default_limit = 9", Normalization { ignore_path_case: true, ..caseless() });
    limiter.update_overrides(|none| none.with(limit_for(NORMALIZED, "/search", 2)));
    for name in VARIANTS {
        let decision = look(&limiter, &request("/SEARCH", name));
        assert_eq!(decision.binding().unwrap().requests, 2);
    }
    assert_eq!(admitted(&limiter, &request("/search", VARIANTS[1])), 2);
    assert!(!limiter.check_now(&request("/Search", VARIANTS[2]), NOW).admits());
}

#[test]
fn accounts_and_blocks_apply_to_every_variant() {
    let limiter = limiter("default_limit = 9", caseless());
    let mut editor = Accounts::default().edit();
    let hourly = AccountLimits { requests_per_hour: Some(7), ..AccountLimits::default() };
    editor.put_user(NORMALIZED, Some("pro"), hourly).unwrap();
    editor.put_block(BlockTarget::Tenant(NORMALIZED), "unpaid", None);
    editor.put_block(BlockTarget::Login(NORMALIZED), "abuse", None);
    editor.put_key(&Key { user: Some(VARIANTS[2]), ..Key::new("k", [0; 32]) }).unwrap();
    editor.put_key(&Key { tenant: Some("Acme"), ..Key::new("t", [1; 32]) }).unwrap();
    let accounts = editor.finish();
    limiter.update_accounts(|_| accounts.clone());
    for name in VARIANTS {
        assert_eq!(look(&limiter, &request("/", name)).binding().unwrap().requests, 7, "{name}");
        named("tenant", name, |request| assert!(blocks(&limiter, request)));
        named("login", name, |request| assert!(blocks(&limiter, request)));
    }
    assert_eq!(admitted(&limiter, &request("/", VARIANTS[0])), 7);
    let by_key = |key| {
        let Some(Client::ApiKey(key)) = Client::parse(key) else { panic!("a known key") };
        Request { api_key: Some(key), ..Request::new(Endpoint::parse("/").unwrap()) }
    };
    assert!(!limiter.check_now(&by_key("api_key:k"), NOW).admits(), "the limit of the key's user is used up");
    let (rules, mut scratch, in_tenant) = (limiter.rules(), Scratch::default(), by_key("api_key:t"));
    let resolved = rules.resolve(&in_tenant, &mut scratch);
    assert_eq!(resolved.request.tenant, id("acme"), "values from the key are normalized too");
}

#[test]
fn id_too_long_after_normalization_is_reported() {
    // Three bytes each, five after normalization.
    let long = "\u{1f80}".repeat(80);
    let limiter = limiter(&per("user"), caseless());
    let rules = limiter.rules();
    for dimension in ["user", "tenant", "login", "descriptor:mail"] {
        named(dimension, &long, |request| {
            let error = rules.normalization().check_lengths(request).unwrap_err();
            assert_eq!(error.fact.to_string(), dimension);
            assert_eq!(error.to_string(), "is 400 bytes long after normalization; the maximum is 256");
        });
        named(dimension, &long, |request| assert!(Normalization::default().check_lengths(request).is_ok()));
    }
    named("user", &long, |request| assert_eq!(admitted(&limiter, request), 4));
}

#[test]
fn path_case_is_ignored_only_if_configured() {
    let toml = "[[rules]]\nname = \"a\"\nwhen = { endpoints = [\"/API/{id}/Caf\u{e9}\", \"/X/*\"] }\n\
                per = [\"user\", \"endpoint\"]\nrequests_per_hour = 2";
    let exact = limiter(toml, Normalization::default());
    let ignoring = limiter(toml, Normalization { ignore_path_case: true, ..Normalization::default() });
    for path in ["/api/7/caf\u{e9}", "/Api/7/CAF%C3%89", "/x/Y"] {
        assert!(asked(&look(&exact, &request(path, "a"))).is_empty(), "{path}");
        assert_eq!(asked(&look(&ignoring, &request(path, "a"))), ["a"], "{path}");
    }
    assert_eq!(admitted(&ignoring, &request("/API/7/caf\u{e9}", "a")), 2);
    assert!(!ignoring.check_now(&request("/api/7/CAF\u{c9}", "a"), NOW).admits());
    assert_eq!(block_on(ignoring.snapshot().reset(&request("/API/7/CAF\u{c9}", "a"))).unwrap().counters, 1);
    assert_eq!(admitted(&ignoring, &request("/aPi/7/caf\u{e9}", "a")), 2);
    assert_eq!(admitted(&exact, &request("/X/y", "a")) + admitted(&exact, &request("/X/Y", "a")), 4);
}

#[test]
fn head_counts_as_get_unless_separate() {
    let toml = "[[rules]]\nname = \"by-method\"\nper = [\"user\", \"method\"]\nrequests_per_hour = 2\n\
                [[rules]]\nname = \"get\"\nlayer = \"x\"\nwhen = { methods = [\"GET\"] }\nper = [\"user\"]\nrequests_per_hour = 9\n\
                [[rules]]\nname = \"head\"\nlayer = \"y\"\nwhen = { methods = [\"HEAD\"] }\nper = [\"user\"]\nrequests_per_hour = 9\n";
    let with = |method| Request { method: Some(method), ..request("/", "a") };
    let as_get = limiter(toml, Normalization::default());
    assert_eq!(asked(&look(&as_get, &with(Method::Head))), ["get", "head", "by-method"]);
    assert_eq!(admitted(&as_get, &with(Method::Get)), 2);
    assert!(!as_get.check_now(&with(Method::Head), NOW).admits());
    let separate = limiter(toml, Normalization { head: HeadCounting::Separate, ..Normalization::default() });
    assert_eq!(asked(&look(&separate, &with(Method::Head))), ["head", "by-method"]);
    assert_eq!(asked(&look(&separate, &with(Method::Get))), ["get", "by-method"]);
    assert_eq!(admitted(&separate, &with(Method::Get)), 2);
    assert_eq!(admitted(&separate, &with(Method::Head)), 2);
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl RecordSink for Seen {
    fn offer(&self, record: &Record<'_>) {
        let client = record.request.client().unwrap();
        self.0.lock().unwrap().push(format!("{client} {}", record.request.endpoint));
    }
}

#[test]
fn records_show_the_normalized_client() {
    let seen = Seen::default();
    let rules = rules("", Normalization { ignore_path_case: true, ..caseless() });
    let limiter = Limiter::with_records(rules, MemoryCounters::default(), seen.clone(), Seed([1; 16]));
    limiter.check_now(&request("/A", "Alice"), NOW);
    assert_eq!(*seen.0.lock().unwrap(), ["user:alice /a"]);
}
