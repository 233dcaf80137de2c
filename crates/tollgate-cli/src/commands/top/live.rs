//! The live view: a thread asks the server, this one draws and reads keys, so that a slow server does not delay a key.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::Value;

use super::Top;
use super::draw::draw;
use super::view::{Action, View};
use crate::commands::client_name::ClientName;
use crate::commands::inspect;
use crate::output::Color;
use crate::{Client, Exit, Output};

/// Between looks for a response while no key is pressed.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// A client whose details are wanted.
struct OpenRequest {
    identifier: String,
    tenant: String,
}

/// What the server answered.
enum Update {
    Top { top: Value, health: Value },
    Client { identifier: String, tenant: String, counters: String, top: Value },
    Failed(String),
}

/// Runs until the user quits.
pub(super) fn run(top: &Top, client: &Client, colors: bool) -> io::Result<Exit> {
    let (asks, asked) = channel();
    let (answers, answered) = channel();
    thread::scope(|scope| {
        scope.spawn(move || ask_server(top, client, &asked, &answers));
        let mut terminal = ratatui::try_init()?;
        let outcome = show(&mut terminal, &asks, &answered, colors);
        ratatui::restore();
        // Ends the other thread.
        drop(asks);
        outcome
    })?;
    Ok(Exit::Ok)
}

fn show(
    terminal: &mut DefaultTerminal,
    asks: &Sender<Option<OpenRequest>>,
    answered: &Receiver<Update>,
    colors: bool,
) -> io::Result<()> {
    let mut view = View::default();
    loop {
        for update in answered.try_iter() {
            apply(&mut view, update);
        }
        terminal.draw(|frame| draw(frame, &view, colors))?;
        if !event::poll(POLL_EVERY)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match view.press(key) {
            Action::Nothing => {}
            Action::Quit => return Ok(()),
            // The other thread ends only with this one.
            Action::Open { identifier, tenant } => drop(asks.send(Some(OpenRequest { identifier, tenant }))),
            Action::Close => drop(asks.send(None)),
        }
    }
}

/// Shows a response. Details of a client that was closed meanwhile are dropped.
fn apply(view: &mut View, update: Update) {
    view.error = None;
    match update {
        Update::Top { top, health } => (view.top, view.health) = (top, health),
        Update::Client { identifier, tenant, counters, top } => {
            let open = view.open.as_mut();
            if let Some(open) = open.filter(|open| open.identifier == identifier && open.tenant == tenant) {
                (open.counters, open.top) = (Some(counters), top);
            }
        }
        Update::Failed(error) => view.error = Some(error),
    }
    view.clamp_selection();
}

/// Asks for the lists at every interval, and for the client that is open, until the view is closed.
fn ask_server(top: &Top, client: &Client, asked: &Receiver<Option<OpenRequest>>, answers: &Sender<Update>) {
    let mut open: Option<OpenRequest> = None;
    let mut next = Instant::now();
    loop {
        match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(request) => {
                open = request;
                if let Some(request) = &open {
                    let _ = answers.send(client_update(top, client, request));
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let _ = answers.send(lists_update(top, client));
                if let Some(request) = &open {
                    let _ = answers.send(client_update(top, client, request));
                }
                next = Instant::now() + top.interval();
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn lists_update(top: &Top, client: &Client) -> Update {
    let lists = client.get(&top.path(None, top.tenant.as_deref()));
    // Not ready is an answer too, and the other request reports a server that is unreachable.
    let health = client.get("/readyz").map_or(Value::Null, |response| response.body);
    match lists {
        Ok(response) => Update::Top { top: response.body, health },
        Err(error) => Update::Failed(error.to_string()),
    }
}

fn client_update(top: &Top, client: &Client, open: &OpenRequest) -> Update {
    let OpenRequest { identifier, tenant } = open;
    let tenant_filter = Some(&**tenant).filter(|tenant| !tenant.is_empty());
    let listed = match client.get(&top.path(Some(identifier), tenant_filter)) {
        Ok(response) => response.body,
        Err(error) => return Update::Failed(error.to_string()),
    };
    let output = Output::new(false, Color::Never);
    let counters = match ClientName::parse(without_prefix_length(identifier)) {
        Ok(name) => {
            inspect::counters(&name, tenant_filter, client, &output).unwrap_or_else(|error| error.to_string())
        }
        Err(_) => "no counters: the name of this client is hidden".to_owned(),
    };
    Update::Client { identifier: identifier.clone(), tenant: tenant.clone(), counters, top: listed }
}

/// An IPv6 client is listed by its counted prefix; any address of it has the same counters.
pub(super) fn without_prefix_length(identifier: &str) -> &str {
    let address = identifier.split_once('/').filter(|_| identifier.starts_with("ip:"));
    address.map_or(identifier, |(address, _)| address)
}
