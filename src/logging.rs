//! Log lines as etcd writes them.
//!
//! Input: tracing events and the `--log-*` flags. Output: one line per event, JSON with the keys
//! `level`, `ts`, `caller`, `msg` and then the event's fields, or etcd's console form.
//! **Invariant:** a line is written with one call, so lines of several threads never mix.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// How the log is written.
#[derive(Clone, Debug)]
pub(crate) struct LogOptions<'a> {
    pub(crate) level: &'a str,
    pub(crate) json: bool,
    /// `default`, `stderr`, `stdout`, or paths, comma-separated.
    pub(crate) outputs: &'a str,
}

/// Sets up the log of this process.
pub(crate) fn init(options: LogOptions<'_>) -> Result<(), String> {
    let level = match options.level {
        "debug" => LevelFilter::DEBUG,
        "info" => LevelFilter::INFO,
        "warn" => LevelFilter::WARN,
        _ => LevelFilter::ERROR,
    };
    let outputs = Outputs::open(options.outputs)?;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .event_format(Lines { json: options.json })
        .with_writer(outputs)
        .try_init()
        .map_err(|error| error.to_string())
}

#[derive(Clone)]
struct Outputs(Arc<Vec<Output>>);

enum Output {
    Stderr,
    Stdout,
    File(Mutex<File>),
}

impl Outputs {
    fn open(list: &str) -> Result<Self, String> {
        let open = |name: &str| match name.trim() {
            "default" | "stderr" | "systemd/journal" => Ok(Output::Stderr),
            "stdout" => Ok(Output::Stdout),
            path => OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map(|file| Output::File(Mutex::new(file)))
                .map_err(|error| format!("cannot open the log file {path}: {error}")),
        };
        Ok(Outputs(Arc::new(list.split(',').map(open).collect::<Result<_, _>>()?)))
    }
}

impl Write for Outputs {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        for output in self.0.iter() {
            match output {
                Output::Stderr => io::stderr().lock().write_all(line)?,
                Output::Stdout => io::stdout().lock().write_all(line)?,
                Output::File(file) => {
                    file.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).write_all(line)?;
                }
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Outputs {
    type Writer = Outputs;

    fn make_writer(&'a self) -> Outputs {
        self.clone()
    }
}

struct Lines {
    json: bool,
}

/// Fields of one event: the message apart, the others as JSON text in their order.
#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Fields {
    fn push(&mut self, name: &str, value: &Value) {
        // Rust's field names have underscores where etcd's keys have dashes.
        let key = Value::from(name.replace('_', "-"));
        let _ = write!(self.rest, ",{key}:{value}");
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.push(field.name(), &Value::from(format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_string();
        } else {
            self.push(field.name(), &Value::from(value));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field.name(), &Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field.name(), &Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field.name(), &Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field.name(), &Value::from(value));
    }
}

fn level_name(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG | Level::TRACE => "debug",
    }
}

/// The last two parts of a source path, as zap prints callers.
fn short_path(path: &str) -> &str {
    let mut slashes = path.rmatch_indices('/').map(|(at, _)| at + 1);
    slashes.nth(1).map_or(path, |at| &path[at..])
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let meta = event.metadata();
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let level = level_name(meta.level());
        let caller =
            format!("{}:{}", short_path(meta.file().unwrap_or("")), meta.line().unwrap_or(0));
        if self.json {
            let message = Value::from(fields.message);
            write!(
                writer,
                "{{\"level\":\"{level}\",\"ts\":\"{time}\",\"caller\":\"{caller}\",\"msg\":{message}{}}}",
                fields.rest
            )?;
        } else {
            let level = level.to_uppercase();
            write!(writer, "{time}\t{level}\t{caller}\t{}", fields.message)?;
            if let Some(rest) = fields.rest.strip_prefix(',') {
                write!(writer, "\t{{{rest}}}")?;
            }
        }
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_etcds_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let subscriber = tracing_subscriber::fmt()
            .event_format(Lines { json: true })
            .with_writer(Outputs::open(&path.display().to_string()).unwrap())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(local_member_id = "8e9e", count = 3, "a \"quoted\" message");
        });
        let line = std::fs::read_to_string(&path).unwrap();
        let parsed: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["level"], "info");
        assert_eq!(parsed["msg"], "a \"quoted\" message");
        assert_eq!(parsed["local-member-id"], "8e9e");
        assert_eq!(parsed["count"], 3);
        assert!(parsed["ts"].as_str().unwrap().ends_with('Z'), "{line}");
        assert!(parsed["caller"].as_str().unwrap().starts_with("src/logging.rs:"), "{line}");
    }
}
