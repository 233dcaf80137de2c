//! Failover and slot migration under load.
//!
//! Replication is asynchronous: charges that a master acknowledged and did not replicate are lost with it, and may be
//! admitted a second time. That bound is measured here; everything else must be exact.

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

/// A limit of which nothing is restored while a test runs, whatever the date.
fn gauge(algorithm: Algorithm, requests: u32) -> Gauge {
    Gauge::new(limit(algorithm, requests, Span::from_secs(400 * 86_400)))
}

/// What callers have seen of one set of limits that they charge together.
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

    /// Waits until every call in flight has ended.
    fn calls_end(&self) {
        let look = || self.calls.each_ref().map(|calls| calls.load(Ordering::SeqCst));
        let before = look();
        assert!(wait_until(PATIENCE, || look().iter().zip(before).all(|(now, before)| *now > before)));
    }

    /// Waits until nothing more is admitted: every caller was refused several times since the last admission.
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

/// What a kill cost. Charges acknowledged since `replicated_until` may not have reached a replica.
fn report(name: &str, seen: &Seen, replicated_until: Instant, killed: Instant, limit: u64) -> u64 {
    let over = (seen.admissions.len() as u64).saturating_sub(limit);
    // A reply just after the kill was decided before it: a failover takes longer.
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

/// The default timeout, and every decision is a call.
fn demanding(topology: Topology) -> RedisSettings {
    let timeout = RedisSettings::new(topology.clone()).timeout;
    RedisSettings { timeout, ..exact(topology) }
}

const LIMIT: u32 = 8_000;
const BEFORE_THE_KILL: u64 = 2_000;

/// The replication offset of the master over time; with the replica's final offset it shows since when nothing arrived.
struct History(Vec<(Instant, u64)>);

impl History {
    fn look(&mut self, master: &RedisServer) {
        let at = Instant::now();
        self.0.push((at, offset(master, "master_repl_offset")));
    }

    /// Everything acknowledged before this instant is on every replica. To be called before a promotion.
    fn replicated_until<'a>(&self, replicas: impl Iterator<Item = &'a RedisServer>) -> Instant {
        let reached = replicas.map(|replica| offset(replica, "slave_repl_offset")).min().unwrap();
        self.0.iter().rev().find(|(_, offset)| *offset <= reached).unwrap().0
    }
}

fn offset(server: &RedisServer, field: &str) -> u64 {
    server.info("replication")[field].parse().unwrap()
}

/// How often a replica was promoted. A stalled machine looks dead: what a second failover loses is not measured
/// here.
fn failovers(servers: &[RedisServer]) -> usize {
    // The second is Valkey's text.
    let words = ["MASTER MODE enabled", "PRIMARY MODE enabled", "Failover election won"];
    let promoted = |log: &str| words.map(|words| log.matches(words).count()).iter().sum::<usize>();
    servers.iter().map(|server| promoted(&server.log())).sum()
}

/// The result of `run` on the first fleet with exactly one failover.
fn with_one_failover(run: impl Fn() -> Option<u64>) -> u64 {
    (0..5).find_map(|_| run()).unwrap()
}

/// `kill` kills `master` and returns until when everything was replicated. Returns how many were admitted beyond the
/// limit; none if another of `servers` failed over, too.
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
    Some(report(name, &seen, replicated_until, killed, LIMIT.into()))
}

fn under_sentinels(fleet: &SentinelFleet) -> Topology {
    let sentinels = fleet.sentinels().into_iter().map(address).collect();
    let master = fleet.master_name().to_owned();
    Topology::Sentinel { sentinels, master, login: Login::default() }
}

#[test]
fn sentinel_failover_over_admits_little() {
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
fn only_unreplicated_charges_are_admitted_twice() {
    let over = with_one_failover(|| {
        let fleet = SentinelFleet::with_quick_failover();
        let (topology, replicas) = (under_sentinels(&fleet), replicas(&fleet));
        let authorise = |password| {
            for replica in &replicas {
                replica.cli(&["CONFIG", "SET", "masterauth", password]);
            }
        };
        let stop_replicating_and_kill = |master: &RedisServer, history: &History, load: &Load| {
            // With a wrong password, replicas do not reconnect once disconnected.
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
        // Charges without a reply in time would hide losses.
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
fn cluster_failover_over_admits_little() {
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
fn slot_migration_under_load_is_exact() {
    let cluster = RedisCluster::start();
    let runtime = runtime();
    let store = runtime.block_on(open(&exact(seeds(&cluster))));
    // Four counters of one client in one slot: during the migration they are on both servers.
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
        // Halfway for a while, so that callers meet it.
        cluster.migrate_slot(slot, next, |_| thread::sleep(Duration::from_millis(20)));
        // A call redirected during this migration must not arrive during the next: it would be accepted there as well.
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
fn migrating_slot_is_served_without_script() {
    let cluster = RedisCluster::start();
    let runtime = runtime();
    let store = runtime.block_on(open(&exact(seeds(&cluster))));
    let gauge = gauge(Algorithm::TokenBucket, 10);
    let remaining = |cost| {
        let result = runtime.block_on(store.charge_all_timed(&charges([&gauge], cost), now()));
        result.map(|(verdicts, _)| verdicts.verdicts[0].remaining)
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

/// What was charged to a counter when all leases are returned.
fn used(store: &RedisCounters, runtime: &Runtime, gauge: &Gauge) -> u64 {
    let left = || {
        let result = runtime.block_on(store.charge_all_timed(&charges([gauge], 0), now()));
        result.ok().map(|(verdicts, _)| verdicts.verdicts[0].remaining)
    };
    let remaining = tollgate_testkit::eventually(PATIENCE, left).unwrap();
    u64::from(gauge.limit.capacity() - remaining)
}

/// Migrating slots return their own leases and affect no others.
#[test]
fn leases_survive_slot_migration() {
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
        // A redirected node polls the slot map.
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
    // The migrated slot was also used outside of the load.
    let admitted = seen.admissions.len() as u64 + 1;
    runtime.block_on(store.close());
    let used = used(&exact, &runtime, &busy);
    eprintln!("{admitted} admitted, {used} charged, {} calls failed", seen.errors.len());
    assert!(used >= admitted, "{admitted} admitted, {used} charged");
    // A lease whose reply was lost stays charged; none was lost by the migration.
    assert!(!seen.errors.is_empty() || used == admitted, "{admitted} admitted, {used} charged");
}

/// Some slots are removed from their server and assigned to none.
#[test]
fn unassigned_slots_are_reported() {
    let cluster = RedisCluster::with(&["--cluster-require-full-coverage", "no"]);
    let runtime = runtime();
    let store = runtime.block_on(open(&exact(seeds(&cluster))));
    let charge = || {
        let gauge = gauge(Algorithm::TokenBucket, 10);
        runtime.block_on(store.charge_all_timed(&charges([&gauge], 1), now())).map(drop)
    };
    assert!(wait_until(PATIENCE, || (0..20).all(|_| charge().is_ok())));
    assert_eq!(store.warning(), None);
    // Not those of the home server.
    let fleet = cluster.slot_owner(key_slot(b"{fleet}"));
    let owner =
        [0, 16_383].into_iter().map(|slot| (slot, cluster.slot_owner(slot))).find(|(_, o)| *o != fleet);
    let (edge, owner) = owner.unwrap();
    let (first, last) = if edge == 0 { ("0", "4000") } else { ("12383", "16383") };
    let result = || store.warning().is_some_and(|words| words.contains("4001 of its 16384 slots"));
    // A server that learns of it late may announce the slots again for a moment.
    let agreed = || {
        let knows = |server: &RedisServer| server.cli(&["CLUSTER", "INFO"]).contains("slots_assigned:12383");
        cluster.nodes().iter().all(knows)
    };
    let well = || store.failure().is_none() && store.servers().iter().all(|server| !server.breaker_open);
    let mut agreed_times = 0;
    let taken_away = wait_until(PATIENCE, || {
        for server in cluster.nodes() {
            server.cli(&["CLUSTER", "DELSLOTSRANGE", first, last]);
        }
        thread::sleep(Duration::from_millis(100));
        let _ = charge();
        agreed_times = if agreed() && result() && well() { agreed_times + 1 } else { 0 };
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
        assert!(result(), "{:?}", store.warning());
        assert_eq!(store.failure(), None);
        assert_eq!(store.misconfiguration(), None);
    }
    assert!(failed > 0 && store.unassigned_slot_calls() >= failed);
    assert!(
        store.servers().iter().all(|server| server.connected && !server.breaker_open),
        "{:?}",
        store.servers()
    );
    let back = wait_until(PATIENCE, || {
        cluster.server_at(owner).cli(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        charge().is_ok() && store.warning().is_none()
    });
    assert!(back, "{:?}", store.warning());
}
