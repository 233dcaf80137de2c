//! Rows that the database rejects, or that cannot be decoded.

use super::*;
use crate::records::drain::quarantine::QuarantinedRow;
use tollgate_stores::sql::records::SourceId;

pub(super) fn quarantined(setup: &Setup) -> Vec<(u64, String)> {
    let text = std::fs::read_to_string(setup.quarantine()).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.map(|line| (line["row"].as_u64().unwrap(), line["error"].as_str().unwrap().to_owned())).collect()
}

/// Rows 0 to 999, some of them replaced.
pub(super) fn rows_with(bad: &[(usize, &str)]) -> Vec<String> {
    let mut rows: Vec<String> = numbered(0..1_000).collect();
    for (row, text) in bad {
        (*text).clone_into(&mut rows[*row]);
    }
    rows
}

#[tokio::test]
async fn rejected_rows_are_found_and_set_aside() {
    let bad = [0, 1, 99, 100, 555, 998, 999];
    let mut setup = Setup::new();
    setup.settings.rows_max = 500;
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, rows_with(&bad.map(|row| (row, "poison"))));
    writer.close();
    drain.await.unwrap();
    let expected: Vec<String> =
        numbered(0..1_000).enumerate().filter(|(row, _)| !bad.contains(row)).map(|(_, text)| text).collect();
    assert_eq!(setup.sink.texts(), expected);
    assert_eq!((stats.rows_stored.get(), stats.rows_quarantined.get()), (993, 7));
    assert_eq!(quarantined(&setup), bad.map(|row| (row as u64, "value out of range".to_owned())));
    assert!(is_empty(&setup.log()));
}

#[tokio::test]
async fn undecodable_rows_are_set_aside() {
    let setup = Setup::new();
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, rows_with(&[(0, "garbage"), (10, "garbage"), (11, "garbage"), (12, "poison")]));
    writer.close();
    drain.await.unwrap();
    assert_eq!((stats.rows_stored.get(), stats.rows_quarantined.get()), (996, 4));
    let rows: Vec<u64> = quarantined(&setup).into_iter().map(|(row, _)| row).collect();
    assert_eq!(rows, [0, 10, 11, 12]);
    assert!(std::fs::read_to_string(setup.quarantine()).unwrap().contains("Z2FyYmFnZQ=="));
}

#[tokio::test]
async fn rejected_rows_during_outages_are_set_aside_once() {
    let setup = Setup::new();
    setup.sink.fail_next([Fault::AnswerLost, Fault::Unreachable].into_iter().cycle().take(100));
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, rows_with(&[(3, "poison"), (250, "poison")]));
    writer.close();
    drain.await.unwrap();
    assert_eq!((stats.rows_stored.get(), stats.rows_quarantined.get()), (998, 2));
    assert_eq!((setup.sink.texts().len(), quarantined(&setup).len()), (998, 2));
}

#[test]
fn quarantine_is_bounded() {
    let setup = Setup::new();
    let quarantine = Quarantine::new(setup.quarantine()).with_bytes_max(1_000);
    let row = QuarantinedRow {
        source: SourceId([0xab; 16]),
        number: 7,
        error: "too \"long\"".to_owned(),
        content: "line\nbreak".to_owned(),
    };
    (0..50).for_each(|_| quarantine.add(&row));
    let length = std::fs::metadata(setup.quarantine()).unwrap().len();
    assert!((800..=1_000).contains(&length), "{length}");
    assert!(quarantined(&setup).iter().all(|row| *row == (7, "too \"long\"".to_owned())));
}
