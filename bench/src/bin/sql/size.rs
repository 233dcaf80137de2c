//! One million keys and users with their own limits, compared with ten: memory, start, check.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tollgate_bench::report::{Table, Targets, median, median_ratio};
use tollgate_bench::wrk;
use tollgate_stores::sql::{
    AccountLimits, Database, Item, ItemEdit, ItemWrite, KeyItem, Precondition, QuotaItem,
};

use crate::Plan;
use crate::node::{Node, Place, until};

const LOAD_CORE: usize = 1;
/// The keys that the load uses are created by the service; the others are only stored.
const ASKED_MAX: usize = 10_000;
const BATCH: usize = 5_000;

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let many = if plan.quick { 100_000 } else { 1_000_000 };
    let (rounds, lasting) = if plan.quick { (1, 2) } else { (3, 4) };
    let few = Filled::new(plan, 10)?;
    let full = Filled::new(plan, many)?;
    let (few_node, _) = few.start()?;
    let (full_node, started) = full.start()?;
    let memory = [(&few, &few_node, None), (&full, &full_node, Some(started))];
    let mut table = Table::new(["keys and users", "fill s", "start s", "RSS MB", "at most MB"]);
    for (filled, node, started) in memory {
        table.row(filled.row(node, started)?);
    }
    println!("\nKeys and users with their own limits, on SQLite\n\n{table}");

    let mut table = Table::new(["CPU µs per check", "ten", "many", "÷"]);
    for load in Load::ALL {
        let (mut few_us, mut full_us) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            few_us.push(few.cpu_per_check(&few_node, load, Duration::from_secs(lasting))?);
            full_us.push(full.cpu_per_check(&full_node, load, Duration::from_secs(lasting))?);
        }
        let ratio = median_ratio(full_us.iter().copied(), few_us.iter().copied());
        let figure = |figure: f64| format!("{figure:.2}");
        table.row([load.name().to_owned(), figure(median(few_us)), figure(median(full_us)), figure(ratio)]);
        if load != Load::AllKeys {
            targets.at_most(format!("check with {many} ÷ with ten: {}", load.name()), ratio, 1.2);
        }
    }
    println!("\nThe same requests with ten keys and users in the database and with {many}\n\n{table}");
    let (resident, _) = full_node.server.resident_bytes()?;
    targets.at_most(format!("RSS with {many} keys and users, MB"), megabytes(resident), 250.0);
    targets.at_most(format!("start with {many} keys and users, s"), started.as_secs_f64(), 15.0);
    Ok(())
}

/// The clients of the load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// 10,000 users; with ten in the database, the rule applies to the others.
    Users,
    /// Ten keys.
    TenKeys,
    /// As many keys as there are, up to 10,000: with ten that is another load, shown for orientation.
    AllKeys,
}

impl Load {
    const ALL: [Self; 3] = [Self::Users, Self::TenKeys, Self::AllKeys];

    fn name(self) -> &'static str {
        match self {
            Self::Users => "10,000 users",
            Self::TenKeys => "ten keys",
            Self::AllKeys => "10 keys beside 10,000",
        }
    }
}

/// A database with keys and users in it.
struct Filled {
    place: Place,
    count: usize,
    /// The last of the keys that the load uses.
    known: String,
    took: Duration,
}

impl Filled {
    fn new(plan: &Plan, count: usize) -> Result<Self> {
        let place = Place::new(plan, None, "")?;
        let begun = Instant::now();
        let node = place.start()?;
        let asked = count.min(ASKED_MAX);
        let keys = (0..asked).map(|number| Ok(node.new_key(&name(number))?.0));
        let keys: Vec<String> = keys.collect::<Result<_>>()?;
        drop(node);
        fs::write(place.path("keys"), keys.join("\n"))?;
        fs::write(place.path("ten-keys"), keys[..10].join("\n"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(fill(&place, asked, count))?;
        let known = keys.last().context("no keys")?.clone();
        Ok(Self { place, count, known, took: begun.elapsed() })
    }

    /// The node, and the time until a key of the database was decided by its own limits.
    fn start(&self) -> Result<(Node, Duration)> {
        // Without the snapshot on disk: everything is read from the database.
        let _ = fs::remove_file(self.place.path("data/config.snap"));
        let begun = Instant::now();
        let node = self.place.start()?;
        let took = until(begun, "the keys", || node.knows(&self.known))?;
        Ok((node, took))
    }

    fn cpu_per_check(&self, node: &Node, load: Load, lasting: Duration) -> Result<f64> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is text here");
        let keys = match load {
            Load::Users => None,
            Load::TenKeys => Some(text(&self.place.path("ten-keys"))?),
            Load::AllKeys => Some(text(&self.place.path("keys"))?),
        };
        let shape = keys.as_ref().map_or_else(|| vec!["tollgate"], |keys| vec!["keys", keys]);
        wrk::run(node.address(), &shape, LOAD_CORE, Duration::from_secs(1))?;
        let before = node.server.cpu()?;
        let load = wrk::run(node.address(), &shape, LOAD_CORE, lasting)?;
        Ok((node.server.cpu()? - before).as_secs_f64() * 1e6 / load.requests)
    }

    fn row(&self, node: &Node, started: Option<Duration>) -> Result<[String; 5]> {
        let (resident, most) = node.server.resident_bytes()?;
        Ok([
            self.count.to_string(),
            format!("{:.0}", self.took.as_secs_f64()),
            started.map_or_else(|| "–".into(), |started| format!("{:.2}", started.as_secs_f64())),
            format!("{:.1}", megabytes(resident)),
            format!("{:.1}", megabytes(most)),
        ])
    }
}

async fn fill(place: &Place, keys_there: usize, count: usize) -> Result<()> {
    let database = Database::open(&format!("sqlite://{}", place.database().display())).await?;
    for first in (0..count).step_by(BATCH) {
        let numbers = first..count.min(first + BATCH);
        let keys = numbers.clone().filter(|number| *number >= keys_there).map(key);
        let edits: Vec<ItemEdit> = keys
            .chain(numbers.map(quota))
            .map(|item| ItemEdit { write: ItemWrite::Put(item), precondition: Precondition::Absent })
            .collect();
        database.change("bench", 1_800_000_000_000_000, &edits).await?;
    }
    database.close().await;
    Ok(())
}

fn name(number: usize) -> String {
    format!("user-{number:05}") // as `check.lua` has them
}

/// Some hundred different limits.
fn limits(number: usize) -> AccountLimits {
    // So high that no request is refused.
    let hour = u32::try_from(10_000_000 + number % 500).ok();
    AccountLimits { requests_per_hour: hour, ..AccountLimits::default() }
}

fn quota(number: usize) -> Item {
    Item::Quota(QuotaItem {
        tenant: None,
        user: name(number),
        tier: Some("pro".into()),
        limits: limits(number),
    })
}

fn key(number: usize) -> Item {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&(number as u64).to_be_bytes());
    Item::Key(KeyItem {
        id: id(number),
        hash,
        name: name(number),
        user: Some(name(number)),
        tier: Some("pro".into()),
        limits: limits(number),
        previous_hash: None,
        previous_until_micros: None,
        tenant: None,
        scopes: Vec::new(),
        expires_at_micros: None,
        revoked_at_micros: None,
        revoked_by: None,
    })
}

/// Sixteen characters of base 32, like key ids.
fn id(number: usize) -> String {
    (0..16)
        .rev()
        .map(|place| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[number >> (5 * place).min(63) & 31]))
        .collect()
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
