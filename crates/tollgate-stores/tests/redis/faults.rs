//! Failure handling: a reply in bounded time, the right error, then an open breaker that costs nothing, and recovery
//! without intervention.
//!
//! The timeout is the default one where timeouts are under test, and long where replies are. Bounds are wide and hold
//! for most calls, because machines under test stall at times; measurements are printed.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tollgate::Span;
use tollgate::algorithms::Verdict;
use tollgate::counters::{CounterAdmin, StoreError};
use tollgate::limit::Algorithm;
use tollgate_stores::redis::{Login, RedisCounters, RedisSettings, Secret, ServerStats, Topology};
use tollgate_testkit::{Fault, FaultProxy, RedisOptions, RedisServer, eventually, wait_until};

use crate::harness::limits::{Gauge, charges, limit};
use crate::harness::{address, exact, now, patient, runtime, single};

/// By how much a busy machine is late, most of the time.
const SLACK: Duration = Duration::from_millis(500);
/// The longest reply without a call, most of the time: half of the default timeout.
const AT_ONCE: Duration = Duration::from_millis(10);
/// A timeout that only an unresponsive server exceeds.
const MILD: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
const RECOVERY_MAX: Duration = Duration::from_secs(15);
/// Far above what an idle machine needs: one connection per probe at worst.
const CONNECTIONS_PER_SECOND_MAX: usize = 30;

/// A server, a proxy in front of it, and a store that uses the proxy.
struct Rig {
    server: RedisServer,
    proxy: FaultProxy,
    runtime: Runtime,
    store: RedisCounters,
    budget: Duration,
}

impl Rig {
    fn new() -> Self {
        Self::with(|settings| settings)
    }

    fn with(change: impl FnOnce(RedisSettings) -> RedisSettings) -> Self {
        let server = RedisServer::start();
        let proxy = FaultProxy::in_front_of(server.address());
        let settings = change(demanding(single(proxy.address())));
        let runtime = runtime();
        let store = runtime.block_on(crate::harness::open(&settings));
        let rig = Rig { server, proxy, runtime, store, budget: settings.timeout };
        rig.recovers();
        rig
    }

    /// One charge, and how long it took.
    fn charge(&self, gauge: &Gauge, cost: u32) -> (Result<Verdict, StoreError>, Duration) {
        let started = Instant::now();
        let result = self.runtime.block_on(self.store.charge_all_timed(&charges([gauge], cost), now()));
        (result.map(|(verdicts, _)| verdicts.verdicts[0]), started.elapsed())
    }

    /// How much of a limit is left, with retries.
    fn remaining(&self, gauge: &Gauge) -> u32 {
        eventually(RECOVERY_MAX, || self.charge(gauge, 0).0.ok()).unwrap().remaining
    }

    fn server_stats(&self) -> ServerStats {
        self.store.servers().remove(0)
    }

    /// Waits until charges are admitted again and returns how long that took.
    fn recovers(&self) -> Duration {
        let started = Instant::now();
        let gauge = plenty();
        let back = wait_until(RECOVERY_MAX, || self.charge(&gauge, 1).0.is_ok());
        assert!(back, "no recovery within {RECOVERY_MAX:?}: {:?}", self.server_stats());
        started.elapsed()
    }

    /// Charges until the breaker opens. Each call must end in time with an error that `may` occur.
    fn fails_until_the_breaker_opens(&self, may: fn(&StoreError) -> bool) -> Duration {
        let gauge = plenty();
        let mut took = Vec::new();
        let opened = wait_until(PATIENCE, || {
            let (result, time) = self.charge(&gauge, 1);
            // Calls in flight when the fault began may still succeed.
            assert!(result.as_ref().err().is_none_or(may), "{result:?}");
            took.push(time);
            self.server_stats().breaker_open
        });
        assert!(opened, "the breaker stays closed: {:?}", self.server_stats());
        self.ended_in_time(took)
    }

    /// Checks that most calls ended within the timeout and none hung. Returns the slowest.
    fn ended_in_time(&self, mut took: Vec<Duration>) -> Duration {
        took.sort_unstable();
        let (median, slowest) = (took[took.len() / 2], took[took.len() - 1]);
        assert!(median <= self.budget + SLACK && slowest <= PATIENCE, "answers after {took:?}");
        slowest
    }

    /// With the breaker open, decisions return at once.
    fn answers_at_once(&self) -> Duration {
        let gauge = plenty();
        let mut took: Vec<Duration> = (0..100)
            .map(|_| {
                let (result, took) = self.charge(&gauge, 1);
                assert_eq!(result, Err(StoreError::Unreachable));
                took
            })
            .collect();
        took.sort_unstable();
        // No call is sent: otherwise the timeout would pass.
        assert!(took[50] < AT_ONCE, "half of the replies took {:?}", took[50]);
        took[50]
    }

    /// A whole outage from start to recovery.
    fn survives(&self, name: &str, fault: Fault, may: fn(&StoreError) -> bool) {
        let (began, connections) = (Instant::now(), self.proxy.connections_opened());
        self.proxy.set(fault);
        let slowest = self.fails_until_the_breaker_opens(may);
        let median = self.answers_at_once();
        thread::sleep(Duration::from_millis(600)); // probes go on meanwhile
        assert!(self.server_stats().breaker_open, "the fault lasts: {:?}", self.server_stats());
        let (outage, connections) = (began.elapsed(), self.proxy.connections_opened() - connections);
        self.proxy.set(Fault::None);
        let back = self.recovers();
        eprintln!(
            "{name}: slowest {slowest:?} before the breaker opened, median {median:?} after, {connections} \
             connections in {outage:?}, recovered after {back:?}"
        );
        let allowed = CONNECTIONS_PER_SECOND_MAX * (1 + usize::try_from(outage.as_secs()).unwrap());
        assert!(connections <= allowed, "{connections} connections in {outage:?}");
        assert!(!self.server_stats().breaker_open && self.server_stats().breaker_openings >= 1);
    }
}

/// A rig with a timeout that no machine exceeds.
fn patient_rig() -> Rig {
    Rig::with(|settings| RedisSettings { timeout: patient(settings.topology.clone()).timeout, ..settings })
}

/// The default timeout, and every decision is a call.
fn demanding(topology: Topology) -> RedisSettings {
    let timeout = RedisSettings::new(topology.clone()).timeout;
    RedisSettings { timeout, ..exact(topology) }
}

/// A limit that is never reached.
fn plenty() -> Gauge {
    Gauge::a_day(Algorithm::FixedWindow, 1_000_000)
}

fn unreachable(error: &StoreError) -> bool {
    *error == StoreError::Unreachable
}

fn store_down(error: &StoreError) -> bool {
    matches!(error, StoreError::Unreachable | StoreError::Timeout { .. })
}

macro_rules! outages {
    ($rig:expr, $may:expr; $($name:ident: $fault:expr;)+) => {
        $(
            #[test]
            fn $name() {
                $rig.survives(stringify!($name), $fault, $may);
            }
        )+
    };
}

outages! {
    Rig::new(), store_down;
    replies_after_the_timeout: Fault::Latency(Duration::from_millis(400));
    connections_closed: Fault::Drop;
    connections_reset: Fault::Reset;
    half_open_connections: Fault::HalfOpen;
    replies_byte_by_byte: Fault::Trickle(Duration::from_millis(60));
    replies_lost: Fault::BlackHoleReplies;
    replies_garbled: Fault::Garbage;
}

// Error replies are known at once, whatever the timeout.
outages! {
    patient_rig(), unreachable;
    server_loading: Fault::reply("-LOADING Redis is loading the dataset in memory");
    server_out_of_memory: Fault::reply("-OOM command not allowed when used memory > 'maxmemory'.");
    server_became_a_replica: Fault::reply("-READONLY You can't write against a read only replica.");
    server_busy_with_a_script: Fault::reply("-BUSY Redis is busy running a script.");
    server_cannot_save: Fault::reply("-MISCONF Redis is configured to save RDB snapshots");
    cluster_down: Fault::reply("-CLUSTERDOWN The cluster is down");
}

#[test]
fn replies_within_the_timeout_are_awaited() {
    let rig = Rig::with(|settings| RedisSettings { timeout: Duration::from_secs(5), ..settings });
    let gauge = plenty();
    for latency in [100, 300, 700].map(Duration::from_millis) {
        rig.proxy.set(Fault::Latency(latency));
        let (result, took) = rig.charge(&gauge, 1);
        assert!(result.is_ok() && took >= latency, "{result:?} after {took:?}");
    }
    assert_eq!(rig.server_stats().breaker_openings, 0);
}

/// Admin commands get at least the timeout of decisions.
#[test]
fn reset_waits_as_long_as_a_decision() {
    let rig = Rig::with(|settings| RedisSettings { timeout: PATIENCE, ..settings });
    let gauge = Gauge::a_day(Algorithm::TokenBucket, 10);
    assert!(rig.charge(&gauge, 5).0.is_ok());
    rig.proxy.set(Fault::Latency(Duration::from_millis(1_200)));
    assert_eq!(rig.runtime.block_on(rig.store.reset(&charges([&gauge], 0))), Ok(1));
    assert_eq!(rig.remaining(&gauge), 10);
}

#[test]
fn distant_server_recovers_with_long_timeout() {
    let rig = Rig::with(|settings| RedisSettings { timeout: Duration::from_secs(1), ..settings });
    rig.proxy.set(Fault::Drop);
    rig.fails_until_the_breaker_opens(store_down);
    rig.proxy.set(Fault::Latency(Duration::from_millis(150)));
    rig.recovers();
}

#[test]
fn charge_with_lost_reply_is_not_repeated() {
    let rig = Rig::with(|settings| RedisSettings { timeout: MILD, ..settings });
    for algorithm in Algorithm::ALL {
        let gauge = Gauge::a_day(algorithm, 10);
        let evaluated = rig.server.commandstats("evalsha");
        rig.proxy.set(Fault::BlackHoleReplies);
        let (result, _) = rig.charge(&gauge, 1);
        assert_eq!(result, Err(StoreError::Timeout { deadline: rig.budget }), "{algorithm}");
        let sent = || rig.server.commandstats("evalsha");
        assert!(wait_until(PATIENCE, || sent() > evaluated), "{algorithm}: never sent");
        // Long enough for a retry.
        thread::sleep(Duration::from_millis(100));
        assert_eq!(sent(), evaluated + 1, "{algorithm}");
        rig.proxy.set(Fault::None);
        assert_eq!(rig.remaining(&gauge), 9, "{algorithm}");
    }
}

#[test]
fn canceled_call_is_not_sent() {
    let rig = Rig::new();
    let gauge = Gauge::a_day(Algorithm::TokenBucket, 1_000);
    rig.server.freeze();
    // Two batches are in flight and the rest is queued; all are canceled before the server resumes.
    let asked = 40;
    let answers = rig.runtime.block_on(async {
        let calls = (0..asked)
            .map(|_| async { rig.store.charge_all_timed(&charges([&gauge], 1), now()).await.is_err() });
        futures_util::future::join_all(calls).await
    });
    assert!(answers.into_iter().all(|failed| failed));
    rig.server.thaw();
    let used = 1_000 - rig.remaining(&gauge);
    assert!(used <= asked, "{used} charged of {asked}");
}

/// A misconfiguration is never treated as an outage, so that nothing fails open.
fn refuses_for_good(rig: &Rig) {
    let gauge = plenty();
    for _ in 0..30 {
        assert_eq!(rig.charge(&gauge, 1).0, Err(StoreError::Misconfigured));
    }
}

#[test]
fn misconfigurations_open_no_breaker() {
    let rig = patient_rig();
    for line in [
        "-NOAUTH Authentication required.",
        "-WRONGPASS invalid username-password pair or user is disabled.",
        "-NOPERM User default has no permissions to run the 'evalsha' command",
        "-WRONGTYPE Operation against a key holding the wrong kind of value",
        "-CROSSSLOT Keys in request don't hash to the same slot",
        "-ERR unknown command 'EVALSHA'",
        "-SOMETHING nobody has heard of",
    ] {
        rig.proxy.set(Fault::reply_to("EVALSHA", line));
        refuses_for_good(&rig);
        rig.proxy.set(Fault::None);
        rig.recovers();
    }
}

#[test]
fn script_missing_after_load_is_misconfiguration() {
    let rig = patient_rig();
    rig.proxy.set(Fault::reply_to("EVALSHA", "-NOSCRIPT No matching script. Please use EVAL."));
    refuses_for_good(&rig);
    rig.proxy.set(Fault::None);
    rig.recovers();
}

#[test]
fn unexpected_reply_is_misconfiguration() {
    let rig = patient_rig();
    for line in ["+OK", ":1", "$-1", "*0", "*2\r\n:1\r\n+OK"] {
        rig.proxy.set(Fault::reply_to("EVALSHA", line));
        refuses_for_good(&rig);
    }
    rig.proxy.set(Fault::None);
    rig.recovers();
}

/// A rig without a proxy, on a server with ACL users.
fn on_server(server: RedisServer, login: Login) -> Rig {
    let proxy = FaultProxy::in_front_of(server.address());
    let settings = RedisSettings { login, ..exact(single(server.address())) };
    let runtime = runtime();
    let store = runtime.block_on(async {
        let store = RedisCounters::open(&settings).unwrap();
        store.connected(RECOVERY_MAX).await;
        store
    });
    Rig { server, proxy, runtime, store, budget: settings.timeout }
}

fn secured() -> RedisServer {
    let users =
        vec!["narrow on >narrow ~other:* +@all".to_owned(), "idle on >idle ~rl:* -@all +ping".to_owned()];
    let options = RedisOptions { password: Some("right".to_owned()), users, ..RedisOptions::default() };
    RedisServer::start_with(&options)
}

fn login(user: Option<&str>, password: &str) -> Login {
    Login { user: user.map(str::to_owned), password: Some(Secret(password.to_owned())) }
}

#[test]
fn unknown_user_is_misconfiguration_until_created() {
    for (login, cure) in [
        (Login::default(), "default on nopass ~* +@all"),
        (login(None, "wrong"), "default >wrong"),
        (login(Some("nobody"), "right"), "nobody on >right ~* +@all"),
        (login(Some("narrow"), "narrow"), "narrow ~*"),
        (login(Some("idle"), "idle"), "idle +@all"),
    ] {
        let rig = on_server(secured(), login);
        // At first the server is unknown.
        assert!(wait_until(RECOVERY_MAX, || rig.charge(&plenty(), 1).0 == Err(StoreError::Misconfigured)));
        refuses_for_good(&rig);
        let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(cure.split(' ')).collect();
        assert_eq!(rig.server.cli(&words), "OK");
        eprintln!("{cure}: let in after {:?}", rig.recovers());
    }
}

#[test]
fn changed_password_is_misconfiguration_on_reconnect() {
    let rig = on_server(secured(), login(None, "right"));
    rig.recovers();
    assert_eq!(rig.server.cli(&["ACL", "SETUSER", "default", "resetpass", ">new"]), "OK");
    assert!(rig.server.kill_clients() > 0);
    let result = wait_until(RECOVERY_MAX, || rig.charge(&plenty(), 1).0 == Err(StoreError::Misconfigured));
    assert!(result && rig.store.misconfiguration().is_some_and(|reason| !reason.contains("right")));
    refuses_for_good(&rig);
}

#[test]
fn wrong_key_type_affects_only_that_counter() {
    let rig = patient_rig();
    let (gauge, other) = (Gauge::a_day(Algorithm::TokenBucket, 9), plenty());
    assert!(rig.charge(&gauge, 1).0.is_ok());
    let keys = rig.server.cli(&["KEYS", "rl:1t*"]);
    assert_eq!(keys.lines().count(), 1);
    rig.server.cli(&["DEL", &keys]);
    rig.server.cli(&["SET", &keys, "somebody else's"]);
    assert_eq!(rig.charge(&gauge, 1).0, Err(StoreError::Misconfigured));
    assert!(rig.charge(&other, 1).0.is_ok());
    assert_eq!(rig.server_stats().breaker_openings, 0);
}

#[test]
fn redirection_loop_is_bounded() {
    let server = RedisServer::start();
    let (map, circle) =
        (FaultProxy::in_front_of(server.address()), FaultProxy::in_front_of(server.address()));
    let port = circle.address().port();
    let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\nx");
    map.set(Fault::reply_to("CLUSTER", slots));
    circle.set(Fault::reply_to("EVALSHA", format!("-MOVED 1 127.0.0.1:{port}")));
    let settings = demanding(Topology::Cluster(vec![address(map.address())]));
    let runtime = runtime();
    let store = runtime.block_on(crate::harness::open(&settings));
    let rig = Rig { server, proxy: circle, runtime, store, budget: settings.timeout };
    let gauge = plenty();
    let answers = (0..50).map(|_| {
        let (result, took) = rig.charge(&gauge, 1);
        assert!(result.as_ref().is_err_and(store_down), "{result:?}");
        took
    });
    rig.ended_in_time(answers.collect());
    assert!(rig.proxy.connections_opened() + map.connections_opened() < 20);
    rig.proxy.set(Fault::None);
    rig.recovers();
}

/// Load from many callers while something happens to the server.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    callers: Vec<tokio::task::JoinHandle<Vec<StoreError>>>,
}

impl Load {
    fn start(rig: &Rig, callers: usize) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let callers = (0..callers)
            .map(|_| {
                let (store, stop, done) = (rig.store.clone(), Arc::clone(&stop), Arc::clone(&done));
                rig.runtime.spawn(async move {
                    let gauge = Gauge::new(limit(Algorithm::TokenBucket, 50, Span::from_millis(100)));
                    let mut errors = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        match store.charge_all_timed(&charges([&gauge], 1), now()).await {
                            Ok(_) => drop(done.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => {
                                errors.push(error);
                                tokio::time::sleep(Duration::from_millis(1)).await;
                            }
                        }
                    }
                    errors
                })
            })
            .collect();
        Load { stop, done, callers }
    }

    /// Decisions so far.
    fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits for this many more decisions.
    fn goes_on(&self, more: usize) -> bool {
        let before = self.done();
        wait_until(RECOVERY_MAX, || self.done() >= before + more)
    }

    fn stop(self, rig: &Rig) -> Vec<StoreError> {
        self.stop.store(true, Ordering::Relaxed);
        let calls = futures_util::future::join_all(self.callers);
        rig.runtime.block_on(calls).into_iter().flat_map(Result::unwrap).collect()
    }
}

#[test]
fn script_flush_under_load_is_transparent() {
    let rig = patient_rig();
    let load = Load::start(&rig, 16);
    for _ in 0..50 {
        rig.server.script_flush();
        assert!(load.goes_on(40));
    }
    let done = load.done();
    assert_eq!(load.stop(&rig), []);
    eprintln!("50 times SCRIPT FLUSH: {done} decisions, no error");
}

/// Emptying the database resets all quotas, and does nothing else.
#[test]
fn flushall_resets_counters_only() {
    let rig = patient_rig();
    for algorithm in Algorithm::ALL {
        let gauge = Gauge::a_day(algorithm, 5);
        assert!(rig.charge(&gauge, 5).0.is_ok_and(|verdict| verdict.admits()));
        assert!(rig.charge(&gauge, 1).0.is_ok_and(|verdict| !verdict.admits()));
        rig.server.flush_all();
        assert_eq!(rig.remaining(&gauge), 5, "{algorithm}");
        assert!(rig.charge(&gauge, 5).0.is_ok_and(|verdict| verdict.admits()));
        assert!(rig.charge(&gauge, 1).0.is_ok_and(|verdict| !verdict.admits()));
    }
    let load = Load::start(&rig, 16);
    for _ in 0..20 {
        rig.server.flush_all();
        assert!(load.goes_on(40));
    }
    assert_eq!(load.stop(&rig), []);
}

#[test]
fn killed_connections_are_reopened() {
    let rig = Rig::new();
    let load = Load::start(&rig, 8);
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        rig.server.kill_clients();
        let killed = Instant::now();
        assert!(load.goes_on(10), "{:?}", rig.server_stats());
        slowest = slowest.max(killed.elapsed());
    }
    let errors = load.stop(&rig);
    eprintln!("10 times CLIENT KILL: back after {slowest:?} at most, {} calls failed", errors.len());
    assert!(errors.iter().all(store_down), "{errors:?}");
}

/// Probes are 75 to 125 ms apart. A new connection has replied to a PING, so no probe is needed.
#[test]
fn new_connection_closes_the_breaker() {
    // A PING slower than the timeout does not close the breaker.
    let rig = Rig::with(|settings| RedisSettings { timeout: MILD, ..settings });
    let back =
        (0..9).map(|_| {
            let dials = rig.server_stats().dials;
            rig.proxy.set(Fault::Drop);
            rig.fails_until_the_breaker_opens(store_down);
            rig.proxy.set(Fault::None);
            assert!(
                wait_until(RECOVERY_MAX, || rig.server_stats().connected && rig.server_stats().dials > dials)
            );
            let connected = Instant::now();
            assert!(wait_until(RECOVERY_MAX, || !rig.server_stats().breaker_open));
            let took = connected.elapsed();
            // A connection that served nothing would increase the backoff.
            rig.recovers();
            took
        });
    let mut back: Vec<Duration> = back.collect();
    back.sort_unstable();
    eprintln!("the breaker closes {:?} after the connection is made", back[4]);
    assert!(back[4] < Duration::from_millis(60), "{back:?}");
}

/// A server may accept fewer connections than configured.
#[test]
fn one_connection_of_two_serves_all() {
    let server = RedisServer::start();
    // The test kit's, the subscriber's, and one more.
    server.cli(&["CONFIG", "SET", "maxclients", "3"]);
    let connections = NonZeroUsize::new(8).unwrap();
    let settings = RedisSettings { connections, ..exact(single(server.address())) };
    runtime().block_on(async {
        let store = RedisCounters::open(&settings).unwrap();
        let gauge = plenty();
        let ask = async || store.charge_all_timed(&charges([&gauge], 1), now()).await;
        let start = Instant::now();
        while ask().await.is_err() && start.elapsed() < RECOVERY_MAX {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..50 {
            assert_eq!(ask().await.map(drop), Ok(()));
        }
    });
}

#[test]
fn restarted_server_recovers() {
    let rig = Rig::new();
    let load = Load::start(&rig, 8);
    rig.server.kill9();
    thread::sleep(Duration::from_secs(1));
    rig.server.restart();
    let started = Instant::now();
    assert!(load.goes_on(10), "{:?}", rig.server_stats());
    eprintln!("restart of the server after a second: back after {:?}", started.elapsed());
    assert!(load.stop(&rig).iter().all(store_down));
}

#[test]
fn frozen_server_opens_the_breaker_and_recovers() {
    let rig = Rig::new();
    let load = Load::start(&rig, 8);
    rig.server.freeze();
    let slowest = rig.fails_until_the_breaker_opens(store_down);
    let median = rig.answers_at_once();
    thread::sleep(Duration::from_secs(1));
    rig.server.thaw();
    let thawed = Instant::now();
    assert!(load.goes_on(10), "{:?}", rig.server_stats());
    eprintln!(
        "frozen for a second: slowest {slowest:?} before the breaker opened, median {median:?} after, back {:?} after \
         it thawed",
        thawed.elapsed()
    );
    assert!(load.stop(&rig).iter().all(store_down));
}

#[test]
fn store_without_server_fails_fast_and_recovers() {
    let server = RedisServer::start();
    server.kill9();
    let settings = demanding(single(server.address()));
    let runtime = runtime();
    let store = runtime.block_on(async { RedisCounters::open(&settings) }).unwrap();
    let proxy = FaultProxy::in_front_of(server.address());
    let rig = Rig { server, proxy, runtime, store, budget: settings.timeout };
    rig.answers_at_once();
    rig.server.restart();
    rig.recovers();
}

/// Another user of the server empties it, flushes scripts and kills connections. Each emptying resets quotas once;
/// nothing else does.
#[test]
fn hostile_redis_neighbour_is_survived() {
    let rig = patient_rig();
    let gauge = Gauge::a_day(Algorithm::TokenBucket, 100);
    let (stop, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (store, gauge) = (rig.store.clone(), gauge.clone());
            let (stop, admitted) = (Arc::clone(&stop), Arc::clone(&admitted));
            rig.runtime.spawn(async move {
                let mut errors = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let charges = charges([&gauge], 1);
                    match store.charge_all_timed(&charges, now()).await {
                        Ok((verdicts, _)) => {
                            admitted.fetch_add(usize::from(verdicts.admitted(&charges)), Ordering::Relaxed);
                        }
                        Err(error) => errors.push(error),
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                errors
            })
        })
        .collect();
    let allowances = 6;
    for turn in 1..=allowances {
        let used_up = || admitted.load(Ordering::Relaxed) >= 100 * turn;
        // A charge on a killed connection is taken without a reply.
        let used_up = || used_up() || turn > 1 && rig.remaining(&gauge) == 0;
        assert!(wait_until(RECOVERY_MAX, used_up), "turn {turn}: {:?}", rig.server_stats());
        rig.server.script_flush();
        rig.server.kill_clients();
        if turn < allowances {
            rig.server.flush_all();
        }
    }
    thread::sleep(Duration::from_millis(300));
    stop.store(true, Ordering::Relaxed);
    let errors: Vec<StoreError> =
        callers.into_iter().flat_map(|caller| rig.runtime.block_on(caller).unwrap()).collect();
    let admitted = admitted.load(Ordering::Relaxed);
    eprintln!("{allowances} allowances of 100: {admitted} admitted, {} calls failed", errors.len());
    assert!(admitted <= 100 * allowances && admitted > 100 * (allowances - 1));
    assert!(errors.iter().all(store_down), "{errors:?}");
}

/// A firewall drops one of several connections silently; new ones work.
#[test]
fn dead_connection_of_several_is_replaced() {
    let connections = NonZeroUsize::new(4).unwrap();
    let rig = Rig::with(|settings| RedisSettings { connections, timeout: MILD, ..settings });
    let gauge = plenty();
    assert!(wait_until(PATIENCE, || (0..20).all(|_| rig.charge(&gauge, 1).0.is_ok())));
    let dials = rig.server_stats().dials;
    assert!(rig.proxy.silence("EVALSHA"));
    let anew = wait_until(PATIENCE, || {
        let _ = rig.charge(&gauge, 1);
        rig.server_stats().dials > dials
    });
    assert!(anew, "{:?}", rig.server_stats());
    let all_serve = || (0..20).all(|_| rig.charge(&gauge, 1).0.is_ok());
    assert!(wait_until(PATIENCE, all_serve), "{:?}", rig.server_stats());
    assert!(rig.proxy.silence("EVALSHA"), "one of the idle connections");
}

/// Even on a connection that is rarely used.
#[test]
fn first_lost_call_marks_the_connection() {
    let connections = NonZeroUsize::new(2).unwrap();
    let rig = Rig::with(|settings| RedisSettings { connections, timeout: MILD, ..settings });
    let gauge = plenty();
    assert!(wait_until(PATIENCE, || (0..20).all(|_| rig.charge(&gauge, 1).0.is_ok())));
    let dials = rig.server_stats().dials;
    assert!(rig.proxy.silence("EVALSHA"));
    let swallowed = wait_until(PATIENCE, || rig.charge(&gauge, 1).0.is_err());
    assert!(swallowed || rig.server_stats().dials > dials, "{:?}", rig.server_stats());
    assert!(
        wait_until(PATIENCE, || rig.server_stats().dials > dials),
        "it is replaced without a request: {:?}",
        rig.server_stats()
    );
}

/// A server that accepts connections and never replies, and its maximum of concurrent ones.
fn mute_server() -> (SocketAddr, Arc<[AtomicUsize; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Arc<[AtomicUsize; 2]> = Arc::default();
    let result = Arc::clone(&seen);
    thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_nonblocking(true).unwrap();
            open.push(stream);
            open.retain(|mut stream| {
                loop {
                    match stream.read(&mut [0; 1024]) {
                        Ok(1..) => {}
                        Ok(0) => return false,
                        Err(error) => return error.kind() == ErrorKind::WouldBlock,
                    }
                }
            });
            result[0].fetch_add(1, Ordering::SeqCst);
            result[1].fetch_max(open.len(), Ordering::SeqCst);
        }
    });
    (address, seen)
}

#[test]
fn concurrent_dials_are_bounded() {
    let (address, seen) = mute_server();
    let settings = RedisSettings {
        connections: NonZeroUsize::new(32).unwrap(),
        connect_timeout: Duration::from_millis(100),
        ..exact(single(address))
    };
    let runtime = runtime();
    let _store = runtime.block_on(async { RedisCounters::open(&settings) }).unwrap();
    let [dials, at_once] = &*seen;
    assert!(wait_until(PATIENCE, || dials.load(Ordering::SeqCst) >= 12), "{seen:?}");
    // An abandoned connection may be closed a moment after the next is dialed.
    assert!(at_once.load(Ordering::SeqCst) <= 4, "{seen:?}");
}

/// The subscription never sends anything, so only a PING reveals that it is dead.
#[test]
fn dead_subscription_is_replaced() {
    let rig = Rig::new();
    let other = rig.runtime.block_on(crate::harness::open(&exact(single(rig.server.address()))));
    let mut announced = rig.store.fleet().change_notifications();
    let mut hears = |patience| {
        wait_until(patience, || {
            rig.runtime.block_on(other.fleet().notify_change());
            thread::sleep(Duration::from_millis(20));
            announced.has_changed().unwrap() && *announced.borrow_and_update() > 0
        })
    };
    assert!(hears(PATIENCE));
    let at_once = Duration::from_millis(300);
    // The last call may have been in flight; on a stalled machine there may be another connection by then.
    let is_silent = (0..5).any(|_| {
        assert!(wait_until(PATIENCE, || rig.proxy.silence("SUBSCRIBE")));
        !hears(at_once) || !hears(at_once)
    });
    assert!(is_silent);
    assert!(hears(PATIENCE));
}
