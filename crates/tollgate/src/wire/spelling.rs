//! How requests are read, as written: the keys of `[identity]` that say which spellings of facts are one.

use super::values::{boolean, word};
use super::{Fields, Value};
use crate::identity::{DescriptorFolds, Fold, Folds, Head, Spelling};

/// Reads `fold`, `ignore_path_case` and `head`, and leaves the other keys.
///
/// ```
/// use tollgate::identity::Fold;
/// use tollgate::wire::{Document, Problems, read_spelling};
///
/// let document = Document::from_toml("fold = { user_id = \"nfc+casefold\" }\nhead = \"own\"")?;
/// let mut problems = Problems::default();
/// let spelling = read_spelling(&mut document.fields(&mut problems));
/// assert_eq!(spelling.ids.user, Fold::NfcCasefold);
/// # Ok::<(), Problems>(())
/// ```
pub fn read_spelling(fields: &mut Fields<'_, '_>) -> Spelling {
    let (ids, descriptors) = fields.table("fold", read_folds).unwrap_or_default();
    let ignore_path_case = fields.read("ignore_path_case", boolean).unwrap_or(false);
    let head = fields.read("head", word(&Head::ALL.map(|head| (head.as_str(), head)))).unwrap_or_default();
    Spelling { ids, descriptors, ignore_path_case, head }
}

fn read_folds(fields: &mut Fields<'_, '_>) -> (Folds, DescriptorFolds) {
    let mut read = |key| fields.read(key, fold).unwrap_or_default();
    let folds = Folds { user: read("user_id"), tenant: read("tenant"), login: read("login") };
    let descriptors = match fields.peek("descriptors", |value| Ok(matches!(value, Value::Table(_)))) {
        Some(true) => {
            let named = fields.entries("descriptors", fold).unwrap_or_default();
            DescriptorFolds::Named(named.into_iter().map(|(name, fold)| (name.into(), fold)).collect())
        }
        _ => DescriptorFolds::All(fields.read("descriptors", fold).unwrap_or_default()),
    };
    let _ = fields.read("api_key", |_| {
        let reason = "API keys are never folded: they are secrets, and ids that tollgate makes";
        Err::<Fold, String>(reason.to_owned())
    });
    (folds, descriptors)
}

fn fold(value: &Value) -> Result<Fold, String> {
    word(&Fold::ALL.map(|fold| (fold.as_str(), fold)))(value)
}
