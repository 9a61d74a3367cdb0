//! Draws the conversation.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Wrap};

use super::state::{Chat, Entry};

/// From this width on, the trace is next to the conversation; otherwise below it.
const WIDE: u16 = 110;

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// The lines of a text, without control characters.
fn lines<'a>(text: &str, style: Style) -> Vec<Line<'a>> {
    let clean = |line: &str| line.chars().filter(|letter| !letter.is_control()).collect::<String>();
    text.lines().map(|line| Line::styled(clean(line), style)).collect()
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame, chat: &mut Chat) {
    let [title, middle, input, status] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(3), Constraint::Length(1)])
            .areas(frame.area());
    draw_title(frame, chat, title);
    let talk = match chat.shows_trace {
        false => middle,
        true => {
            let half = [Constraint::Percentage(60), Constraint::Percentage(40)];
            let parts = if middle.width >= WIDE { Layout::horizontal(half) } else { Layout::vertical(half) };
            let [talk, trace] = parts.areas(middle);
            draw_trace(frame, chat, trace);
            talk
        }
    };
    draw_talk(frame, chat, talk);
    draw_input(frame, chat, input);
    let help = match chat.is_asking() {
        true => " Esc stops the answer",
        false => " Enter asks · /help shows the commands · Ctrl-C quits",
    };
    frame.render_widget(Line::styled(help, dim()), status);
}

fn draw_title(frame: &mut Frame, chat: &Chat, area: Rect) {
    let mut spans =
        vec![Span::styled(format!(" {} ", chat.pipeline().name), Style::new().add_modifier(Modifier::REVERSED))];
    if let Some(collection) = chat.collection() {
        spans.push(Span::raw(format!(" {collection}")));
    }
    if let Some(epoch) = chat.epoch {
        spans.push(Span::styled(format!(" epoch {epoch}"), dim()));
    }
    if let Some(adjusted) = chat.adjusted() {
        spans.push(Span::styled(format!("  {adjusted}"), Style::new().fg(Color::Yellow)));
    }
    frame.render_widget(Line::from(spans), area);
}

fn draw_talk(frame: &mut Frame, chat: &mut Chat, area: Rect) {
    let mut text: Vec<Line> = Vec::new();
    let bold = |color| Style::new().fg(color).add_modifier(Modifier::BOLD);
    for entry in &chat.entries {
        match entry {
            Entry::User(said) => {
                text.push(Line::styled("You", bold(Color::Cyan)));
                text.extend(lines(said, Style::new()));
            }
            Entry::Agent { text: said, sources, note } => {
                text.push(Line::from(vec![
                    Span::styled("Answer", bold(Color::Green)),
                    Span::styled(format!("  {note}"), dim()),
                ]));
                text.extend(lines(said, Style::new()));
                if !sources.is_empty() {
                    text.extend(lines(&format!("from {}", sources.join(", ")), dim()));
                }
            }
            Entry::Note(note) => text.extend(lines(note, dim())),
            Entry::Error(error) => text.extend(lines(error, Style::new().fg(Color::Red))),
        }
        text.push(Line::default());
    }
    if let Some((partial, since)) = chat.partial() {
        let waited = format!("  {:.1} s", since.as_secs_f64());
        text.push(Line::from(vec![Span::styled("Answer", bold(Color::Green)), Span::styled(waited, dim())]));
        text.extend(lines(if partial.is_empty() { "…" } else { partial }, Style::new()));
    }
    let talk = Paragraph::new(Text::from(text)).wrap(Wrap { trim: false });
    let height = wrapped(&talk, area.width);
    let most = height.saturating_sub(usize::from(area.height));
    chat.scrolled = chat.scrolled.min(most);
    let top = u16::try_from(most - chat.scrolled).unwrap_or(u16::MAX);
    frame.render_widget(talk.scroll((top, 0)), area);
}

/// The number of lines of a text at a width.
fn wrapped(text: &Paragraph, width: u16) -> usize {
    text.line_count(width)
}

fn draw_trace(frame: &mut Frame, chat: &Chat, area: Rect) {
    let mut text: Vec<Line> = Vec::new();
    for traced in &chat.traces {
        let took = traced.took_ms.map_or(String::new(), |ms| format!("  {ms:.1} ms"));
        let name = Span::styled(traced.node.clone(), Style::new().add_modifier(Modifier::BOLD));
        text.push(Line::from(vec![name, Span::styled(took, dim())]));
        for line in &traced.lines {
            text.extend(lines(&format!("  {line}"), Style::new()));
        }
    }
    let block = Block::new().borders(Borders::ALL).title(" trace ");
    let inner = block.inner(area);
    let trace = Paragraph::new(Text::from(text)).wrap(Wrap { trim: false });
    let hidden = wrapped(&trace, inner.width).saturating_sub(usize::from(inner.height));
    let top = u16::try_from(hidden).unwrap_or(u16::MAX);
    frame.render_widget(block, area);
    frame.render_widget(trace.scroll((top, 0)), inner);
}

fn draw_input(frame: &mut Frame, chat: &Chat, area: Rect) {
    let block = Block::new().borders(Borders::ALL);
    let inner = block.inner(area);
    let before = u16::try_from(Span::raw(chat.input.before_cursor()).width()).unwrap_or(u16::MAX);
    // Show the part around the cursor.
    let hidden = before.saturating_sub(inner.width.saturating_sub(1));
    frame.render_widget(block, area);
    frame.render_widget(Paragraph::new(chat.input.text()).scroll((0, hidden)), inner);
    frame.set_cursor_position(Position::new(inner.x + before - hidden, inner.y));
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn any_text_is_drawn_in_any_size() {
        let info = serde_json::json!({
            "name": "p", "nodes": [], "corpora": [], "answering": [], "needs_collection": false,
        });
        let mut chat = Chat::new(vec![serde_json::from_value(info).unwrap()]);
        chat.entries.push(Entry::User("日本語 \u{1b}[31m \u{202e}abc".repeat(40)));
        chat.entries.push(Entry::Agent { text: "a\n\nb".into(), sources: vec!["s".into()], note: "1 ms".into() });
        chat.input.insert(&"long ".repeat(50));
        for shows_trace in [false, true] {
            chat.shows_trace = shows_trace;
            for (width, height) in [(120, 40), (40, 12), (3, 3), (1, 1), (200, 5)] {
                let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
                terminal.draw(|frame| draw(frame, &mut chat)).unwrap();
                let drawn: String = terminal.backend().buffer().content.iter().map(|cell| cell.symbol()).collect();
                assert!(!drawn.contains('\u{1b}'));
            }
        }
    }
}
