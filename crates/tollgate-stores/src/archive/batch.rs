//! Rows of one table in memory, by column.

use hashbrown::HashMap;
use parquet::data_type::ByteArray;
use xxhash_rust::xxh3::xxh3_128;

use super::table::ArchivedTable;

/// Rows of a batch, and of a row group: about 30 MB of the decision log in memory.
pub(crate) const BATCH_ROWS: usize = 131_072;

/// The values of a column. `None` is NULL.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    Int(Vec<Option<i64>>),
    Bytes(Vec<Option<ByteArray>>),
}

/// One value of a row.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    Int(Option<i64>),
    Bytes(Option<ByteArray>),
}

/// Rows of one table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Batch {
    pub(crate) table: ArchivedTable,
    pub(crate) columns: Vec<Values>,
}

/// What identifies a set of rows, in any order.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) rows: u64,
    /// The sum of the count column.
    pub(crate) sum: i64,
    /// The sum of the hashes of all rows, modulo 2¹²⁸.
    pub(crate) checksum: u128,
    /// The earliest and the latest time, in microseconds since 1970.
    pub(crate) times: Option<(i64, i64)>,
}

impl Values {
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Int(values) => values.len(),
            Values::Bytes(values) => values.len(),
        }
    }

    pub(crate) fn int(&self, row: usize) -> Option<i64> {
        match self {
            Values::Int(values) => values.get(row).copied().flatten(),
            Values::Bytes(_) => None,
        }
    }

    pub(crate) fn bytes(&self, row: usize) -> Option<&[u8]> {
        match self {
            Values::Bytes(values) => values.get(row)?.as_ref().map(ByteArray::data),
            Values::Int(_) => None,
        }
    }

    pub(crate) fn text(&self, row: usize) -> Option<&str> {
        self.bytes(row).and_then(|bytes| str::from_utf8(bytes).ok())
    }

    fn append(&mut self, other: Values) {
        match (self, other) {
            (Values::Int(values), Values::Int(more)) => values.extend(more),
            (Values::Bytes(values), Values::Bytes(more)) => values.extend(more),
            _ => debug_assert!(false, "columns of one table have one type"),
        }
    }

    fn split_off(&mut self, row: usize) -> Values {
        match self {
            Values::Int(values) => Values::Int(values.split_off(row)),
            Values::Bytes(values) => Values::Bytes(values.split_off(row)),
        }
    }

    /// A column without any value.
    pub(crate) fn nulls(is_int: bool, rows: usize) -> Self {
        if is_int { Values::Int(vec![None; rows]) } else { Values::Bytes(vec![None; rows]) }
    }
}

impl Batch {
    pub(crate) fn new(table: ArchivedTable) -> Self {
        let empty = |column: &super::table::Column| Values::nulls(column.kind.is_int(), 0);
        Batch { table, columns: table.columns().iter().map(empty).collect() }
    }

    pub(crate) fn rows(&self) -> usize {
        self.columns.first().map_or(0, Values::len)
    }

    /// Adds a row with a value for each column.
    pub(crate) fn push<const N: usize>(&mut self, cells: [Cell; N]) {
        debug_assert_eq!(N, self.columns.len(), "a value for each column");
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            match (column, cell) {
                (Values::Int(values), Cell::Int(value)) => values.push(value),
                (Values::Bytes(values), Cell::Bytes(value)) => values.push(value),
                (Values::Int(values), Cell::Bytes(_)) => values.push(None),
                (Values::Bytes(values), Cell::Int(_)) => values.push(None),
            }
        }
    }

    /// Adds the rows of another batch of the same table.
    pub(crate) fn append(&mut self, other: Batch) {
        for (column, more) in self.columns.iter_mut().zip(other.columns) {
            column.append(more);
        }
    }

    /// Removes the rows from this one on, and returns them.
    pub(crate) fn split_off(&mut self, row: usize) -> Batch {
        let columns = self.columns.iter_mut().map(|column| column.split_off(row)).collect();
        Batch { table: self.table, columns }
    }

    /// The rows in the order of the archive: by subject, then by time.
    pub(crate) fn order(&self) -> Vec<usize> {
        let keys = self.table.keys();
        let (subject, time) = (&self.columns[keys.subject], &self.columns[keys.time]);
        // Numbers are compared several times faster than texts, and there are few distinct subjects.
        let mut numbers: HashMap<Option<&[u8]>, usize> = HashMap::new();
        let of_row: Vec<usize> = (0..self.rows())
            .map(|row| {
                let next = numbers.len();
                *numbers.entry(subject.bytes(row)).or_insert(next)
            })
            .collect();
        let mut sorted: Vec<(Option<&[u8]>, usize)> = numbers.into_iter().collect();
        sorted.sort_unstable();
        let mut ranks = vec![0; sorted.len()];
        for (rank, (_, number)) in sorted.into_iter().enumerate() {
            ranks[number] = rank;
        }
        let mut order: Vec<(usize, Option<i64>, usize)> =
            of_row.into_iter().enumerate().map(|(row, number)| (ranks[number], time.int(row), row)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, row)| row).collect()
    }

    pub(crate) fn totals(&self) -> Totals {
        let keys = self.table.keys();
        let mut totals = Totals { rows: self.rows() as u64, ..Totals::default() };
        let mut encoded = Vec::with_capacity(256);
        for row in 0..self.rows() {
            encoded.clear();
            self.encode(row, &mut encoded);
            totals.checksum = totals.checksum.wrapping_add(xxh3_128(&encoded));
            if let Some(time) = self.columns[keys.time].int(row) {
                totals.include_time(time, time);
            }
        }
        if let Some(Values::Int(counts)) = keys.version.map(|(count, _)| &self.columns[count]) {
            totals.sum = counts.iter().flatten().fold(0, |sum, count| sum.wrapping_add(*count));
        }
        totals
    }

    /// The bytes of a row for its checksum. NULL adds nothing, so that a column added later does not change the checksums of
    /// earlier files.
    fn encode(&self, row: usize, out: &mut Vec<u8>) {
        for (number, column) in (0_u8..).zip(&self.columns) {
            if let Some(int) = column.int(row) {
                out.push(number);
                out.extend_from_slice(&int.to_le_bytes());
            } else if let Some(bytes) = column.bytes(row) {
                out.push(number);
                out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }
}

/// As it is written to the footer of a file.
impl std::fmt::Display for Totals {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Totals { rows, sum, checksum, .. } = self;
        write!(out, "rows={rows} sum={sum} checksum={checksum:032x}")
    }
}

impl Totals {
    fn include_time(&mut self, oldest: i64, newest: i64) {
        let (first, last) = self.times.unwrap_or((oldest, newest));
        self.times = Some((first.min(oldest), last.max(newest)));
    }

    /// Adds the totals of other rows.
    pub(crate) fn add(&mut self, other: &Totals) {
        self.rows += other.rows;
        self.sum = self.sum.wrapping_add(other.sum);
        self.checksum = self.checksum.wrapping_add(other.checksum);
        if let Some((oldest, newest)) = other.times {
            self.include_time(oldest, newest);
        }
    }
}
