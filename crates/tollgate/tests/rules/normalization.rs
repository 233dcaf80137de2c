//! Which spellings of a request's facts are one: counted, matched, looked up and reset alike.

use std::sync::{Arc, Mutex};

use tollgate::accounts::{AccountLimits, BlockTarget, NewKey};
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

/// One name, in four spellings.
const SPELLINGS: [&str; 4] = ["Zoë Straße", "zoe\u{308} strasse", "ZOË STRASSE", "zoë straße"];

fn folding() -> Normalization {
    let fold = NormalForm::NfcCasefold;
    Normalization {
        ids: IdNormalization { user: fold, tenant: fold, login: fold },
        descriptors: DescriptorNormalization::All(fold),
        ..Normalization::default()
    }
}

fn rules(toml: &str, spelling: Normalization) -> RuleSet {
    RuleSet::from_toml(toml).unwrap_or_else(|problems| panic!("{problems}")).with_normalization(spelling)
}

fn limiter(toml: &str, spelling: Normalization) -> Limiter<MemoryCounters> {
    Limiter::new(rules(toml, spelling), MemoryCounters::default())
}

fn per(dimension: &str) -> String {
    format!("[[rules]]\nname = \"a\"\nper = [\"{dimension}\"]\nrequests_per_hour = 4")
}

/// A request of one who is named so, as each kind of fact.
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
fn t11_spellings_are_different_clients_unless_they_are_folded() {
    for dimension in ["user", "tenant", "login", "descriptor:mail"] {
        let exact = limiter(&per(dimension), Normalization::default());
        let folded = limiter(&per(dimension), folding());
        for (number, name) in (0..).zip(SPELLINGS) {
            named(dimension, name, |request| {
                assert!(exact.check_now(request, NOW).admits());
                let mut decision = exact.check_now(request, NOW);
                assert_eq!(decision.binding().unwrap().remaining(), 2, "{dimension} {name}");
                decision = folded.check_now(request, NOW);
                assert_eq!(decision.binding().unwrap().remaining(), 3 - number, "{dimension} {name}");
            });
        }
        for name in SPELLINGS {
            named(dimension, name, |request| assert!(!folded.check_now(request, NOW).admits()));
        }
    }
}

#[test]
fn t11_only_the_dimensions_that_are_named_are_folded() {
    let user = Normalization {
        ids: IdNormalization { user: NormalForm::Casefold, ..IdNormalization::default() },
        ..Normalization::default()
    };
    let mail = DescriptorNormalization::Named(vec![("mail".into(), NormalForm::Casefold)]);
    let mail = Normalization { descriptors: mail, ..Normalization::default() };
    for (dimension, spelling, one) in [
        ("user", &user, true),
        ("tenant", &user, false),
        ("login", &user, false),
        ("descriptor:mail", &user, false),
        ("descriptor:mail", &mail, true),
        ("user", &mail, false),
    ] {
        let limiter = limiter(&per(dimension), spelling.clone());
        named(dimension, "Alice", |request| assert_eq!(admitted(&limiter, request), 4));
        named(dimension, "alice", |request| assert_eq!(limiter.check_now(request, NOW).admits(), !one));
    }
    let other = Request { descriptors: &[(id("plan").unwrap(), id("EU").unwrap())], ..request("/", "a") };
    let mut scratch = Scratch::default();
    let rules = rules("", mail);
    assert_eq!(rules.read(&other, &mut scratch).descriptor("plan"), id("EU"), "another descriptor is exact");
}

#[test]
fn t11_api_keys_and_plans_are_never_folded() {
    let limiter = limiter(&per("api_key"), folding());
    let with = |key| Request { api_key: ApiKey::parse(key).ok(), ..request("/", "a") };
    assert_eq!(admitted(&limiter, &with("Key")), 4);
    assert_eq!(admitted(&limiter, &with("key")), 4);
    let plan = Request { tier: id("Pro"), ..request("/", "a") };
    let rules = limiter.rules();
    assert_eq!(rules.read(&plan, &mut Scratch::default()).tier, id("Pro"));
}

#[test]
fn t11_rules_mean_their_users_tenants_and_descriptors_in_every_spelling() {
    let toml = "[[rules]]\nname = \"user\"\npriority = 1\nwhen = { users = [\"ZOË STRASSE\"] }\naction = \"block\"\n\
                [[rules]]\nname = \"tenant\"\nwhen = { tenants = [\"Zoë Straße\"] }\naction = \"block\"\n\
                [[rules]]\nname = \"mail\"\nwhen = { descriptors = { mail = [\"x\", \"zoë STRASSE\"] } }\naction = \"block\"\n";
    let (exact, folded) = (limiter(toml, Normalization::default()), limiter(toml, folding()));
    for dimension in ["user", "tenant", "descriptor:mail"] {
        for name in SPELLINGS {
            named(dimension, name, |request| assert!(blocks(&folded, request), "{dimension} {name}"));
        }
        named(dimension, SPELLINGS[1], |request| assert!(!blocks(&exact, request), "{dimension}"));
    }
}

#[test]
fn t11_exemptions_hold_in_every_spelling() {
    let toml = "default_limit = 1\n[[exemptions]]\ntype = \"user_id\"\nvalue = \"Zoë Straße\"\n";
    let limiter = limiter(toml, folding());
    for name in SPELLINGS {
        assert!(asked(&look(&limiter, &request("/", name))).is_empty(), "{name}");
    }
}

#[test]
fn t11_status_explanation_inspection_and_reset_see_one_client() {
    let limiter = limiter(&per("user"), folding());
    assert_eq!(admitted(&limiter, &request("/", SPELLINGS[0])), 4);
    for name in SPELLINGS {
        let request = request("/", name);
        assert!(!block_on(limiter.peek(&request, NOW)).admits());
        let explanation = block_on(limiter.explain(&request, NOW));
        assert!(!explanation.decision.admits());
        let mut scratch = Scratch::default();
        let client = explanation.resolved(&request, &mut scratch).request.client();
        assert_eq!(client, Some(Client::User(id("zoë strasse").unwrap())));
        let seen = block_on(limiter.inspect(&request, EndpointScope::All, NOW)).unwrap();
        assert_eq!(seen.counters[0].used(), 4);
    }
    assert_eq!(block_on(limiter.reset(&request("/", SPELLINGS[1]))).unwrap().counters, 1);
    assert_eq!(admitted(&limiter, &request("/", SPELLINGS[2])), 4);
}

fn numbers(user: &str, path: &str, requests: u32, set_at: u64) -> Override {
    let minute = Window::Length(Span::from_secs(60));
    let limit = Limit::new(Algorithm::TokenBucket, requests, minute).unwrap();
    let at = NOW + Span::from_secs(set_at);
    Override::new(Id::parse(user).unwrap(), &Endpoint::parse(path).unwrap(), limit, at)
}

#[test]
fn t11_t14_numbers_of_single_users_are_found_in_every_spelling_and_keep_the_one_they_were_written_in() {
    let limiter = limiter("default_limit = 9", Normalization { ignore_path_case: true, ..folding() });
    limiter.update_overrides(|none| none.with(numbers(SPELLINGS[0], "/Search", 2, 0)));
    for name in SPELLINGS {
        let decision = look(&limiter, &request("/SEARCH", name));
        assert_eq!(decision.binding().unwrap().requests, 2);
        let found = limiter.rules().overrides().get(name, "/seaRCH").cloned().unwrap();
        assert_eq!((&*found.user, &*found.endpoint), (SPELLINGS[0], "/Search"));
    }
    assert_eq!(admitted(&limiter, &request("/search", SPELLINGS[1])), 2);
    assert!(!limiter.check_now(&request("/Search", SPELLINGS[2]), NOW).admits());
    limiter.update_overrides(|all| all.with(numbers(SPELLINGS[1], "/search", 5, 1)));
    assert_eq!(limiter.rules().overrides().len(), 1, "replaced, not added");
    limiter.update_overrides(|all| all.without(SPELLINGS[3], "/SEARCH").unwrap());
    assert!(limiter.rules().overrides().is_empty());
}

#[test]
fn t11_numbers_that_were_set_before_folding_are_found_after_it_and_the_last_one_counts() {
    let limiter = limiter("default_limit = 9", Normalization::default());
    for (name, requests, set_at) in [("alice", 4, 2), ("ALICE", 3, 1), ("Alice", 5, 3)] {
        limiter.update_overrides(|all| all.with(numbers(name, "/", requests, set_at)));
    }
    limiter.replace_rules(rules("default_limit = 9", folding()));
    assert_eq!(look(&limiter, &request("/", "aLICE")).binding().unwrap().requests, 5);
    assert_eq!(limiter.rules().overrides().len(), 1);
}

fn accounts(folds: IdNormalization) -> Accounts {
    let mut editor = Accounts::with_normalization(folds).edit();
    let hourly = AccountLimits { requests_per_hour: Some(7), ..AccountLimits::default() };
    editor.put_user(SPELLINGS[0], Some("pro"), hourly).unwrap();
    editor.put_block(BlockTarget::Tenant(SPELLINGS[0]), "unpaid", None);
    editor.put_block(BlockTarget::Login(SPELLINGS[0]), "abuse", None);
    let key = NewKey { user: Some(SPELLINGS[2]), tenant: Some("Acme"), ..NewKey::new("k", [0; 32]) };
    editor.put_key(&key).unwrap();
    editor.finish()
}

#[test]
fn t11_accounts_and_blocks_are_found_in_every_spelling() {
    let limiter = limiter("default_limit = 9", folding());
    limiter.update_accounts(|_| accounts(folding().ids));
    for name in SPELLINGS {
        assert_eq!(look(&limiter, &request("/", name)).binding().unwrap().requests, 7, "{name}");
        assert!(limiter.rules().accounts().user(name).is_some());
        assert!(limiter.rules().accounts().block(BlockTarget::Login(name), NOW).is_some());
        named("tenant", name, |request| assert!(blocks(&limiter, request)));
        named("login", name, |request| assert!(blocks(&limiter, request)));
    }
    assert_eq!(admitted(&limiter, &request("/", SPELLINGS[0])), 7);
    let Some(Client::ApiKey(key)) = Client::parse("api_key:k") else { panic!("a known key") };
    let by_key = Request { api_key: Some(key), ..Request::new(Endpoint::parse("/").unwrap()) };
    assert!(!limiter.check_now(&by_key, NOW).admits(), "the user of the key has used them up");
    let (rules, mut scratch) = (limiter.rules(), Scratch::default());
    let resolved = rules.resolve(&by_key, &mut scratch);
    assert_eq!(resolved.request.tenant, id("acme"), "what the key says is read like what a request says");
}

#[test]
fn t11_accounts_made_before_folding_keep_out_whom_they_kept_out_until_they_are_made_anew() {
    for (rules_fold, accounts_fold) in
        [(folding(), IdNormalization::default()), (Normalization::default(), folding().ids)]
    {
        let limiter = limiter("default_limit = 9", rules_fold);
        limiter.update_accounts(|_| accounts(accounts_fold));
        named("tenant", SPELLINGS[0], |request| assert!(blocks(&limiter, request)));
        named("login", SPELLINGS[0], |request| assert!(blocks(&limiter, request)));
        let decision = look(&limiter, &request("/", SPELLINGS[0]));
        assert_eq!(decision.binding().unwrap().requests, 7);
    }
}

#[test]
fn t11_accounts_on_disk_remember_how_they_were_folded() {
    let mut bytes = Vec::new();
    accounts(folding().ids).write_to(&mut bytes).unwrap();
    let read = Accounts::read_from(bytes.as_slice()).unwrap();
    assert_eq!(read.normalization(), folding().ids);
    assert!(read.user(SPELLINGS[3]).is_some());
    bytes[8] = 9;
    assert!(Accounts::read_from(bytes.as_slice()).is_err(), "no such fold");
}

#[test]
fn t11_an_id_that_grows_past_256_bytes_is_named_and_still_counted_as_one() {
    // Each of these is three bytes, and five when it is folded.
    let long = "\u{1f80}".repeat(80);
    let limiter = limiter(&per("user"), folding());
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
fn t14_paths_are_different_endpoints_unless_their_case_is_ignored() {
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
    assert_eq!(block_on(ignoring.reset(&request("/API/7/CAF\u{c9}", "a"))).unwrap().counters, 1);
    assert_eq!(admitted(&ignoring, &request("/aPi/7/caf\u{e9}", "a")), 2);
    assert_eq!(admitted(&exact, &request("/X/y", "a")) + admitted(&exact, &request("/X/Y", "a")), 4);
}

#[test]
fn t15_head_is_get_unless_it_counts_as_itself() {
    let toml = "[[rules]]\nname = \"by-method\"\nper = [\"user\", \"method\"]\nrequests_per_hour = 2\n\
                [[rules]]\nname = \"get\"\nlayer = \"x\"\nwhen = { methods = [\"GET\"] }\nper = [\"user\"]\nrequests_per_hour = 9\n\
                [[rules]]\nname = \"head\"\nlayer = \"y\"\nwhen = { methods = [\"HEAD\"] }\nper = [\"user\"]\nrequests_per_hour = 9\n";
    let with = |method| Request { method: Some(method), ..request("/", "a") };
    let as_get = limiter(toml, Normalization::default());
    assert_eq!(asked(&look(&as_get, &with(Method::Head))), ["get", "head", "by-method"]);
    assert_eq!(admitted(&as_get, &with(Method::Get)), 2);
    assert!(!as_get.check_now(&with(Method::Head), NOW).admits());
    let own = limiter(toml, Normalization { head: HeadCounting::Separate, ..Normalization::default() });
    assert_eq!(asked(&look(&own, &with(Method::Head))), ["head", "by-method"]);
    assert_eq!(asked(&look(&own, &with(Method::Get))), ["get", "by-method"]);
    assert_eq!(admitted(&own, &with(Method::Get)), 2);
    assert_eq!(admitted(&own, &with(Method::Head)), 2);
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
fn t11_t14_records_tell_who_was_counted() {
    let seen = Seen::default();
    let rules = rules("", Normalization { ignore_path_case: true, ..folding() });
    let limiter = Limiter::with_records(rules, MemoryCounters::default(), seen.clone(), Seed([1; 16]));
    limiter.check_now(&request("/A", "Alice"), NOW);
    assert_eq!(*seen.0.lock().unwrap(), ["user:alice /a"]);
}
