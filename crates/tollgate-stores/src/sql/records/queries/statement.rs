//! A query with the expressions in which the engines differ: times, sums, and text on MySQL.

use crate::sql::engine::{Row, Transaction, to_i64};
use crate::sql::error::DatabaseError;
use crate::sql::query::{Query, Value};
use crate::sql::records::time::{bind_time, push_micros};
use crate::sql::settings::Engine;

use crate::sql::records::granularity::Granularity;

/// A query in the dialect of one engine.
pub(in crate::sql::records) struct Statement<'a> {
    query: Query<'a>,
    engine: Engine,
}

impl<'a> Statement<'a> {
    pub(in crate::sql::records) fn new(engine: Engine, text: &'static str) -> Self {
        Statement { query: Query::new(text), engine }
    }

    /// Runs it; returns the number of rows that it changed.
    pub(in crate::sql::records) async fn execute(
        &self,
        transaction: &mut Transaction,
    ) -> Result<u64, DatabaseError> {
        transaction.execute_counted(&self.query).await
    }

    pub(in crate::sql::records) async fn rows(
        &self,
        transaction: &mut Transaction,
    ) -> Result<Vec<Row>, DatabaseError> {
        transaction.rows(&self.query).await
    }

    /// Passes on the result of a query of PostgreSQL in the binary format of `COPY`. It must not have texts as values.
    pub(in crate::sql::records) async fn copy_out(
        &self,
        transaction: &mut Transaction,
        read: &mut (dyn FnMut(&[u8]) -> Result<(), DatabaseError> + Send),
    ) -> Result<(), DatabaseError> {
        let query = self.query.with_literals()?;
        transaction.copy_out(&format!("COPY ({query}) TO STDOUT (FORMAT BINARY)"), read).await
    }

    pub(in crate::sql::records) fn push(&mut self, text: &'static str) -> &mut Self {
        self.query.push(text);
        self
    }

    pub(in crate::sql::records) fn bind(&mut self, value: impl Into<Value<'a>>) -> &mut Self {
        self.query.bind(value);
        self
    }

    /// Binds a text that is compared with a column. MySQL would compare bytes with a text without using an index.
    pub(in crate::sql::records) fn bind_text(&mut self, text: &'a str) -> &mut Self {
        match self.engine {
            Engine::MySql => self.push("CONVERT(").bind(text).push(" USING utf8mb4)"),
            Engine::Sqlite | Engine::Postgres => self.bind(text),
        }
    }

    /// Binds an instant. PostgreSQL would parse a text again for every row of a scan; it computes this expression once. The number
    /// is exact until 2106.
    pub(in crate::sql::records) fn bind_time(&mut self, micros: u64) -> Result<&mut Self, DatabaseError> {
        match self.engine {
            Engine::Postgres => {
                let micros = to_i64(micros, "time")?;
                self.push("to_timestamp(CAST(").bind(micros).push(" AS DOUBLE PRECISION) / 1000000)");
            }
            Engine::Sqlite | Engine::MySql => bind_time(&mut self.query, self.engine, micros)?,
        }
        Ok(self)
    }

    /// A column with an instant, as text in UTC.
    pub(in crate::sql::records) fn time(&mut self, column: &'static str) -> &mut Self {
        match self.engine {
            Engine::Sqlite => self.push(column),
            Engine::Postgres => {
                self.push("to_char(").push(column).push(" AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')")
            }
            Engine::MySql => self.push("DATE_FORMAT(").push(column).push(", '%Y-%m-%d %H:%i:%s.%f')"),
        }
    }

    /// A column with an instant, in microseconds since 1970.
    pub(in crate::sql::records) fn micros(&mut self, column: &'static str) -> &mut Self {
        push_micros(&mut self.query, self.engine, column);
        self
    }

    /// The start of the period in which an instant lies, as text in UTC.
    pub(in crate::sql::records) fn period(&mut self, column: &'static str, per: Granularity) -> &mut Self {
        match self.engine {
            Engine::Sqlite => self.push("substr(").push(column).push(match per {
                Granularity::Minute => ", 1, 16)",
                Granularity::Hour => ", 1, 13)",
                Granularity::Day => ", 1, 10)",
            }),
            Engine::Postgres => self.push("to_char(").push(column).push(match per {
                Granularity::Minute => " AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')",
                Granularity::Hour => " AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24')",
                Granularity::Day => " AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
            }),
            Engine::MySql => self.push("DATE_FORMAT(").push(column).push(match per {
                Granularity::Minute => ", '%Y-%m-%d %H:%i')",
                Granularity::Hour => ", '%Y-%m-%d %H')",
                Granularity::Day => ", '%Y-%m-%d')",
            }),
        }
    }

    /// The sum of a column as a 64-bit integer: sums are decimals on servers.
    pub(in crate::sql::records) fn sum(&mut self, column: &'static str) -> &mut Self {
        match self.engine {
            Engine::Sqlite => self.push("SUM(").push(column).push(")"),
            Engine::Postgres => self.push("CAST(SUM(").push(column).push(") AS BIGINT)"),
            Engine::MySql => self.push("CAST(SUM(").push(column).push(") AS SIGNED)"),
        }
    }

    /// As [`sum`](Self::sum), for many groups.
    pub(in crate::sql::records) fn sum_in_group(&mut self, column: &'static str) -> &mut Self {
        match self.engine {
            Engine::Postgres => self.push("CAST(").raw_sum_in_group(column).push(" AS BIGINT)"),
            Engine::Sqlite | Engine::MySql => self.sum(column),
        }
    }

    /// A sum in whatever type the engine has it, for many groups. PostgreSQL adds up floating-point numbers in three quarters of the
    /// time that integers of 64 bits take. They are exact up to 2^53.
    pub(in crate::sql::records) fn raw_sum_in_group(&mut self, column: &'static str) -> &mut Self {
        match self.engine {
            Engine::Postgres => self.push("SUM(CAST(").push(column).push(" AS DOUBLE PRECISION))"),
            Engine::Sqlite | Engine::MySql => self.push("SUM(").push(column).push(")"),
        }
    }

    /// A column that may be a smaller integer.
    pub(in crate::sql::records) fn int(&mut self, column: &'static str) -> &mut Self {
        match self.engine {
            Engine::Postgres => self.push("CAST(").push(column).push(" AS BIGINT)"),
            Engine::Sqlite | Engine::MySql => self.push(column),
        }
    }

    /// A truth value as 0 or 1.
    pub(in crate::sql::records) fn flag(&mut self, column: &'static str) -> &mut Self {
        match self.engine {
            Engine::Postgres => self.push("CAST(CAST(").push(column).push(" AS INTEGER) AS BIGINT)"),
            Engine::Sqlite | Engine::MySql => self.push(column),
        }
    }

    /// An IP address without its network mask.
    pub(in crate::sql::records) fn address(&mut self, column: &'static str) -> &mut Self {
        match self.engine {
            Engine::Postgres => self.push("host(").push(column).push(")"),
            Engine::Sqlite | Engine::MySql => self.push(column),
        }
    }

    /// All texts of a group, separated by spaces.
    pub(in crate::sql::records) fn joined(&mut self, column: &'static str) -> &mut Self {
        match self.engine {
            Engine::Sqlite => self.push("group_concat(").push(column).push(", ' ')"),
            Engine::Postgres => self.push("string_agg(").push(column).push(", ' ')"),
            Engine::MySql => self.push("GROUP_CONCAT(").push(column).push(" SEPARATOR ' ')"),
        }
    }
}

/// Lets MySQL join texts of any length: its default is 1024 bytes.
pub(in crate::sql::records) async fn allow_long_joins(
    transaction: &mut Transaction,
) -> Result<(), DatabaseError> {
    if transaction.engine() == Engine::MySql {
        transaction.execute_script("SET SESSION group_concat_max_len = 67108864").await?;
    }
    Ok(())
}

/// Lets servers group all clients of a day in memory: by default PostgreSQL sorts their windows on disk above 4 MB, and MySQL
/// groups on disk above 16 MB. PostgreSQL also plans for the bound times, does not compile the query, which takes longer than it
/// saves, and groups on as many cores as it is configured to use for a query.
pub(in crate::sql::records) async fn allow_large_groups(
    transaction: &mut Transaction,
) -> Result<(), DatabaseError> {
    match transaction.engine() {
        Engine::Sqlite => {}
        Engine::Postgres => {
            let settings = "SET LOCAL work_mem = '64MB'; SET LOCAL jit = off; \
                            SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; \
                            SET LOCAL plan_cache_mode = force_custom_plan";
            transaction.execute_script(settings).await?;
        }
        Engine::MySql => {
            let memory = "SET SESSION tmp_table_size = 268435456, SESSION max_heap_table_size = 268435456";
            transaction.execute_script(memory).await?;
        }
    }
    Ok(())
}
