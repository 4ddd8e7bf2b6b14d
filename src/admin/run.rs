use super::by_method::{self, NoAnswer};
use super::{
    AdminError, Context, Report, Request, Response, changes, check, contained, diff, export, gc, groups, log,
    old_contents, optimize, repair, restore, scan, settle, similar, snapshot, status, template, wait,
    would_free, write_barrier,
};

/// Executes a request. For [`Request::Scan`] and [`Request::Settle`], a store opened for the purpose needs
/// the overlay's threads.
pub fn run(context: Context<'_>, request: Request, report: Report<'_>) -> Result<Response, AdminError> {
    match request {
        Request::Status => status::status(context).map(Response::Status),
        Request::Scan { path } => scan::scan(context.repo, &path, report).map(Response::Scan),
        Request::Settle => settle::settle(context.repo, report).map(Response::Settle),
        Request::SettleFew { most } => settle::settle_few(context.repo, most, report).map(Response::Settle),
        Request::Similar { path, outside, options } => {
            similar::similar(context, &path, outside, &options).map(Response::Similar)
        }
        Request::Groups { path, options } => {
            groups::groups(context, &path, &options, report).map(Response::Groups)
        }
        Request::SimilarByMethod { file, method, min, limit, winnow } => {
            let found = by_method::similar(context, &file, &method, (min, limit), &winnow);
            from_index(found, Response::SimilarByMethod)
        }
        Request::GroupsByMethod { path, method, min, base } => {
            let found = by_method::groups(context, &path, &method, min, &base, report);
            from_index(found, Response::GroupsByMethod)
        }
        Request::PairsByMethod { path, method, min, limit, base } => {
            let found = by_method::pairs(context, &path, &method, (min, limit), &base);
            from_index(found, Response::PairsByMethod)
        }
        Request::MethodContents { path, method, from } => {
            from_index(by_method::contents(context, &path, &method, from), Response::MethodContents)
        }
        Request::MethodKeys { method, from } => {
            from_index(by_method::keys(context, &method, from), Response::MethodKeys)
        }
        Request::Contained { tree, holder, budget_bytes } => {
            contained::contained(context.repo, tree, holder, budget_bytes, report).map(Response::Contained)
        }
        Request::Template(request) => {
            template::template(context.repo, &request, report).map(Response::Template)
        }
        Request::Check { path, deep } => check::check(context.repo, &path, deep, report).map(Response::Check),
        Request::Repair(request) => repair::repair(context, &request, report).map(Response::Check),
        Request::Log { path } => log::log(context.repo, &path, report).map(Response::Log),
        Request::Restore(request) => restore::restore(context, &request, report).map(Response::Restore),
        Request::Snapshot(request) => snapshot::snapshot(context, &request, report).map(Response::Snapshot),
        Request::Diff { a, b, limit, excerpt_bytes } => {
            diff::diff(context.repo, &a, &b, limit, excerpt_bytes, report).map(Response::Diff)
        }
        Request::WouldFree { path } => {
            would_free::would_free(context.repo, &path, report).map(Response::WouldFree)
        }
        Request::Gc { dry_run } => gc::gc(context.repo, dry_run, report).map(Response::Gc),
        Request::Optimize(request) => {
            optimize::optimize(context.repo, request, report).map(Response::Optimize)
        }
        Request::Export(request) => export::export(context, &request, report).map(Response::Export),
        Request::Contents { recipes } => {
            Ok(Response::Contents(old_contents::contents(context.repo, &recipes)))
        }
        Request::Read { recipes } => old_contents::read(context.repo, &recipes).map(Response::Read),
        Request::OldContents { recipes, write } => {
            old_contents::old_contents(context.repo, &recipes, write).map(Response::OldContents)
        }
        Request::WriteBarrier(request) => {
            write_barrier::write_barrier(context.repo, &request, report).map(Response::WriteBarrier)
        }
        Request::Changes { since, except } => {
            changes::changes(context, since.as_deref(), except, report).map(Response::Changes)
        }
        Request::WaitForChange { seen } => {
            wait::wait(context, seen.as_deref(), report).map(Response::WaitForChange)
        }
        Request::Unmount { .. } => Err(AdminError::NotMounted(context.repo.layout().root.clone())),
    }
}

/// Makes the response of an answer that needs the saved index of a method.
fn from_index<T>(found: Result<T, NoAnswer>, response: fn(T) -> Response) -> Result<Response, AdminError> {
    match found {
        Ok(found) => Ok(response(found)),
        Err(NoAnswer::NotKept(has)) => Ok(Response::NotKept(has)),
        Err(NoAnswer::Failed(e)) => Err(e),
    }
}
