//! Top-level keys that stand for keys of a section.

use tollgate::config::{Document, Origin, Value};

/// Moves `redis_url` and `redis_topology` to `[counters]`.
pub(super) fn expand(document: &mut Document) {
    if document.has(&["redis_url"]) && !document.has(&["counters", "store"]) {
        let origin = Origin::Named("redis_url".to_owned());
        // An error is reported when the section is read.
        let _ = document.set(&["counters", "store"], Value::Text("redis".to_owned()), &origin);
    }
    document.move_key("redis_url", &["counters", "url"]);
    document.move_key("redis_topology", &["counters", "topology"]);
}
