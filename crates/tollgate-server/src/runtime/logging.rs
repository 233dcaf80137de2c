//! Events to standard error, for people or for machines.
//!
//! Values that come from clients are logged with `?value`: that escapes line breaks and terminal codes, so that a
//! client cannot forge a line. The JSON form escapes them in any case.

use std::io;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::settings::{LogFormat, LogSettings};

/// The database driver tells of every idle connection that broke and every notice of the server: an outage is told by us.
const INFO: &str = "info,sqlx=warn";

/// Starts logging. The first call in a process counts; later ones change nothing.
pub fn init(settings: &LogSettings) {
    let colours = io::IsTerminal::is_terminal(&io::stderr());
    let _ = subscriber(settings, colours, io::stderr).try_init();
}

fn subscriber<W>(settings: &LogSettings, colours: bool, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // The filter was checked with the settings; should it be wrong all the same, silence is the worst answer.
    let filter = if settings.filter == "info" { INFO } else { &settings.filter };
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new(INFO));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colours);
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
        let settings = LogSettings { format, filter: filter.to_owned() };
        let subscriber = subscriber(&settings, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, log);
        let bytes = captured.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn t69_what_a_client_sends_stays_on_one_line_and_off_the_terminal() {
        let forged = "a\r\n2026-01-01 ERROR forged\u{1b}[2J\u{7}\"}";
        for format in LogFormat::ALL {
            let text = logged(format, "info", || tracing::info!(user = ?forged, "refused"));
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert!(!text.trim_end().contains(char::is_control), "{text:?}");
            assert!(text.contains("refused") && text.contains("forged"), "{text:?}");
        }
    }

    #[test]
    fn the_small_talk_of_the_database_driver_is_not_logged() {
        let talk = || {
            tracing::info!(target: "sqlx_core::pool::inner", "small talk");
            tracing::warn!(target: "sqlx::query", "slow");
            tracing::info!("ours");
        };
        let text = logged(LogFormat::Pretty, "info", talk);
        assert!(!text.contains("small talk") && text.contains("slow") && text.contains("ours"), "{text}");
    }

    #[test]
    fn the_filter_says_what_is_logged() {
        let both = || {
            tracing::info!("one");
            tracing::warn!("two");
        };
        let text = logged(LogFormat::Pretty, "warn", both);
        assert!(!text.contains("one") && text.contains("two"), "{text}");
    }
}
