use super::super::{Settings, SettingsError};
use super::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn issuer(lines: &str) -> String {
    format!("[[identity.jwt]]\nissuer = 'i'\naudience = 'api'\nalgorithm = 'HS256'\n{lines}\n")
}

fn errors(text: &str) -> String {
    match Settings::from_toml(text) {
        Err(SettingsError::Invalid { problems, .. }) => problems.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tokens_are_not_read_by_default() {
    let settings = Settings::from_toml("").unwrap();
    assert!(settings.jwt.issuers.is_empty());
    assert_eq!(settings.jwt.invalid_token, InvalidToken::Reject);
}

#[test]
fn defaults_of_an_issuer() {
    let settings = Settings::from_toml(&issuer(&format!("secret = '{SECRET}'"))).unwrap();
    let issuer = &settings.jwt.issuers[0];
    assert_eq!((&*issuer.user_claim, &*issuer.user_prefix), ("sub", ""));
    assert_eq!((&issuer.tenant_claim, &issuer.tier_claim), (&None, &None));
    assert_eq!(issuer.leeway, Duration::from_secs(30));
}

#[test]
fn secret_is_not_printed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    for key in [format!("secret = '{SECRET}'"), format!("secret_file = '{}'", file.display())] {
        let settings = Settings::from_toml(&issuer(&key)).unwrap();
        for printed in [settings.to_toml(), format!("{settings:?}")] {
            assert!(!printed.contains("0123456789abcdef"), "{printed}");
        }
    }
    let settings = Settings::from_toml(&issuer(&format!("secret = '{SECRET}'"))).unwrap();
    assert!(settings.to_toml().contains("secret = \"***\""));
    // A secret under the wrong key, or too short, is not repeated either.
    for wrong in ["secret = '0123456789abcdef'", "public_key = '0123456789abcdef'"] {
        assert!(!errors(&issuer(wrong)).contains("0123456789abcdef"));
    }
}

#[test]
fn shown_settings_can_be_read_again() {
    let text = "[identity]\ninvalid_token = 'treat_as_anonymous'\n[[identity.jwt]]\nissuer = 'i'\naudience = ['a', 'b']\n\
                algorithm = ['RS256', 'PS256']\njwks_url = 'https://idp.example/keys'\nleeway = '5s'\nuser_claim = 'u'\n\
                tenant_claim = 't'\ntier_claim = 'r'\nuser_prefix = 'p:'";
    let shown = Settings::from_toml(text).unwrap().to_toml();
    let again = Settings::from_toml(&shown).unwrap();
    assert_eq!(again.to_toml(), shown);
    assert_eq!(again.jwt.invalid_token, InvalidToken::TreatAsAnonymous);
    assert_eq!(again.jwt.issuers[0].audiences.len(), 2);
}

#[test]
fn rules_are_read_without_key_files() {
    let text = issuer("secret_file = '/nowhere/secret'");
    assert!(Settings::rules_from_toml(&text).is_ok());
    assert!(errors(&text).contains("secret_file: cannot read /nowhere/secret"));
}

#[test]
fn users_of_two_issuers_must_differ() {
    let two = |first: &str, second: &str| {
        let one = |name: &str, prefix: &str| {
            format!(
                "[[identity.jwt]]\nissuer = '{name}'\naudience = []\nalgorithm = 'HS256'\nsecret = '{SECRET}'\nuser_prefix = '{prefix}'\n"
            )
        };
        Settings::from_toml(&[one("a", first), one("b", second)].concat())
    };
    assert!(two("a:", "b:").is_ok());
    for (first, second) in
        [("", ""), ("a:", "a:"), ("", "b:"), ("a:", ""), ("a", "ab"), ("ab", "a"), ("a:", "A:")]
    {
        let error = two(first, second).unwrap_err().to_string();
        assert!(error.contains("could be the same"), "{first:?} {second:?}: {error}");
    }
}
