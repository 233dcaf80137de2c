//! Account snapshots.

use proptest::prelude::*;
use tollgate::Accounts;
use tollgate::accounts::{AccountLimits, BlockTarget, Key};
use tollgate::snapshot::SnapshotError;

use crate::{NOW, new_key, per_hour};

fn some() -> Accounts {
    let mut editor = Accounts::default().edit();
    for number in 0..20 {
        let name = format!("user-{number}");
        let tier = ["free", "pro"][number % 2];
        editor.put_user(&name, Some(tier), per_hour(u32::try_from(number).unwrap() % 3)).unwrap();
        let limits =
            AccountLimits { requests_per_second: Some(9), burst: Some(3), ..AccountLimits::default() };
        let key = Key { user: Some(&name), tenant: Some("acme"), tier: Some(tier), limits, ..new_key(&name) };
        editor.put_key(&Key { previous: Some(([3; 32], NOW)), expires_at: Some(NOW), ..key }).unwrap();
        editor.put_block(BlockTarget::Login(&name), "abuse", Some(NOW));
    }
    editor.put_block(BlockTarget::Ip("192.0.2.0/24".parse().unwrap()), "scans", None);
    editor.finish()
}

fn written(accounts: &Accounts) -> Vec<u8> {
    let mut bytes = Vec::new();
    accounts.write_to(&mut bytes).unwrap();
    bytes
}

#[test]
fn empty_accounts_round_trip() {
    let read = Accounts::read_from(written(&Accounts::default()).as_slice()).unwrap();
    assert!(read.is_empty());
}

#[test]
fn round_trip_is_byte_identical() {
    let bytes = written(&some());
    assert_eq!(written(&Accounts::read_from(bytes.as_slice()).unwrap()), bytes);
}

#[test]
fn reading_stops_at_the_end_of_the_snapshot() {
    let bytes = [written(&some()), b"others".to_vec()].concat();
    let mut rest = bytes.as_slice();
    Accounts::read_from(&mut rest).unwrap();
    assert_eq!(rest, b"others");
}

#[test]
fn truncated_snapshots_are_rejected() {
    let bytes = written(&some());
    for length in 0..bytes.len() {
        assert!(matches!(Accounts::read_from(&bytes[..length]), Err(SnapshotError::Io(_))), "{length} bytes");
    }
}

#[test]
fn corrupt_snapshots_are_rejected() {
    let bytes = written(&some());
    for position in 0..bytes.len() {
        for bit in [1, 0x80] {
            let mut damaged = bytes.clone();
            damaged[position] ^= bit;
            assert!(Accounts::read_from(damaged.as_slice()).is_err(), "byte {position}");
        }
    }
}

#[test]
fn other_versions_are_rejected() {
    let mut bytes = written(&some());
    bytes[7] = b'9';
    assert!(matches!(Accounts::read_from(bytes.as_slice()), Err(SnapshotError::UnknownFormat)));
}

#[test]
fn false_lengths_allocate_no_memory() {
    let bytes = written(&Accounts::default());
    // Each list in turn claims the maximum length.
    for position in (24..bytes.len() - 8).step_by(8) {
        for behind in [&[][..], &[1; 64], &[0; 4_096]] {
            let mut false_length = bytes[..position].to_vec();
            false_length.extend_from_slice(&u64::MAX.to_le_bytes());
            false_length.extend_from_slice(behind);
            assert!(Accounts::read_from(false_length.as_slice()).is_err());
        }
    }
}

#[test]
fn false_counts_of_tenants_do_not_overflow() {
    // Magic, seed and no users; then the users of two tenants with the same name.
    let mut bytes = written(&Accounts::default())[..32].to_vec();
    bytes.extend_from_slice(&2_u64.to_le_bytes());
    for _ in 0..2 {
        bytes.extend_from_slice(&1_u64.to_le_bytes());
        bytes.extend_from_slice(b"a");
        bytes.extend_from_slice(&u64::MAX.to_le_bytes());
    }
    bytes.extend_from_slice(&[0; 64]);
    assert!(Accounts::read_from(bytes.as_slice()).is_err());
}

proptest! {
    #[test]
    fn random_bytes_after_the_magic_are_rejected(data in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut bytes = b"tollacc3".to_vec();
        bytes.extend_from_slice(&data);
        prop_assert!(Accounts::read_from(bytes.as_slice()).is_err());
        prop_assert!(Accounts::read_from(data.as_slice()).is_err());
    }

    #[test]
    fn changed_bytes_are_rejected(
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let whole = written(&some());
        let mut bytes = whole.clone();
        for (position, byte) in swaps {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        prop_assert!(bytes == whole || Accounts::read_from(bytes.as_slice()).is_err());
    }
}
