//! The service around the library.
