//! `tollgate gateway`: runs the service with a reverse proxy.

use std::net::SocketAddr;

use clap::Args;
use tollgate_server::config::settings::{Flags, Settings, UpstreamUrl, environment};

use super::serve::{SettingsFlags, parse_address, run_with};
use crate::{CliError, Exit, Output};

#[derive(Args)]
pub(crate) struct Gateway {
    /// Server to protect; repeat it to balance between several
    #[arg(long = "upstream", value_name = "URL", value_parser = UpstreamUrl::parse)]
    upstreams: Vec<UpstreamUrl>,
    /// Address and port of the reverse proxy [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    proxy_listen: Option<SocketAddr>,
    #[command(flatten)]
    settings: SettingsFlags,
}

pub(crate) fn run(gateway: &Gateway, output: &Output) -> Result<Exit, CliError> {
    let Gateway { upstreams, proxy_listen, settings } = gateway;
    let flags = Flags { upstreams: upstreams.clone(), proxy_listen: *proxy_listen, ..settings.flags() };
    let settings = Settings::load(&flags, environment())?;
    if settings.proxy.is_none() {
        let message =
            "nothing to protect: pass --upstream http://HOST:PORT, or add [proxy] to the settings file";
        return Err(CliError::Arguments(message.to_owned()));
    }
    run_with(settings, output)
}
