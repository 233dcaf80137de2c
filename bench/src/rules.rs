//! Rule sets of any size, and requests that match them.
//!
//! All rules count by user in one layer, so one limit applies to a request, whichever rule it comes from.

use std::fmt::Write;

use anyhow::Result;
use tollgate::{Endpoint, Id, Method, Request, RuleSet};

/// A limit that no benchmark reaches.
pub const NEVER_REFUSED: u32 = u32::MAX / 4;

/// Nine rules that do not match and one that always does.
pub fn one_of_ten_applies() -> Result<RuleSet> {
    let mut text = String::new();
    for (name, when) in [
        ("login", r#"endpoints = ["/login", "/api/v1/login"]"#),
        ("search", r#"endpoints = ["/api/v1/search/*"]"#),
        ("orders", r#"endpoints = ["/api/v1/orders/{id}"], methods = ["POST"]"#),
        ("exports", r#"endpoints = ["/api/v1/exports/*"], tiers = ["pro"]"#),
        ("free", r#"tiers = ["free"]"#),
        ("pro", r#"tiers = ["pro"], endpoints = ["/api/v1/*"]"#),
        ("acme", r#"tenants = ["acme"]"#),
        ("crawlers", r#"ips = ["198.51.100.0/24"]"#),
        ("europe", r#"descriptors = { region = "eu" }"#),
    ] {
        write_rule(&mut text, name, when)?;
    }
    write_rule(&mut text, "default", "")?;
    Ok(RuleSet::from_toml(&text)?)
}

/// A set of `count` rules, in equal parts by endpoint and tier, by tenant, by descriptor and by user, and one
/// that matches every request.
pub fn many(count: usize) -> Result<RuleSet> {
    let mut text = String::new();
    for number in 0..count.saturating_sub(1) {
        let (kind, group) = (number % 4, number / 4);
        let tier = TIERS[group % TIERS.len()];
        let when = match kind {
            0 => format!(r#"endpoints = ["/api/v1/resource-{group}/*"], tiers = ["{tier}"]"#),
            1 => format!(r#"tenants = ["tenant-{group}"], endpoints = ["/api/v1/*"]"#),
            2 => format!(r#"descriptors = {{ plan = "plan-{group}" }}, methods = ["GET", "POST"]"#),
            _ => format!(r#"users = ["guest-{group}"]"#),
        };
        write_rule(&mut text, &format!("rule-{number}"), &when)?;
    }
    write_rule(&mut text, "default", "")?;
    Ok(RuleSet::from_toml(&text)?)
}

const TIERS: [&str; 3] = ["free", "pro", "enterprise"];

fn write_rule(text: &mut String, name: &str, when: &str) -> Result<()> {
    let limits = format!(r#"[{{ requests = {NEVER_REFUSED}, window = "1s" }}]"#);
    write!(text, "[[rules]]\nname = \"{name}\"\nwhen = {{ {when} }}\nper = [\"user\"]\nlimits = {limits}\n")?;
    Ok(())
}

/// A request that matches a rule by endpoint, one by tenant, one by descriptor and the default rule, in a set of any size.
pub struct Question {
    user: String,
    endpoint: String,
    tenant: String,
    plan: String,
    tier: &'static str,
}

impl Question {
    /// The request of the user with this number to a set of `rules` rules.
    pub fn new(user: usize, rules: usize) -> Self {
        let groups = (rules.saturating_sub(1) / 4).max(1);
        // Different strides, so that endpoint, tenant and tier of a request are not stored close to each other.
        let [endpoint, tenant, plan] = [1, 7, 13].map(|stride| user * stride % groups);
        Self {
            user: format!("user-{user:07}"),
            endpoint: format!("/api/v1/resource-{endpoint}/items"),
            tenant: format!("tenant-{tenant}"),
            plan: format!("plan-{plan}"),
            tier: TIERS[endpoint % TIERS.len()],
        }
    }

    /// Checks the request, parsed as a surface would parse it.
    pub fn ask<T>(&self, ask: impl FnOnce(&Request<'_>) -> T) -> Result<T> {
        let descriptors = [(Id::parse("plan")?, Id::parse(&self.plan)?)];
        let request = Request {
            method: Some(Method::Get),
            user: Some(Id::parse(&self.user)?),
            tenant: Some(Id::parse(&self.tenant)?),
            tier: Some(Id::parse(self.tier)?),
            descriptors: &descriptors,
            ..Request::new(Endpoint::parse(&self.endpoint)?)
        };
        Ok(ask(&request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::{Limiter, MemoryCounters, Timestamp};

    #[test]
    fn a_request_meets_the_same_kinds_of_rules_in_every_set() {
        for count in [10, 10_000] {
            let limiter = Limiter::new(many(count).unwrap(), MemoryCounters::default());
            assert_eq!(limiter.rules().rules().len(), count);
            for user in 0..100 {
                let question = Question::new(user, count);
                let decide = |request: &Request<'_>| limiter.check_now(request, Timestamp::from_secs(1));
                let decision = question.ask(decide).unwrap();
                let rule = decision.rule().unwrap();
                assert!(
                    !rule.when.endpoints.is_empty(),
                    "{count} rules: the most specific of four rules decides"
                );
                assert_eq!(decision.reports.len(), 1);
            }
        }
    }

    #[test]
    fn one_limit_of_ten_rules_applies() {
        let limiter = Limiter::new(one_of_ten_applies().unwrap(), MemoryCounters::default());
        assert_eq!(limiter.rules().rules().len(), 10);
        let user = Some(Id::parse("alice").unwrap());
        let request = Request { user, ..Request::new(Endpoint::parse("/api/v1/items").unwrap()) };
        let decision = limiter.check_now(&request, Timestamp::from_secs(1));
        assert_eq!(decision.rule_name(), Some("default"));
        assert_eq!(decision.reports.len(), 1);
    }
}
