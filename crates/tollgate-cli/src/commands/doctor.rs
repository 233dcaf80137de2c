//! `tollgate doctor`: checks what a node depends on.

use clap::Args;
use serde_json::json;
use tollgate_server::runtime::doctor::{Finding, Severity, examine};

use super::serve::SettingsFlags;
use crate::output::{Style, escape};
use crate::{CliError, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate doctor
  tollgate doctor --config /etc/tollgate/tollgate.toml --json

Run it on the host of a node, as its user and with its flags. It connects to
the database and to Redis like the node, and changes nothing.

Exit codes: 0 all ok, 1 warnings, 2 failures.")]
pub(crate) struct Doctor {
    #[command(flatten)]
    settings: SettingsFlags,
}

pub(crate) fn run(doctor: &Doctor, output: &Output) -> Result<Exit, CliError> {
    // Errors in the settings are reported as by `serve`.
    let settings = doctor.settings.load()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let mut findings = vec![Finding {
        check: "settings".to_owned(),
        severity: Severity::Ok,
        found: "valid".to_owned(),
        advice: String::new(),
    }];
    let warnings = settings.warnings.iter().map(|warning| Finding {
        check: "settings".to_owned(),
        severity: Severity::Warn,
        found: warning.clone(),
        advice: "see docs/configuration.md and docs/rules.md".to_owned(),
    });
    findings.extend(warnings);
    findings.extend(runtime.block_on(examine(&settings)));
    let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
    output.result(
        || json!({ "status": name(worst), "checks": findings.iter().map(to_json).collect::<Vec<_>>() }),
        || findings.iter().map(|finding| to_text(finding, output)).collect(),
    )?;
    Ok(match worst {
        Severity::Ok => Exit::Ok,
        Severity::Warn => Exit::Refused,
        Severity::Fail => Exit::Error,
    })
}

fn name(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Warn => "warn",
        Severity::Fail => "fail",
    }
}

fn to_json(finding: &Finding) -> serde_json::Value {
    let Finding { check, severity, found, advice } = finding;
    json!({ "check": check, "status": name(*severity), "found": found, "advice": advice })
}

/// `warn  redis 10.0.0.5:6379: …`, with the advice on a line of its own.
fn to_text(finding: &Finding, output: &Output) -> String {
    let style = match finding.severity {
        Severity::Ok => Style::Good,
        Severity::Warn => Style::Warning,
        Severity::Fail => Style::Bad,
    };
    let label = output.paint(style, &format!("{:<4}", name(finding.severity)));
    let advice = match &*finding.advice {
        "" => String::new(),
        advice => format!("      what to do: {}\n", escape(advice)),
    };
    format!("{label}  {}: {}\n{advice}", escape(&finding.check), escape(&finding.found))
}
