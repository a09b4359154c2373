//! The live table on a terminal: nodes above, processes below, keys to sort. Leaves the terminal as
//! it was, also after a panic.

use eyrie_monitor::health::HealthState;
use eyrie_monitor::watch::view::{sort, NodeView, Order, Row};
use eyrie_units::{bytes, nanoseconds};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{self, Cell, Paragraph};
use ratatui::{DefaultTerminal, Frame};
use std::time::Duration;

pub struct Table {
    terminal: DefaultTerminal,
    state: Shown,
}

/// What is on the screen, and how.
struct Shown {
    order: Order,
    kernel: bool,
    from: usize,
    nodes: Vec<NodeView>,
    rows: Vec<Row>,
    health: Vec<(String, HealthState)>,
}

impl Table {
    /// # Errors
    /// When standard output is no terminal.
    pub fn open() -> anyhow::Result<Table> {
        let state = Shown {
            order: Order::Cpu,
            kernel: false,
            from: 0,
            nodes: Vec::new(),
            rows: Vec::new(),
            health: Vec::new(),
        };
        Ok(Table { terminal: ratatui::try_init()?, state })
    }

    /// Shows the nodes as they are now.
    pub fn show(
        &mut self,
        nodes: Vec<NodeView>,
        health: &[(String, HealthState)],
    ) -> anyhow::Result<()> {
        self.state.nodes = nodes;
        self.state.health = health.to_vec();
        self.draw()
    }

    fn draw(&mut self) -> anyhow::Result<()> {
        self.state.arrange();
        self.terminal.draw(|frame| self.state.draw(frame))?;
        Ok(())
    }

    /// Handles keys that come within this time; true when the user wants to end.
    pub fn keys(&mut self, patience: Duration) -> anyhow::Result<bool> {
        if !event::poll(patience)? {
            return Ok(false);
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
                    return Ok(true);
                }
                if self.state.key(key.code) {
                    return Ok(true);
                }
                self.draw()?;
            }
            Event::Resize(..) => self.draw()?,
            _ => {}
        }
        Ok(false)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // `restore` would print, and panic where the output is closed.
        let _ = ratatui::try_restore();
    }
}

impl Shown {
    /// True when the user wants to end.
    fn key(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') => self.order = Order::Cpu,
            KeyCode::Char('m') => self.order = Order::Memory,
            KeyCode::Char('t') => self.order = Order::Threads,
            KeyCode::Char('p') => self.order = Order::Pid,
            KeyCode::Char('n') => self.order = Order::Name,
            KeyCode::Char('k') => self.kernel = !self.kernel,
            KeyCode::Down => self.from += 1,
            KeyCode::Up => self.from = self.from.saturating_sub(1),
            KeyCode::PageDown => self.from += 20,
            KeyCode::PageUp => self.from = self.from.saturating_sub(20),
            KeyCode::Home => self.from = 0,
            _ => {}
        }
        false
    }

    fn arrange(&mut self) {
        let all = self.nodes.iter().flat_map(|n| &n.rows);
        self.rows = all.filter(|r| self.kernel || !r.process.kernel).cloned().collect();
        sort(&mut self.rows, self.order);
        self.from = self.from.min(self.rows.len().saturating_sub(1));
    }

    fn draw(&self, frame: &mut Frame) {
        let unwell =
            self.health.iter().filter(|(_, state)| *state != HealthState::Ok).count() as u16;
        let areas = Layout::vertical([
            Constraint::Length(self.nodes.len() as u16 + 1),
            Constraint::Length(unwell),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .split(frame.area());
        frame.render_widget(self.node_table(), areas[0]);
        frame.render_widget(Paragraph::new(self.health_lines()), areas[1]);
        frame.render_widget(self.process_table(areas[2].height as usize), areas[2]);
        let keys = "sort: c CPU  m memory  t threads  p pid  n name   k kernel threads   arrows scroll   q end";
        frame.render_widget(Paragraph::new(keys).style(Style::new().fg(Color::DarkGray)), areas[3]);
    }

    fn node_table(&self) -> widgets::Table<'_> {
        let header = [
            "node",
            "CPU",
            "memory",
            "load",
            "network/s",
            "disk/s",
            "hottest",
            "cost",
            "late",
            "monitor",
            "reader",
        ];
        let rows = self.nodes.iter().map(|n| {
            let s = &n.seen;
            let reader = if s.detail == "full" {
                s.reader.clone()
            } else {
                format!("{} ({})", s.reader, s.detail)
            };
            widgets::Row::new([
                s.node.clone(),
                format!("{:5.1} %", n.cpu * 100.0),
                format!(
                    "{} of {}",
                    bytes(s.memory_total.saturating_sub(s.memory_available)),
                    bytes(s.memory_total)
                ),
                format!("{:.2}", s.load),
                bytes(n.network_per_s as u64),
                bytes(n.disk_per_s as u64),
                s.hottest.map_or("-".into(), |t| format!("{t:.0} °C")),
                nanoseconds(s.cost_ns as f64),
                nanoseconds(s.skew_ns as f64),
                format!("{:.3} %", n.monitor * 100.0),
                reader,
            ])
        });
        let widths = [16, 8, 20, 6, 10, 10, 8, 9, 9, 9, 12].map(Constraint::Min);
        widgets::Table::new(rows, widths).header(heading(header))
    }

    fn health_lines(&self) -> Vec<Line<'_>> {
        let unwell = self.health.iter().filter(|(_, state)| *state != HealthState::Ok);
        let line = |(rule, state): &(String, HealthState)| {
            let (word, colour) = match state {
                HealthState::Failing => ("failing", Color::Red),
                _ => ("suspect", Color::Yellow),
            };
            Line::styled(format!("{word}: {rule}"), Style::new().fg(colour))
        };
        unwell.map(line).collect()
    }

    fn process_table(&self, height: usize) -> widgets::Table<'_> {
        let several = self.nodes.len() > 1;
        let rows = self.rows.iter().skip(self.from).take(height).map(|r| {
            let p = &r.process;
            let node = if several { self.nodes[r.node].seen.node.clone() } else { String::new() };
            let row = widgets::Row::new([
                Cell::new(p.pid.to_string()),
                Cell::new(node),
                Cell::new(format!("{:6.1} %", r.cpu * 100.0)),
                Cell::new(bytes(p.rss_bytes)),
                Cell::new(p.threads.to_string()),
                Cell::new(p.state.to_string()),
                Cell::new(nanoseconds(p.cpu_ns as f64)),
                Cell::new(p.command.clone()),
            ]);
            if p.state == 'R' {
                row.style(Style::new().fg(Color::Green))
            } else {
                row
            }
        });
        let header = [
            "pid",
            if several { "node" } else { "" },
            "CPU",
            "memory",
            "threads",
            "state",
            "CPU time",
            "command",
        ];
        let node_width = if several { 24 } else { 0 };
        let widths = [
            Constraint::Length(8),
            Constraint::Length(node_width),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(8),
            Constraint::Length(6),
            Constraint::Length(10),
            Constraint::Fill(1),
        ];
        widgets::Table::new(rows, widths).header(heading(header))
    }
}

fn heading<const N: usize>(names: [&str; N]) -> widgets::Row<'_> {
    widgets::Row::new(names).style(Style::new().add_modifier(Modifier::REVERSED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_monitor::watch::view::{Process, Seen};
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;

    fn shown() -> Shown {
        let row = |pid, command: &str, cpu, rss_bytes, kernel| Row {
            node: 0,
            cpu,
            process: Process {
                pid,
                command: command.into(),
                rss_bytes,
                kernel,
                state: 'R',
                ..Process::default()
            },
        };
        let rows = vec![
            row(10, "solver -n 4", 0.98, 5 << 20, false),
            row(2, "kthreadd", 0.0, 0, true),
            row(11, "python3", 0.1, 1 << 30, false),
        ];
        let seen = Seen {
            node: "node7".into(),
            reader: "clocks".into(),
            detail: "full".into(),
            ..Seen::default()
        };
        let nodes = vec![NodeView { seen, cpu: 0.5, rows, ..NodeView::default() }];
        let health = vec![
            ("clock".to_string(), HealthState::Suspect),
            ("temperature".to_string(), HealthState::Ok),
        ];
        Shown { order: Order::Cpu, kernel: false, from: 0, nodes, rows: Vec::new(), health }
    }

    fn screen(shown: &mut Shown) -> String {
        shown.arrange();
        let mut terminal = Terminal::new(TestBackend::new(140, 12)).unwrap();
        terminal.draw(|frame| shown.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_has_nodes_processes_health_and_keys() {
        let mut shown = shown();
        let text = screen(&mut shown);
        for part in [
            "node7",
            "50.0 %",
            "suspect: clock",
            "solver -n 4",
            "98.0 %",
            "1 GiB",
            "q end",
            "clocks",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("kthreadd") && !text.contains("temperature"));
        assert!(text.find("solver") < text.find("python3"));
    }

    #[test]
    fn keys_sort_filter_scroll_and_end() {
        let mut shown = shown();
        shown.key(KeyCode::Char('m'));
        let text = screen(&mut shown);
        assert!(text.find("python3") < text.find("solver"));
        shown.key(KeyCode::Char('k'));
        assert!(screen(&mut shown).contains("kthreadd"));
        shown.key(KeyCode::PageDown);
        assert!(!screen(&mut shown).contains("solver"), "scrolled to the last");
        assert!(shown.key(KeyCode::Char('q')) && !shown.key(KeyCode::Char('x')));
    }
}
