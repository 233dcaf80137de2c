//! `tollgate serve`: the service itself.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tollgate_server::logging;
use tollgate_server::serve::{banner, serve};
use tollgate_server::settings::{Flags, Settings, environment};

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
    /// The settings file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Where to listen
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where to keep what must survive a restart
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub(crate) fn run(serve_flags: &Serve, output: &Output) -> Result<Exit, Failure> {
    let Serve { config, listen, data_dir } = serve_flags;
    let flags = Flags { config: config.clone(), listen: *listen, data_dir: data_dir.clone() };
    let settings = Settings::load(&flags, environment())?;
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
