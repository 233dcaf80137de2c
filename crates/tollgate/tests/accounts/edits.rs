//! Random edits, compared with a model.

use std::collections::HashMap;

use proptest::prelude::*;
use tollgate::accounts::{AccountLimits, AccountsEditor, BlockTarget, Key};
use tollgate::{Accounts, Span, Timestamp};

use crate::{NOW, per_hour};

#[derive(Clone, Debug, PartialEq)]
struct ModelKey {
    verifier: [u8; 32],
    previous: Option<([u8; 32], Timestamp)>,
    user: Option<String>,
    tenant: Option<String>,
    tier: Option<String>,
    scopes: u16,
    limits: AccountLimits,
    expires_at: Option<Timestamp>,
    is_revoked: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Edit {
    PutUser(u8, Option<String>, AccountLimits),
    RemoveUser(u8),
    PutKey(u8, Box<ModelKey>),
    RemoveKey(u8),
    PutBlock(u8, String, Option<u64>),
    RemoveBlock(u8),
    /// Starts a new generation and keeps the old one.
    Finish,
}

#[derive(Clone, Debug, Default)]
struct Model {
    users: HashMap<u8, (Option<String>, AccountLimits)>,
    keys: HashMap<u8, ModelKey>,
    blocks: HashMap<u8, (String, Option<u64>)>,
}

fn name(number: u8) -> String {
    format!("{number}-{}", "é".repeat(usize::from(number % 7)))
}

/// All kinds of targets, with networks of several prefix lengths.
fn who(number: u8, name: &str) -> BlockTarget<'_> {
    match number % 5 {
        0 => BlockTarget::User(name),
        1 => BlockTarget::ApiKey(name),
        2 => BlockTarget::Tenant(name),
        3 => BlockTarget::Login(name),
        _ if number.is_multiple_of(2) => {
            BlockTarget::Ip(format!("10.{number}.0.0/{}", 16 + number % 9).parse().unwrap())
        }
        _ => BlockTarget::Ip(format!("2001:db8:{number:x}::/{}", 48 + number % 9).parse().unwrap()),
    }
}

fn tier() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop::sample::select(vec!["free", "pro", "vip"]).prop_map(str::to_owned))
}

fn limits() -> impl Strategy<Value = AccountLimits> {
    let few = || prop::option::of(0_u32..4);
    (few(), few(), few(), prop::option::of(1_u32..3)).prop_map(
        |(requests_per_second, requests_per_hour, requests_per_day, burst)| {
            let some = requests_per_second.or(requests_per_hour).or(requests_per_day);
            AccountLimits {
                requests_per_second,
                requests_per_hour,
                requests_per_day,
                burst: burst.filter(|_| some.is_some()),
            }
        },
    )
}

fn instant() -> impl Strategy<Value = Option<Timestamp>> {
    prop::option::of((0_u64..=1 << 53).prop_map(Timestamp::from_micros))
}

fn key() -> impl Strategy<Value = Box<ModelKey>> {
    let text = || prop::option::of("\\PC{1,20}");
    let secrets = (any::<[u8; 32]>(), any::<[u8; 32]>(), instant(), instant());
    (secrets, (text(), text(), tier()), any::<u16>(), limits(), any::<bool>()).prop_map(
        |((verifier, previous, until, expires_at), (user, tenant, tier), scopes, limits, is_revoked)| {
            let previous = until.map(|until| (previous, until));
            Box::new(ModelKey {
                verifier,
                previous,
                user,
                tenant,
                tier,
                scopes,
                limits,
                expires_at,
                is_revoked,
            })
        },
    )
}

fn edit() -> impl Strategy<Value = Edit> {
    let number = 0_u8..40;
    prop_oneof![
        4 => (number.clone(), tier(), limits()).prop_map(|(id, tier, own)| Edit::PutUser(id, tier, own)),
        2 => number.clone().prop_map(Edit::RemoveUser),
        4 => (number.clone(), key()).prop_map(|(id, key)| Edit::PutKey(id, key)),
        2 => number.clone().prop_map(Edit::RemoveKey),
        4 => (number.clone(), "\\PC{0,20}", prop::option::of(0_u64..4))
            .prop_map(|(id, reason, until)| Edit::PutBlock(id, reason, until)),
        2 => number.prop_map(Edit::RemoveBlock),
        1 => Just(Edit::Finish),
    ]
}

fn instant_of(step: u64) -> Timestamp {
    NOW + Span::from_secs(step)
}

fn apply(editor: &mut AccountsEditor, model: &mut Model, edit: &Edit) {
    match edit {
        Edit::PutUser(id, tier, limits) => {
            editor.put_user(&name(*id), tier.as_deref(), *limits).unwrap();
            model.users.insert(*id, (tier.clone(), *limits));
        }
        Edit::RemoveUser(id) => {
            editor.remove_user(&name(*id));
            model.users.remove(id);
        }
        Edit::PutKey(id, key) => {
            put_key(editor, &name(*id), key);
            model.keys.insert(*id, (**key).clone());
        }
        Edit::RemoveKey(id) => {
            editor.remove_key(&name(*id));
            model.keys.remove(id);
        }
        Edit::PutBlock(id, reason, until) => {
            editor.put_block(who(*id, &name(*id)), reason, until.map(instant_of));
            model.blocks.insert(*id, (reason.clone(), *until));
        }
        Edit::RemoveBlock(id) => {
            editor.remove_block(who(*id, &name(*id)));
            model.blocks.remove(id);
        }
        Edit::Finish => {}
    }
}

fn put_key(editor: &mut AccountsEditor, id: &str, key: &ModelKey) {
    let ModelKey { verifier, previous, scopes, limits, expires_at, is_revoked, .. } = *key;
    let [user, tenant, tier] = [&key.user, &key.tenant, &key.tier].map(|text| text.as_deref());
    let key = Key { id, verifier, previous, user, tenant, tier, scopes, limits, expires_at, is_revoked };
    editor.put_key(&key).unwrap();
}

/// Looks up every possible id and compares with the model.
fn assert_same(accounts: &Accounts, model: &Model) {
    assert_eq!(accounts.users(), model.users.len());
    assert_eq!(accounts.keys(), model.keys.len());
    assert_eq!(accounts.blocks(), model.blocks.len());
    assert_eq!(
        accounts.is_empty(),
        model.users.is_empty() && model.keys.is_empty() && model.blocks.is_empty()
    );
    for number in 0..42 {
        let name = name(number);
        let user = accounts.user(&name).map(|user| (user.tier.map(str::to_owned), user.limits));
        assert_eq!(user, model.users.get(&number).cloned());
        let key = accounts.key(&name).map(|key| {
            assert_eq!(key.id, name);
            let expected = &model.keys[&number];
            let previous = expected.previous.filter(|(verifier, until)| {
                key.previous_verifier(*until - Span::from_micros(1))
                    == Some(verifier).filter(|_| until.as_micros() > 0)
                    && key.previous_verifier(*until).is_none()
            });
            ModelKey {
                verifier: key.verifier,
                previous,
                user: key.user.map(str::to_owned),
                tenant: key.tenant.map(str::to_owned),
                tier: key.tier.map(str::to_owned),
                scopes: key.scopes,
                limits: key.limits,
                expires_at: key.expires_at,
                is_revoked: key.is_revoked,
            }
        });
        assert_eq!(key, model.keys.get(&number).cloned());
        for step in 0..5 {
            let block = accounts.block(who(number, &name), instant_of(step));
            let expected =
                model.blocks.get(&number).filter(|(_, until)| until.is_none_or(|until| step < until));
            assert_eq!(
                block.map(|block| (block.reason, block.until)),
                expected.map(|(reason, until)| (&**reason, until.map(instant_of)))
            );
        }
    }
}

fn round_trip(accounts: &Accounts) -> Accounts {
    let mut bytes = Vec::new();
    accounts.write_to(&mut bytes).unwrap();
    Accounts::read_from(bytes.as_slice()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_generation_agrees_with_the_model(
        edits in prop::collection::vec(edit(), 0..80),
    ) {
        let (mut editor, mut model) = (Accounts::default().edit(), Model::default());
        let mut generations = Vec::new();
        for edit in &edits {
            apply(&mut editor, &mut model, edit);
            if *edit == Edit::Finish {
                let accounts = editor.finish();
                editor = accounts.edit();
                generations.push((accounts, model.clone()));
            }
        }
        generations.push((editor.finish(), model));
        for (accounts, model) in &generations {
            assert_same(accounts, model);
        }
        let (last, model) = generations.last().unwrap();
        let read = round_trip(last);
        assert_same(&read, model);
        // Accounts from a snapshot can be edited.
        let (mut editor, mut model) = (read.edit(), model.clone());
        for edit in edits.iter().rev() {
            apply(&mut editor, &mut model, edit);
        }
        assert_same(&editor.finish(), &model);
    }
}

#[test]
fn edits_share_unchanged_shards() {
    let mut editor = Accounts::default().edit();
    for number in 0..20_000 {
        editor.put_user(&format!("user-{number}"), Some("free"), per_hour(number % 10)).unwrap();
    }
    let first = editor.finish();
    let second = crate::edited(&first, |editor| editor.put_user("user-7", Some("pro"), per_hour(1)).unwrap());
    assert_eq!(first.user("user-7").unwrap().tier, Some("free"));
    assert_eq!(second.user("user-7").unwrap().tier, Some("pro"));
    assert_eq!((first.users(), second.users()), (20_000, 20_000));
    let third = crate::edited(&second, |editor| {
        editor.remove_user("nobody");
        editor.remove_key("nobody");
        editor.remove_block(BlockTarget::User("nobody"));
    });
    assert_eq!(third.users(), 20_000);
}
