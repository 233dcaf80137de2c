//! Which spellings of a request's facts are one: read at the door of the rules, the same for everything behind it.
//!
//! A rule set has a [`Spelling`]. It rewrites what the rules name when it is compiled and what each request says before
//! anything is looked up, matched or counted, so nothing behind it knows of spellings at all. A rule set without one, which
//! is the default, looks at neither.

use std::borrow::Cow;

use super::{Dimension, Fold, ID_BYTES_MAX, Id, Request};
use crate::endpoint::{ENDPOINT_BYTES_MAX, Endpoint};
use crate::method::Method;

/// Which spellings of a request's facts are one.
///
/// ```
/// use tollgate::identity::{Fold, Folds, Spelling};
/// use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};
///
/// let spelling = Spelling {
///     ids: Folds { user: Fold::NfcCasefold, ..Folds::default() },
///     ignore_path_case: true,
///     ..Spelling::default()
/// };
/// let rules = RuleSet::from_toml("default_limit = 1")?.with_spelling(spelling);
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
pub struct Spelling {
    /// Of users, organisations and login names.
    pub ids: Folds,
    /// Of the values of descriptors. Their names are byte-exact.
    pub descriptors: DescriptorFolds,
    /// Whether `/Users` and `/users` are one endpoint, as for servers that ignore case.
    pub ignore_path_case: bool,
    /// What a `HEAD` counts as.
    pub head: Head,
}

/// Which spellings of ids are one. API keys are secrets, and ids that tollgate makes: they are never folded.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Folds {
    /// Of users.
    pub user: Fold,
    /// Of organisations.
    pub tenant: Fold,
    /// Of the names of login attempts.
    pub login: Fold,
}

/// Which spellings of descriptors are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorFolds {
    /// The same for all of them.
    All(Fold),
    /// For those of these names; the others are byte-exact.
    Named(Vec<(Box<str>, Fold)>),
}

/// What a `HEAD` counts as.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// As a `GET`: it costs the server the same work.
    #[default]
    AsGet,
    /// As a method of its own: rules for `GET` are not about it.
    Own,
}

/// A fact that is too long once it is spelled as it is counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is {length} bytes long once it is folded, the most is {length_max}")]
pub struct SpellingError {
    /// Which.
    pub fact: Dimension,
    /// Its length when folded.
    pub length: usize,
    /// The most it may be.
    pub length_max: usize,
}

impl Default for DescriptorFolds {
    fn default() -> Self {
        DescriptorFolds::All(Fold::Exact)
    }
}

impl DescriptorFolds {
    /// For the descriptor of this name.
    pub fn of(&self, name: &str) -> Fold {
        match self {
            DescriptorFolds::All(fold) => *fold,
            DescriptorFolds::Named(folds) => {
                folds.iter().find(|(known, _)| **known == *name).map_or(Fold::Exact, |(_, fold)| *fold)
            }
        }
    }

    fn is_plain(&self) -> bool {
        match self {
            DescriptorFolds::All(fold) => *fold == Fold::Exact,
            DescriptorFolds::Named(folds) => folds.iter().all(|(_, fold)| *fold == Fold::Exact),
        }
    }
}

impl Head {
    /// Both.
    pub const ALL: [Head; 2] = [Head::AsGet, Head::Own];

    /// The name users write and read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Head::AsGet => "as_get",
            Head::Own => "own",
        }
    }
}

impl Spelling {
    /// Every fact is taken as it is written, and a `HEAD` for a `GET`.
    pub const PLAIN: Spelling = Spelling {
        ids: Folds { user: Fold::Exact, tenant: Fold::Exact, login: Fold::Exact },
        descriptors: DescriptorFolds::All(Fold::Exact),
        ignore_path_case: false,
        head: Head::AsGet,
    };

    /// Whether every fact is taken as it is written, and a `HEAD` for a `GET`.
    pub fn is_plain(&self) -> bool {
        self.ids == Folds::default()
            && self.descriptors.is_plain()
            && !self.ignore_path_case
            && self.head == Head::AsGet
    }

    /// An endpoint as it is counted.
    pub fn endpoint<'a>(&self, endpoint: Endpoint<'a>) -> Endpoint<'a> {
        if self.ignore_path_case { endpoint.without_case() } else { endpoint }
    }

    /// A method as it is counted.
    pub fn method(&self, method: Method) -> Method {
        if self.head == Head::Own { method.with_own_head() } else { method }
    }

    /// The name of a client, `user:alice`, as it is counted.
    pub fn client<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let Some((kind, id)) = name.split_once(':') else { return Cow::Borrowed(name) };
        let fold = match kind {
            "user" => self.ids.user,
            "tenant" => self.ids.tenant,
            "login" => self.ids.login,
            _ => Fold::Exact,
        };
        match fold.apply(id) {
            Cow::Borrowed(_) => Cow::Borrowed(name),
            Cow::Owned(id) => Cow::Owned(format!("{kind}:{id}")),
        }
    }

    /// Checks that every fact of the request keeps to its bounds when it is folded. The limiter decides about a request that
    /// does not all the same, by the longer form: this is for whoever takes requests from outside.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self, request: &Request<'_>) -> Result<(), SpellingError> {
        if self.is_plain() {
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
                fits(&fold.apply(id.as_str()), ID_BYTES_MAX, || fact)?;
            }
        }
        for (name, value) in request.descriptors {
            let folded = self.descriptors.of(name.as_str()).apply(value.as_str());
            fits(&folded, ID_BYTES_MAX, || Dimension::Descriptor(name.as_str().into()))?;
        }
        let endpoint = self.endpoint(request.endpoint.borrowed());
        fits(endpoint.as_str(), ENDPOINT_BYTES_MAX, || Dimension::Endpoint)
    }

    /// The request as it is counted. What had to be spelled anew lies in `scratch`.
    pub(crate) fn read<'a>(&self, request: Request<'a>, scratch: &'a mut Scratch<'a>) -> Request<'a> {
        let mut read = Request {
            endpoint: self.endpoint(request.endpoint),
            method: request.method.map(|method| self.method(method)),
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

fn fits(text: &str, length_max: usize, fact: impl FnOnce() -> Dimension) -> Result<(), SpellingError> {
    let length = text.len();
    if length > length_max { Err(SpellingError { fact: fact(), length, length_max }) } else { Ok(()) }
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
    fn of(spelling: &Spelling, request: &Request<'_>) -> Option<Self> {
        let folds = &spelling.ids;
        let anew = |fold: Fold, id: Option<Id<'_>>| match fold.apply(id?.0) {
            Cow::Borrowed(_) => None,
            Cow::Owned(folded) => Some(folded.into_boxed_str()),
        };
        let value = |(name, value): &(Id<'_>, Id<'_>)| {
            anew(spelling.descriptors.of(name.0), Some(*value)).unwrap_or_else(|| value.0.into())
        };
        let is_anew = |(name, value): &(Id<'_>, Id<'_>)| {
            matches!(spelling.descriptors.of(name.0).apply(value.0), Cow::Owned(_))
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
