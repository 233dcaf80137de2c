//! How requests are read, as written: the keys of `[identity]` that say which spellings of facts are one.

use super::values::{boolean, word};
use super::{TableReader, Value};
use crate::identity::{DescriptorNormalization, HeadCounting, IdNormalization, NormalForm, Normalization};

/// Reads `fold`, `ignore_path_case` and `head`, and leaves the other keys.
///
/// ```
/// use tollgate::identity::NormalForm;
/// use tollgate::config::{Document, Problems, read_normalization};
///
/// let document = Document::from_toml("normalize = { user_id = \"nfc+casefold\" }\nhead = \"separate\"")?;
/// let mut problems = Problems::default();
/// let spelling = read_normalization(&mut document.fields(&mut problems));
/// assert_eq!(spelling.ids.user, NormalForm::NfcCasefold);
/// # Ok::<(), Problems>(())
/// ```
pub fn read_normalization(fields: &mut TableReader<'_, '_>) -> Normalization {
    let (ids, descriptors) = fields.table("normalize", read_ids).unwrap_or_default();
    let ignore_path_case = fields.read("ignore_path_case", boolean).unwrap_or(false);
    let head =
        fields.read("head", word(&HeadCounting::ALL.map(|head| (head.as_str(), head)))).unwrap_or_default();
    Normalization { ids, descriptors, ignore_path_case, head }
}

fn read_ids(fields: &mut TableReader<'_, '_>) -> (IdNormalization, DescriptorNormalization) {
    let mut read = |key| fields.read(key, fold).unwrap_or_default();
    let folds = IdNormalization { user: read("user_id"), tenant: read("tenant"), login: read("login") };
    let descriptors = match fields.peek("descriptors", |value| Ok(matches!(value, Value::Table(_)))) {
        Some(true) => {
            let named = fields.entries("descriptors", fold).unwrap_or_default();
            DescriptorNormalization::Named(
                named.into_iter().map(|(name, fold)| (name.into(), fold)).collect(),
            )
        }
        _ => DescriptorNormalization::All(fields.read("descriptors", fold).unwrap_or_default()),
    };
    let _ = fields.read("api_key", |_| {
        let reason = "API keys cannot be normalized: every byte is significant";
        Err::<NormalForm, String>(reason.to_owned())
    });
    (folds, descriptors)
}

fn fold(value: &Value) -> Result<NormalForm, String> {
    word(&NormalForm::ALL.map(|fold| (fold.as_str(), fold)))(value)
}
