//! `tollgate serve`: the service itself.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tollgate_server::config::settings::{Flags, Settings, environment};
use tollgate_server::runtime::logging;
use tollgate_server::runtime::serve::{banner, serve};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// The flags of `serve`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate serve
  tollgate serve --config tollgate.toml
  tollgate serve --listen 0.0.0.0:8080 --data-dir /var/lib/tollgate
  TOLLGATE_LOG__LEVEL=debug tollgate serve

Flags stand above the environment (TOLLGATE_SECTION__KEY), and that above the file.")]
pub(crate) struct Serve {
    #[command(flatten)]
    flags: SettingsFlags,
}

/// The flags that stand above environment and file.
#[derive(Args)]
pub(super) struct SettingsFlags {
    /// The settings file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Where to listen
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Where to keep what must survive a restart
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl SettingsFlags {
    /// The settings that they, the environment and the file make.
    pub(super) fn load(&self) -> Result<Settings, Failure> {
        let SettingsFlags { config, listen, data_dir } = self;
        let flags = Flags { config: config.clone(), listen: *listen, data_dir: data_dir.clone() };
        Ok(Settings::load(&flags, environment())?)
    }
}

/// Names are not resolved: which of their addresses would be meant is not for us to guess.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "must be an IP address and a port, such as 127.0.0.1:8080")
}

pub(crate) fn run(serve_flags: &Serve, output: &Output) -> Result<Exit, Failure> {
    let settings = serve_flags.flags.load()?;
    logging::init(&settings.log);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::Runtime)?;
    let ready = |ready| {
        // The service runs whether or not anyone reads its banner.
        let _ = output.text(&banner(&ready));
    };
    runtime.block_on(serve(settings, ready))?;
    Ok(Exit::Ok)
}
