//! What every counter store must do.
