//! Bytes per key of a token bucket: growth of the process, and the table's own count.

use anyhow::{Result, bail};
use tollgate_bench::contenders::{Contender, Store};
use tollgate_bench::machine::resident_bytes;
use tollgate_bench::report::{Table, Targets};

use crate::speed::name;
use crate::{Figures, measure_apart};

const BYTES_MAX: f64 = 80.0;
/// Tables double, so between half a million and two million keys every load factor occurs twice.
const SCAN: (usize, usize) = (500_000, 2_000_000);
const SCAN_STEP: usize = 10_000;

/// Fills to `to` keys and measures from `from` keys on. Returns the worst growth per key, the worst own count per key,
/// and the numbers of keys where they occurred.
pub(crate) fn measure(of: &[&str]) -> Result<Figures> {
    let [from, to] = of else { bail!("expected from and to") };
    let (from, to): (usize, usize) = (from.parse()?, to.parse()?);
    let resident = resident_bytes()?;
    let mut store = Store::new(to)?;
    let mut worst = Worst::default();
    for key in 0..to {
        store.store(&name(key));
        let keys = key + 1;
        if keys >= from && (keys - from).is_multiple_of(SCAN_STEP) {
            worst.see(keys, resident_bytes()?.saturating_sub(resident), store.bytes());
        }
    }
    let Worst { grown: (grown, grown_at), counted: (counted, counted_at) } = worst;
    Ok([grown, counted, grown_at as f64, counted_at as f64])
}

/// The most bytes per key so far, and at how many keys.
#[derive(Default)]
struct Worst {
    grown: (f64, usize),
    counted: (f64, usize),
}

impl Worst {
    fn see(&mut self, keys: usize, grown: usize, counted: usize) {
        for (worst, bytes) in [(&mut self.grown, grown), (&mut self.counted, counted)] {
            let per_key = bytes as f64 / keys as f64;
            if per_key > worst.0 {
                *worst = (per_key, keys);
            }
        }
    }
}

pub(crate) fn compare() -> Result<()> {
    eprintln!("memory");
    println!("\nMemory of one token bucket\n");
    let mut table = Table::new(["keys", "process grew by, bytes/key", "table counts, bytes/key"]);
    let mut targets = Targets::default();
    for (label, (from, to)) in [
        ("1 M", (1_000_000, 1_000_000)),
        ("10 M", (10_000_000, 10_000_000)),
        ("0.5 to 2 M, where worst", SCAN),
    ] {
        let [grown, counted, grown_at, counted_at] =
            measure_apart("memory", [from.to_string(), to.to_string()])?;
        let at = |keys: f64| if from == to { String::new() } else { format!(" at {:.2} M", keys / 1e6) };
        let cells = [format!("{grown:.1}{}", at(grown_at)), format!("{counted:.1}{}", at(counted_at))];
        table.row([label.to_owned()].into_iter().chain(cells));
        targets.at_most(format!("bytes/key, {label}"), grown, BYTES_MAX);
    }
    println!("{table}\n{targets}");
    Ok(())
}
