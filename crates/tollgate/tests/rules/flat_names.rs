//! Rules with the flat names of relational schemas.

use tollgate::RuleSet;

/// The rules of a file, in full.
fn read(toml: &str) -> String {
    let set = RuleSet::from_toml(toml).unwrap_or_else(|problems| panic!("{problems}\n{toml}"));
    format!("{:#?}", set.rules())
}

fn errors(toml: &str) -> String {
    RuleSet::from_toml(toml).unwrap_err().to_string()
}

#[test]
fn flat_names_are_read_as_nested_ones() {
    let flat = r#"
        [[rules]]
        rule_name = "free_tier_limit"
        priority = 700
        user_tier = "free"
        http_method = "GET"
        ip_range = "10.0.0.0/8"
        algorithm = "token_bucket"
        requests_per_hour = 1000
        burst_size = 20
        action = "throttle"
        response_status = 503
        response_message = "later"
        retry_after_seconds = 5
        [[rules]]
        rule_name = "api_v1_limit"
        priority = 600
        endpoint_pattern = "/api/v1/*"
        algorithm = "sliding_window"
        requests_per_second = 100
        [[rules]]
        name = "tenants"
        scope = "tenant"
        algorithm = "token_bucket"
        limit_count = 1000
        window_seconds = 60
        burst_limit = 1200
        refill_rate = 16.666
        plan_tiers = ["free", "pro"]
        endpoints = ["/api/search"]
        [[rules]]
        name = "all"
        scope = "global"
        limit_count = 9
        window_seconds = 1
        plan_tiers = []
        endpoints = []
    "#;
    let nested = r#"
        [[rules]]
        name = "free_tier_limit"
        priority = 700
        when = { tiers = ["free"], methods = ["GET"], ips = ["10.0.0.0/8"] }
        per = ["client"]
        limits = [{ requests = 1000, window = "1h", burst = 20 }]
        response = { status = 503, message = "later", retry_after_floor = "5s" }
        [[rules]]
        name = "api_v1_limit"
        priority = 600
        when = { endpoints = ["/api/v1/*"] }
        per = ["client"]
        algorithm = "sliding_window_counter"
        limits = [{ requests = 100, window = "1s" }]
        [[rules]]
        name = "tenants"
        when = { tiers = ["free", "pro"], endpoints = ["/api/search"] }
        per = ["tenant"]
        limits = [{ requests = 1000, window = "1m", burst = 1200 }]
        [[rules]]
        name = "all"
        per = ["global"]
        limits = [{ requests = 9, window = "1s" }]
    "#;
    assert_eq!(read(flat), read(nested));
}

#[test]
fn unclear_flat_names_are_refused_with_the_name_to_use() {
    let rule = |more: &str| {
        format!("[[rules]]\nname = \"r\"\nscope = \"user\"\nlimit_count = 100\nwindow_seconds = 60\n{more}")
    };
    for (more, key, part) in [
        ("refill_rate = 10", "refill_rate", "must equal limit_count / window_seconds (1.66"),
        ("refill_rate = \"fast\"", "refill_rate", "must be a number"),
        ("key_pattern = \"tenant:{api_key}\"", "key_pattern", "say what to count by with per"),
        ("rule_id = \"x\"", "rule_id", "identified by its name"),
        ("created_at = \"x\"", "created_at", "leave it out"),
        ("per = [\"ip\"]", "scope", "another name of per"),
        ("rule_name = \"other\"", "rule_name", "differs from name"),
        ("user_tier = \"a\"\nwhen = { tiers = [\"b\"] }", "user_tier", "another name of when.tiers"),
        ("response_status = 503\nresponse = { status = 503 }", "response_status", "part of response"),
    ] {
        let errors = errors(&rule(more));
        assert!(errors.contains(&format!("rules[0].{key}: ")) && errors.contains(part), "{more}: {errors}");
    }
    let alone = errors("[[rules]]\nname = \"r\"\nscope = \"user\"\nburst_limit = 5\nwindow_seconds = 5");
    assert!(
        alone.contains("burst_limit: needs limit_count") && alone.contains("window_seconds: needs"),
        "{alone}"
    );
    let scope = errors("[[rules]]\nname = \"r\"\nscope = \"planet\"\nlimit_count = 1\nwindow_seconds = 1");
    assert!(scope.contains("is not one of global, tenant, user, ip, endpoint"), "{scope}");
}
