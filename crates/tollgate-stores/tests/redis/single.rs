//! The conformance suite on one server.

use crate::harness::Shared;

tollgate::counters::conformance!(harness = Shared::single());
