//! Slips of the finger: which key was likely meant.

/// The known key that differs least, if it is a likely slip.
pub(super) fn closest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let distance = |other: &str| edit_distance(key.as_bytes(), other.as_bytes());
    let (slips, near) = known.iter().map(|other| (distance(other), *other)).min()?;
    // Of a short word little is left after two slips: `foo` is no misspelt `log`.
    let slips_max = match key.len().min(near.len()) {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    };
    (slips <= slips_max).then_some(near)
}

/// How many letters were added, left out or exchanged, or changed places with their neighbour.
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let exchanged = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            rows[i][j] = exchanged.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
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
    fn only_a_likely_slip_is_suggested() {
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
