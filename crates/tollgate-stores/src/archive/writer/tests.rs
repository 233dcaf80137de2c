//! The size of files, and what is read back from them.

use object_store::path::Path;

use super::*;
use crate::archive::batch::Totals;
use crate::archive::reader::FileReader;
use crate::archive::store::ArchiveStore;
use crate::archive::{ArchivePlace, ArchiveSettings};

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Few small numbers are frequent, many large ones are rare.
    fn skewed(&mut self, bound: u64) -> u64 {
        let range = 1 + self.below(bound);
        self.below(range)
    }

    fn signed(&mut self, bound: u64) -> i64 {
        i64::try_from(self.below(bound)).unwrap()
    }
}

/// A minute and a half of the decision log of four nodes: refused requests, and some of those that were admitted.
fn busy_log(rows: usize, has_request_ids: bool) -> Batch {
    let mut random = Random(1);
    let mut batch = Batch::new(ArchivedTable::Log);
    let mut numbers = [0_i64; 4];
    let mut time = 1_790_000_000_000_000_i64;
    for _ in 0..rows {
        time += random.signed(1_400);
        let node = usize::try_from(random.below(4)).unwrap();
        numbers[node] += 1;
        let (client, rule) = (random.skewed(20_000), random.skewed(12));
        let limit = [10, 60, 100, 1_000][usize::try_from(rule % 4).unwrap()];
        let is_allowed = random.below(10) < 3;
        let count = if is_allowed { random.signed(limit) } else { i64::try_from(limit).unwrap() };
        let limit = i64::try_from(limit).unwrap();
        let retry = (!is_allowed).then(|| 1 + i64::try_from(random.skewed(60)).unwrap());
        let latency = 3 + i64::try_from(random.skewed(40)).unwrap();
        let request_id = has_request_ids.then(|| format!("req_{:016x}", random.below(u64::MAX)));
        let ints = [
            Some((1 + i64::try_from(node).unwrap()) * (1 << 40) + numbers[node]),
            Some(time),
            Some(count),
            Some(limit),
            Some(limit - count),
            Some(1),
            Some(if is_allowed { 200 } else { 429 }),
            retry,
            Some(latency),
            Some(0),
            Some(0),
        ];
        let texts = [
            None,
            Some(format!("user:customer-{client}")),
            Some(format!("customer-{client}")),
            None,
            Some(format!("203.0.{}.{}", client / 250, client % 250)),
            Some(format!("/api/v1/resource-{}", random.skewed(40))),
            Some(["GET", "POST", "PUT"][usize::try_from(random.skewed(3)).unwrap()].to_owned()),
            Some(format!("rule-{rule}")),
            Some(if is_allowed { "allowed" } else { "throttled" }.to_owned()),
            Some("eu-west-1".to_owned()),
            Some(format!("node-{node}")),
            request_id,
        ];
        let (mut ints, mut texts) = (ints.into_iter(), texts.into_iter());
        for column in &mut batch.columns {
            match column {
                Values::Int(values) => values.push(ints.next().unwrap()),
                Values::Bytes(values) => {
                    values.push(texts.next().unwrap().map(|text| ByteArray::from(text.into_bytes())));
                }
            }
        }
    }
    batch
}

fn encoded(mut batch: Batch, columns: &'static [Column]) -> Vec<u8> {
    let mut writer = FileWriter::with_columns(batch.table, columns).unwrap();
    let mut file = writer.write(&mut batch).unwrap().to_vec();
    file.extend_from_slice(&writer.finish().unwrap());
    file
}

#[test]
fn log_rows_take_few_bytes() {
    for (has_request_ids, bytes_max) in [(true, 40.0), (false, 15.0)] {
        let rows = BATCH_ROWS;
        let batch = busy_log(rows, has_request_ids);
        let totals = batch.totals();
        let file = encoded(batch, ArchivedTable::Log.columns());
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let bytes = file.len() as f64 / rows as f64;
        assert_eq!(totals.rows, rows as u64);
        assert!(bytes <= bytes_max, "{bytes} bytes per row, with request ids: {has_request_ids}");
    }
}

async fn read_back(file: Vec<u8>) -> Vec<Batch> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), file).unwrap();
    let place = ArchivePlace::parse(&format!("file://{}", folder.path().display())).unwrap();
    let store = ArchiveStore::open(&ArchiveSettings::new(place)).unwrap();
    let reader = FileReader::open(&store, ArchivedTable::Log, Path::from("file")).await.unwrap();
    let mut batches = Vec::new();
    for group in reader.groups() {
        batches.push(reader.read(group).await.unwrap());
    }
    batches
}

#[tokio::test]
async fn rows_are_read_back_sorted_by_client_and_time() {
    let batch = busy_log(5_000, true);
    let order = batch.order();
    let back = read_back(encoded(batch.clone(), ArchivedTable::Log.columns())).await;
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].totals(), batch.totals());
    for (row, original) in order.into_iter().enumerate() {
        for (column, values) in back[0].columns.iter().enumerate() {
            assert_eq!(values.int(row), batch.columns[column].int(original));
            assert_eq!(values.bytes(row), batch.columns[column].bytes(original));
        }
    }
}

#[tokio::test]
async fn column_added_later_is_null_in_older_files() {
    let earlier = &ArchivedTable::Log.columns()[..20];
    let mut batch = busy_log(300, true);
    let back = read_back(encoded(batch.clone(), earlier)).await;
    for column in 20..batch.columns.len() {
        assert!((0..300).all(|row| back[0].columns[column].int(row).is_none()));
        assert!((0..300).all(|row| back[0].columns[column].bytes(row).is_none()));
        let is_int = ArchivedTable::Log.columns()[column].kind.is_int();
        batch.columns[column] = Values::nulls(is_int, 300);
    }
    let mut totals = Totals::default();
    totals.add(&back[0].totals());
    assert_eq!(totals, batch.totals(), "checksums of earlier files stay valid");
}
