//! Account snapshots from arbitrary bytes: rejected, or usable, editable and readable again after writing.
#![no_main]

use std::hash::Hasher;

use libfuzzer_sys::fuzz_target;
use siphasher::sip::SipHasher13;
use tollgate::accounts::{AccountLimits, BlockTarget, Key};
use tollgate::{Accounts, Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

fuzz_target!(|data: &[u8]| {
    let _ = Accounts::read_from(data);
    // With a valid header and checksum, so that the reader gets past them.
    let mut forged = [b"tollacc2", data].concat();
    let mut sum = SipHasher13::new();
    sum.write(&forged);
    forged.extend_from_slice(&sum.finish().to_le_bytes());
    if let Ok(accounts) = Accounts::read_from(forged.as_slice()) {
        assert_usable(accounts);
    }
});

fn assert_usable(accounts: Accounts) {
    let counts = (accounts.users(), accounts.keys(), accounts.blocks());
    let mut bytes = Vec::new();
    assert!(accounts.write_to(&mut bytes).is_ok());
    match Accounts::read_from(bytes.as_slice()) {
        Ok(again) => assert_eq!((again.users(), again.keys(), again.blocks()), counts),
        Err(error) => panic!("written accounts cannot be read: {error}"),
    }
    let mut editor = accounts.edit();
    let limits = AccountLimits { requests_per_hour: Some(3), ..AccountLimits::default() };
    assert!(editor.put_user("alice", Some("free"), limits).is_ok());
    assert!(editor.put_key(&Key { user: Some("alice"), ..Key::new("k", [7; 32]) }).is_ok());
    editor.put_block(BlockTarget::Login("alice"), "abuse", None);
    let accounts = editor.finish();
    assert!(accounts.key("k").is_some_and(|key| key.user == Some("alice")));
    let (Ok(rules), Ok(endpoint)) = (RuleSet::from_toml(""), Endpoint::parse("/")) else { return };
    let limiter = Limiter::new(rules, MemoryCounters::default());
    limiter.update_accounts(|_| accounts.clone());
    let request =
        Request { user: Id::parse("alice").ok(), ip: Some([10, 0, 0, 1].into()), ..Request::new(endpoint) };
    limiter.check_now(&request, NOW);
}
