//! The JSON Schema of the settings file, for editors and checks in deployment pipelines.

/// The schema, as JSON text.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;
    use tollgate::config::Problems;

    use super::*;
    use crate::config::settings::{Settings, SettingsError};

    fn parsed() -> Json {
        serde_json::from_str(schema()).unwrap()
    }

    /// Follows a reference.
    fn resolved<'a>(root: &'a Json, schema: &'a Json) -> &'a Json {
        match schema["$ref"].as_str() {
            Some(reference) => &root["$defs"][reference.rsplit('/').next().unwrap()],
            None => schema,
        }
    }

    /// Settings that are present in some configuration, with all sections.
    const CONFIGURATIONS: [&str; 4] = [
        "[progressive_penalties]\nenabled = true\n[callers]\nlimit = 5\nwindow = '1s'\n[[rules]]\nname = 'a'\nper = ['user']\n\
         action = 'throttle'\nlimits = [{ requests = 1, window = '1s', burst = 2 }]\nwhen = { tiers = ['x'] }\n\
         response = { message = 'm', status = 430, retry_after_floor = '1s' }\ncost = 2\nleases = false",
        "[counters]\nstore = 'redis'\ntopology = 'sentinel'\nnodes = ['a:1']\nsentinel_master = 'm'\nsentinel_user = 'u'\n\
         sentinel_password = 'p'\nuser = 'u'\npassword = 'p'\ntls = { insecure = true }",
        "[counters]\nstore = 'redis'\ntopology = 'ring'\nnodes = ['a:1', 'b:1']\n[database]\nurl = 'postgres://u:p@h/d'\n\
         [auth]\noverride_max = 5\nkey_secret = '0123456789012345678901234567890123456789'\n\
         [[auth.callers]]\nname = 'c'\nkey_sha256 = '0000000000000000000000000000000000000000000000000000000000000000'\n\
         scopes = ['check']\n[identity]\ndefault_tier = 'free'\ntrusted_proxies = ['::1']\ntrusted_proxy_depth = 1\n\
         [proxy]\n[[proxy.routes]]\nhosts = ['a']\nupstreams = ['http://a:1']\nhealth = { path = '/up' }",
        "[[identity.jwt]]\nissuer = 'i'\naudience = 'a'\nalgorithm = 'HS256'\nsecret = '01234567890123456789012345678901'\n\
         tenant_claim = 't'\ntier_claim = 'r'\nuser_prefix = 'i:'\n[[identity.jwt]]\nissuer = 'j'\naudience = []\n\
         algorithm = ['RS256', 'PS256']\njwks_url = 'https://idp.example/keys'\nuser_prefix = 'j:'",
    ];

    #[test]
    fn every_setting_is_described() {
        fn check(root: &Json, schema: &Json, value: &Json, at: &str) {
            let schema = resolved(root, schema);
            match value {
                Json::Object(fields) if schema["properties"].is_object() => {
                    for (key, value) in fields {
                        let described = &schema["properties"][key];
                        assert!(described.is_object(), "{at}.{key} is not described");
                        check(root, described, value, &format!("{at}.{key}"));
                    }
                }
                Json::Array(items) if schema["items"].is_object() => {
                    for item in items {
                        check(root, &schema["items"], item, at);
                    }
                }
                _ => {}
            }
        }
        let schema = parsed();
        for configuration in CONFIGURATIONS {
            check(&schema, &schema, &Settings::from_toml(configuration).unwrap().to_json(), "");
        }
    }

    #[test]
    fn every_described_key_is_read() {
        fn unknown_keys(text: &str) -> Problems {
            match Settings::from_toml(text) {
                Err(SettingsError::Invalid { mut problems, .. }) => {
                    problems.0.retain(|problem| problem.reason.starts_with("unknown key"));
                    problems
                }
                _ => Problems::default(),
            }
        }
        fn check(root: &Json, schema: &Json, header: &str) {
            for (key, described) in resolved(root, schema)["properties"].as_object().unwrap() {
                // A value that is not valid for any key: it is reported, but not as unknown. Some keys are read only beside
                // another one.
                let texts = ["", "requests_per_day = 5\n"]
                    .map(|beside| format!("{header}\n{beside}{key} = 2020-01-01T00:00:00Z"));
                assert!(texts.iter().any(|text| unknown_keys(text).0.is_empty()), "{}", texts[0]);
                let described = resolved(root, described);
                let items = resolved(root, &described["items"]);
                let path = header.trim_matches(|c| c == '[' || c == ']');
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                if described["properties"].is_object() {
                    check(root, described, &format!("[{path}]"));
                } else if items["properties"].is_object() {
                    check(root, items, &format!("[[{path}]]"));
                }
            }
        }
        let schema = parsed();
        check(&schema, &schema, "");
    }

    #[test]
    fn described_defaults_are_the_real_ones() {
        let schema = parsed();
        let defaults = Settings::from_toml("[progressive_penalties]\nenabled = true").unwrap().to_json();
        let redis =
            Settings::from_toml("redis_url = 'redis://127.0.0.1'\nredis_topology = 'single'").unwrap();
        let redis = redis.to_json();
        let mut compared = 0;
        for (section, described) in schema["properties"].as_object().unwrap() {
            let keys = described["properties"].as_object().into_iter().flatten();
            for (key, described) in keys {
                let actual = [&defaults, &redis].map(|settings| &settings[section][key]);
                let Some(actual) = actual.into_iter().find(|value| !value.is_null()) else { continue };
                if described["default"].is_null()
                    || (section.as_str(), key.as_str()) == ("progressive_penalties", "enabled")
                {
                    continue;
                }
                assert_eq!(&described["default"], actual, "{section}.{key}");
                compared += 1;
            }
        }
        assert!(compared > 30, "{compared}");
    }
}
