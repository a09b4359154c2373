//! What every role tells of its work, for a person who looks for a fault: a line a connection,
//! fence, restore, retry, refused frame. `EYRIE_LOG` says how much, `--log FILE` where it goes.
//! Without both, warnings alone go to standard error. It must never end what it reports on: a line
//! that cannot be written is lost.

use serde_json::{Map, Value};
use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::Registry;

/// The variable that says how much is told, as tracing-subscriber's `Targets` reads it: `debug`, or
/// `warn,eyrie_router=trace`.
const ENV_LEVEL: &str = "EYRIE_LOG";

/// Begins to tell. `role`: the role of this process, as each line of a file names it.
///
/// # Errors
/// When the file cannot be opened, or `EYRIE_LOG` is not understood.
pub fn begin(role: String, file: Option<&Path>) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let usual = if file.is_some() { "info" } else { "warn" };
    let level = std::env::var(ENV_LEVEL).unwrap_or_else(|_| usual.into());
    let filter: Targets =
        level.parse().with_context(|| format!("{ENV_LEVEL}={level}: write a level like debug"))?;
    let place = match file {
        None => Place::Stderr,
        Some(path) => {
            let opened = File::options().append(true).create(true).open(path);
            let file = opened.with_context(|| format!("cannot write {}", path.display()))?;
            let json = path.extension().is_some_and(|e| e == "json" || e == "jsonl");
            Place::File { file, json }
        }
    };
    Registry::default().with(filter).with(Lines { role, place }).init();
    Ok(())
}

/// Where lines go.
enum Place {
    Stderr,
    /// Shared with other processes: each line is one write at its end.
    File {
        file: File,
        json: bool,
    },
}

struct Lines {
    role: String,
    place: Place,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        let target = event.metadata().target();
        match &self.place {
            Place::Stderr => eyrie_cli::out::say(format!("eyrie: {}", fields.in_words())),
            Place::File { file, json } => {
                let mut time = String::new();
                let _ = SystemTime.format_time(&mut Writer::new(&mut time));
                let line = if *json {
                    fields.in_json(&time, &self.role, level, target)
                } else {
                    format!("{time} {} {level} {target}: {}", self.role, fields.in_words())
                };
                let mut file = file;
                let _ = file.write_all((line + "\n").as_bytes());
            }
        }
    }
}

/// What a line says: its message, and names with values.
#[derive(Default)]
struct Fields {
    message: String,
    values: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.values.insert(name.into(), value);
            }
        }
    }

    fn in_words(&self) -> String {
        let mut text = self.message.clone();
        for (name, value) in &self.values {
            let _ = match value {
                Value::String(value) => write!(text, " {name}={value}"),
                value => write!(text, " {name}={value}"),
            };
        }
        // A line is one line, and names in it may be anything.
        eyrie_units::plain::line(&text).into_owned()
    }

    fn in_json(mut self, time: &str, role: &str, level: Level, target: &str) -> String {
        let about = [("time", time), ("role", role), ("level", level.as_str()), ("target", target)];
        for (name, value) in about {
            self.values.insert(name.into(), value.into());
        }
        self.values.insert("message".into(), self.message.into());
        Value::Object(self.values).to_string()
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, tell: impl FnOnce()) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        let file = File::options().append(true).create(true).open(&path).unwrap();
        let place = Place::File { file, json: name.ends_with("json") };
        let lines = Lines { role: "agent-1".into(), place };
        tracing::subscriber::with_default(Registry::default().with(lines), tell);
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_line_names_its_role_level_place_and_fields() {
        let text = told("log", || tracing::info!(rank = 3u64, cause = "a\nb", "refused"));
        let words: Vec<&str> = text.trim_end().splitn(2, ' ').collect();
        assert_eq!(words[1], "agent-1 INFO eyrie::log::tests: refused cause=a\\nb rank=3");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn a_line_of_json_is_an_object() {
        let text = told("log.json", || tracing::warn!(rank = 3u64, "refused"));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["message"], &value["rank"]), (&"refused".into(), &3.into()));
        assert_eq!((&value["level"], &value["role"]), (&"WARN".into(), &"agent-1".into()));
    }
}
