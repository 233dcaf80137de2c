//! `tollgate serve`: runs the service.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tollgate_server::config::settings::{Flags, Settings, environment};
use tollgate_server::runtime::logging;
use tollgate_server::runtime::serve::{banner, serve};

use crate::{CliError, Exit, Output};

/// The flags that override environment and file.
#[derive(Args, Clone)]
pub(crate) struct SettingsFlags {
    /// Settings file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// Directory for data that must survive a restart
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl SettingsFlags {
    /// Loads the settings from flags, environment and file.
    pub(super) fn load(&self) -> Result<Settings, CliError> {
        Ok(Settings::load(&self.flags(), environment())?)
    }

    pub(super) fn flags(&self) -> Flags {
        let SettingsFlags { config, listen, data_dir } = self.clone();
        Flags { config, listen, data_dir, ..Flags::default() }
    }
}

/// Host names are not resolved, because a name may have several addresses.
pub(super) fn parse_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "must be an IP address and a port, such as 127.0.0.1:8080")
}

pub(crate) fn run(flags: &SettingsFlags, output: &Output) -> Result<Exit, CliError> {
    run_with(flags.load()?, output)
}

/// Runs the service until a signal ends it.
pub(super) fn run_with(settings: Settings, output: &Output) -> Result<Exit, CliError> {
    logging::init(&settings.log);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::Runtime)?;
    let ready = |ready| {
        // A closed standard output does not stop the service.
        let _ = output.text(&banner(&ready));
    };
    runtime.block_on(serve(settings, ready))?;
    Ok(Exit::Ok)
}
