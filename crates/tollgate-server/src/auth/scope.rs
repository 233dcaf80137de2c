//! What a caller of the API may do.

use std::fmt;

/// One thing a caller may do.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Ask for decisions.
    Check,
    /// Read statuses, explanations and the numbers of single users.
    Read,
    /// Change the numbers of single users.
    Config,
    /// Clear counters and records of clients.
    Reset,
    /// Bring own numbers along with a check.
    Override,
    /// Everything.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 6] =
        [Scope::Check, Scope::Read, Scope::Config, Scope::Reset, Scope::Override, Scope::Admin];

    /// The name users write and read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Check => "check",
            Scope::Read => "read",
            Scope::Config => "config",
            Scope::Reset => "reset",
            Scope::Override => "override",
            Scope::Admin => "admin",
        }
    }

    /// The scope of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of scopes.
///
/// ```
/// use tollgate_server::scope::{Scope, Scopes};
/// let scopes: Scopes = [Scope::Check, Scope::Read].into_iter().collect();
/// assert!(scopes.has(Scope::Read));
/// assert!(!scopes.has(Scope::Config));
/// ```
#[derive(Copy, Clone, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Nothing is allowed.
    pub const NONE: Scopes = Scopes(0);
    /// Everything is allowed.
    pub const ADMIN: Scopes = Scopes(Scope::Admin.bit());

    /// Whether a caller with these scopes may do this. `admin` may do everything.
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// These scopes and one more.
    #[must_use]
    pub const fn with(self, scope: Scope) -> Self {
        Scopes(self.0 | scope.bit())
    }

    /// The scopes as a number that stays the same from version to version: it is stored.
    pub const fn bits(self) -> u16 {
        self.0 as u16
    }

    /// The scopes of a number; bits that mean nothing here are none.
    pub fn from_bits(bits: u16) -> Self {
        Scope::ALL.into_iter().filter(|scope| bits & u16::from(scope.bit()) != 0).collect()
    }

    /// Whether nothing is allowed.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The scopes that were given, without what `admin` implies.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.0 & scope.bit() != 0)
    }
}

impl From<Scope> for Scopes {
    fn from(scope: Scope) -> Self {
        Scopes::NONE.with(scope)
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        scopes.into_iter().fold(Scopes::NONE, Scopes::with)
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scope_is_read_back_by_its_name() {
        assert!(Scope::ALL.into_iter().all(|scope| Scope::parse(scope.as_str()) == Some(scope)));
        assert_eq!(Scope::parse("Admin"), None);
    }

    #[test]
    fn admin_may_do_everything_and_nothing_else_may() {
        assert!(Scope::ALL.into_iter().all(|scope| Scopes::ADMIN.has(scope)));
        let all_but_admin: Scopes = Scope::ALL.into_iter().filter(|scope| *scope != Scope::Admin).collect();
        assert!(!all_but_admin.has(Scope::Admin));
        assert!(!Scope::ALL.into_iter().any(|scope| Scopes::NONE.has(scope)));
    }

    #[test]
    fn a_scope_allows_itself_alone() {
        for given in [Scope::Check, Scope::Read, Scope::Config, Scope::Reset, Scope::Override] {
            let allowed: Vec<Scope> =
                Scope::ALL.into_iter().filter(|asked| Scopes::NONE.with(given).has(*asked)).collect();
            assert_eq!(allowed, [given]);
        }
    }
}
