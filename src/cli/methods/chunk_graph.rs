//! `groups --method chunk-graph`: identical files, clusters and pairs, for a review by people.

use super::super::CliResult;
use super::super::error::CliError;
use super::super::output::{Output, ROWS, more, plain, share, size, table};
use super::super::parse::parse_share;
use super::index::MethodIndex;
use super::question::{OwnReport, Question, Source};
use super::reading::{outcome, reading};
use crate::admin::text::shown;
use crate::chunk::tttd::Tttd;
use crate::contents::OverlayError;
use crate::query::methods::chunk_graph::{collect, collect_indexed};
use crate::similarity::methods::chunk_graph::{
    Analysis, AnalysisOptions, ChunkGraph, Cluster, Collection, FileNode, Gathered, GraphError, Link,
    Templates, write_chunks, write_clusters, write_identical, write_pairs,
};
use crate::similarity::methods::{Chosen, Method};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[group(id = "chunk-graph")]
#[command(next_help_heading = "With --method chunk-graph")]
pub(in crate::cli) struct ChunkGraphOptions {
    /// Target length of chunks, in bytes: 64 to 1048576; the paper has 100, 1000 and 5000 [default: 256]
    #[arg(long, value_name = "BYTES", value_parser = parse_target, conflicts_with = "from")]
    target: Option<u32>,
    /// Do not compare files that have only chunks in common that more than this share of the files have, and
    /// more than 1000 files [default: 0.5]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    ubiquitous: Option<f64>,
    /// Use the common chunks of all files in this cluster as a template, ignore them, and analyse again. They
    /// are saved in FILE.templates next to the saved FILE, and used until that is removed
    #[arg(long, value_name = "CLUSTER")]
    template: Option<usize>,
    /// With --template: take the chunks that this share of the files in the cluster have. In a chain no chunk
    /// is in all files
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = parse_share, requires = "template")]
    template_share: f64,
    /// Write identical.csv, clusters.csv, pairs.csv and chunks.csv (length and hash of each chunk of each file)
    /// to this directory; replaces none
    #[arg(long, value_name = "DIR")]
    tables: Option<PathBuf>,
}

#[derive(Serialize)]
struct GraphReport {
    method: &'static str,
    parameters: String,
    min: f64,
    /// Smallest number of common bytes.
    min_common: u64,
    files: u32,
    /// Marked chunks.
    template_chunks: usize,
    ubiquitous_chunks: u64,
    /// Number of all sets.
    identical_sets: usize,
    overhead_bytes: u64,
    identical: Vec<SetReport>,
    /// Number of all clusters.
    cluster_count: usize,
    clusters: Vec<ClusterReport>,
    /// The clusters in the form of every method.
    groups: Vec<GroupReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<Vec<PairReport>>,
    unreadable: usize,
}

#[derive(Serialize)]
struct SetReport {
    size: u64,
    overhead_bytes: u64,
    paths: Vec<String>,
}

#[derive(Serialize)]
struct ClusterReport {
    /// Its number for `--template`.
    id: usize,
    kind: &'static str,
    bytes: u64,
    links: u64,
    similarity: f64,
    files: Vec<MemberReport>,
}

#[derive(Serialize)]
struct MemberReport {
    path: String,
    size: u64,
}

#[derive(Serialize)]
struct GroupReport {
    /// Number of the cluster.
    id: usize,
    bytes: u64,
    /// Bytes that all files but the representative have in common with another.
    savable_bytes: u64,
    /// The file with the most bytes.
    representative: String,
    /// The representative first.
    members: Vec<GroupMember>,
}

#[derive(Serialize)]
struct GroupMember {
    path: String,
    size: u64,
    /// Share that is also in the member with which it has the most in common, without templates.
    containment: f64,
}

#[derive(Serialize)]
struct PairReport {
    bytes_common: u64,
    /// Share of the first, without templates.
    containment: f64,
    contained_in: f64,
    a: String,
    b: String,
}

impl OwnReport for ChunkGraphOptions {
    fn report(&self, question: &Question<'_>, out: &Output) -> Option<CliResult> {
        question.chosen.of::<ChunkGraph>()?;
        let answer = |method: Chosen| {
            question.answer(&method, true, out, |source| self.groups(&method, source, question, out))
        };
        Some(self.chosen(question.chosen).and_then(answer))
    }
}

impl ChunkGraphOptions {
    /// Returns the method with the requested target.
    fn chosen(&self, method: &Chosen) -> Result<Chosen, CliError> {
        let Some(target) = self.target else { return Ok(method.clone()) };
        method.and("target", &target.to_string()).map_err(|e| CliError::new(e.to_string()))
    }

    fn groups(&self, method: &Chosen, source: &Source<'_>, asked: &Question<'_>, out: &Output) -> CliResult {
        let (work_dir, saving) = (std::env::temp_dir(), asked.saving);
        if let Some(id) = self.template.filter(|_| saving.from.is_none()) {
            let message = format!("--template {id}: expected --from FILE, which has the cluster");
            return Err(CliError::new(message).hint("save a report with --save FILE first"));
        }
        let (collection, unreadable) = match source {
            Source::Saved(file) => (Collection::open(file).map_err(graph)?, Vec::new()),
            Source::Index(kept) => (indexed(kept, asked, &work_dir, out)?, Vec::new()),
            Source::Files(dir) => {
                let tttd = tttd_of(method);
                let save = saving.save.as_deref();
                let read = reading(out, |progress| collect(dir, tttd, save, &work_dir, progress))?;
                (read.collection, read.unreadable)
            }
        };
        let marks = saving.from.as_deref().or(saving.save.as_deref()).map(templates_of);
        let default = AnalysisOptions::default();
        let mut options = AnalysisOptions {
            templates: match marks.as_deref().filter(|path| path.exists()) {
                Some(path) => Templates::load(path).map_err(graph)?,
                None => Templates::default(),
            },
            ubiquitous_share: self.ubiquitous.unwrap_or(default.ubiquitous_share),
            min_share: asked.min,
            min_bytes: saving.min_common(),
            memory_bytes: asked.memory_bytes(),
            ..default
        };
        let mut analysis = Analysis::of(&collection, &options, &work_dir).map_err(graph)?;
        if let Some((id, path)) = self.template.zip(marks) {
            let share = self.template_share;
            mark((id, share), &analysis, &collection, &mut options.templates, &path, out)?;
            analysis = Analysis::of(&collection, &options, &work_dir).map_err(graph)?;
        }
        if let Some(dir) = &self.tables {
            write_tables(dir, &analysis, &collection)?;
        }
        let mut report = self.report(asked, &analysis, &collection).map_err(graph)?;
        (report.template_chunks, report.unreadable) = (options.templates.len(), unreadable.len());
        out.result(&report, text)?;
        Ok(outcome(&unreadable, out))
    }

    fn report(
        &self,
        asked: &Question<'_>,
        analysis: &Analysis,
        collection: &Collection,
    ) -> Result<GraphReport, GraphError> {
        let limit = asked.shown();
        let links = if asked.pairs { largest_links(analysis, limit)? } else { Vec::new() };
        let (sets, clusters) = (&analysis.identical, &analysis.clusters);
        let (shown_sets, shown_clusters) = (sets.iter().take(limit), clusters.iter().take(limit));
        let wanted = shown_sets.clone().flat_map(|set| &set.files);
        let wanted = wanted.chain(shown_clusters.clone().flat_map(|cluster| &cluster.files)).copied();
        let names = collection.names(&mut wanted.chain(links.iter().flat_map(|link| [link.a, link.b])))?;
        let most_common = most_common(analysis)?;
        let path = |file: u32| name(&names, file);
        let payload_share =
            |link: &Link, file: u32| link.bytes as f64 / analysis.files[file as usize].payload.max(1) as f64;
        Ok(GraphReport {
            method: ChunkGraph::NAME,
            parameters: format!("TTTD, chunks of about {} bytes", collection.target()),
            min: asked.min,
            min_common: asked.saving.min_common(),
            files: collection.files(),
            template_chunks: 0,
            ubiquitous_chunks: analysis.work.ubiquitous_chunks,
            identical_sets: sets.len(),
            overhead_bytes: sets.iter().map(|set| set.overhead_bytes()).sum(),
            identical: shown_sets
                .map(|set| SetReport {
                    size: set.size,
                    overhead_bytes: set.overhead_bytes(),
                    paths: set.files.iter().map(|&file| path(file)).collect(),
                })
                .collect(),
            cluster_count: clusters.len(),
            clusters: (1..)
                .zip(shown_clusters.clone())
                .map(|(id, cluster)| ClusterReport {
                    id,
                    kind: cluster.shape().name(),
                    bytes: cluster.bytes,
                    links: cluster.links,
                    similarity: cluster.similarity,
                    files: cluster
                        .files
                        .iter()
                        .map(|&file| MemberReport {
                            path: path(file),
                            size: analysis.files[file as usize].size,
                        })
                        .collect(),
                })
                .collect(),
            groups: (1..)
                .zip(shown_clusters)
                .map(|(id, cluster)| group_report(id, cluster, &analysis.files, &most_common, &names))
                .collect(),
            pairs: asked.pairs.then(|| {
                let pair = |link: &Link| PairReport {
                    bytes_common: link.bytes,
                    containment: payload_share(link, link.a),
                    contained_in: payload_share(link, link.b),
                    a: path(link.a),
                    b: path(link.b),
                };
                links.iter().map(pair).collect()
            }),
            unreadable: 0,
        })
    }
}

/// Returns for each file the most bytes that it has in common with another.
fn most_common(analysis: &Analysis) -> Result<Vec<u64>, GraphError> {
    let mut most = vec![0; analysis.files.len()];
    analysis.each_link(&mut |link| {
        for file in [link.a, link.b] {
            let most: &mut u64 = &mut most[file as usize];
            *most = link.bytes.max(*most);
        }
        Ok(())
    })?;
    Ok(most)
}

fn group_report(
    id: usize,
    cluster: &Cluster,
    files: &[FileNode],
    most_common: &[u64],
    names: &HashMap<u32, OsString>,
) -> GroupReport {
    let (node, common) = (|file: u32| &files[file as usize], |file: u32| most_common[file as usize]);
    let mut members = cluster.files.clone();
    members.sort_by_key(|&file| Reverse(node(file).size));
    let member = |&file: &u32| GroupMember {
        path: name(names, file),
        size: node(file).size,
        containment: common(file) as f64 / node(file).payload.max(1) as f64,
    };
    GroupReport {
        id,
        bytes: cluster.bytes,
        savable_bytes: members.iter().skip(1).map(|&file| common(file)).sum(),
        representative: members.first().map(|&file| name(names, file)).unwrap_or_default(),
        members: members.iter().map(member).collect(),
    }
}

/// Returns the chunking of the chosen method.
fn tttd_of(method: &Chosen) -> Tttd {
    method.of::<ChunkGraph>().unwrap_or_default().tttd()
}

/// Returns the collection of an index's files, in order of names.
fn indexed(
    kept: &MethodIndex,
    asked: &Question<'_>,
    work_dir: &Path,
    out: &Output,
) -> Result<Collection, CliError> {
    let mut files = Vec::new();
    for content in &kept.contents {
        let number = content.number;
        files.extend(content.names.iter().map(|name| Gathered {
            name: name.0.as_os_str(),
            content: content.id,
            number,
        }));
    }
    files.sort_by(|a, b| Path::new(a.name).cmp(Path::new(b.name)));
    let mut unread = None;
    let save = asked.saving.save.as_deref();
    let made = collect_indexed(
        &files,
        tttd_of(&kept.method).target(),
        &mut |visit| kept.each_key(out, &mut unread, visit),
        save,
        asked.memory_bytes(),
        work_dir,
    );
    made.map_err(|e| unread.unwrap_or_else(|| e.into()))
}

/// Returns the pairs with the most common bytes; memory depends on the limit.
fn largest_links(analysis: &Analysis, limit: usize) -> Result<Vec<Link>, GraphError> {
    let mut largest = BinaryHeap::new();
    analysis.each_link(&mut |link| {
        largest.push(Reverse((link.bytes, Reverse((link.a, link.b)))));
        if largest.len() > limit {
            largest.pop();
        }
        Ok(())
    })?;
    let link = |Reverse((bytes, Reverse((a, b))))| Link { a, b, bytes };
    Ok(largest.into_sorted_vec().into_iter().map(link).collect())
}

fn mark(
    (id, share): (usize, f64),
    analysis: &Analysis,
    collection: &Collection,
    templates: &mut Templates,
    path: &Path,
    out: &Output,
) -> Result<(), CliError> {
    let cluster = id.checked_sub(1).and_then(|at| analysis.clusters.get(at)).ok_or_else(|| {
        let message = format!("--template {id}: expected a cluster from 1 to {}", analysis.clusters.len());
        CliError::new(message).hint("ask with the same --min as for the report that numbered it")
    })?;
    let count = templates.mark(collection, &cluster.files, share).map_err(graph)?;
    if count == 0 {
        let message = format!(
            "--template {id}: no chunk that counts is in enough files of this {}",
            cluster.shape().name()
        );
        return Err(CliError::new(message).hint(
            "--template-share 0.5 takes chunks of half the files; a larger --min makes smaller clusters",
        ));
    }
    templates.save(path).map_err(graph)?;
    out.note(&format!("{count} chunks of cluster {id} marked; removing {} undoes it", path.display()));
    Ok(())
}

fn write_tables(dir: &Path, analysis: &Analysis, collection: &Collection) -> Result<(), CliError> {
    std::fs::create_dir_all(dir).map_err(|e| CliError::io("create", dir, &e))?;
    let create = |name: &str| {
        let path = dir.join(name);
        File::create_new(&path).map_err(|e| {
            CliError::io("create", &path, &e)
                .hint("name another directory with --tables: no file is replaced")
        })
    };
    write_identical(analysis, collection, create("identical.csv")?).map_err(graph)?;
    write_clusters(analysis, collection, create("clusters.csv")?).map_err(graph)?;
    write_pairs(analysis, collection, create("pairs.csv")?).map_err(graph)?;
    write_chunks(collection, create("chunks.csv")?).map_err(graph)
}

fn text(report: &GraphReport) -> String {
    let mut text = String::new();
    if report.identical_sets > 0 {
        let (sets, overhead) = (report.identical_sets, size(report.overhead_bytes));
        text += &format!("identical: {sets} sets, {overhead} redundant\n");
        for SetReport { size: of_one, overhead_bytes, paths } in &report.identical {
            let (copies, one, redundant) = (paths.len(), size(*of_one), size(*overhead_bytes));
            text += &format!("\n{copies} copies of {one}, {redundant} redundant\n");
            paths.iter().take(ROWS).for_each(|path| text += &format!("  {}\n", plain(path)));
            text += &more(paths.len());
        }
        text += "\n";
    }
    if report.cluster_count > 0 {
        let mut least = share(report.min);
        if report.min_common > 1 {
            least += &format!(" and {}", size(report.min_common));
        }
        text += &format!(
            "similar: {} clusters, links have at least {least} of the smaller file\n",
            report.cluster_count
        );
        for ClusterReport { id, kind, bytes, links, similarity, files } in &report.clusters {
            text += &format!(
                "\n#{id}: {kind} of {} files, {}, {links} links, {} similar on average\n",
                files.len(),
                size(*bytes),
                share(*similarity)
            );
            let rows: Vec<_> = files
                .iter()
                .take(ROWS)
                .map(|file| vec!["".to_owned(), size(file.size), plain(&file.path)])
                .collect();
            text += &table(&rows, &[1]);
            text += &more(files.len());
        }
    }
    if let Some(pairs) = report.pairs.as_ref().filter(|pairs| !pairs.is_empty()) {
        let head = ["COMMON", "SHARE OF A", "SHARE OF B", "A", "B"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(pairs.iter().map(|pair| {
            let PairReport { bytes_common, containment, contained_in, a, b } = pair;
            vec![size(*bytes_common), share(*containment), share(*contained_in), plain(a), plain(b)]
        }));
        text += &format!("\npairs:\n{}", table(&rows, &[0, 1, 2]));
    }
    if report.ubiquitous_chunks > 0 {
        let count = report.ubiquitous_chunks;
        text += &format!(
            "\n{count} chunks are in very many files. Files that have only those in common are not compared; --ubiquitous 1 \
            compares them\n"
        );
    }
    if text.is_empty() { "no identical or similar files\n".to_owned() } else { text }
}

fn name(names: &HashMap<u32, OsString>, file: u32) -> String {
    names.get(&file).map(|name| shown(Path::new(name))).unwrap_or_default()
}

/// Returns the file for the marks of a saved collection.
fn templates_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".templates");
    name.into()
}

fn graph(e: GraphError) -> CliError {
    OverlayError::from(e).into()
}

fn parse_target(text: &str) -> Result<u32, String> {
    let target = text.parse().map_err(|_| "expected a number of bytes from 64 to 1048576".to_owned())?;
    Tttd::with_target(target).map(|tttd| tttd.target()).map_err(|e| e.to_string())
}
