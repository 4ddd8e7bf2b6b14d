//! `groups --method winnow --pairs`: pairs of files, those with the most common fingerprints first.

use super::super::CliResult;
use super::super::output::{Output, plain, share, table};
use super::super::session::unexpected;
use super::by_method::Asked;
use super::general::{below, read};
use super::question::{OwnReport, Question};
use super::reading::found_all;
use super::winnow::WinnowGroups;
use crate::admin::{NotKnown, PairByMethod, PairsByMethod, Request, Response};
use crate::query::methods::PairsWithPaths;
use crate::similarity::methods::Method;
use crate::similarity::methods::winnow::{PairOptions, Winnow};
use std::sync::Arc;

impl OwnReport for WinnowGroups {
    fn report(&self, question: &Question<'_>, out: &Output) -> Option<CliResult> {
        let winnow = question.chosen.of::<Winnow>().filter(|_| question.pairs)?;
        Some(self.pairs(winnow, question, out))
    }
}

impl WinnowGroups {
    fn pairs(&self, winnowing: Winnow, question: &Question<'_>, out: &Output) -> CliResult {
        let &Question { by_method, chosen, path, min, global, .. } = question;
        let (winnow, limit) = (&self.asked(), question.shown());
        let request = |path, base| Request::PairsByMethod { path, method: chosen.clone(), min, limit, base };
        let report = match by_method.ask_or_read(path, winnow, request, global, out)? {
            Asked::Answered(response) => match *response {
                Response::PairsByMethod(report) => report,
                other => return Err(unexpected(&other)),
            },
            Asked::Read(dir) => {
                let base = winnow.base(chosen)?;
                let tree = read(&dir, Arc::new(winnowing), winnow.look, out)?;
                let options = PairOptions { score_min: min, limit, ..PairOptions::default() };
                let PairsWithPaths { pairs, found, below_min } = tree.pairs(&base, &options)?;
                PairsByMethod {
                    method: Winnow::NAME.to_owned(),
                    parameters: winnowing.described(),
                    min,
                    pairs: pairs.iter().map(PairByMethod::of).collect(),
                    found,
                    below_min,
                    unreadable: tree.unreadable().len() as u64,
                    not_known: NotKnown::default(),
                }
            }
        };
        by_method.say(&report.not_known, out);
        out.result(&report, pairs_text)?;
        Ok(found_all(report.unreadable))
    }
}

fn pairs_text(report: &PairsByMethod) -> String {
    let below = below(["pair has", "pairs have"], report.below_min, report.min);
    if report.pairs.is_empty() {
        return "no similar files\n".to_owned() + &below;
    }
    let head = ["FINGERPRINTS", "SHARE OF A", "SHARE OF B", "A", "B"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.pairs.iter().map(|pair| {
        let copies = if pair.copies > 0 { format!(" (and {} copies)", pair.copies) } else { String::new() };
        let shares = [share(pair.containment), share(pair.contained_in)];
        let [of_a, of_b] = shares;
        vec![pair.common.to_string(), of_a, of_b, plain(&pair.a), plain(&pair.b) + &copies]
    }));
    let mut text = table(&rows, &[0, 1, 2]);
    let left = report.found.saturating_sub(report.pairs.len() as u64);
    if left > 0 {
        text += &format!("\nand {left} more with as much in common or less: --limit N shows more\n");
    }
    text + &below + "\n`dedupctl regions A B` shows the common parts of two files\n"
}
