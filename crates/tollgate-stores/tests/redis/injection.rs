//! Threats 9 and 17 on Redis: no byte of a client reaches a key name, and a client that invents ids fills the memory
//! without resetting any quota.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use tollgate::Endpoint;
use tollgate::counters::{Charges, CounterAdmin, PenaltyCharge, StoreError};
use tollgate::identity::{Client, Dimension, Id, IpPrefixes, Request, Seed, Subject, SubjectHasher};
use tollgate::limit::Algorithm;
use tollgate::penalties::PenaltyPolicy;
use tollgate_stores::redis::{RedisCounters, Topology};
use tollgate_testkit::{RedisCluster, RedisServer, key_slot};

use crate::harness::limits::{Dice, Gauge, charges};
use crate::harness::{address, exact, now, open, runtime, single};

/// Ids with a meaning to Redis, its protocol, glob patterns, Lua, or terminals.
const CORPUS: &[&str] = &[
    "{}",
    "{",
    "}",
    "}{",
    "{a}",
    "{a}{b}",
    "a}b",
    "{}a",
    ":",
    "::",
    "a:b",
    "rl:1t{aaaa}",
    "\r\n",
    "\r",
    "\n",
    "\0",
    "\0\0",
    "a\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    "*",
    "?",
    "[a-z]",
    "\\",
    "\\*",
    "*1\r\n$4\r\nPING",
    "$-1",
    "+OK",
    "-ERR",
    " ",
    "  ",
    "\t",
    "\"",
    "'",
    "';--",
    "\" .. redis.call('FLUSHALL') .. \"",
    "]]",
    "--[[",
    "${x}",
    "$(x)",
    "`x`",
    "%s",
    "%00",
    "../..",
    "/",
    "\u{202e}",
    "\u{feff}",
    "é",
    "é",
    "ß",
    "🦀",
    "\u{10ffff}",
    "\x1b[2J",
    "NaN",
    "-1",
    "0",
    "null",
    "penalised",
    "p",
    "user:a",
    "tenant:a",
];

fn request<'a>(tenant: &'a str, user: &'a str) -> Request<'a> {
    let id = |text| Id::parse(text).ok();
    Request { tenant: id(tenant), user: id(user), ..Request::new(Endpoint::parse("/").unwrap()) }
}

fn subject(seed: &Seed, request: &Request<'_>) -> Subject {
    let mut values = SubjectHasher::new(*seed);
    assert!(
        values.push(&Dimension::Tenant, request, IpPrefixes::DEFAULT)
            && values.push(&Dimension::User, request, IpPrefixes::DEFAULT)
    );
    values.subject()
}

/// Whether a key is a group, the rest of the subject if the key is the subject's alone, and the operator's names.
fn is_well_formed(key: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":-_".contains(&byte);
    if let Some(name) = key.strip_prefix("rl:{fleet}:") {
        return name.bytes().all(plain); // what there is one of
    }
    let Some(rest) = key.strip_prefix("rl:1") else { return false };
    let mut letters = rest.chars();
    let algorithm = letters.next().is_some_and(|letter| letter.is_ascii_lowercase());
    let Some((tag, rule)) = letters.as_str().strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
        return false;
    };
    let alphabet = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    let (rest, rule) = rule.split_once(':').unwrap_or((rule, ""));
    let subject =
        tag.len() == 3 && [0, 23].contains(&rest.len()) && [tag, rest].concat().bytes().all(alphabet);
    algorithm && subject && rule.bytes().all(plain)
}

fn subject_in(key: &str) -> String {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(group, rest)| format!("{group}{}", rest.split(':').next().unwrap_or(""))).unwrap()
}

#[test]
fn client_ids_never_reach_key_names() {
    let cluster = RedisCluster::start();
    let seeds = cluster.addresses().into_iter().map(address).collect();
    let (seed, policy) = (Seed::random(), PenaltyPolicy::default());
    let pairs: Vec<(&str, &str)> = (CORPUS.iter())
        .flat_map(|tenant| CORPUS.iter().map(move |user| (*tenant, *user)))
        .step_by(7)
        .collect();
    runtime().block_on(async {
        let store = open(&exact(Topology::Cluster(seeds))).await;
        for pairs in pairs.chunks(64) {
            join_all(pairs.iter().map(|(tenant, user)| charge_thrice(&store, &seed, &policy, tenant, user)))
                .await;
        }
        // The penalty list distinguishes them, and one can be removed.
        let listed = store.penalized_clients(usize::MAX, now()).await.unwrap();
        assert_eq!(listed.len(), pairs.len());
        for name in ["user:{}", "user:\r\n", "user:*", "user:::"] {
            assert_eq!(store.pardon(name).await, Ok(true), "{name:?}");
        }
    });
    let masters: Vec<&RedisServer> = cluster.masters().into_iter().map(|at| cluster.server_at(at)).collect();
    let keys: Vec<String> = masters
        .iter()
        .flat_map(|master| master.cli(&["KEYS", "*"]).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let strange: Vec<&String> = keys.iter().filter(|key| !is_well_formed(key)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    // A log and a record have the whole subject in their keys.
    let mut slots: HashMap<String, Vec<u16>> = HashMap::new();
    for key in keys.iter().filter(|key| key.starts_with("rl:1l") || key.starts_with("rl:1p")) {
        slots.entry(subject_in(key)).or_default().push(key_slot(key.as_bytes()));
    }
    let one_slot = |slots: &Vec<u16>| slots.iter().all(|slot| *slot == slots[0]);
    assert!(slots.values().all(one_slot), "one slot for all counters of a subject");
    assert!(slots.values().filter(|slots| slots.len() == 2).count() > pairs.len() / 2);
    let sum: usize = masters.iter().map(|master| master.cli(&["DBSIZE"]).parse::<usize>().unwrap()).sum();
    assert_eq!(keys.len(), sum);
    eprintln!("{} clients, {} keys, all well formed", pairs.len(), keys.len());
}

/// Two limits of one client, twice admitted and once refused: each client has its own quota.
async fn charge_thrice(store: &RedisCounters, seed: &Seed, policy: &PenaltyPolicy, tenant: &str, user: &str) {
    let request = request(tenant, user);
    let subject = subject(seed, &request);
    let limits = [Gauge::a_day(Algorithm::TokenBucket, 2), Gauge::a_day(Algorithm::SlidingWindowLog, 3)];
    let limits = limits.map(|gauge| Gauge { subject, ..gauge });
    let client = Client::User(request.user.unwrap());
    for admits in [true, true, false] {
        let penalty = PenaltyCharge { subject, client: client.into(), policy, client_charges: u32::MAX };
        let charges = Charges { penalty: Some(penalty), ..charges(&limits, 1) };
        let result = store.charge_all_timed(&charges, now()).await.unwrap().0;
        assert_eq!(result.admitted(&charges), admits, "{tenant:?} {user:?}: {result:?}");
    }
}

/// Easily confused texts: short, of few letters, split anywhere.
fn random_text(dice: &mut Dice) -> String {
    let letters = ["a", "b", ":", "{", "}", "\0", "\r\n", "é", "*", "\u{1}"];
    (0..dice.between(1, 6)).map(|_| *dice.pick(&letters)).collect()
}

#[test]
fn distinct_clients_have_distinct_counters() {
    let server = RedisServer::start();
    let seed = Seed::random();
    let mut dice = Dice::new(9);
    let mut clients = HashSet::new();
    while clients.len() < 100_000 {
        clients.insert((random_text(&mut dice), random_text(&mut dice)));
    }
    let clients: Vec<_> = clients.into_iter().collect();
    let gauge = Gauge::a_day(Algorithm::FixedWindow, 1);
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        for some in clients.chunks(2_000) {
            let gauges: Vec<Gauge> = (some.iter())
                .map(|(tenant, user)| Gauge {
                    subject: subject(&seed, &request(tenant, user)),
                    ..gauge.clone()
                })
                .collect();
            let calls = gauges.iter().map(|gauge| charge(&store, gauge, 1));
            assert!(
                join_all(calls).await.into_iter().all(|result| result == Ok(true)),
                "two clients share a counter"
            );
        }
    });
    let count = "local n = 0
        for _, key in ipairs(redis.call('KEYS', 'rl:1f*')) do n = n + redis.call('HLEN', key) end
        return n";
    assert_eq!(server.cli(&["EVAL", count, "0"]), clients.len().to_string());
}

#[test]
fn filling_memory_resets_no_quota() {
    let server = RedisServer::with(&["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"]);
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let victims: Vec<Gauge> = Algorithm::ALL.map(|algorithm| Gauge::a_day(algorithm, 5)).into();
        for victim in &victims {
            assert!(charge(&store, victim, 5).await.unwrap());
            assert_eq!(charge(&store, victim, 1).await, Ok(false));
        }
        let mut invented = 0_u32;
        let full = loop {
            let crowd: Vec<Gauge> = (0..500).map(|_| Gauge::a_day(Algorithm::TokenBucket, 5)).collect();
            let result = join_all(crowd.iter().map(|gauge| charge(&store, gauge, 1))).await;
            invented += u32::try_from(result.iter().filter(|result| result.is_ok()).count()).unwrap();
            // Timeouts of a busy machine are not under test.
            let late = |error: &StoreError| matches!(error, StoreError::Timeout { .. });
            if let Some(error) = result.into_iter().filter_map(Result::err).find(|error| !late(error)) {
                break error;
            }
            assert!(invented < 200_000, "the memory is never full");
        };
        // A server that cannot write is an outage, decided by each rule's failure mode, not a misconfiguration.
        assert_eq!(full, StoreError::Unreachable);
        for victim in &victims {
            let result = charge(&store, victim, 1).await;
            let is_down = matches!(result, Err(StoreError::Unreachable | StoreError::Timeout { .. }));
            assert!(result == Ok(false) || is_down, "{result:?}");
        }
        assert_eq!(server.info("stats")["evicted_keys"], "0");
        eprintln!("memory full after {invented} invented clients: {full}");

        assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "64mb"]), "OK");
        for victim in &victims {
            let result = eventually_ok(&store, victim).await;
            assert!(!result, "a client that was refused before is refused still");
        }
        let newcomer = Gauge::a_day(Algorithm::TokenBucket, 1);
        assert!(eventually_ok(&store, &newcomer).await);
    });
}

async fn charge(store: &RedisCounters, gauge: &Gauge, cost: u32) -> Result<bool, StoreError> {
    let charges = charges([gauge], cost);
    store.charge_all_timed(&charges, now()).await.map(|(verdicts, _)| verdicts.admitted(&charges))
}

/// Retries until there is a reply: the breaker may be open for a moment.
async fn eventually_ok(store: &RedisCounters, gauge: &Gauge) -> bool {
    for _ in 0..500 {
        if let Ok(admitted) = charge(store, gauge, 1).await {
            return admitted;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no answer: {:?}", store.servers());
}
