//! The size of files, and what is read back from them.

use object_store::path::Path;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use tempfile::TempDir;

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

    /// By a power law: of 20,000 clients, the first has 4 % and the first hundredth 22 %.
    fn skewed(&mut self, bound: u64) -> u64 {
        let cube = u128::from(self.below(1 << 20)).pow(3);
        u64::try_from((cube * u128::from(bound)) >> 60).unwrap()
    }

    fn signed(&mut self, bound: u64) -> i64 {
        i64::try_from(self.below(bound)).unwrap()
    }

    fn hex(&mut self, digits: usize) -> String {
        format!("{:016x}", self.below(u64::MAX))[..digits].to_owned()
    }
}

/// A visit of a client: refusals in a burst, or one request that was admitted and sampled.
struct Visit {
    client: u64,
    node: u8,
    ip: String,
    route: u64,
    is_allowed: bool,
    retry: i64,
}

impl Visit {
    fn new(random: &mut Random) -> Self {
        let (client, from) = (random.skewed(20_000), random.below(3));
        let ip = if client.is_multiple_of(8) {
            format!("2001:db8:{:x}::{from}", client % 65_536)
        } else {
            format!("{}.{}.{}.{from}", client % 223 + 1, client / 256 % 256, client % 256)
        };
        let (route, is_allowed) = (random.skewed(200), random.below(10) < 3);
        let node = u8::try_from(random.below(4)).unwrap();
        Visit { client, node, ip, route, is_allowed, retry: 1 + random.signed(60) }
    }

    /// The integers and texts of a request of this visit, in the order of the columns.
    fn request(&self, random: &mut Random, has_request_id: bool) -> ([Option<i64>; 9], [Option<String>; 12]) {
        let limit = [10, 60, 100, 1_000, 5_000][usize::try_from(self.route % 5).unwrap()];
        let is_allowed = self.is_allowed;
        let (admitted, limit) = (1 + random.signed(limit), i64::try_from(limit).unwrap());
        let count = if is_allowed { admitted } else { limit };
        let latency = 4 + i64::try_from(random.skewed(400)).unwrap();
        let retry = (!is_allowed).then_some(self.retry);
        let status = if is_allowed { 200 } else { 429 };
        let mut ints = [count, limit, limit - count, 1, status, 0, latency, 0, 0].map(Some);
        ints[5] = retry;
        let id = format!("usr_{}", Random(self.client).hex(12));
        let method = ["GET", "GET", "GET", "POST", "PUT", "DELETE"][usize::try_from(self.route % 6).unwrap()];
        let texts = [
            (self.client % 5 < 3).then(|| format!("tenant-{}", self.client % 50)),
            Some(format!("user:{id}")),
            Some(id),
            self.client.is_multiple_of(4).then(|| format!("key_{}", Random(self.client ^ 1).hex(10))),
            Some(self.ip.clone()),
            Some(format!("/api/v1/resources-{}/items", self.route)),
            Some(method.to_owned()),
            Some(format!("rule-{}", self.route % 15)),
            Some(if is_allowed { "allowed" } else { "throttled" }.to_owned()),
            Some("eu-west-1".to_owned()),
            Some(format!("node-{}", self.node)),
            has_request_id.then(|| format!("req_{}", random.hex(16))),
        ];
        (ints, texts)
    }
}

/// Some minutes of the decision log of four nodes: 300 visits at once, of 20,000 clients in 50 tenants.
fn busy_log(rows: usize, has_request_ids: bool) -> Batch {
    let mut random = Random(1);
    let mut visits: Vec<Visit> = (0..300).map(|_| Visit::new(&mut random)).collect();
    let mut batch = Batch::new(ArchivedTable::Log);
    let (mut numbers, mut time) = ([0_i64; 4], 1_790_000_000_000_000_i64);
    for _ in 0..rows {
        time += random.signed(6_000);
        let place = usize::try_from(random.below(300)).unwrap();
        let visit = &visits[place];
        let node = usize::from(visit.node);
        numbers[node] += 1;
        let log_id = (1 + i64::try_from(node).unwrap()) * (1 << 40) + numbers[node];
        let (ints, texts) = visit.request(&mut random, has_request_ids);
        let mut ints = [Some(log_id), Some(time)].into_iter().chain(ints);
        let mut texts = texts.into_iter();
        for column in &mut batch.columns {
            match column {
                Values::Int(values) => values.push(ints.next().unwrap()),
                Values::Bytes(values) => {
                    values.push(texts.next().unwrap().map(|text| ByteArray::from(text.into_bytes())));
                }
            }
        }
        // Bursts of eleven refusals on average.
        if visits[place].is_allowed || random.below(11) == 0 {
            visits[place] = Visit::new(&mut random);
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

/// The file in a folder.
async fn opened(file: &[u8]) -> (TempDir, FileReader) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), file).unwrap();
    let place = ArchivePlace::parse(&format!("file://{}", folder.path().display())).unwrap();
    let store = ArchiveStore::open(&ArchiveSettings::new(place)).unwrap();
    let reader = FileReader::open(&store, ArchivedTable::Log, Path::from("file")).await.unwrap();
    (folder, reader)
}

async fn read_back(file: Vec<u8>) -> Vec<Batch> {
    let (_folder, reader) = opened(&file).await;
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
async fn damaged_bloom_filter_is_noticed() {
    let mut file = encoded(busy_log(5_000, true), ArchivedTable::Log.columns());
    let (_folder, reader) = opened(&file).await;
    assert_eq!(reader.totals(0).await.unwrap().rows, 5_000);
    let metadata = SerializedFileReader::new(Bytes::from(file.clone())).unwrap().metadata().clone();
    let clients = metadata.row_group(0).column(ArchivedTable::Log.keys().subject);
    let start = usize::try_from(clients.bloom_filter_offset().unwrap()).unwrap();
    let length = usize::try_from(clients.bloom_filter_length().unwrap()).unwrap();
    // Behind its header: one block of 32 bytes.
    file[start + length - 32..start + length].fill(0);
    let (_folder, reader) = opened(&file).await;
    let error = reader.totals(0).await.unwrap_err().to_string();
    assert!(error.contains("searches would skip rows"), "{error}");
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
