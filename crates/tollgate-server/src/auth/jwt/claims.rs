//! Checks of verified claims: validity period, audience, identity.

use serde::Deserialize;
use tollgate::identity::ID_BYTES_MAX;
use tollgate::{Span, Timestamp};

use super::token::Members;
use super::{JwtError, VerifiedToken};
use crate::config::settings::JwtIssuer;

/// When a token is valid, with the leeway included.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct ValidityPeriod {
    from: Timestamp,
    /// The first instant at which it is not valid.
    until: Timestamp,
}

impl ValidityPeriod {
    /// `exp` is required. `nbf` is optional.
    pub(super) fn new(claims: &Members<'_>, leeway: Span) -> Result<Self, JwtError> {
        let expires = date(claims, "exp", f64::floor)?.ok_or_else(|| invalid("exp", "is missing"))?;
        let not_before = date(claims, "nbf", f64::ceil)?.unwrap_or_default();
        Ok(ValidityPeriod { from: not_before - leeway, until: expires + leeway })
    }

    pub(super) fn check(self, now: Timestamp) -> Result<(), JwtError> {
        if now >= self.until {
            Err(JwtError::Expired)
        } else if now < self.from {
            Err(JwtError::NotYetValid)
        } else {
            Ok(())
        }
    }
}

/// A date in seconds since the epoch. Fractions are allowed (RFC 7519, 2) and rounded against the token.
fn date(
    claims: &Members<'_>,
    name: &'static str,
    round: fn(f64) -> f64,
) -> Result<Option<Timestamp>, JwtError> {
    const SECS_MAX: u64 = Timestamp::MAX.as_micros() / 1_000_000;
    let Some(value) = claims.raw(name) else { return Ok(None) };
    let wrong = || invalid(name, "must be a number of seconds between 1970 and 2112");
    if let Ok(secs) = value.parse::<u64>() {
        return if secs <= SECS_MAX { Ok(Some(Timestamp::from_secs(secs))) } else { Err(wrong()) };
    }
    let secs: f64 = serde_json::from_str(value).map_err(|_| wrong())?;
    #[expect(clippy::cast_precision_loss, reason = "a date of this century is exact")]
    let in_range = (0.0..=SECS_MAX as f64).contains(&secs);
    if !in_range {
        return Err(wrong());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
    let micros = round(secs * 1e6) as u64;
    Ok(Some(Timestamp::from_micros(micros)))
}

/// Checks that the token is meant for one of the audiences. An empty list accepts every token.
pub(super) fn check_audience(claims: &Members<'_>, accepted: &[Box<str>]) -> Result<(), JwtError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Several(Vec<String>),
    }
    if accepted.is_empty() {
        return Ok(());
    }
    let value = claims.raw("aud").ok_or(JwtError::WrongAudience)?;
    let audience = serde_json::from_str(value).map_err(|_| invalid("aud", "must be a string or a list"))?;
    let is_accepted = |one: &String| accepted.iter().any(|accepted| **accepted == **one);
    let matches = match &audience {
        Audience::One(one) => is_accepted(one),
        Audience::Several(several) => several.iter().any(is_accepted),
    };
    if matches { Ok(()) } else { Err(JwtError::WrongAudience) }
}

/// The client that the token identifies. User and tenant are required, the tier is not.
pub(super) fn identity(claims: &Members<'_>, issuer: &JwtIssuer) -> Result<VerifiedToken, JwtError> {
    let require = |name: &str| text(claims, name)?.ok_or_else(|| invalid(name, "is missing"));
    let user = format!("{}{}", issuer.user_prefix, require(&issuer.user_claim)?);
    if user.len() > ID_BYTES_MAX {
        return Err(invalid(
            &issuer.user_claim,
            "is longer than 256 bytes with the user_prefix of its issuer",
        ));
    }
    let tier = match &issuer.tier_claim {
        Some(name) => text(claims, name)?,
        None => None,
    };
    Ok(VerifiedToken {
        user: user.into(),
        tenant: issuer.tenant_claim.as_deref().map(require).transpose()?,
        tier,
    })
}

fn text(claims: &Members<'_>, name: &str) -> Result<Option<Box<str>>, JwtError> {
    match claims.text(name) {
        Ok(None) => Ok(None),
        Ok(Some(text)) if (1..=ID_BYTES_MAX).contains(&text.len()) => Ok(Some(text.into())),
        _ => Err(invalid(name, "must be a string of 1 to 256 bytes")),
    }
}

fn invalid(claim: &str, reason: &'static str) -> JwtError {
    JwtError::InvalidClaim { claim: claim.into(), reason }
}
