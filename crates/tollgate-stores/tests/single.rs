//! The conformance suite on one server.

mod harness;

use self::harness::Shared;

tollgate::counters::conformance!(harness = Shared::single());
