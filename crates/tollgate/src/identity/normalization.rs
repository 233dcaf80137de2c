//! Normalization of identifiers, paths and methods: one form for all variants that mean the same.
//!
//! A [`RuleSet`](crate::RuleSet) normalizes its rules once, when it is compiled, and each request before anything is
//! matched or counted. Accounts and overrides are compared with normalized requests, so their ids must be normalized
//! when they are stored.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Dimension, ID_BYTES_MAX, Id, NormalForm, Request};
use crate::endpoint::{ENDPOINT_BYTES_MAX, Endpoint};
use crate::method::Method;

/// How the facts of requests and rules are normalized. The default changes nothing.
///
/// ```
/// use tollgate::identity::{NormalForm, IdNormalization, Normalization};
/// use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};
///
/// let normalization = Normalization {
///     ids: IdNormalization { user: NormalForm::NfcCasefold, ..IdNormalization::default() },
///     ignore_path_case: true,
///     ..Normalization::default()
/// };
/// let rules = RuleSet::from_toml("default_limit = 1")?.with_normalization(normalization);
/// let limiter = Limiter::new(rules, MemoryCounters::default());
///
/// let (now, endpoint) = (Timestamp::from_secs(0), Endpoint::parse("/Search")?);
/// let request = |user| Ok::<_, Box<dyn std::error::Error>>(
///     Request { user: Some(Id::parse(user)?), ..Request::new(endpoint.clone()) }
/// );
/// assert!(limiter.check_now(&request("René")?, now).admits());
/// assert!(!limiter.check_now(&request("rene\u{301}")?, now).admits()); // the same user
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Normalization {
    /// Forms of user, tenant and login ids.
    pub ids: IdNormalization,
    /// Forms of descriptor values. Descriptor names are byte-exact.
    pub descriptors: DescriptorNormalization,
    /// Treats `/Users` and `/users` as one endpoint, for servers that ignore case.
    pub ignore_path_case: bool,
    /// How `HEAD` requests are counted.
    pub head: HeadCounting,
}

/// The normal form of each kind of id. API keys are never normalized.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdNormalization {
    /// Form of user ids.
    pub user: NormalForm,
    /// Form of tenant ids.
    pub tenant: NormalForm,
    /// Form of login names.
    pub login: NormalForm,
}

/// The normal form of descriptor values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DescriptorNormalization {
    /// One form for all descriptors.
    All(NormalForm),
    /// A form for each named descriptor; all others are byte-exact.
    Named(Vec<(Box<str>, NormalForm)>),
}

named_enum! {
    /// How `HEAD` requests are counted.
    #[derive(Default, Serialize, Deserialize)]
    pub enum HeadCounting {
        /// As `GET`, because it costs the server the same work.
        #[default]
        AsGet = "as_get",
        /// As a separate method: rules for `GET` do not match it.
        Separate = "separate",
    }
}

/// A value that exceeds its maximum length after normalization.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is {length} bytes long after normalization; the maximum is {length_max}")]
pub struct NormalizationError {
    /// The value that is too long.
    pub fact: Dimension,
    /// Its normalized length in bytes.
    pub length: usize,
    /// The maximum length in bytes.
    pub length_max: usize,
}

impl Default for DescriptorNormalization {
    fn default() -> Self {
        DescriptorNormalization::All(NormalForm::Exact)
    }
}

impl DescriptorNormalization {
    /// The form of the descriptor `name`.
    pub fn of(&self, name: &str) -> NormalForm {
        match self {
            DescriptorNormalization::All(form) => *form,
            DescriptorNormalization::Named(forms) => {
                forms.iter().find(|(known, _)| **known == *name).map_or(NormalForm::Exact, |(_, form)| *form)
            }
        }
    }

    fn is_exact(&self) -> bool {
        match self {
            DescriptorNormalization::All(form) => *form == NormalForm::Exact,
            DescriptorNormalization::Named(forms) => forms.iter().all(|(_, form)| *form == NormalForm::Exact),
        }
    }
}

impl Normalization {
    /// Changes nothing; `HEAD` counts as `GET`.
    pub const EXACT: Normalization = Normalization {
        ids: IdNormalization { user: NormalForm::Exact, tenant: NormalForm::Exact, login: NormalForm::Exact },
        descriptors: DescriptorNormalization::All(NormalForm::Exact),
        ignore_path_case: false,
        head: HeadCounting::AsGet,
    };

    /// Whether it is equivalent to [`Normalization::EXACT`].
    pub fn is_exact(&self) -> bool {
        self.ids == IdNormalization::default()
            && self.descriptors.is_exact()
            && !self.ignore_path_case
            && self.head == HeadCounting::AsGet
    }

    /// Normalizes an endpoint.
    pub fn normalize_endpoint<'a>(&self, endpoint: Endpoint<'a>) -> Endpoint<'a> {
        if self.ignore_path_case { endpoint.casefold() } else { endpoint }
    }

    /// Normalizes a method.
    pub fn normalize_method(&self, method: Method) -> Method {
        if self.head == HeadCounting::Separate { method.with_separate_head() } else { method }
    }

    /// Normalizes the name of a client, such as `user:alice`.
    pub fn normalize_client<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let Some((kind, id)) = name.split_once(':') else { return Cow::Borrowed(name) };
        let form = match kind {
            "user" => self.ids.user,
            "tenant" => self.ids.tenant,
            "login" => self.ids.login,
            _ => NormalForm::Exact,
        };
        match form.normalize(id) {
            Cow::Borrowed(_) => Cow::Borrowed(name),
            Cow::Owned(id) => Cow::Owned(format!("{kind}:{id}")),
        }
    }

    /// Checks the normalized lengths of all values of a request. The limiter itself accepts longer values; call this
    /// where requests from outside are parsed.
    ///
    /// # Errors
    /// The first value that is too long.
    pub fn check_lengths(&self, request: &Request<'_>) -> Result<(), NormalizationError> {
        if self.is_exact() {
            return Ok(());
        }
        let ids = [
            (Dimension::User, self.ids.user, request.user),
            (Dimension::Tenant, self.ids.tenant, request.tenant),
            (Dimension::Login, self.ids.login, request.login),
        ];
        for (fact, form, id) in ids {
            if let Some(id) = id {
                check_length(&form.normalize(id.as_str()), ID_BYTES_MAX, || fact)?;
            }
        }
        for (name, value) in request.descriptors {
            let value = self.descriptors.of(name.as_str()).normalize(value.as_str());
            check_length(&value, ID_BYTES_MAX, || Dimension::Descriptor(name.as_str().into()))?;
        }
        let endpoint = self.normalize_endpoint(request.endpoint.borrowed());
        check_length(endpoint.as_str(), ENDPOINT_BYTES_MAX, || Dimension::Endpoint)
    }

    /// Normalizes a request. Values that change are stored in `scratch`; without any, nothing is allocated.
    pub(crate) fn normalize<'a>(
        &self,
        mut request: Request<'a>,
        scratch: &'a mut Scratch<'a>,
    ) -> Request<'a> {
        request.endpoint = self.normalize_endpoint(request.endpoint);
        request.method = request.method.map(|method| self.normalize_method(method));
        request.user = normalize_id(self.ids.user, request.user, &mut scratch.user);
        request.tenant = normalize_id(self.ids.tenant, request.tenant, &mut scratch.tenant);
        request.login = normalize_id(self.ids.login, request.login, &mut scratch.login);
        let normalized = |(name, value): &(Id<'a>, Id<'a>)| self.descriptors.of(name.0).normalize(value.0);
        if request.descriptors.iter().any(|pair| matches!(normalized(pair), Cow::Owned(_))) {
            scratch.values = request.descriptors.iter().map(|pair| normalized(pair).into_owned()).collect();
            let pairs = request.descriptors.iter().zip(&scratch.values);
            scratch.pairs = pairs.map(|((name, _), value)| (*name, Id(value))).collect();
            request.descriptors = &scratch.pairs;
        }
        request
    }
}

fn normalize_id<'a>(form: NormalForm, id: Option<Id<'a>>, buffer: &'a mut Option<String>) -> Option<Id<'a>> {
    match form.normalize(id?.0) {
        Cow::Borrowed(_) => id,
        Cow::Owned(text) => Some(Id(buffer.insert(text))),
    }
}

fn check_length(
    text: &str,
    length_max: usize,
    fact: impl FnOnce() -> Dimension,
) -> Result<(), NormalizationError> {
    let length = text.len();
    if length > length_max { Err(NormalizationError { fact: fact(), length, length_max }) } else { Ok(()) }
}

/// Storage for the values of one request that normalization changed.
///
/// It is borrowed as `&'a mut Scratch<'a>`, so it cannot be reused while that request is alive.
#[derive(Debug, Default)]
pub struct Scratch<'a> {
    user: Option<String>,
    tenant: Option<String>,
    login: Option<String>,
    /// All descriptor values, if one of them changed.
    values: Vec<String>,
    pairs: Vec<(Id<'a>, Id<'a>)>,
}
