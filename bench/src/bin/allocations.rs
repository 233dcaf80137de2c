//! Allocations per check. An admitted check with memory counters must not allocate.
//!
//! A separate program, because the counting allocator is slower than the measured one.

use allocation_counter::measure;
use anyhow::{Result, ensure};
use tollgate::Limiter;
use tollgate::identity::{DescriptorNormalization, HeadCounting, IdNormalization, NormalForm, Normalization};
use tollgate_bench::contenders::{Check, Clock, Contender, Governor, Store, counters};
use tollgate_bench::report::Table;
use tollgate_bench::rules::{Question, many};

const CHECKS: usize = 10_000;

fn main() -> Result<()> {
    println!("\nAllocations per check of an existing key\n");
    let mut table = Table::new(["contender", "allocations"]);
    table.row(["governor".to_owned(), allocations_of::<Governor>()?.to_string()]);
    for (name, allocations) in [
        ("tollgate store", allocations_of::<Store>()?),
        ("tollgate check", allocations_of::<Check>()?),
        ("tollgate check, 10,000 rules", allocations_with(Normalization::EXACT)?),
        ("the same, all identifiers normalized", allocations_with(folding())?),
    ] {
        table.row([name.to_owned(), allocations.to_string()]);
        ensure!(allocations == 0.0, "{name} allocates {allocations} times per check");
    }
    println!("{table}");
    Ok(())
}

fn allocations_of<C: Contender>() -> Result<f64> {
    let contender = C::new(1)?;
    let key = "user-0000001:/api/v1/items".to_owned();
    per_check(|| Ok(contender.check(&key)))
}

fn allocations_with(normalization: Normalization) -> Result<f64> {
    let limiter = Limiter::new(many(10_000)?.with_normalization(normalization), counters(1));
    let (clock, question) = (Clock::new(), Question::new(1, 10_000));
    per_check(|| question.ask(|request| limiter.check_now(request, clock.now()).admits()))
}

/// The request is in normalized form already, as most are.
fn folding() -> Normalization {
    let fold = NormalForm::NfcCasefold;
    Normalization {
        ids: IdNormalization { user: fold, tenant: fold, login: fold },
        descriptors: DescriptorNormalization::All(fold),
        ignore_path_case: true,
        head: HeadCounting::Separate,
    }
}

fn per_check(check: impl Fn() -> Result<bool>) -> Result<f64> {
    ensure!(check()?, "the first check was refused"); // stores the key
    let mut admitted = Ok(0);
    let counted = measure(|| admitted = (0..CHECKS).map(|_| check().map(usize::from)).sum());
    ensure!(admitted? == CHECKS, "a check was refused");
    Ok(counted.count_total as f64 / CHECKS as f64)
}
