//! What the accounts add to a request: whose key it is, which plan, which numbers, and whether it is kept out.

use super::blocks::{BlockKind, BlockPosition};
use super::{Accounts, CompiledLimits, hash_of};
use crate::identity::{ApiKey, Client, Id, NormalForm, Normalization, Request, Scratch, tag};
use crate::rules::overrides::{KEY_NAMESPACE, QUOTA_NAMESPACE};
use crate::time::Timestamp;

/// A request with what is known of its key and of its user.
///
/// A known key gives user, tenant and plan where the request says none; the user's record gives the plan where neither
/// does. What the request says is never replaced.
#[derive(Clone, Debug)]
pub struct ResolvedRequest<'a> {
    /// The request, completed.
    pub request: Request<'a>,
    /// The user, if the key gave it.
    pub user: Option<Id<'a>>,
    /// The organisation, if the key gave it.
    pub tenant: Option<Id<'a>>,
    /// The plan, if the key or the user's record gave it.
    pub tier: Option<Id<'a>>,
    of_key: Option<AccountOverride<'a>>,
    of_user: Option<AccountOverride<'a>>,
    user_hash: Option<u128>,
    /// As they were written: the accounts may know them by another spelling than the rules.
    tenant_written: Option<Id<'a>>,
    login_written: Option<Id<'a>>,
}

/// Numbers of somebody's own.
#[derive(Copy, Clone, Debug)]
pub(crate) struct AccountOverride<'a> {
    /// By whom they are counted.
    pub(crate) client: Client<'a>,
    /// The name that they are counted under.
    pub(crate) namespace: &'static str,
    pub(crate) limits: &'a CompiledLimits,
}

impl<'a> ResolvedRequest<'a> {
    /// A request of which nothing is known.
    pub(crate) fn unknown(request: &'a Request<'a>) -> Self {
        ResolvedRequest {
            request: Request { endpoint: request.endpoint.borrowed(), ..*request },
            user: None,
            tenant: None,
            tier: None,
            of_key: None,
            of_user: None,
            user_hash: None,
            tenant_written: request.tenant,
            login_written: request.login,
        }
    }

    /// The same with the request read as it is counted, and numbers of the user's own counted by that too.
    pub(crate) fn normalizeed(self, normalization: &Normalization, scratch: &'a mut Scratch<'a>) -> Self {
        let request = normalization.normalize(self.request, scratch);
        let client = request.user.map(Client::User);
        let of_user = self.of_user.map(|own| AccountOverride { client: client.unwrap_or(own.client), ..own });
        ResolvedRequest { request, of_user, ..self }
    }

    /// Numbers of the key's own and of the user's own; the first that there are come before the others.
    pub(crate) fn own(&self) -> impl Iterator<Item = AccountOverride<'a>> + use<'a> {
        [self.of_key, self.of_user].into_iter().flatten()
    }
}

impl Accounts {
    /// Completes a request.
    pub(crate) fn resolve<'a>(&'a self, request: &'a Request<'a>) -> ResolvedRequest<'a> {
        let mut resolved = ResolvedRequest::unknown(request);
        self.add_key(&mut resolved);
        self.add_user(&mut resolved);
        resolved
    }

    fn add_key<'a>(&'a self, resolved: &mut ResolvedRequest<'a>) {
        let request = &mut resolved.request;
        let Some(api_key) = request.api_key else { return };
        let Some(key) = api_key.known_id().and_then(|id| self.key(id.as_str())) else { return };
        let id = |text: Option<&'a str>| text.and_then(|text| Id::parse(text).ok());
        if request.user.is_none() {
            request.user = id(key.user());
            resolved.user = request.user;
        }
        if request.tenant.is_none() {
            request.tenant = id(key.tenant());
            resolved.tenant = request.tenant;
            resolved.tenant_written = request.tenant;
        }
        if request.tier.is_none() {
            request.tier = id(key.tier());
            resolved.tier = request.tier;
        }
        let client = Client::ApiKey(api_key);
        resolved.of_key =
            key.compiled_limits().map(|limits| AccountOverride { client, namespace: KEY_NAMESPACE, limits });
    }

    fn add_user<'a>(&'a self, resolved: &mut ResolvedRequest<'a>) {
        let Some(id) = resolved.request.user else { return };
        let hash = self.hash_of_user(id.as_str());
        resolved.user_hash = Some(hash);
        let Some(user) = self.user_by_hash(hash) else { return };
        if resolved.request.tier.is_none() {
            resolved.tier = user.tier().and_then(|tier| Id::parse(tier).ok());
            resolved.request.tier = resolved.tier;
        }
        let client = Client::User(id);
        resolved.of_user = user.compiled_limits().map(|limits| AccountOverride {
            client,
            namespace: QUOTA_NAMESPACE,
            limits,
        });
    }

    /// The first block in force of anything that the request says.
    pub(crate) fn block_of(&self, resolved: &ResolvedRequest<'_>, now: Timestamp) -> Option<BlockPosition> {
        if self.blocks() == 0 {
            return None;
        }
        let request = &resolved.request;
        let blocks = &self.blocks;
        let of_id = |kind, tag, fold: NormalForm, id: Option<Id<'_>>| {
            let hash = |id: Id<'_>| hash_of(self.seed, tag, fold.normalize(id.as_str()).as_bytes());
            id.and_then(|id| blocks.of_id(kind, || hash(id), now))
        };
        let key = request.api_key.and_then(ApiKey::known_id);
        let (tenant, login) = (resolved.tenant_written, resolved.login_written);
        (resolved.user_hash.and_then(|hash| blocks.of_id(BlockKind::User, || hash, now)))
            .or_else(|| of_id(BlockKind::ApiKey, tag::KNOWN_KEY, NormalForm::Exact, key))
            .or_else(|| of_id(BlockKind::Tenant, tag::TENANT, self.normalization.tenant, tenant))
            .or_else(|| of_id(BlockKind::Login, tag::LOGIN, self.normalization.login, login))
            .or_else(|| request.ip.and_then(|ip| blocks.of_ip(self.seed, ip.to_canonical(), now)))
    }
}
