//! Parsing of the normalization settings in `[identity]`.

use super::values::{boolean, word};
use super::{TableReader, Value};
use crate::identity::{DescriptorNormalization, HeadCounting, IdNormalization, NormalForm, Normalization};

/// Reads `normalize`, `ignore_path_case` and `head`; other keys are left to the caller.
///
/// ```
/// use tollgate::identity::NormalForm;
/// use tollgate::config::{Document, Problems, read_normalization};
///
/// let document = Document::from_toml("normalize = { user_id = \"nfc+casefold\" }\nhead = \"separate\"")?;
/// let mut problems = Problems::default();
/// let normalization = read_normalization(&mut document.fields(&mut problems));
/// assert_eq!(normalization.ids.user, NormalForm::NfcCasefold);
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
    let mut read = |key| fields.read(key, normal_form).unwrap_or_default();
    let ids = IdNormalization { user: read("user_id"), tenant: read("tenant"), login: read("login") };
    let descriptors = match fields.peek("descriptors", |value| Ok(matches!(value, Value::Table(_)))) {
        Some(true) => {
            let named = fields.entries("descriptors", normal_form).unwrap_or_default();
            DescriptorNormalization::Named(
                named.into_iter().map(|(name, form)| (name.into(), form)).collect(),
            )
        }
        _ => DescriptorNormalization::All(fields.read("descriptors", normal_form).unwrap_or_default()),
    };
    let _ = fields.read("api_key", |_| {
        let reason = "API keys cannot be normalized: every byte is significant";
        Err::<NormalForm, String>(reason.to_owned())
    });
    (ids, descriptors)
}

fn normal_form(value: &Value) -> Result<NormalForm, String> {
    word(&NormalForm::ALL.map(|form| (form.as_str(), form)))(value)
}
