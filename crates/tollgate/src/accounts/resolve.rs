//! What accounts add to a request: its user, tenant and tier, its overrides, and blocks.

use super::blocks::{BlockKind, BlockPosition};
use super::{Accounts, CompiledLimits, hash_in};
use crate::identity::{ApiKey, Client, Id, InTenant, Request, tag};
use crate::rules::overrides::{KEY_NAMESPACE, QUOTA_NAMESPACE};
use crate::time::Timestamp;

/// A request, normalized and completed by the accounts of its API key and its user.
///
/// A known key supplies user, tenant and tier where the request has none. The user's account supplies the tier where
/// neither has one. Values of the request are never replaced.
#[derive(Clone, Debug)]
pub struct ResolvedRequest<'a> {
    /// The completed request.
    pub request: Request<'a>,
    /// The user, if the key supplied it.
    pub user: Option<Id<'a>>,
    /// The tenant, if the key supplied it.
    pub tenant: Option<Id<'a>>,
    /// The tier, if the key or the user's account supplied it.
    pub tier: Option<Id<'a>>,
    key_override: Option<AccountOverride<'a>>,
    user_override: Option<AccountOverride<'a>>,
    user_hash: Option<u128>,
}

/// The limits set for the key or the user of a request.
#[derive(Copy, Clone, Debug)]
pub(crate) struct AccountOverride<'a> {
    /// The client that they are counted for.
    pub(crate) client: Client<'a>,
    /// The rule name that they are counted under.
    pub(crate) namespace: &'static str,
    pub(crate) limits: &'a CompiledLimits,
}

impl<'a> ResolvedRequest<'a> {
    pub(crate) fn new(request: &'a Request<'a>) -> Self {
        ResolvedRequest {
            request: Request { endpoint: request.endpoint.borrowed(), ..*request },
            user: None,
            tenant: None,
            tier: None,
            key_override: None,
            user_override: None,
            user_hash: None,
        }
    }

    /// The overrides of the key and of the user; the first one applies.
    pub(crate) fn account_overrides(&self) -> impl Iterator<Item = AccountOverride<'a>> + use<'a> {
        [self.key_override, self.user_override].into_iter().flatten()
    }
}

impl Accounts {
    /// Completes a request by the account of its API key.
    pub(crate) fn complete_by_key<'a>(&'a self, resolved: &mut ResolvedRequest<'a>) {
        let request = &mut resolved.request;
        let Some(api_key) = request.api_key else { return };
        let Some(key) = api_key.known_id().and_then(|id| self.key_record(id.as_str())) else { return };
        let id = |text: Option<&'a str>| text.and_then(|text| Id::parse(text).ok());
        if request.user.is_none() {
            request.user = id(key.user);
            resolved.user = request.user;
        }
        if request.tenant.is_none() {
            request.tenant = id(key.tenant);
            resolved.tenant = request.tenant;
        }
        if request.tier.is_none() {
            request.tier = id(self.tier(key.tier));
            resolved.tier = request.tier;
        }
        let client = Client::ApiKey(api_key);
        let limits = key.limits.and_then(|id| self.key_limits.get(id));
        resolved.key_override =
            limits.map(|limits| AccountOverride { client, namespace: KEY_NAMESPACE, limits });
    }

    /// Completes a normalized request by the account of its user.
    pub(crate) fn complete_by_user<'a>(&'a self, resolved: &mut ResolvedRequest<'a>) {
        let Some(id) = resolved.request.user else { return };
        let tenant = resolved.request.tenant.map(Id::as_str);
        let hash = self.hash_of_user(InTenant::new(tenant, id.as_str()));
        resolved.user_hash = Some(hash);
        let Some(user) = self.user_record(hash) else { return };
        if resolved.request.tier.is_none() {
            resolved.tier = self.tier(user.tier).and_then(|tier| Id::parse(tier).ok());
            resolved.request.tier = resolved.tier;
        }
        let client = Client::User(id);
        let limits = user.limits.and_then(|id| self.quotas.get(id));
        resolved.user_override =
            limits.map(|limits| AccountOverride { client, namespace: QUOTA_NAMESPACE, limits });
    }

    /// The first block in force that matches the request. Users and logins match inside their tenant; an address is also
    /// blocked by a block without a tenant.
    pub(crate) fn block_of(&self, resolved: &ResolvedRequest<'_>, now: Timestamp) -> Option<BlockPosition> {
        if self.blocks() == 0 {
            return None;
        }
        let (request, blocks) = (&resolved.request, &self.blocks);
        let tenant = request.tenant.map(Id::as_str);
        let of_id = |kind, tenant, tag, id: Option<Id<'_>>| {
            let hash = |id: Id<'_>| hash_in(tenant, self.seed, tag, id.as_str().as_bytes());
            id.and_then(|id| blocks.of_id(kind, || hash(id), now))
        };
        let of_address =
            |tenant| request.ip.and_then(|ip| blocks.of_ip(self.seed, tenant, ip.to_canonical(), now));
        let key = request.api_key.and_then(ApiKey::known_id);
        (resolved.user_hash.and_then(|hash| blocks.of_id(BlockKind::User, || hash, now)))
            .or_else(|| of_id(BlockKind::ApiKey, None, tag::KNOWN_KEY, key))
            .or_else(|| of_id(BlockKind::Tenant, None, tag::TENANT, request.tenant))
            .or_else(|| of_id(BlockKind::Login, tenant, tag::LOGIN, request.login))
            .or_else(|| of_address(None))
            .or_else(|| tenant.and_then(|tenant| of_address(Some(tenant))))
    }
}
