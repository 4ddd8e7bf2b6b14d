use super::super::conflicts::ConflictsReport;
use super::super::error::CliError;
use super::super::output::{share, size};
use super::super::pages::{self, figure, plain_table};
use super::super::parse::parse_share;
use super::super::session::unexpected;
use super::super::{diff, similar_rows, status};
use super::job::{Job, Jobs, State};
use super::source::Source;
use crate::admin::text::shown;
use crate::admin::{Request as Ask, Response, Side, SnapshotReport, SnapshotRequest};
use crate::contents::SimilarOptions;
use crate::page::{Bar, Column, Field, Form, Kind as Colour, Page, Part, Picture, Site, Table, Values};
use crate::query::{GroupOptions, Match, Matches};
use crate::similarity::groups::SHARE_MIN;
use crate::view::View;
use crate::web::{Answer, Kind, Request, nonce};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const LINKS: &[(&str, &str)] = &[
    ("./", "Status"),
    ("similar", "Similar files"),
    ("diff", "Side by side"),
    ("groups", "Groups"),
    ("conflicts", "Conflicts"),
    ("snapshots", "Snapshots"),
];
/// The default of the commands.
const SHARE: f64 = 0.25;
const LIMIT: usize = 100;
const VERIFY_BYTES: u64 = 1 << 30;
/// A comparison that takes no longer than this needs no page of its own.
const QUICK: Duration = Duration::from_millis(400);

/// Answers for pages. Each page shows the report of a command; with `.json` it is the report itself.
#[derive(Clone)]
pub(super) struct Ui(Arc<Inner>);

struct Inner {
    source: Source,
    jobs: Jobs,
}

/// A page, and its properties on the site.
struct Made {
    page: Page,
    form: Option<Form>,
    refresh_seconds: Option<u32>,
    live: bool,
}

type Result<T> = std::result::Result<T, CliError>;

impl Ui {
    pub(super) fn new(source: Source) -> Ui {
        Ui(Arc::new(Inner { source, jobs: Jobs::default() }))
    }

    pub(super) fn answer(&self, request: &Request) -> Answer {
        match request.page.strip_suffix(".json") {
            Some(name) => self.json(name, request),
            None => self.html(request),
        }
    }

    fn json(&self, name: &str, request: &Request) -> Answer {
        let made = match name {
            "status" => self.status().and_then(|report| json(200, &report)),
            "similar" => self.similar(request).and_then(|report| json(200, &report)),
            "diff" => self.diff(request, 0).and_then(|report| json(200, &report)),
            "groups" => self.groups_json(request),
            "conflicts" => self.conflicts(request).and_then(|report| json(200, &report)),
            "snapshots" => self.snapshots(request).and_then(|report| json(200, &report)),
            _ => return unknown(),
        };
        made.unwrap_or_else(|e| {
            let error = serde_json::json!({ "error": e.message, "hint": e.hint });
            Answer { status: 400, kind: Kind::Json, body: format!("{error}\n").into_bytes() }
        })
    }

    fn html(&self, request: &Request) -> Answer {
        let (here, form, made) = match request.page.as_str() {
            "" => ("./", None, self.status_page()),
            "similar" => ("similar", Some(similar_form(request)), self.similar_page(request)),
            "diff" => ("diff", Some(diff_form(request)), self.diff_page(request)),
            "groups" => ("groups", Some(groups_form(request, self.0.jobs.last())), self.groups_page(request)),
            "conflicts" => ("conflicts", None, self.conflicts_page(request)),
            "snapshots" => ("snapshots", None, self.snapshots_page(request)),
            _ => return unknown(),
        };
        let (status, made) = match made {
            Ok(made) => (200, Made { form: made.form.or(form), ..made }),
            Err(e) => (400, Made { form, ..failed(&e) }),
        };
        let answer = nonce().and_then(|nonce| {
            let site = Site {
                links: LINKS,
                here,
                nonce: nonce.clone(),
                form: made.form,
                refresh_seconds: made.refresh_seconds,
                live: made.live,
            };
            let html = made.page.served(&pages::now(), &site)?;
            Ok(Answer { status, kind: Kind::Page { nonce }, body: html.into_bytes() })
        });
        answer.unwrap_or_else(|e| Answer {
            status: 500,
            kind: Kind::Text,
            body: format!("{e}\n").into_bytes(),
        })
    }

    fn ask(&self, request: Ask) -> Result<Response> {
        self.0.source.ask(request, &mut |_| {})
    }

    fn about(&self) -> String {
        self.0.source.root().display().to_string()
    }

    fn status(&self) -> Result<status::Shown> {
        match self.ask(Ask::Status)? {
            Response::Status(report) => Ok(status::Shown { report, syncs: self.0.source.last_syncs() }),
            other => Err(unexpected(&other)),
        }
    }

    fn status_page(&self) -> Result<Made> {
        let shown = self.status()?;
        let (rows, report) = (status::rows(&shown), &shown.report);
        let figures = [
            ("files", report.files.to_string()),
            ("in them", size(report.logical_bytes)),
            ("stored", size(report.stored_bytes)),
            ("index", size(report.index_bytes)),
            ("ratio", format!("{:.2}", report.ratio)),
            ("pending", report.pending.to_string()),
            ("damage seen", report.damaged.to_string()),
        ];
        let all = report.logical_bytes.max(1) as f64;
        let part = |kind, bytes: u64, told: &str| Part {
            kind,
            share: bytes as f64 / all,
            label: format!("{} {}", size(bytes), told),
        };
        let (stored, unique) =
            (report.stored_bytes.min(report.logical_bytes), report.unique_bytes.min(report.logical_bytes));
        let bar = Bar {
            label: "bytes of files".to_owned(),
            parts: vec![
                part(Colour::Once, stored, "stored"),
                part(Colour::Saved, unique.saturating_sub(stored), "compressed away"),
                part(Colour::Same, report.logical_bytes - unique.max(stored), "there already"),
            ],
        };
        let stored_some = report.stored_bytes > 0 && report.logical_bytes > 0;
        let mut notes = Vec::new();
        if report.damaged > 0 {
            notes.push("Damage was seen: run `dedupctl check`.".to_owned());
        }
        if report.behind {
            notes.push("The index may not know every file yet.".to_owned());
        }
        let (names, values): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|(name, value)| (name.to_owned(), value)).unzip();
        let columns = vec![column("What", Values::Text(names)), column("Is", Values::Text(values))];
        let page = Page {
            figures: figures.map(|(label, value)| figure(label, value)).to_vec(),
            notes,
            pictures: Vec::from_iter(
                stored_some
                    .then(|| Picture { title: "How the bytes are stored".to_owned(), bars: vec![bar] }),
            ),
            table: Some(plain_table("In words", columns)),
            ..empty("Status", self.about())
        };
        Ok(Made { live: true, ..page.into() })
    }

    fn similar(&self, request: &Request) -> Result<Matches> {
        let Side { path, outside, n } = self.0.source.file(named(request, "file")?)?;
        if n.is_some() {
            return Err(CliError::new("versions of files are not indexed").hint("name the file without @N"));
        }
        let min = number(request, "min", SHARE, &|text| parse_share(text).ok())?;
        let limit = number(request, "limit", LIMIT, &|text| text.parse().ok())?;
        let options = SimilarOptions { min, limit, ..SimilarOptions::default() };
        match self.ask(Ask::Similar { path, outside, options })? {
            Response::Similar(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn similar_page(&self, request: &Request) -> Result<Made> {
        let title = "Files that resemble one";
        let Some(asked) = request.get("file") else {
            let about = "Name a file by its path below the overlay's root, or one that lies elsewhere by its whole path.";
            return Ok(empty(title, about.to_owned()).into());
        };
        let report = self.similar(request)?;
        let matches = &report.matches;
        let bytes = |of: &dyn Fn(&Match) -> u64| Values::Bytes(matches.iter().map(of).collect());
        let shares =
            |of: &dyn Fn(&Match) -> f64| Values::Share(matches.iter().map(|one| Some(of(one))).collect());
        let columns = vec![
            column("File", text(matches, |one| shown(&one.path))),
            column("How", text(matches, how)),
            column("Contains", shares(&|one| one.shares.containment)),
            column("Contained", shares(&|one| one.shares.contained_in)),
            column("Resembles", shares(&|one| one.shares.resemblance)),
            column("Common", bytes(&|one| one.shares.bytes_common)),
            column("Size", bytes(&|one| one.size)),
        ];
        let mut notes = Vec::new();
        if report.behind {
            notes.push("Files may be missing: the index does not know all of them yet.".to_owned());
        }
        if report.not_indexed > 0 {
            notes.push(similar_rows::not_indexed(report.not_indexed));
        }
        if report.suppressed_bytes > 0 {
            notes.push(format!(
                "{} are of templates or padding and do not count.",
                size(report.suppressed_bytes)
            ));
        }
        let asked = asked.to_string_lossy();
        let table = Table { link: Some(diff_link(&asked)), ..plain_table("Found", columns) };
        Ok(Page {
            figures: vec![
                figure("found", matches.len().to_string()),
                figure("the same to the byte", report.identical.to_string()),
            ],
            notes,
            table: Some(table),
            ..empty(title, asked.into_owned())
        }
        .into())
    }

    fn diff(&self, request: &Request, excerpt_bytes: u64) -> Result<crate::admin::DiffReport> {
        let a = self.0.source.file(named(request, "a")?)?;
        let b = self.0.source.file(named(request, "b")?)?;
        match self.ask(Ask::Diff { a, b, limit: usize::MAX, excerpt_bytes })? {
            Response::Diff(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn diff_page(&self, request: &Request) -> Result<Made> {
        if request.get("a").is_none() && request.get("b").is_none() {
            let about = "Name two files, or versions as FILE@N.".to_owned();
            return Ok(empty("Two files side by side", about).into());
        }
        let mut report = self.diff(request, diff::PAGE_BYTES)?;
        let excerpts = report.excerpts.take().unwrap_or_default();
        Ok(pages::diff(&report, excerpts).into())
    }

    /// Returns the requested comparison, or the last one.
    fn job(&self, request: &Request) -> Result<Option<Arc<Job>>> {
        if request.get("min").is_none() {
            return Ok(self.0.jobs.last());
        }
        let min = number(request, "min", SHARE, &|text| {
            text.parse::<f64>().ok().filter(|min| (SHARE_MIN..=1.0).contains(min))
        })?;
        let ui = self.clone();
        let job = self.0.jobs.start(min, move |report| {
            let options = GroupOptions { min, verify_bytes: VERIFY_BYTES, ..GroupOptions::default() };
            match ui.0.source.ask(Ask::Groups { path: PathBuf::new(), options }, report)? {
                Response::Groups(report) => Ok(report),
                other => Err(unexpected(&other)),
            }
        })?;
        job.wait(QUICK);
        Ok(Some(job))
    }

    fn groups_json(&self, request: &Request) -> Result<Answer> {
        let Some(job) = self.job(request)? else {
            return Err(CliError::new("nothing was compared yet").hint("ask for groups.json?min=0.25"));
        };
        match job.state() {
            State::Done(report) => json(200, &*report),
            State::Failed(e) => Err(e),
            State::Running(step) => json(202, &step),
        }
    }

    fn groups_page(&self, request: &Request) -> Result<Made> {
        let title = "Files that are the same or alike";
        let Some(job) = self.job(request)? else {
            return Ok(empty(
                title,
                "Compares every file with all others. That may take minutes; the other pages work meanwhile."
                    .to_owned(),
            )
            .into());
        };
        let about = format!("{}, {} of one in another or more", self.about(), share(job.min));
        match job.state() {
            State::Done(report) => {
                let mut page = pages::groups(&report, about);
                if let Some(table) = &mut page.table {
                    table.link = Some("similar?file=".to_owned());
                }
                Ok(page.into())
            }
            State::Failed(e) => Err(e),
            State::Running(step) => {
                let far = match step {
                    Some(step) if step.total > 0 => format!("{}: {} of {}", step.what, step.done, step.total),
                    Some(step) => format!("{}: {}", step.what, step.done),
                    None => "beginning".to_owned(),
                };
                let page = Page { notes: vec![format!("Comparing; {far}")], ..empty(title, about) };
                Ok(Made { refresh_seconds: Some(2), ..page.into() })
            }
        }
    }

    fn conflicts(&self, request: &Request) -> Result<ConflictsReport> {
        self.0.source.conflicts(request.get("path"))
    }

    fn conflicts_page(&self, request: &Request) -> Result<Made> {
        let report = self.conflicts(request)?;
        if request.get("path").is_some() {
            return Ok(self.conflict_page(&report));
        }
        let columns = vec![
            column("File", text(&report.conflicts, |row| row.path.clone())),
            column("Ours", text(&report.conflicts, |row| row.ours.clone())),
            column("Theirs", text(&report.conflicts, |row| row.theirs.clone())),
        ];
        let table = Table { link: Some("conflicts?path=".to_owned()), ..plain_table("Kept twice", columns) };
        Ok(Page {
            figures: vec![figure("conflicts", report.conflicts.len().to_string())],
            notes: vec![
                "`dedupctl conflicts resolve` settles them; both versions are ordinary files.".to_owned(),
            ],
            table: Some(table),
            ..empty("Conflicts of syncs", self.about())
        }
        .into())
    }

    /// Shows what both versions of a file changed.
    fn conflict_page(&self, report: &ConflictsReport) -> Made {
        let (mut lines, mut notes) = (Vec::new(), Vec::new());
        for row in &report.conflicts {
            let Some(shown) = &row.differences else { continue };
            notes.extend(shown.reason.iter().map(|reason| format!("{}: {reason}", row.path)));
            for (name, changed) in [(&row.ours, &shown.ours_changed), (&row.theirs, &shown.theirs_changed)] {
                let changed = changed.iter().flat_map(|changed| changed.lines());
                lines.extend(changed.map(|line| (name.clone(), line.to_owned())));
            }
        }
        if report.conflicts.is_empty() {
            notes.push("This file has no conflict.".to_owned());
        }
        let columns = vec![
            column("Version", text(&lines, |(name, _)| name.clone())),
            column("Changed since before both edits", text(&lines, |(_, line)| line.clone())),
        ];
        Page { notes, table: Some(plain_table("Lines", columns)), ..empty("Both versions", self.about()) }
            .into()
    }

    fn snapshots(&self, request: &Request) -> Result<SnapshotReport> {
        let ask = match request.get("id") {
            None => SnapshotRequest::List,
            Some(id) => {
                let path = request.get("path").map(|path| self.0.source.file(path)).transpose()?;
                let path = path.map_or_else(PathBuf::new, |side| side.path);
                SnapshotRequest::Show { id: id.to_string_lossy().into_owned(), path }
            }
        };
        match self.ask(Ask::Snapshot(ask))? {
            Response::Snapshot(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn snapshots_page(&self, request: &Request) -> Result<Made> {
        let report = self.snapshots(request)?;
        let Some(id) = request.get("id") else {
            let rows = &report.snapshots;
            let columns = vec![
                column("Snapshot", text(rows, |row| row.id.clone())),
                column("Name", text(rows, |row| row.name.clone())),
                column("Taken", text(rows, |row| row.time.clone())),
                column("Files", Values::Number(rows.iter().map(|row| row.files).collect())),
                column("Bytes", Values::Bytes(rows.iter().map(|row| row.bytes).collect())),
                column("Machine", text(rows, |row| row.machine.clone())),
            ];
            let table = Table { link: Some("snapshots?id=".to_owned()), ..plain_table("Snapshots", columns) };
            return Ok(Page {
                figures: vec![figure("snapshots", rows.len().to_string())],
                table: Some(table),
                ..empty("Snapshots", self.about())
            }
            .into());
        };
        let rows = &report.entries;
        let columns = vec![
            column("Name", text(rows, |row| row.name.clone())),
            column("Kind", text(rows, |row| row.kind.clone())),
            column("Mode", text(rows, |row| row.mode.clone())),
            column("Size", Values::Bytes(rows.iter().map(|row| row.size).collect())),
            column("Modified", text(rows, |row| row.mtime.clone())),
        ];
        let (id, path) = (id.to_string_lossy(), request.get("path").unwrap_or_default().to_string_lossy());
        let below = if path.is_empty() { String::new() } else { encoded(&format!("{path}/")) };
        let link = format!("snapshots?id={}&path={below}", encoded(&id));
        Ok(Page {
            table: Some(Table { link: Some(link), ..plain_table("Entries", columns) }),
            ..empty(&format!("Snapshot {id}"), format!("{}/{path}", self.about()))
        }
        .into())
    }
}

impl From<Page> for Made {
    fn from(page: Page) -> Made {
        Made { page, form: None, refresh_seconds: None, live: false }
    }
}

fn empty(title: &str, about: String) -> Page {
    Page {
        title: title.to_owned(),
        about,
        figures: Vec::new(),
        notes: Vec::new(),
        pictures: Vec::new(),
        side_by_side: None,
        table: None,
    }
}

fn failed(error: &CliError) -> Made {
    let notes = std::iter::once(error.message.clone()).chain(error.hint.clone()).collect();
    Page { notes, ..empty("This request failed", String::new()) }.into()
}

fn json(status: u16, report: &impl Serialize) -> Result<Answer> {
    let body = serde_json::to_vec_pretty(report)
        .map_err(|e| CliError::new(format!("the result is no JSON: {e}")))?;
    Ok(Answer { status, kind: Kind::Json, body })
}

fn unknown() -> Answer {
    Answer { status: 404, kind: Kind::Text, body: b"there is no such page\n".to_vec() }
}

fn column(name: &'static str, values: Values) -> Column {
    Column { name, help: "", values }
}

fn text<T>(rows: &[T], of: impl Fn(&T) -> String) -> Values {
    Values::Text(rows.iter().map(of).collect())
}

fn how(found: &Match) -> String {
    match (found.shares.identical, found.shares.verified) {
        (true, _) => "the same".to_owned(),
        (false, true) if found.view == View::Raw => "compared".to_owned(),
        (false, true) => format!("compared as {}", found.view.name()),
        (false, false) => "estimated".to_owned(),
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn diff_link(a: &str) -> String {
    format!("diff?a={}&b=", encoded(a))
}

/// Returns an input field with the text of the request.
fn field(request: &Request, name: &'static str, label: &'static str, example: &'static str) -> Field {
    let value = request.get(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
    Field { name, label, value, example }
}

fn similar_form(request: &Request) -> Form {
    let fields = vec![
        field(request, "file", "File", "notes/report.odt, or /a/file/elsewhere"),
        field(request, "min", "Smallest share", "0.25"),
        field(request, "limit", "At most", "100"),
    ];
    Form { to: "similar", fields, button: "Look" }
}

fn diff_form(request: &Request) -> Form {
    let fields =
        vec![field(request, "a", "The one", "report.odt@1"), field(request, "b", "The other", "report.odt")];
    Form { to: "diff", fields, button: "Compare" }
}

/// Returns the form, with the smallest share of the last comparison if the request has none.
fn groups_form(request: &Request, last: Option<Arc<Job>>) -> Form {
    let mut min = field(request, "min", "Smallest share", "0.25");
    if min.value.is_empty() {
        min.value = last.map_or(SHARE, |job| job.min).to_string();
    }
    Form { to: "groups", fields: vec![min], button: "Compare all" }
}

fn named<'a>(request: &'a Request, name: &str) -> Result<&'a OsStr> {
    request
        .get(name)
        .ok_or_else(|| CliError::new(format!("{name}: expected a file, found nothing")).hint("name one"))
}

fn number<T>(request: &Request, name: &str, otherwise: T, read: &dyn Fn(&str) -> Option<T>) -> Result<T> {
    let Some(given) = request.get(name) else { return Ok(otherwise) };
    let found = given.to_str().and_then(read);
    found.ok_or_else(|| {
        let message = format!("{name}: expected a number in its bounds, found {}", given.to_string_lossy());
        CliError::new(message).hint("leave it empty for the default")
    })
}
