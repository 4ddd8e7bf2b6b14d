//! `groups --method sif`: similar files of each file, interesting sets, or two directories side by side.

use super::super::CliResult;
use super::super::error::CliError;
use super::super::output::{Output, plain, share, table};
use super::super::parse::parse_share;
use super::index::MethodIndex;
use super::question::{OwnReport, Question, Source};
use super::reading::{outcome, readable, reading};
use crate::admin::MethodGroup;
use crate::admin::text::shown;
use crate::contents::OverlayError;
use crate::query::methods::sif::{collate, learn_anchors, load, read_anchors, save};
use crate::query::methods::{MatchWithPaths, Tree};
use crate::similarity::SimilarityError;
use crate::similarity::methods::sif::directories::Compared;
use crate::similarity::methods::sif::interesting::InterestOptions;
use crate::similarity::methods::sif::report::{Group, Rules};
use crate::similarity::methods::sif::{CollateOptions, File, Saved, Selection, Sif};
use crate::similarity::methods::{KeyVisitor, Likeness, Method};
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prefixes of file names in two directories.
const SIDES: [&str; 2] = ["a", "b"];

/// Limit of the search for interesting sets: some seconds.
const STEPS_MAX: u64 = 100_000_000;

#[derive(clap::Args)]
#[group(id = "sif")]
#[command(next_help_heading = "With --method sif")]
pub(in crate::cli) struct SifOptions {
    /// Show maximal sets of files that all have a share of --min and N fingerprints in common [default N: 5]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "5")]
    interesting: Option<u64>,
    /// Only files with the same extension: `.c`
    #[arg(long, conflicts_with_all = ["interesting", "against"])]
    same_suffix: bool,
    /// Only pairs whose shorter file is at least this share of the longer, 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = parse_share, conflicts_with_all = ["interesting", "against"])]
    size_ratio: Option<f64>,
    /// Compare the directory with this one: the most similar file for each file, and files without a
    /// counterpart
    #[arg(long, value_name = "DIR", conflicts_with_all = ["interesting", "save", "from"])]
    against: Option<PathBuf>,
    /// Start fingerprints at the lines of this file, of 1 to 50 bytes each
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    anchors: Option<PathBuf>,
    /// Start fingerprints at strings that many files have, but not too often
    #[arg(long, conflicts_with_all = ["anchors", "from"])]
    learn_anchors: bool,
}

/// Results of reading, or loaded ones.
struct Read {
    saved: Saved,
    /// Unknown for loaded results.
    parameters: Option<String>,
    unreadable: Vec<(PathBuf, String)>,
}

#[derive(Serialize)]
struct GroupsReport {
    method: &'static str,
    parameters: Option<String>,
    min: f64,
    groups: Vec<MethodGroup>,
    /// Fingerprints that too many files have.
    left_out: u64,
    unreadable: usize,
}

#[derive(Serialize)]
struct SetsReport {
    method: &'static str,
    parameters: Option<String>,
    min: f64,
    /// Smallest number of common fingerprints.
    common_min: u64,
    sets: Vec<SetReport>,
    /// Whether the search reached its limit.
    cut: bool,
    unreadable: usize,
}

#[derive(Serialize)]
struct SetReport {
    common: u64,
    files: Vec<SetFile>,
}

#[derive(Serialize)]
struct SetFile {
    path: String,
    size: u64,
    /// Share of its fingerprints that all have.
    share: f64,
}

#[derive(Serialize)]
struct DirectoriesReport {
    method: &'static str,
    parameters: Option<String>,
    min: f64,
    alike: Vec<AlikeReport>,
    only_a: Vec<String>,
    only_b: Vec<String>,
    unreadable: usize,
}

#[derive(Serialize)]
struct AlikeReport {
    a: String,
    b: String,
    containment: f64,
    identical: bool,
}

impl OwnReport for SifOptions {
    fn report(&self, question: &Question<'_>, out: &Output) -> Option<CliResult> {
        let sif = question.chosen.of::<Sif>()?;
        // A saved index has the fingerprints of one tree, chosen by their hash.
        let indexed = self.against.is_none() && self.anchors.is_none() && !self.learn_anchors;
        Some(question.answer(question.chosen, indexed, out, |source| self.groups(sif, source, question, out)))
    }
}

impl SifOptions {
    fn groups(&self, sif: Sif, source: &Source<'_>, asked: &Question<'_>, out: &Output) -> CliResult {
        let read = match source {
            Source::Saved(file) => Read { saved: load(file)?, parameters: None, unreadable: Vec::new() },
            Source::Index(kept) => indexed(kept, asked, out)?,
            Source::Files(dir) => reading(out, |progress| self.read(sif, dir, asked, progress))?,
        };
        if let Some(file) = &asked.saving.save {
            save(&read.saved, file)?;
        }
        match (self.interesting, &self.against) {
            (Some(common_min), _) => sets(&read, common_min, asked, out)?,
            (None, Some(_)) => directories(&read, asked, out)?,
            (None, None) => self.figure_3(&read, asked, out)?,
        }
        Ok(outcome(&read.unreadable, out))
    }

    fn read(
        &self,
        mut sif: Sif,
        dir: &Path,
        asked: &Question<'_>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Read, OverlayError> {
        let [a, b] = SIDES.map(Path::new);
        let against = self.against.as_deref().map(readable);
        let roots = match &against {
            Some(against) => vec![(dir, a), (&**against, b)],
            None => vec![(dir, Path::new(""))],
        };
        if let Some(file) = &self.anchors {
            sif.selection = Selection::Anchored(read_anchors(file)?);
        } else if self.learn_anchors {
            let roots: Vec<&Path> = roots.iter().map(|(root, _)| *root).collect();
            sif.selection = Selection::Anchored(learn_anchors(&roots)?);
        }
        let tree = Tree::read_all(&roots, Arc::new(sif.clone()), None, progress)?;
        let options = CollateOptions { memory_bytes: asked.memory_bytes(), ..CollateOptions::default() };
        let saved = collate(&tree, &sif, &options, &std::env::temp_dir())?;
        Ok(Read { saved, parameters: Some(sif.parameters()), unreadable: tree.unreadable().to_vec() })
    }

    /// Prints the report of Manber's figure 3.
    fn figure_3(&self, read: &Read, asked: &Question<'_>, out: &Output) -> Result<(), CliError> {
        let rules = Rules {
            share_min: asked.min,
            size_ratio: self.size_ratio.unwrap_or(0.0),
            same_suffix: self.same_suffix,
            common_min: asked.saving.min_common(),
        };
        let mut groups = read.saved.groups(&rules);
        groups.truncate(asked.limit.unwrap_or(usize::MAX));
        let report = GroupsReport {
            method: Sif::NAME,
            parameters: read.parameters.clone(),
            min: asked.min,
            groups: (1..)
                .zip(&groups)
                .map(|(id, group)| MethodGroup::of(id, group_files(&read.saved, group)))
                .collect(),
            left_out: read.saved.left_out,
            unreadable: read.unreadable.len(),
        };
        out.result(&report, |_| match groups.is_empty() {
            true => "no similar files\n".to_owned(),
            false => read.saved.report(&groups, asked.min),
        })
    }
}

/// Collates the content of an index.
fn indexed(kept: &MethodIndex, asked: &Question<'_>, out: &Output) -> Result<Read, CliError> {
    let (sif, mut files) = (kept.method.of::<Sif>().unwrap_or_default(), Vec::new());
    let damaged = |e: OverlayError| CliError::from(e);
    for content in &kept.contents {
        let names = content.names.iter().map(|name| name.0.as_os_str().as_bytes().to_vec()).collect();
        let file = File::of(&sif, names, content.keys, &content.head)
            .map_err(|e| damaged(SimilarityError::from(e).into()))?;
        files.push((content.number, file));
    }
    let options = CollateOptions { memory_bytes: asked.memory_bytes(), ..CollateOptions::default() };
    let mut unread = None;
    let each_key = &mut |visit: KeyVisitor<'_>| kept.each_key(out, &mut unread, visit);
    let saved = Saved::of(files, each_key, &options, &std::env::temp_dir());
    let saved = saved.map_err(|e| unread.unwrap_or_else(|| damaged(e.into())))?;
    Ok(Read { saved, parameters: Some(kept.parameters.clone()), unreadable: Vec::new() })
}

/// Lists the reference under all its names, then the members under theirs.
fn group_files(saved: &Saved, group: &Group) -> Vec<MatchWithPaths> {
    let files = |place: u32, identical: bool, share: f64| {
        let file = &saved.files[place as usize];
        // The share is of the reference; an identical file has all of it.
        let likeness = Likeness {
            containment: identical.then_some(share),
            contained_in: Some(share),
            ..Likeness::default()
        };
        let of = move |name: &Vec<u8>| MatchWithPaths {
            path: path(name).to_owned(),
            size: file.bytes,
            identical,
            likeness,
        };
        file.names.iter().map(of).collect::<Vec<_>>()
    };
    let members = group.members.iter().flat_map(|&(share, place)| files(place, false, share));
    files(group.reference, true, 1.0).into_iter().chain(members).collect()
}

fn sets(read: &Read, common_min: u64, asked: &Question<'_>, out: &Output) -> Result<(), CliError> {
    let options = InterestOptions { share_min: asked.min, common_min, steps_max: STEPS_MAX };
    let found = read.saved.interesting(&options);
    let file = |place: u32, common: u64| {
        let file = &read.saved.files[place as usize];
        let share = common as f64 / file.fingers.max(1) as f64;
        let of = move |name: &Vec<u8>| SetFile { path: shown(path(name)), size: file.bytes, share };
        file.names.iter().map(of).collect::<Vec<_>>()
    };
    let sets = found.sets.iter().take(asked.shown()).map(|set| SetReport {
        common: set.common,
        files: set.files.iter().flat_map(|&place| file(place, set.common)).collect(),
    });
    let report = SetsReport {
        method: Sif::NAME,
        parameters: read.parameters.clone(),
        min: asked.min,
        common_min,
        sets: sets.collect(),
        cut: found.cut,
        unreadable: read.unreadable.len(),
    };
    if found.cut {
        out.note("the search ended at its bound: sets may be missing or not the largest; a larger --min asks for less");
    }
    out.result(&report, |report| {
        if report.sets.is_empty() {
            return "no interesting sets\n".to_owned();
        }
        let mut text = format!("{} interesting sets\n", found.sets.len());
        for SetReport { common, files } in &report.sets {
            text += &format!("\n{common} fingerprints in common to {} files\n", files.len());
            let row = |file: &SetFile| {
                vec![String::new(), share(file.share), file.size.to_string(), plain(&file.path)]
            };
            text += &table(&files.iter().map(row).collect::<Vec<_>>(), &[1, 2]);
        }
        text
    })
}

fn directories(read: &Read, asked: &Question<'_>, out: &Output) -> Result<(), CliError> {
    let [a, b] = SIDES.map(str::as_bytes);
    let Compared { alike, only_a, only_b } = read.saved.directories(a, b, asked.min);
    let names = |names: &[Vec<u8>]| names.iter().map(|name| shown(path(name))).collect::<Vec<_>>();
    let report = DirectoriesReport {
        method: Sif::NAME,
        parameters: read.parameters.clone(),
        min: asked.min,
        only_a: names(&only_a),
        only_b: names(&only_b),
        alike: alike
            .iter()
            .map(|alike| AlikeReport {
                a: shown(path(&alike.a)),
                b: shown(path(&alike.b)),
                containment: alike.share,
                identical: alike.equal,
            })
            .collect(),
        unreadable: read.unreadable.len(),
    };
    out.result(&report, |report| {
        let limit = asked.shown();
        let mut rows = vec![["CONTAINED", "FIRST", "SECOND"].map(str::to_owned).to_vec()];
        // Identical files under the same name need no attention.
        let moved = |alike: &&AlikeReport| !(alike.identical && alike.a == alike.b);
        rows.extend(report.alike.iter().filter(moved).take(limit).map(|alike| {
            let mark = if alike.identical { " (identical)" } else { "" };
            vec![share(alike.containment), plain(&alike.a), plain(&alike.b) + mark]
        }));
        let (all, moved) = (report.alike.len(), report.alike.iter().filter(moved).count());
        let mut text = format!("{} files the same, of the same name; {moved} alike\n", all - moved);
        if moved > 0 {
            text += &table(&rows, &[0]);
        }
        text += &left(moved, limit);
        for (which, only) in [("first", &report.only_a), ("second", &report.only_b)] {
            text += &format!("\n{} only in the {which}\n", only.len());
            only.iter().take(limit).for_each(|name| text += &format!("  {}\n", plain(name)));
            text += &left(only.len(), limit);
        }
        text
    })
}

fn left(all: usize, shown: usize) -> String {
    if all > shown { format!("  and {} more: --limit N shows more\n", all - shown) } else { String::new() }
}

fn path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}
