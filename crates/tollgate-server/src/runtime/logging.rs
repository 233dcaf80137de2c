//! Logs to standard error, as text or JSON.
//!
//! Values from clients are logged with `?value`, which escapes line breaks and terminal codes, so that a client cannot forge a line.

use std::io;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::settings::{LogFormat, LogSettings};

/// The database driver logs every broken idle connection and server notice at info.
const INFO: &str = "info,sqlx=warn";

/// Starts logging. Only the first call in a process has an effect.
pub fn init(settings: &LogSettings) {
    let use_colour = io::IsTerminal::is_terminal(&io::stderr());
    let _ = subscriber(settings, use_colour, io::stderr).try_init();
}

fn subscriber<W>(settings: &LogSettings, use_colour: bool, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // The settings have validated the filter.
    let filter = if settings.filter == "info" { INFO } else { &settings.filter };
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new(INFO));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(use_colour);
    match settings.format {
        LogFormat::Pretty => Box::new(builder.with_target(false).compact().finish()),
        LogFormat::Json => Box::new(builder.json().flatten_event(true).with_current_span(false).finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, filter: &str, log: impl FnOnce()) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        let settings = LogSettings { format, filter: filter.to_owned(), refusals: true };
        let subscriber = subscriber(&settings, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, log);
        let bytes = captured.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn client_values_cannot_forge_log_lines() {
        let forged = "a\r\n2026-01-01 ERROR forged\u{1b}[2J\u{7}\"}";
        for format in LogFormat::ALL {
            let text = logged(format, "info", || tracing::info!(user = ?forged, "refused"));
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert!(!text.trim_end().contains(char::is_control), "{text:?}");
            assert!(text.contains("refused") && text.contains("forged"), "{text:?}");
        }
    }

    #[test]
    fn database_driver_info_is_not_logged() {
        let talk = || {
            tracing::info!(target: "sqlx_core::pool::inner", "small talk");
            tracing::warn!(target: "sqlx::query", "slow");
            tracing::info!("ours");
        };
        let text = logged(LogFormat::Pretty, "info", talk);
        assert!(!text.contains("small talk") && text.contains("slow") && text.contains("ours"), "{text}");
    }

    #[test]
    fn filter_selects_log_levels() {
        let both = || {
            tracing::info!("one");
            tracing::warn!("two");
        };
        let text = logged(LogFormat::Pretty, "warn", both);
        assert!(!text.contains("one") && text.contains("two"), "{text}");
    }
}
