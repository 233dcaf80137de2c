//! Which spellings of a request's facts are one: read at the door of the rules, the same for everything behind it.
//!
//! A rule set has a [`Normalization`]. It rewrites what the rules name when it is compiled and what each request says before
//! anything is looked up, matched or counted, so nothing behind it knows of spellings at all. A rule set without one, which
//! is the default, looks at neither.

use std::borrow::Cow;

use super::{Dimension, ID_BYTES_MAX, Id, NormalForm, Request};
use crate::endpoint::{ENDPOINT_BYTES_MAX, Endpoint};
use crate::method::Method;

/// Which spellings of a request's facts are one.
///
/// ```
/// use tollgate::identity::{NormalForm, IdNormalization, Normalization};
/// use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};
///
/// let spelling = Normalization {
///     ids: IdNormalization { user: NormalForm::NfcCasefold, ..IdNormalization::default() },
///     ignore_path_case: true,
///     ..Normalization::default()
/// };
/// let rules = RuleSet::from_toml("default_limit = 1")?.with_normalization(spelling);
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Normalization {
    /// Of users, organisations and login names.
    pub ids: IdNormalization,
    /// Of the values of descriptors. Their names are byte-exact.
    pub descriptors: DescriptorNormalization,
    /// Whether `/Users` and `/users` are one endpoint, as for servers that ignore case.
    pub ignore_path_case: bool,
    /// What a `HEAD` counts as.
    pub head: HeadCounting,
}

/// Which spellings of ids are one. API keys are secrets, and ids that tollgate makes: they are never folded.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IdNormalization {
    /// Of users.
    pub user: NormalForm,
    /// Of organisations.
    pub tenant: NormalForm,
    /// Of the names of login attempts.
    pub login: NormalForm,
}

/// Which spellings of descriptors are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorNormalization {
    /// The same for all of them.
    All(NormalForm),
    /// For those of these names; the others are byte-exact.
    Named(Vec<(Box<str>, NormalForm)>),
}

/// What a `HEAD` counts as.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum HeadCounting {
    /// As a `GET`: it costs the server the same work.
    #[default]
    AsGet,
    /// As a method of its own: rules for `GET` are not about it.
    Separate,
}

/// A fact that is too long once it is spelled as it is counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is {length} bytes long after normalization; the maximum is {length_max}")]
pub struct NormalizationError {
    /// Which.
    pub fact: Dimension,
    /// Its length when folded.
    pub length: usize,
    /// The most it may be.
    pub length_max: usize,
}

impl Default for DescriptorNormalization {
    fn default() -> Self {
        DescriptorNormalization::All(NormalForm::Exact)
    }
}

impl DescriptorNormalization {
    /// For the descriptor of this name.
    pub fn of(&self, name: &str) -> NormalForm {
        match self {
            DescriptorNormalization::All(fold) => *fold,
            DescriptorNormalization::Named(folds) => {
                folds.iter().find(|(known, _)| **known == *name).map_or(NormalForm::Exact, |(_, fold)| *fold)
            }
        }
    }

    fn is_exact(&self) -> bool {
        match self {
            DescriptorNormalization::All(fold) => *fold == NormalForm::Exact,
            DescriptorNormalization::Named(folds) => folds.iter().all(|(_, fold)| *fold == NormalForm::Exact),
        }
    }
}

impl HeadCounting {
    /// Both.
    pub const ALL: [HeadCounting; 2] = [HeadCounting::AsGet, HeadCounting::Separate];

    /// The name users write and read.
    pub const fn as_str(self) -> &'static str {
        match self {
            HeadCounting::AsGet => "as_get",
            HeadCounting::Separate => "separate",
        }
    }
}

impl Normalization {
    /// Every fact is taken as it is written, and a `HEAD` for a `GET`.
    pub const EXACT: Normalization = Normalization {
        ids: IdNormalization { user: NormalForm::Exact, tenant: NormalForm::Exact, login: NormalForm::Exact },
        descriptors: DescriptorNormalization::All(NormalForm::Exact),
        ignore_path_case: false,
        head: HeadCounting::AsGet,
    };

    /// Whether every fact is taken as it is written, and a `HEAD` for a `GET`.
    pub fn is_exact(&self) -> bool {
        self.ids == IdNormalization::default()
            && self.descriptors.is_exact()
            && !self.ignore_path_case
            && self.head == HeadCounting::AsGet
    }

    /// An endpoint as it is counted.
    pub fn normalize_endpoint<'a>(&self, endpoint: Endpoint<'a>) -> Endpoint<'a> {
        if self.ignore_path_case { endpoint.casefold() } else { endpoint }
    }

    /// A method as it is counted.
    pub fn normalize_method(&self, method: Method) -> Method {
        if self.head == HeadCounting::Separate { method.with_separate_head() } else { method }
    }

    /// The name of a client, `user:alice`, as it is counted.
    pub fn normalize_client<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let Some((kind, id)) = name.split_once(':') else { return Cow::Borrowed(name) };
        let fold = match kind {
            "user" => self.ids.user,
            "tenant" => self.ids.tenant,
            "login" => self.ids.login,
            _ => NormalForm::Exact,
        };
        match fold.normalize(id) {
            Cow::Borrowed(_) => Cow::Borrowed(name),
            Cow::Owned(id) => Cow::Owned(format!("{kind}:{id}")),
        }
    }

    /// Checks that every fact of the request keeps to its bounds when it is folded. The limiter decides about a request that
    /// does not all the same, by the longer form: this is for whoever takes requests from outside.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check_lengths(&self, request: &Request<'_>) -> Result<(), NormalizationError> {
        if self.is_exact() {
            return Ok(());
        }
        let folds = &self.ids;
        let ids = [
            (Dimension::User, folds.user, request.user),
            (Dimension::Tenant, folds.tenant, request.tenant),
            (Dimension::Login, folds.login, request.login),
        ];
        for (fact, fold, id) in ids {
            if let Some(id) = id {
                fits(&fold.normalize(id.as_str()), ID_BYTES_MAX, || fact)?;
            }
        }
        for (name, value) in request.descriptors {
            let folded = self.descriptors.of(name.as_str()).normalize(value.as_str());
            fits(&folded, ID_BYTES_MAX, || Dimension::Descriptor(name.as_str().into()))?;
        }
        let endpoint = self.normalize_endpoint(request.endpoint.borrowed());
        fits(endpoint.as_str(), ENDPOINT_BYTES_MAX, || Dimension::Endpoint)
    }

    /// The request as it is counted. What had to be spelled anew lies in `scratch`.
    pub(crate) fn normalize<'a>(&self, request: Request<'a>, scratch: &'a mut Scratch<'a>) -> Request<'a> {
        let mut read = Request {
            endpoint: self.normalize_endpoint(request.endpoint),
            method: request.method.map(|method| self.normalize_method(method)),
            ..request
        };
        let Some(texts) = Texts::of(self, &read) else { return read };
        let texts: &'a Texts = scratch.texts.insert(texts);
        let anew = |text: &'a Option<Box<str>>, id: Option<Id<'a>>| text.as_deref().map(Id).or(id);
        read.user = anew(&texts.user, read.user);
        read.tenant = anew(&texts.tenant, read.tenant);
        read.login = anew(&texts.login, read.login);
        if !texts.values.is_empty() {
            let pairs = read.descriptors.iter().zip(&texts.values);
            scratch.pairs = pairs.map(|((name, _), value)| (*name, Id(value))).collect();
            read.descriptors = &scratch.pairs;
        }
        read
    }
}

fn fits(text: &str, length_max: usize, fact: impl FnOnce() -> Dimension) -> Result<(), NormalizationError> {
    let length = text.len();
    if length > length_max { Err(NormalizationError { fact: fact(), length, length_max }) } else { Ok(()) }
}

/// Where facts of one request lie that had to be spelled anew, for as long as the request is looked at.
///
/// It is lent for good, `&'a mut Scratch<'a>`: no second request can be read into it while the first is still in use.
#[derive(Debug, Default)]
pub struct Scratch<'a> {
    texts: Option<Texts>,
    pairs: Vec<(Id<'a>, Id<'a>)>,
}

/// Facts that are counted in another spelling than they were written in.
#[derive(Debug)]
struct Texts {
    user: Option<Box<str>>,
    tenant: Option<Box<str>>,
    login: Option<Box<str>>,
    /// Of all descriptors, in their order, if one of them is.
    values: Vec<Box<str>>,
}

impl Texts {
    /// Nothing, and nothing is allocated, if every fact is written as it is counted.
    fn of(normalization: &Normalization, request: &Request<'_>) -> Option<Self> {
        let folds = &normalization.ids;
        let anew = |fold: NormalForm, id: Option<Id<'_>>| match fold.normalize(id?.0) {
            Cow::Borrowed(_) => None,
            Cow::Owned(folded) => Some(folded.into_boxed_str()),
        };
        let value = |(name, value): &(Id<'_>, Id<'_>)| {
            anew(normalization.descriptors.of(name.0), Some(*value)).unwrap_or_else(|| value.0.into())
        };
        let is_anew = |(name, value): &(Id<'_>, Id<'_>)| {
            matches!(normalization.descriptors.of(name.0).normalize(value.0), Cow::Owned(_))
        };
        let values = if request.descriptors.iter().any(is_anew) {
            request.descriptors.iter().map(value).collect()
        } else {
            Vec::new()
        };
        let (user, tenant) = (anew(folds.user, request.user), anew(folds.tenant, request.tenant));
        let login = anew(folds.login, request.login);
        let nothing = user.is_none() && tenant.is_none() && login.is_none() && values.is_empty();
        (!nothing).then_some(Texts { user, tenant, login, values })
    }
}
