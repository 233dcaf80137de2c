//! Scopes of API keys: what a caller may do.

use std::fmt;

/// A permission of a caller.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Send checks.
    Check,
    /// Read status, explanations, configuration and counters.
    Read,
    /// Change quotas, blocks and per-user limits.
    Config,
    /// Reset counters.
    Reset,
    /// Send a limit override with a check.
    Override,
    /// Everything.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 6] =
        [Scope::Check, Scope::Read, Scope::Config, Scope::Reset, Scope::Override, Scope::Admin];

    /// Its name.
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

    /// The scope with this name.
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
#[derive(Copy, Clone, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// No scope.
    pub const NONE: Scopes = Scopes(0);
    /// The scope `admin`, which includes all others.
    pub const ADMIN: Scopes = Scopes(Scope::Admin.bit());

    /// Whether this scope is included; `admin` includes all.
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// These scopes plus one.
    #[must_use]
    pub const fn with(self, scope: Scope) -> Self {
        Scopes(self.0 | scope.bit())
    }

    /// The scopes as stored bits; stable across versions.
    pub const fn bits(self) -> u16 {
        self.0 as u16
    }

    /// The scopes from stored bits; unknown bits are ignored.
    pub fn from_bits(bits: u16) -> Self {
        Scope::ALL.into_iter().filter(|scope| bits & u16::from(scope.bit()) != 0).collect()
    }

    /// Whether there is no scope.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The scopes as granted, without those that `admin` implies.
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
    fn scope_names_round_trip() {
        assert!(Scope::ALL.into_iter().all(|scope| Scope::parse(scope.as_str()) == Some(scope)));
        assert_eq!(Scope::parse("Admin"), None);
    }

    #[test]
    fn only_admin_includes_all_scopes() {
        assert!(Scope::ALL.into_iter().all(|scope| Scopes::ADMIN.has(scope)));
        let all_but_admin: Scopes = Scope::ALL.into_iter().filter(|scope| *scope != Scope::Admin).collect();
        assert!(!all_but_admin.has(Scope::Admin));
        assert!(!Scope::ALL.into_iter().any(|scope| Scopes::NONE.has(scope)));
    }

    #[test]
    fn scope_includes_only_itself() {
        for given in [Scope::Check, Scope::Read, Scope::Config, Scope::Reset, Scope::Override] {
            let allowed: Vec<Scope> =
                Scope::ALL.into_iter().filter(|asked| Scopes::NONE.with(given).has(*asked)).collect();
            assert_eq!(allowed, [given]);
        }
    }
}
