//! The master dies, or a slot moves, while many callers are charged.
//!
//! Replication is asynchronous: what a master acknowledged and had not sent on is lost with it, and may be admitted a
//! second time. That is the bound that is measured here; everything else must be exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tollgate::Span;
use tollgate::counters::StoreError;
use tollgate::limit::Algorithm;
use tollgate_stores::redis::{Login, RedisCounters, RedisSettings, Topology};
use tollgate_testkit::{RedisCluster, RedisServer, SentinelFleet, key_slot, wait_until};

use crate::harness::limits::{Gauge, charges, limit};
use crate::harness::{address, exact, now, open, patient, runtime};

const CALLERS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

/// A limit of which nothing comes back while a test runs, whatever the date.
fn gauge(algorithm: Algorithm, requests: u32) -> Gauge {
    Gauge::new(limit(algorithm, requests, Span::from_secs(400 * 86_400)))
}

/// What callers have seen of one set of limits, which they charge together.
struct Load {
    stop: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    /// Calls that each caller has made.
    calls: Arc<[AtomicU64; CALLERS]>,
    callers: Vec<tokio::task::JoinHandle<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// When each admission was known.
    admissions: Vec<Instant>,
    errors: Vec<(Instant, StoreError)>,
}

impl Load {
    fn start(runtime: &Runtime, store: &RedisCounters, gauges: &[Gauge]) -> Self {
        let (stop, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (refused, calls) = (Arc::new(AtomicU64::new(0)), Arc::<[AtomicU64; CALLERS]>::default());
        let callers = (0..CALLERS).map(|caller| {
            let (store, gauges, calls) = (store.clone(), gauges.to_vec(), Arc::clone(&calls));
            let (stop, admitted, refused) = (Arc::clone(&stop), Arc::clone(&admitted), Arc::clone(&refused));
            runtime.spawn(async move {
                let mut seen = Seen::default();
                while !stop.load(Ordering::Relaxed) {
                    let charges = charges(&gauges, 1);
                    match store.charge_all_timed(&charges, now()).await {
                        Ok((verdicts, _)) if verdicts.admitted(&charges) => {
                            seen.admissions.push(Instant::now());
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(_) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => seen.errors.push((Instant::now(), error)),
                    }
                    calls[caller].fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                seen
            })
        });
        Load { callers: callers.collect(), stop, admitted, refused, calls }
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    fn reaches(&self, count: u64) -> bool {
        wait_until(PATIENCE, || self.admitted() >= count)
    }

    /// Waits until every call that is under way has ended.
    fn calls_end(&self) {
        let look = || self.calls.each_ref().map(|calls| calls.load(Ordering::SeqCst));
        let before = look();
        assert!(wait_until(PATIENCE, || look().iter().zip(before).all(|(now, before)| *now > before)));
    }

    /// Waits until nothing more is admitted: every caller has been refused several times since the last time one was not.
    fn runs_dry(&self) {
        let look = || (self.admitted(), self.refused.load(Ordering::Relaxed));
        let mut last = look();
        let dry = wait_until(PATIENCE, || {
            let (admitted, refused) = look();
            if admitted != last.0 {
                last = (admitted, refused);
            }
            refused - last.1 >= 10 * CALLERS as u64
        });
        assert!(dry);
    }

    fn stop(self, runtime: &Runtime) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Seen::default();
        for caller in self.callers {
            let seen = runtime.block_on(caller).unwrap();
            all.admissions.extend(seen.admissions);
            all.errors.extend(seen.errors);
        }
        all.admissions.sort_unstable();
        all
    }
}

/// What a kill cost. Nothing that was acknowledged since `replicated_until` may have reached a replica.
fn tell(name: &str, seen: &Seen, replicated_until: Instant, killed: Instant, limit: u64) -> u64 {
    let over = (seen.admissions.len() as u64).saturating_sub(limit);
    // Whoever is answered just after the kill was decided before it: a failover takes longer.
    let late = killed + Duration::from_millis(250);
    let before = || seen.admissions.iter().filter(|at| **at <= late);
    let first_after = seen.admissions.iter().find(|at| **at > late).unwrap();
    let bound = before().filter(|at| **at >= replicated_until).count() as u64;
    eprintln!(
        "{name}: unavailable for {:?}, {} calls failed; {} admitted of {limit}, {over} too many; bound {bound}, admitted \
         in {:?} without replication",
        first_after.duration_since(*before().next_back().unwrap()),
        seen.errors.len(),
        seen.admissions.len(),
        killed.duration_since(replicated_until),
    );
    assert!(over <= bound, "{over} too many");
    let down = |error: &StoreError| matches!(error, StoreError::Unreachable | StoreError::Timeout { .. });
    assert!(seen.errors.iter().all(|(_, error)| down(error)));
    over
}

/// The default budget, and every decision asked of a server.
fn demanding(topology: Topology) -> RedisSettings {
    let timeout = RedisSettings::new(topology.clone()).timeout;
    RedisSettings { timeout, ..exact(topology) }
}

const LIMIT: u32 = 8_000;
const BEFORE_THE_KILL: u64 = 2_000;

/// How far the master was at each moment: from what a replica has in the end follows since when nothing reached it.
struct History(Vec<(Instant, u64)>);

impl History {
    fn look(&mut self, master: &RedisServer) {
        let at = Instant::now();
        self.0.push((at, offset(master, "master_repl_offset")));
    }

    /// Everything that was acknowledged before this is on every replica. To be asked before one is promoted.
    fn replicated_until<'a>(&self, replicas: impl Iterator<Item = &'a RedisServer>) -> Instant {
        let reached = replicas.map(|replica| offset(replica, "slave_repl_offset")).min().unwrap();
        self.0.iter().rev().find(|(_, offset)| *offset <= reached).unwrap().0
    }
}

fn offset(server: &RedisServer, field: &str) -> u64 {
    server.info("replication")[field].parse().unwrap()
}

/// How often a replica of these was made a master. A machine that stalls looks like one that died: whatever a second
/// failover loses is not what is measured here.
fn failovers(servers: &[RedisServer]) -> usize {
    // The second is what Valkey says.
    let words = ["MASTER MODE enabled", "PRIMARY MODE enabled", "Failover election won"];
    let promoted = |log: &str| words.map(|words| log.matches(words).count()).iter().sum::<usize>();
    servers.iter().map(|server| promoted(&server.log())).sum()
}

/// What `run` says of the first fleet that had one failover.
fn with_one_failover(run: impl Fn() -> Option<u64>) -> u64 {
    (0..5).find_map(|_| run()).unwrap()
}

/// `master` is the one that `kill` kills; it says until when everything was replicated. How many were admitted beyond the
/// limit; nothing if another of `servers` was given up as well.
fn survives_the_death_of_its_master<'a>(
    name: &str,
    settings: &RedisSettings,
    servers: &[RedisServer],
    master: impl FnOnce(&Gauge) -> &'a RedisServer,
    kill: impl FnOnce(&RedisServer, &History, &Load) -> Instant,
) -> Option<u64> {
    let runtime = runtime();
    let store = runtime.block_on(open(settings));
    let gauge = gauge(Algorithm::TokenBucket, LIMIT);
    let load = Load::start(&runtime, &store, std::slice::from_ref(&gauge));
    assert!(load.reaches(1));
    let (master, mut history) = (master(&gauge), History(Vec::new()));
    assert!(wait_until(PATIENCE, || {
        history.look(master);
        load.admitted() >= BEFORE_THE_KILL
    }));
    let replicated_until = kill(master, &history, &load);
    let killed = Instant::now();
    let before = load.admitted();
    if before + 10 > LIMIT.into() {
        eprintln!("{name}: the limit was used up before the kill");
        return None;
    }
    assert!(load.reaches(before + 10), "no recovery: {:?}", store.servers());
    load.runs_dry();
    let seen = load.stop(&runtime);
    let failovers = failovers(servers);
    if failovers != 1 {
        eprintln!("{name}: {failovers} failovers");
        return None;
    }
    Some(tell(name, &seen, replicated_until, killed, LIMIT.into()))
}

fn under_sentinels(fleet: &SentinelFleet) -> Topology {
    let sentinels = fleet.sentinels().into_iter().map(address).collect();
    let master = fleet.master_name().to_owned();
    Topology::Sentinel { sentinels, master, login: Login::default() }
}

#[test]
fn a_master_killed_under_sentinels_is_replaced_and_little_is_admitted_twice() {
    with_one_failover(|| {
        let fleet = SentinelFleet::with_quick_failover();
        let (topology, replicas) = (under_sentinels(&fleet), replicas(&fleet));
        let master = |_: &_| fleet.server_at(fleet.master());
        let settings = demanding(topology);
        survives_the_death_of_its_master("sentinel", &settings, fleet.servers(), master, |_, history, _| {
            fleet.kill_master();
            history.replicated_until(replicas.into_iter())
        })
    });
}

fn replicas(fleet: &SentinelFleet) -> Vec<&RedisServer> {
    let master = fleet.master();
    fleet.servers().iter().filter(|server| server.address() != master).collect()
}

#[test]
fn what_a_master_acknowledged_and_did_not_replicate_is_all_that_is_admitted_twice() {
    let over = with_one_failover(|| {
        let fleet = SentinelFleet::with_quick_failover();
        let (topology, replicas) = (under_sentinels(&fleet), replicas(&fleet));
        let authorise = |password| {
            for replica in &replicas {
                replica.cli(&["CONFIG", "SET", "masterauth", password]);
            }
        };
        let stop_replicating_and_kill = |master: &RedisServer, history: &History, load: &Load| {
            // With a password that the master does not have, replicas do not come back once they are sent away.
            authorise("none");
            master.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
            assert!(load.reaches(load.admitted() + 300));
            fleet.kill_master();
            let replicated_until = history.replicated_until(replicas.iter().copied());
            authorise("");
            replicated_until
        };
        let name = "sentinel, not replicating";
        let master = |_: &_| fleet.server_at(fleet.master());
        // What was charged without an answer in time would hide what is lost.
        let settings = exact(topology);
        survives_the_death_of_its_master(name, &settings, fleet.servers(), master, stop_replicating_and_kill)
    });
    assert!(over > 0, "this test is about a loss");
}

fn seeds(cluster: &RedisCluster) -> Topology {
    Topology::Cluster(cluster.addresses().into_iter().map(address).collect())
}

/// The slot of a counter that was charged.
fn slot_of(cluster: &RedisCluster, gauge: &Gauge) -> u16 {
    let pattern = format!("*{}*", gauge.rule);
    let keys = cluster.masters().into_iter().map(|master| cluster.server_at(master).cli(&["KEYS", &pattern]));
    let found: Vec<String> = keys.filter(|keys| !keys.is_empty()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    key_slot(found[0].as_bytes())
}

#[test]
fn a_master_killed_in_a_cluster_is_replaced_and_little_is_admitted_twice() {
    with_one_failover(|| {
        let cluster = RedisCluster::with_quick_failover();
        let master = |gauge: &Gauge| cluster.server_at(cluster.slot_owner(slot_of(&cluster, gauge)));
        let kill = |master: &RedisServer, history: &History, _: &Load| {
            let port = master.port().to_string();
            let follows = |node: &&RedisServer| node.info("replication").get("master_port") == Some(&port);
            let replicas: Vec<_> = cluster.nodes().iter().filter(follows).collect();
            master.kill9();
            history.replicated_until(replicas.into_iter())
        };
        let settings = demanding(seeds(&cluster));
        survives_the_death_of_its_master("cluster", &settings, cluster.nodes(), master, kill)
    });
}

#[test]
fn a_slot_that_moves_to_and_fro_under_load_loses_and_doubles_nothing() {
    let cluster = RedisCluster::start();
    let runtime = runtime();
    let store = runtime.block_on(open(&exact(seeds(&cluster))));
    // Four counters of one client: one slot, and while it moves some are here and some there.
    let first = gauge(Algorithm::TokenBucket, 3_000);
    let of_first = |algorithm, requests| Gauge { subject: first.subject, ..gauge(algorithm, requests) };
    let pair =
        [of_first(Algorithm::SlidingWindowLog, 3_000), of_first(Algorithm::SlidingWindowCounter, 4_000)];
    let alone = of_first(Algorithm::FixedWindow, 3_000);
    let loads = [
        Load::start(&runtime, &store, std::slice::from_ref(&first)),
        Load::start(&runtime, &store, &pair),
        Load::start(&runtime, &store, std::slice::from_ref(&alone)),
    ];
    assert!(loads.iter().all(|load| load.reaches(100)));
    let slot = slot_of(&cluster, &first);
    let mut moves = 0;
    while loads.iter().any(|load| load.admitted() < 2_500) && moves < 30 {
        let owner = cluster.slot_owner(slot);
        let next = cluster.masters().into_iter().find(|master| *master != owner).unwrap();
        // Halfway for a while: the callers meet it.
        cluster.migrate_slot(slot, next, |_| thread::sleep(Duration::from_millis(20)));
        // One that was sent on during this move must not arrive during the next: it would be let in there as well.
        loads.iter().for_each(Load::calls_end);
        moves += 1;
    }
    loads.iter().for_each(Load::runs_dry);
    for load in loads {
        let seen = load.stop(&runtime);
        eprintln!(
            "{moves} moves: {} admitted of 3000, {} calls failed",
            seen.admissions.len(),
            seen.errors.len()
        );
        assert_eq!(seen.admissions.len(), 3_000);
        assert!(seen.errors.iter().all(|(_, error)| *error == StoreError::Unreachable), "{:?}", seen.errors);
    }
    assert!(moves >= 2);
}

#[test]
fn a_slot_on_its_way_is_served_though_the_next_server_has_no_script() {
    let cluster = RedisCluster::start();
    let runtime = runtime();
    let store = runtime.block_on(open(&exact(seeds(&cluster))));
    let gauge = gauge(Algorithm::TokenBucket, 10);
    let remaining = |cost| {
        let told = runtime.block_on(store.charge_all_timed(&charges([&gauge], cost), now()));
        told.map(|(verdicts, _)| verdicts.verdicts[0].remaining)
    };
    assert_eq!(remaining(1), Ok(9));
    let slot = slot_of(&cluster, &gauge);
    let owner = cluster.slot_owner(slot);
    let next = cluster.masters().into_iter().find(|master| *master != owner).unwrap();
    cluster.migrate_slot(slot, next, |halfway| {
        assert_eq!(halfway.moved.len(), 1);
        cluster.server_at(next).script_flush();
        assert_eq!(remaining(1), Ok(8));
        assert_eq!(remaining(1), Ok(7));
    });
    assert_eq!(remaining(1), Ok(6));
}

/// What was charged of a counter, when nobody holds a part of it any more.
fn used(store: &RedisCounters, runtime: &Runtime, gauge: &Gauge) -> u64 {
    let left = || {
        let told = runtime.block_on(store.charge_all_timed(&charges([gauge], 0), now()));
        told.ok().map(|(verdicts, _)| verdicts.verdicts[0].remaining)
    };
    let remaining = tollgate_testkit::eventually(PATIENCE, left).unwrap();
    u64::from(gauge.limit.capacity() - remaining)
}

/// Slots that move take no other client's slices away, and their own go back.
#[test]
fn leases_are_neither_lost_nor_used_twice_while_slots_move() {
    let cluster = RedisCluster::start();
    let runtime = runtime();
    let store = runtime.block_on(open(&patient(seeds(&cluster))));
    let exact = runtime.block_on(open(&exact(seeds(&cluster))));
    let busy = gauge(Algorithm::FixedWindow, 1_000_000);
    let load = Load::start(&runtime, &store, std::slice::from_ref(&busy));
    assert!(load.reaches(200) && wait_until(PATIENCE, || store.leases().units > 0));
    let busy_slot = slot_of(&cluster, &busy);
    let others: Vec<Gauge> = (0..6).map(|_| gauge(Algorithm::TokenBucket, 10)).collect();
    let charge = |gauge| runtime.block_on(store.charge_all_timed(&charges([gauge], 1), now())).is_ok();
    let move_on = |gauge| {
        let slot = slot_of(&cluster, gauge);
        let owner = cluster.slot_owner(slot);
        let next = cluster.masters().into_iter().find(|master| *master != owner).unwrap();
        cluster.migrate_slot(slot, next, |_| {});
        // Whoever is sent on looks at the map again.
        assert!(wait_until(PATIENCE, || charge(gauge)));
        thread::sleep(Duration::from_millis(600));
    };
    for other in &others {
        assert!(wait_until(PATIENCE, || charge(other)));
        if slot_of(&cluster, other) != busy_slot {
            move_on(other);
        }
    }
    move_on(&busy);
    assert!(load.reaches(load.admitted() + 500) && wait_until(PATIENCE, || store.leases().units > 0));
    let seen = load.stop(&runtime);
    // The slot that moved was asked for outside of the load too.
    let admitted = seen.admissions.len() as u64 + 1;
    runtime.block_on(store.close());
    let used = used(&exact, &runtime, &busy);
    eprintln!("{admitted} admitted, {used} charged, {} calls failed", seen.errors.len());
    assert!(used >= admitted, "{admitted} admitted, {used} charged");
    // A slice whose answer was lost on the way stays charged; none was by a slot that moved.
    assert!(!seen.errors.is_empty() || used == admitted, "{admitted} admitted, {used} charged");
}

/// Somebody took a part of the slots from their server and gave them to nobody.
#[test]
fn slots_that_nobody_serves_are_told_of_and_the_others_are_served() {
    let cluster = RedisCluster::with(&["--cluster-require-full-coverage", "no"]);
    let runtime = runtime();
    let store = runtime.block_on(open(&exact(seeds(&cluster))));
    let charge = || {
        let gauge = gauge(Algorithm::TokenBucket, 10);
        runtime.block_on(store.charge_all_timed(&charges([&gauge], 1), now())).map(drop)
    };
    assert!(wait_until(PATIENCE, || (0..20).all(|_| charge().is_ok())));
    assert_eq!(store.warning(), None);
    // Not those of the server that keeps what the fleet shares.
    let fleet = cluster.slot_owner(key_slot(b"{fleet}"));
    let owner =
        [0, 16_383].into_iter().map(|slot| (slot, cluster.slot_owner(slot))).find(|(_, o)| *o != fleet);
    let (edge, owner) = owner.unwrap();
    let (first, last) = if edge == 0 { ("0", "4000") } else { ("12383", "16383") };
    let told = || store.warning().is_some_and(|words| words.contains("4001 of its 16384 slots"));
    // A server that has heard of it later than the others may bring the slots up again for a moment.
    let agreed = || {
        let knows = |server: &RedisServer| server.cli(&["CLUSTER", "INFO"]).contains("slots_assigned:12383");
        cluster.nodes().iter().all(knows)
    };
    let well = || store.failure().is_none() && store.servers().iter().all(|link| !link.breaker_open);
    let mut agreed_times = 0;
    let taken_away = wait_until(PATIENCE, || {
        for server in cluster.nodes() {
            server.cli(&["CLUSTER", "DELSLOTSRANGE", first, last]);
        }
        thread::sleep(Duration::from_millis(100));
        let _ = charge();
        agreed_times = if agreed() && told() && well() { agreed_times + 1 } else { 0 };
        agreed_times >= 10
    });
    assert!(taken_away, "{:?}", store.warning());
    let mut failed = 0;
    for _ in 0..100 {
        match charge() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, StoreError::Unreachable);
                failed += 1;
            }
        }
        assert!(told(), "{:?}", store.warning());
        assert_eq!(store.failure(), None);
        assert_eq!(store.misconfiguration(), None);
    }
    assert!(failed > 0 && store.unassigned_slot_calls() >= failed);
    assert!(store.servers().iter().all(|link| link.connected && !link.breaker_open), "{:?}", store.servers());
    let back = wait_until(PATIENCE, || {
        cluster.server_at(owner).cli(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        charge().is_ok() && store.warning().is_none()
    });
    assert!(back, "{:?}", store.warning());
}
