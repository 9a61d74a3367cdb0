//! `turnflow chat`: a conversation in the terminal.

mod backend;
mod input;
mod state;
mod view;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use ratatui::crossterm::event::{
    self, DisableBracketedPaste, EnableBracketedPaste, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers,
};
use ratatui::crossterm::execute;
use turnflow_engine::spec::Override;

use self::backend::Backend;
use self::state::{Chat, Effect};
use super::{Fault, Outcome};

/// The interval between checks for keys and events.
const TICK: Duration = Duration::from_millis(40);

/// Chat with a pipeline in the terminal.
///
/// With several files, each is a mode: `/mode NAME` switches to another one in the same conversation.
/// Instead of files, give the address of a running `turnflow serve`.
#[derive(Args)]
pub struct ChatArgs {
    /// Pipeline files, or the address of a server, such as http://127.0.0.1:8100.
    #[arg(required = true, value_name = "FILE|URL")]
    targets: Vec<String>,
    /// Set one value in the file, if there is only one. The value is RON; paths are relative to the
    /// working directory. May be repeated.
    #[arg(long = "set", value_name = "PATH=RON")]
    set: Vec<Override>,
    /// The state directory; with several files, each has a subdirectory [default: .turnflow/NAME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The environment variable that contains the server's token.
    #[arg(long, value_name = "VARIABLE", default_value = "TURNFLOW_TOKEN")]
    token_env: String,
}

pub(super) fn run(args: &ChatArgs) -> Outcome {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Fault::Told(anyhow!("chat needs a terminal; `turnflow ask` answers one question without one")));
    }
    let is_url = |target: &String| target.starts_with("http://") || target.starts_with("https://");
    let backend = match &args.targets[..] {
        [url] if is_url(url) => Backend::remote(url, std::env::var(&args.token_env).ok())?,
        targets if targets.iter().any(is_url) => {
            return Err(Fault::Told(anyhow!("give either files or one address")));
        }
        targets => {
            let files: Vec<PathBuf> = targets.iter().map(PathBuf::from).collect();
            Backend::local(&files, &args.set, args.state.as_deref())?
        }
    };
    let mut chat = Chat::new(backend.pipelines()?);
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let _ = execute!(std::io::stdout(), EnableBracketedPaste);
    let talked = talk(&mut terminal, &mut chat, &backend);
    let _ = execute!(std::io::stdout(), DisableBracketedPaste);
    ratatui::restore();
    backend.end();
    Ok(talked?)
}

/// Runs until the user quits.
fn talk(terminal: &mut ratatui::DefaultTerminal, chat: &mut Chat, backend: &Backend) -> anyhow::Result<()> {
    let mut asked: Option<backend::Asked> = None;
    loop {
        terminal.draw(|frame| view::draw(frame, chat))?;
        let mut is_over = false;
        if let Some(running) = &asked {
            while let Some(told) = running.next() {
                is_over |= chat.told(told);
            }
        }
        if is_over {
            asked = None;
        }
        if !event::poll(TICK)? {
            continue;
        }
        let effect = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => pressed(chat, key),
            Event::Paste(text) => {
                chat.input.insert(&text);
                Effect::None
            }
            _ => Effect::None,
        };
        match effect {
            Effect::None => {}
            Effect::Ask(question) => asked = Some(backend.ask(question)),
            Effect::Stop => asked = None,
            Effect::Leave => return Ok(()),
        }
    }
}

fn pressed(chat: &mut Chat, key: KeyEvent) -> Effect {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c' | 'd') if control => return if chat.is_asking() { chat.stop() } else { Effect::Leave },
        KeyCode::Char('u') if control => chat.input.clear(),
        KeyCode::Char('a') if control => chat.input.home(),
        KeyCode::Char('e') if control => chat.input.end(),
        KeyCode::Char('w') if control => chat.input.delete_word(),
        KeyCode::Char(letter) if !control => chat.input.insert(letter.encode_utf8(&mut [0; 4])),
        KeyCode::Esc => return chat.stop(),
        KeyCode::Enter => return chat.entered(),
        KeyCode::Backspace => chat.input.backspace(),
        KeyCode::Delete => chat.input.delete(),
        KeyCode::Left => chat.input.left(),
        KeyCode::Right => chat.input.right(),
        KeyCode::Home => chat.input.home(),
        KeyCode::End => chat.input.end(),
        KeyCode::Up => chat.input.before(),
        KeyCode::Down => chat.input.after(),
        KeyCode::PageUp => chat.scroll(-10),
        KeyCode::PageDown => chat.scroll(10),
        KeyCode::Tab => chat.complete(),
        _ => {}
    }
    Effect::None
}
