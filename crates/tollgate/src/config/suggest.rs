//! Suggestions for misspelled keys.

/// The known key most similar to `key`, if it is likely that it was meant.
pub(super) fn closest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let distance = |other: &str| edit_distance(key.as_bytes(), other.as_bytes());
    let (edits, near) = known.iter().map(|other| (distance(other), *other)).min()?;
    // Short keys allow fewer edits: `foo` is not a misspelled `log`.
    let edits_max = match key.len().min(near.len()) {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    };
    (edits <= edits_max).then_some(near)
}

/// The optimal string alignment distance: insertions, deletions, substitutions and transpositions.
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let substituted = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            rows[i][j] = substituted.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                rows[i][j] = rows[i][j].min(rows[i - 2][j - 2] + 1);
            }
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_likely_typos_are_suggested() {
        let known = ["log", "per", "name", "rules", "server", "window", "connections_max"];
        for (key, near) in [
            ("foo", None),
            ("lag", Some("log")),
            ("lg", None),
            ("pre", Some("per")),
            ("mane", None),
            ("nam", Some("name")),
            ("rule", Some("rules")),
            ("roles", Some("rules")),
            ("rulse", Some("rules")),
            ("bulls", None),
            ("sever", Some("server")),
            ("severs", Some("server")),
            ("conections_mx", Some("connections_max")),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(closest(key, &known), near, "{key}");
        }
    }
}
