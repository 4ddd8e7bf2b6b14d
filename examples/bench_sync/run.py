"""The nine cases, by dedupfs and by others: `run.py BENCH_SYNC WORK [CASE...] [--peers NAME,NAME...] [--time-limit SECONDS]`.

BENCH_SYNC is the built example (target/.../examples/bench_sync), beside whose directory dedupfs and dedupctl are for the peers `sync` and
`sync mounted`, which are `dedupctl sync` itself, as root; WORK the directory that `cases.py` has filled. Results go to
WORK/results/CASE.json, and a table of bytes to standard output. Needs rsync, unison, git, casync, borg, zstd and xdelta3 (all of
them in Debian); one that is not there is left out.

What is counted of each: every byte both ways between two processes, of the update only (the older state is there already, with
what each program remembers of it), without ssh's own (`rsh.py` stands in for it). Except
- casync: the index and those chunks of the new state that the old store has not, as they are in the store: no requests, no
  framing. So it is a lower bound of what it would transfer.
- borg: a second archive created in a remote repository that has the first one; what the other machine would read is not counted.
- rsync, unison: where a file keeps its size and time (packages do), they miss its change. rsync is run again with -c then
  ("checksum" in its result); unison's result says "complete": false.
- git: the fetch of a commit; modes but for x, times and empty directories are not in it.
- bound: the smaller of `zstd -19 --patch-from` and `xdelta3 -9 -S lzma` on tar files (sorted, without owners) of what changed: the
  older contents that are not there any more as they were, the newer ones that were not there. No program sends that.
"""

import glob, json, os, resource, shlex, shutil, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
RSH = f"{shlex.quote(sys.executable)} {shlex.quote(HERE + '/rsh.py')}"
LIMIT = 600


class Run:
    def __init__(self, scratch):
        self.scratch, self.count = scratch, f"{scratch}/count.json"
        os.makedirs(scratch, exist_ok=True)
        self.env = dict(os.environ, BENCH_SYNC_COUNT=self.count, HOME=scratch, BORG_RSH=RSH, GIT_SSH_COMMAND=RSH,
                        BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes", BORG_RELOCATED_REPO_ACCESS_IS_OK="yes",
                        UNISON=f"{scratch}/unison", GIT_CONFIG_NOSYSTEM="1", GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b",
                        GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b", GIT_SSH_VARIANT="simple")

    def quiet(self, *command, cwd=None, check=True, env=None):
        done = subprocess.run(command, cwd=cwd, env=dict(self.env, **(env or {})), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=LIMIT)
        if check and done.returncode:
            raise RuntimeError(f"{command[0]}: {done.returncode}: {done.stderr[-300:]}")
        return done.stdout

    def measured(self, *command, cwd=None, counted=True, env=None):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        self.quiet(*command, cwd=cwd, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found = {"seconds": round(time.time() - start, 2), "cpu_seconds": round(cpu, 2)}
        if counted:
            counts = json.load(open(self.count))
            found.update(bytes=counts["up"] + counts["down"], **counts)
        return found

    def path(self, name):
        path = f"{self.scratch}/{name}"
        shutil.rmtree(path, ignore_errors=True)
        return path


def rsync_with(run, old, new, *options):
    """With -c where the copy differs else: files of packages have one time for ever, and some keep their size."""
    for more in [], ["-c"]:
        copy = run.path("copy")
        run.quiet("cp", "-a", old, copy)
        found = run.measured("rsync", *options, *more, "-e", RSH, f"host:{new}/", f"{copy}/")
        if same(run, new, copy):
            return dict(found, checksum=bool(more))
    raise RuntimeError("rsync: the copy differs")


def same(run, new, copy):
    return subprocess.run(["diff", "-rq", "--no-dereference", new, copy], stdout=subprocess.DEVNULL).returncode == 0


def rsync(run, old, new, renames):
    return rsync_with(run, old, new, "-az", "--delete")


def rsync_fuzzy(run, old, new, renames):
    return rsync_with(run, old, new, "-a", "--delete-after", "--fuzzy", "--fuzzy", "-z", "--zc=zstd", "--zl=19")


def unison(run, old, new, renames):
    here, there = run.path("here"), run.path("there")
    run.path("unison")
    run.quiet("cp", "-a", old, here), run.quiet("cp", "-a", old, there)
    command = ["unison", there, f"ssh://host/{here}", "-sshcmd", run.scratch + "/sshcmd", "-batch", "-auto", "-times",
               "-confirmbigdel=false", "-ui", "text", "-silent"]
    with open(run.scratch + "/sshcmd", "w") as file:
        file.write(f"#!/bin/sh\nexec {RSH} \"$@\"\n")
    os.chmod(run.scratch + "/sshcmd", 0o755)
    run.quiet(*command)
    run.quiet("rsync", "-a", "--delete", f"{new}/", f"{here}/")
    found = run.measured(*command)
    return dict(found, complete=same(run, new, there))


def git(run, old, new, renames):
    here, there = run.path("here.git"), run.path("there.git")
    work = lambda tree: dict(GIT_DIR=here, GIT_WORK_TREE=tree)
    run.quiet("git", "init", "-q", "--bare", here)
    run.quiet("git", "config", "core.bare", "false", env=dict(GIT_DIR=here))
    run.quiet("git", "add", "-A", "-f", ".", cwd=old, env=work(old))
    run.quiet("git", "commit", "-q", "--allow-empty", "-m", "old", cwd=old, env=work(old))
    run.quiet("git", "clone", "-q", "--bare", here, there)
    run.quiet("git", "add", "-A", "-f", ".", cwd=new, env=work(new))
    run.quiet("git", "commit", "-q", "--allow-empty", "-m", "new", cwd=new, env=work(new))
    return run.measured("git", "fetch", "-q", f"ssh://host{here}", "HEAD", cwd=there, env=dict(GIT_DIR=there))


def casync(run, old, new, renames):
    sizes = {}
    found = {"seconds": 0.0, "cpu_seconds": 0.0}
    for tree, name in [(old, "old"), (new, "new")]:
        store = run.path(f"{name}.castr")
        part = run.measured("casync", "make", "--without=all", "--with=permissions", "--with=sec-time", "--with=symlinks", f"--store={store}",
                            f"{run.scratch}/{name}.caidx", tree, counted=False)
        sizes[name] = {os.path.basename(p): os.path.getsize(p) for p in glob.glob(f"{store}/*/*.cacnk")}
    missing = sum(size for chunk, size in sizes["new"].items() if chunk not in sizes["old"])
    index = os.path.getsize(f"{run.scratch}/new.caidx")
    return dict(part, bytes=missing + index, up=0, down=missing + index, turns=None)


def borg(run, old, new, renames):
    repo = run.path("borg")
    run.path(".cache"), run.path(".config")
    run.quiet("borg", "init", "-e", "none", f"ssh://host{repo}")
    run.quiet("borg", "create", "-C", "zstd,1", f"ssh://host{repo}::old", ".", cwd=old)
    return run.measured("borg", "create", "-C", "zstd,19", f"ssh://host{repo}::new", ".", cwd=new)


def change(here, new, renames, run):
    """What a user does to the tree, through its mount."""
    for line in open(renames):
        before, after = (f"{here}/{part}" for part in line.rstrip("\n").split("\t"))
        os.makedirs(os.path.dirname(after), exist_ok=True)
        os.rename(before, after)
    # By content: files of packages have one time for ever.
    run.quiet("rsync", "-a", "-c", "--delete", f"{new}/", f"{here}/")


def sync(run, old, new, renames):
    """The command, with all that it says beside the contents. Only the edited side is mounted, and only while it is edited."""
    here, there, copy = run.path("here"), run.path("there"), run.path("copy")
    run.quiet("cp", "-a", old, here), os.makedirs(there)
    ctl = f"{BIN}/dedupctl"
    command = [ctl, "--json", "sync", "--ssh", RSH, "--remote-program", ctl, f"host:{there}", here]
    run.quiet(ctl, "init", here), run.quiet(ctl, "scan", here, "--offline", "--yes")
    run.quiet(*command)
    run.quiet(f"{BIN}/dedupfs", here)
    try:
        change(here, new, renames, run)
    finally:
        run.quiet(ctl, "unmount", here)
    # In `vendor` nothing has the path that it had, so the guards ask.
    found = run.measured(*command, "--force")
    run.quiet(ctl, "export", "--to", copy, there)
    return dict(found, complete=same(run, new, copy))


def sync_mounted(run, old, new, renames):
    """The same with both sides mounted over themselves all the time, as users do."""
    here, there, copy = run.path("here"), run.path("there"), run.path("copy")
    run.quiet("cp", "-a", old, here), os.makedirs(there)
    ctl = f"{BIN}/dedupctl"
    command = [ctl, "--json", "sync", "--ssh", RSH, "--remote-program", ctl, f"host:{there}", here]
    mounted = []
    try:
        for dir in here, there:
            run.quiet(f"{BIN}/dedupfs", dir)
            mounted.append(dir)
        run.quiet(ctl, "scan", here)
        run.quiet(*command)
        change(here, new, renames, run)
        run.quiet(ctl, "settle", here)
        found = run.measured(*command, "--force")
        run.quiet("rsync", "-a", "--exclude=/.dedupfs", "--exclude=/DEDUPFS-README.txt", f"{there}/", f"{copy}/")
    finally:
        for dir in mounted:
            run.quiet(ctl, "unmount", dir, check=False)
    return dict(found, complete=same(run, new, copy))


def files(tree):
    for dir, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(dir, name)
            if not os.path.islink(path):
                yield os.path.relpath(path, tree)


def bound(run, old, new, renames):
    import hashlib

    def hashes(tree):
        return {path: hashlib.blake2b(open(os.path.join(tree, path), "rb").read()).digest() for path in files(tree)}

    before, after = hashes(old), hashes(new)
    kept, there = set(after.values()), set(before.values())
    lists = {"old": [p for p, h in before.items() if h not in kept], "new": [p for p, h in after.items() if h not in there]}
    for name, tree in [("old", old), ("new", new)]:
        with open(f"{run.scratch}/{name}.list", "w") as file:
            file.write("".join(path + "\n" for path in sorted(lists[name])))
        run.quiet("tar", "cf", f"{run.scratch}/{name}.tar", "-C", tree, "--owner=0", "--group=0", "-T", f"{run.scratch}/{name}.list")
    if not lists["new"]:
        return {"bytes": 0, "zstd": 0, "xdelta3": 0}
    a, b = f"{run.scratch}/old.tar", f"{run.scratch}/new.tar"
    found = {}
    if os.path.getsize(b) <= 1 << 30:
        found = run.measured("zstd", "-19", "--long=30", f"--patch-from={a}", b, "-f", "-q", "-o", f"{b}.zst", counted=False)
        found["zstd"] = os.path.getsize(f"{b}.zst")
    run.quiet("xdelta3", "-9", "-S", "lzma", "-B", str(1 << 29), "-f", "-e", "-s", a, b, f"{b}.xd3")
    found["xdelta3"] = os.path.getsize(f"{b}.xd3")
    return dict(found, bytes=min(found.get("zstd", 1 << 62), found["xdelta3"]))


PEERS = {"sync": sync, "sync mounted": sync_mounted, "rsync": rsync, "rsync -yy zstd": rsync_fuzzy, "unison": unison, "git": git, "casync": casync, "borg": borg, "bound": bound}


def main():
    global LIMIT, BIN
    args, options = [], {}
    if len(sys.argv) < 3 or "--help" in sys.argv:
        sys.exit(__doc__)
    words = iter(sys.argv[1:])
    for word in words:
        if word.startswith("--"):
            options[word] = next(words)
        else:
            args.append(word)
    LIMIT = int(options.get("--time-limit", LIMIT))
    bench, work = os.path.abspath(args[0]), os.path.abspath(args[1])
    BIN = os.path.dirname(os.path.dirname(bench))
    wanted = options["--peers"].split(",") if "--peers" in options else ["dedupfs", *PEERS]
    os.makedirs(f"{work}/results", exist_ok=True)
    for case in args[2:] or ["docs", "office", "log", "db", "npm", "moved", "vendor", "vm", "linux"]:
        old, new, renames = (f"{work}/{case}/{part}" for part in ("old", "new", "renames"))
        result = f"{work}/results/{case}.json"
        results = json.load(open(result)) if os.path.exists(result) else {}
        for name in wanted:
            scratch = f"{work}/scratch"
            shutil.rmtree(scratch, ignore_errors=True)
            try:
                run = Run(scratch)
                if name == "dedupfs":
                    results[name] = json.loads(run.quiet(bench, old, new, renames))
                else:
                    results[name] = PEERS[name](run, old, new, renames)
            except (RuntimeError, subprocess.TimeoutExpired, FileNotFoundError) as error:
                results[name] = {"failed": str(error)[:300]}
            shutil.rmtree(scratch, ignore_errors=True)
            with open(result, "w") as file:
                json.dump(results, file, indent=1)
            print(case, name, json.dumps(results[name]), flush=True)
        table(case, results)


def table(case, results):
    ours = results.get("dedupfs", {})
    line = [f"level 9: {ours['level_9']['bytes']:,}", f"level 19: {ours['level_19']['bytes']:,}"] if "level_9" in ours else []
    line += [f"{name}: {found['bytes']:,}" if "bytes" in found else f"{name}: failed" for name, found in results.items() if name != "dedupfs"]
    print("|", case, "|", " | ".join(line), "|", flush=True)


if __name__ == "__main__":
    main()
