"""Makes the nine cases: `cases.py WORK [CASE...]`.

Each case is a directory WORK/CASE with `old` (what both sides have), `new` (what one side made of it) and `renames` (what a
mount would have recorded: lines FROM<tab>TO). Raw material comes from the registries through their usual clients (npm, pip,
apt-get, cargo) into WORK/raw, the rest from a generator with a fixed seed. What is there is not made again.

Sizes are those of docs/decisions/0033-delta.md; --scale N makes the generated large ones (log, db, vm) N times smaller.
"""

import glob, io, json, os, random, shutil, sqlite3, subprocess, sys, tarfile, zipfile

TIME = 1_700_000_000
SCALE = 1


def words():
    text = open("/usr/share/common-licenses/GPL-3").read() + open("/usr/share/common-licenses/Apache-2.0").read()
    return sorted(set(w.strip(".,;:()\"'").lower() for w in text.split() if w.isascii()))


def sentence(rng, vocabulary, length=None):
    # Some words are far more frequent than others, as in any text.
    count = length or rng.randint(6, 18)
    chosen = [vocabulary[min(int(rng.paretovariate(0.6)) - 1, len(vocabulary) - 1)] for _ in range(count)]
    return " ".join(chosen).capitalize() + "."


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    os.utime(path, (TIME, TIME))


def copy(old, new):
    subprocess.run(["cp", "-a", old, new], check=True)


def touched(path, rng):
    stamp = TIME + rng.randint(1, 500_000)
    os.utime(path, (stamp, stamp))


def run(*command, cwd=None):
    subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.DEVNULL)


def npm(raw, package, version):
    out = f"{raw}/npm/{package}-{version}"
    if not os.path.isdir(out):
        os.makedirs(f"{raw}/npm", exist_ok=True)
        name = subprocess.check_output(["npm", "pack", "--silent", f"{package}@{version}"], cwd=f"{raw}/npm", text=True)
        os.makedirs(out + ".part")
        run("tar", "xzf", f"{raw}/npm/{name.strip()}", "-C", out + ".part", "--strip-components=1")
        os.unlink(f"{raw}/npm/{name.strip()}")
        os.rename(out + ".part", out)
    return out


def wheel(raw, package, version):
    out = f"{raw}/pypi/{package}-{version}"
    if not os.path.isdir(out):
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", out + ".dl",
            f"{package}=={version}")
        run(sys.executable, "-m", "zipfile", "-e", glob.glob(out + ".dl/*.whl")[0], out + ".part")
        os.rename(out + ".part", out)
        shutil.rmtree(out + ".dl")
    return out


def edit_text(rng, lines, vocabulary):
    """Some lines replaced, inserted, deleted or moved."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        what = rng.random()
        if what < 0.5:
            parts = lines[at].split(" ")
            parts[rng.randrange(len(parts))] = rng.choice(vocabulary)
            lines[at] = " ".join(parts)
        elif what < 0.75:
            lines.insert(at, sentence(rng, vocabulary))
        elif what < 0.9:
            del lines[at : at + rng.randint(1, 3)]
            lines = lines or [""]
        else:
            line = lines.pop(at)
            lines.insert(rng.randrange(len(lines) + 1), line)
    return lines


def docs(old, new, raw):
    """400 real texts (documentation of Django and Sphinx releases, README files of packages), all edited, half renamed."""
    rng, vocabulary = random.Random(1), words()
    found = []
    for root in [wheel(raw, "Django", "5.0.6"), wheel(raw, "Sphinx", "8.0.0")]:
        for dir, _, files in os.walk(root):
            for name in files:
                path = os.path.join(dir, name)
                if name.endswith((".py", ".txt", ".rst", ".html")) and 2_000 < os.path.getsize(path) < 60_000:
                    found.append(path)
    found.sort()
    for n, path in enumerate(rng.sample(found, 400)):
        lines = open(path, encoding="utf-8", errors="replace").read().split("\n")
        folder = f"{n % 20:02}"
        write(f"{old}/{folder}/text-{n:03}.txt", "\n".join(lines).encode())
        # Half of them renamed, one in four to another folder.
        name = f"{folder}/text-{n:03}.txt"
        if n % 2:
            name = f"{(n * 7) % 20:02}/{rng.choice(vocabulary)}-{n:03}.txt" if n % 4 == 1 else f"{folder}/final-{n:03}.txt"
        path = f"{new}/{name}"
        write(path, "\n".join(edit_text(rng, lines, vocabulary)).encode())
        touched(path, rng)
        if name != f"{folder}/text-{n:03}.txt":
            yield f"{folder}/text-{n:03}.txt", name


def document(parts):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts:
            archive.writestr(zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 10)), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def office(old, new, raw):
    """60 documents of the build of docx: deflated members, a body that is edited, styles, and a picture."""
    rng, vocabulary = random.Random(2), words()
    for n in range(60):
        paragraphs = [" ".join(sentence(rng, vocabulary) for _ in range(rng.randint(2, 9))) for _ in range(1300)]

        def body():
            inner = "".join(
                f'<w:p w:rsidR="00{i:06X}"><w:pPr><w:pStyle w:val="Normal"/></w:pPr><w:r><w:t>{p}</w:t></w:r></w:p>'
                for i, p in enumerate(paragraphs))
            return f'<?xml version="1.0"?><w:document><w:body>{inner}</w:body></w:document>'.encode()

        styles = "".join(f'<w:style w:styleId="S{i}"><w:name w:val="{w}"/></w:style>' for i, w in enumerate(vocabulary)).encode()
        picture = rng.randbytes(20_000)

        def made():
            return document([("[Content_Types].xml", b"<Types>" + b"<Default/>" * 20 + b"</Types>"), ("word/document.xml", body()),
                             ("word/styles.xml", styles), ("word/media/image1.png", picture)])

        write(f"{old}/report-{n:02}.docx", made())
        for _ in range(rng.randint(1, 3)):
            paragraphs[rng.randrange(len(paragraphs))] += " " + sentence(rng, vocabulary)
        write(f"{new}/report-{n:02}.docx", made())
        touched(f"{new}/report-{n:02}.docx", rng)
    return []


def log_lines(rng, vocabulary, start, count):
    out = []
    for n in range(count):
        start += rng.randint(0, 3)
        out.append(f"{start} host-{rng.randint(1, 40)} app[{rng.randint(300, 999)}]: "
                   f"{rng.choice(['INFO', 'INFO', 'INFO', 'WARN', 'ERROR'])} request={rng.getrandbits(48):012x} "
                   f"user={rng.randint(1, 5000)} path=/{rng.choice(vocabulary)}/{rng.choice(vocabulary)} "
                   f"status={rng.choice([200, 200, 200, 304, 404, 500])} bytes={rng.randint(100, 90000)} ms={rng.randint(1, 900)}\n")
    return "".join(out).encode(), start


def log(old, new, raw):
    """Four services with seven logs each of 6.5 MB; all rotated by one (a recorded rename), half of the current ones appended to."""
    rng, vocabulary = random.Random(3), words()
    lines, now = 45_000 // SCALE, TIME
    renames = []
    for service in ["api", "auth", "mail", "web"]:
        logs = []
        for n in range(7):
            data, now = log_lines(rng, vocabulary, now, lines)
            logs.append(data)
        for n, data in enumerate(reversed(logs)):
            write(f"{old}/{service}/{service}.log" + (f".{n}" if n else ""), data)
    copy(old, new)
    for service in ["api", "auth"]:
        data, now = log_lines(rng, vocabulary, now, 7_000 // SCALE)
        with open(f"{new}/{service}/{service}.log", "ab") as file:
            file.write(data)
        touched(f"{new}/{service}/{service}.log", rng)
    for service in ["mail", "web"]:
        os.unlink(f"{new}/{service}/{service}.log.6")
        for n in range(5, -1, -1):
            a, b = f"{service}/{service}.log" + (f".{n}" if n else ""), f"{service}/{service}.log.{n + 1}"
            os.rename(f"{new}/{a}", f"{new}/{b}")
            renames.append((a, b))
        data, now = log_lines(rng, vocabulary, now, 2_000 // SCALE)
        write(f"{new}/{service}/{service}.log", data)
        touched(f"{new}/{service}/{service}.log", rng)
    # The oldest was deleted before the others took its name.
    return [(a, b) for a, b in renames]


def db(old, new, raw):
    """An SQLite database of 300,000 rows with 2,000 changed, and an mbox of 9,000 mails with some deleted and new ones."""
    rng, vocabulary = random.Random(4), words()
    os.makedirs(old)
    base = sqlite3.connect(f"{old}/data.db")
    base.execute("create table item (id integer primary key, name text, body text, price integer)")
    base.execute("create index name on item (name)")
    rows = 300_000 // SCALE
    base.executemany("insert into item (name, body, price) values (?, ?, ?)",
                     ((f"{rng.choice(vocabulary)} {n}", sentence(rng, vocabulary, 30), rng.randint(1, 10**6)) for n in range(rows)))
    base.commit()
    base.close()
    mails = []
    for n in range(9_000 // SCALE):
        body = "\n".join(sentence(rng, vocabulary) for _ in range(rng.randint(20, 120)))
        mails.append(f"From u{n}@example.org Mon Jan  1 00:00:00 2024\nMessage-ID: <{rng.getrandbits(64):016x}@example.org>\n"
                     f"Subject: {sentence(rng, vocabulary, 5)}\nStatus: R\n\n{body}\n\n")
    write(f"{old}/mail.mbox", "".join(mails).encode())
    os.utime(f"{old}/data.db", (TIME, TIME))
    copy(old, new)
    changed = sqlite3.connect(f"{new}/data.db")
    for _ in range(2_000 // SCALE):
        changed.execute("update item set price = ?, body = ? where id = ?",
                        (rng.randint(1, 10**6), sentence(rng, vocabulary, 30), rng.randint(1, rows)))
    changed.commit()
    changed.close()
    for _ in range(60 // SCALE + 1):
        mails.pop(rng.randrange(len(mails)))
    for _ in range(200 // SCALE):
        at = rng.randrange(len(mails))
        mails[at] = mails[at].replace("Status: R\n", "Status: RO\n", 1)
    for n in range(60 // SCALE + 1):
        body = "\n".join(sentence(rng, vocabulary) for _ in range(rng.randint(20, 120)))
        mails.append(f"From v{n}@example.org Tue Feb  6 00:00:00 2024\nMessage-ID: <{rng.getrandbits(64):016x}@example.org>\n"
                     f"Subject: {sentence(rng, vocabulary, 5)}\n\n{body}\n\n")
    write(f"{new}/mail.mbox", "".join(mails).encode())
    for name in ["data.db", "mail.mbox"]:
        touched(f"{new}/{name}", rng)
    return []


def node_modules(out, raw, packages):
    for package, version in packages:
        copy(npm(raw, package, version), f"{out}/{package}")


def npm_case(old, new, raw):
    """Five packages upgraded."""
    os.makedirs(f"{old}/node_modules"), os.makedirs(f"{new}/node_modules")
    pairs = [("date-fns", "4.2.1", "4.3.0"), ("core-js", "3.47.0", "3.48.0"), ("eslint", "10.13.0", "10.14.0"),
             ("rxjs", "7.8.1", "7.8.2"), ("typescript", "5.9.2", "5.9.3")]
    node_modules(f"{old}/node_modules", raw, [(p, v) for p, v, _ in pairs])
    node_modules(f"{new}/node_modules", raw, [(p, v) for p, _, v in pairs])
    return []


def moved(old, new, raw):
    """Directories of packages renamed; nothing else."""
    os.makedirs(old)
    for package, version in [("date-fns", "4.2.1"), ("core-js", "3.47.0"), ("rxjs", "7.8.1"), ("typescript", "5.9.2"),
                             ("eslint", "10.13.0"), ("lodash", "4.17.21")]:
        copy(npm(raw, package, version), f"{old}/{package}")
    copy(old, new)
    for name in ["date-fns", "core-js", "rxjs"]:
        os.rename(f"{new}/{name}", f"{new}/vendor-{name}")
        yield name, f"vendor-{name}"
    os.rename(f"{new}/lodash/fp", f"{new}/lodash/functional")
    yield "lodash/fp", "lodash/functional"


def vendor(old, new, raw):
    """A dependency tree with the version in each directory's name, upgraded: nothing has the path that it had."""
    os.makedirs(old), os.makedirs(new)
    for package, a, b in [("Django", "4.2.9", "4.2.11"), ("SQLAlchemy", "2.0.25", "2.0.30"), ("Sphinx", "7.3.0", "7.4.0"),
                          ("ruff", "0.4.0", "0.4.4")]:
        copy(wheel(raw, package, a), f"{old}/{package}-{a}")
        copy(wheel(raw, package, b), f"{new}/{package}-{b}")
    for package, a, b in [("date-fns", "4.2.0", "4.2.1"), ("core-js", "3.48.0", "3.49.0"), ("eslint", "10.12.0", "10.13.0"),
                          ("express", "5.1.0", "5.2.0"), ("ajv", "8.16.0", "8.17.1")]:
        copy(npm(raw, package, a), f"{old}/{package}-{a}")
        copy(npm(raw, package, b), f"{new}/{package}-{b}")
    return []


def vm(old, new, raw):
    """A disk image, half of it files, with random blocks of 4 KiB written that compress to about a half."""
    rng = random.Random(6)
    size, writes = (1 << 30) // SCALE, 800 // SCALE
    os.makedirs(old)
    pool = b"".join(open(p, "rb").read() for p in sorted(glob.glob(f"{raw}/npm/typescript-5.9.2/lib/*.js"))[:6])
    with open(f"{old}/disk.img", "wb") as image:
        at = 0
        while at < size // 2:
            # Files of other bytes each time, so that the image does not repeat itself.
            start = rng.randrange(len(pool) - 70_000)
            block = bytes(b ^ 1 if b & 64 else b for b in pool[start : start + 2048]) + rng.randbytes(2048)
            image.write(block * 1)
            at += len(block)
        image.truncate(size)
    copy(old, new)
    with open(f"{new}/disk.img", "r+b") as image:
        for _ in range(writes):
            image.seek(rng.randrange(size // 4096) * 4096)
            image.write(b"".join(f"{rng.getrandbits(32):08x}".encode() for _ in range(512)))
    touched(f"{new}/disk.img", rng)
    os.utime(f"{old}/disk.img", (TIME, TIME))
    return []


def linux(old, new, raw):
    """A part of the kernel's tree at two point releases, as Debian packages them (bookworm-security)."""
    for out, version in [(old, "6.1.190-1"), (new, "6.1.192-1")]:
        deb = f"{raw}/linux-source-6.1_{version}_all.deb"
        if not os.path.exists(deb):
            run("apt-get", "download", "-qq", f"linux-source-6.1={version}", cwd=raw)
        run("dpkg-deb", "-x", deb, f"{raw}/linux-{version}")
        os.makedirs(out)
        parts = ["kernel", "net", "fs", "include", "drivers/net", "lib", "mm", "block", "crypto", "security", "sound",
                 "arch/x86", "Documentation"]
        run("tar", "xJf", f"{raw}/linux-{version}/usr/src/linux-source-6.1.tar.xz", "-C", out, "--strip-components=1",
            *[f"linux-source-6.1/{part}" for part in parts])
        shutil.rmtree(f"{raw}/linux-{version}")
    return []


CASES = {"docs": docs, "office": office, "log": log, "db": db, "npm": npm_case, "moved": moved, "vendor": vendor, "vm": vm,
         "linux": linux}


def main():
    global SCALE
    args = sys.argv[1:]
    if not args or args[0].startswith("-"):
        sys.exit(__doc__)
    if "--scale" in args:
        at = args.index("--scale")
        SCALE = int(args[at + 1])
        del args[at : at + 2]
    work = os.path.abspath(args[0])
    raw = f"{work}/raw"
    os.makedirs(raw, exist_ok=True)
    for name in args[1:] or CASES:
        dir = f"{work}/{name}"
        if os.path.isdir(dir):
            continue
        shutil.rmtree(dir + ".part", ignore_errors=True)
        os.makedirs(dir + ".part")
        renames = CASES[name](f"{dir}.part/old", f"{dir}.part/new", raw) or []
        with open(f"{dir}.part/renames", "w") as file:
            for a, b in renames:
                file.write(f"{a}\t{b}\n")
        os.rename(dir + ".part", dir)
        print(json.dumps({"case": name, "scale": SCALE}), flush=True)


if __name__ == "__main__":
    main()
