"""One peer on the files and queries of a manifest: peers.py PEER MANIFEST WORK. Prints JSON, for `peers.rs`.

All times are of the processor. MinHash peers get the distinct 24-byte grams of a file, as dedupfs does. Two files of one
size of which each has a quarter of the other have a resemblance of 1/7: that is the threshold that they are given.
"""

import ctypes
import glob
import json
import resource
import signal
import sys
import time

RESEMBLANCE = 0.14
GRAM = 24
PERMUTATIONS = 128
# Seconds after which a peer is ended, and said to be. Not of the processor: a limit of that makes its clock tick.
SECONDS_MAX = 1200
# What is handed to a library at a time.
SLICE = 1 << 15


def grams(data):
    """Hashes of the distinct grams of data. Windows are put together from shorter ones; 24 = 16 + 8."""
    import numpy as np

    base = 0x9E3779B97F4A7C15
    width, hashes, by_width = 1, np.frombuffer(data, dtype=np.uint8).astype(np.uint64) + np.uint64(1), {}
    if len(data) < GRAM:
        return hashes
    while width < 16:
        factor = np.uint64(pow(base, width, 1 << 64))
        hashes = hashes[:-width] * factor + hashes[width:]
        width *= 2
        by_width[width] = hashes
    hashes = by_width[16][:-8] * np.uint64(pow(base, 8, 1 << 64)) + by_width[8][16:]
    hashes ^= hashes >> np.uint64(31)
    hashes *= np.uint64(0xD6E8FEB86659FD93)
    hashes ^= hashes >> np.uint64(32)
    return np.unique(hashes)


class Ssdeep:
    """Every digest with every other, which is what the program does too."""

    def __init__(self, work):
        found = glob.glob(work + "/libfuzzy/usr/lib/*/libfuzzy.so.2")
        self.lib = ctypes.CDLL(found[0] if found else "libfuzzy.so.2")
        self.settings = "libfuzzy2, any score above 0"
        self.digests = []

    def add(self, number, data):
        digest = ctypes.create_string_buffer(148)
        if self.lib.fuzzy_hash_buf(data, len(data), digest) != 0:
            raise RuntimeError("fuzzy_hash_buf failed")
        self.digests.append(digest.value)

    def ask(self, number):
        one, compare = self.digests[number], self.lib.fuzzy_compare
        scores = [(other, compare(one, digest)) for other, digest in enumerate(self.digests)]
        return {other: score / 100 for other, score in scores if score > 0}

    def pairs(self):
        compare, count = self.lib.fuzzy_compare, 0
        for at, one in enumerate(self.digests):
            count += sum(compare(one, other) > 0 for other in self.digests[:at])
        return count


class Datasketch:
    def sketch(self, data):
        import datasketch

        sketch = datasketch.MinHash(PERMUTATIONS, hashfunc=lambda value: value)
        hashes = grams(data)
        for at in range(0, len(hashes), SLICE):
            sketch.update_batch((hashes[at : at + SLICE] >> hashes.dtype.type(32)).tolist())
        return sketch, len(hashes)


class DatasketchLsh(Datasketch):
    def __init__(self, work):
        import datasketch

        self.lsh = datasketch.MinHashLSH(threshold=RESEMBLANCE, num_perm=PERMUTATIONS)
        self.settings = (
            f"{datasketch.__version__} MinHashLSH, {PERMUTATIONS} permutations, threshold {RESEMBLANCE}: "
            f"{self.lsh.b} bands of {self.lsh.r}"
        )
        self.sketches = []

    def add(self, number, data):
        self.sketches.append(self.sketch(data)[0])
        self.lsh.insert(number, self.sketches[-1])

    def ask(self, number):
        own = self.sketches[number]
        return {other: own.jaccard(self.sketches[other]) for other in self.lsh.query(own)}


class DatasketchEnsemble(Datasketch):
    def __init__(self, work):
        import datasketch

        self.lsh = datasketch.MinHashLSHEnsemble(threshold=0.25, num_perm=PERMUTATIONS, num_part=32)
        self.settings = f"{datasketch.__version__} MinHashLSHEnsemble, 32 parts, containment 0.25"
        self.entries = []

    def add(self, number, data):
        sketch, size = self.sketch(data)
        self.entries.append((number, sketch, max(size, 1)))

    def ready(self):
        self.lsh.index(self.entries)

    def ask(self, number):
        _, sketch, size = self.entries[number]
        return {other: 0.0 for other in self.lsh.query(sketch, size)}


class Rensa:
    """64 bands of 2 find half of the pairs at a resemblance of 0.10."""

    def __init__(self, work):
        import rensa

        self.rensa = rensa
        self.lsh = rensa.RMinHashLSH(threshold=RESEMBLANCE, num_perm=PERMUTATIONS, num_bands=64)
        self.settings = f"RMinHashLSH, {PERMUTATIONS} permutations, 64 bands of 2"
        self.sketches = []

    def add(self, number, data):
        # One by one: all hashes of all files would not fit in memory.
        hashes = grams(data)
        sketch = self.rensa.RMinHash(PERMUTATIONS, 42)
        self.update(sketch, hashes)
        self.sketches.append(sketch)
        self.lsh.insert(number, sketch)

    @staticmethod
    def update(sketch, hashes):
        raw = hashes.tobytes()
        for at in range(0, len(raw), 8 * SLICE):
            part = raw[at : at + 8 * SLICE]
            sketch.update([part[i : i + 8] for i in range(0, len(part), 8)])

    def ask(self, number):
        own = self.sketches[number]
        return {other: own.jaccard(self.sketches[other]) for other in self.lsh.query(own)}


class Gaoya:
    """Takes text, so bytes are handed over as Latin-1; cuts it into grams itself, at every character."""

    def __init__(self, work):
        from gaoya.minhash import MinHashStringIndex

        self.index = MinHashStringIndex(
            hash_size=32, jaccard_threshold=0.0, num_bands=64, band_size=2, analyzer="char", ngram_range=(GRAM, GRAM)
        )
        self.settings = f"MinHashStringIndex, {GRAM} characters, 64 bands of 2, no threshold"
        self.texts = []

    def add(self, number, data):
        self.texts.append(data.decode("latin-1"))
        self.index.insert_document(number, self.texts[-1])

    def ask(self, number):
        return {other: 0.0 for other in self.index.query(self.texts[number])}


PEERS = {
    "ssdeep": Ssdeep,
    "datasketch-lsh": DatasketchLsh,
    "datasketch-ensemble": DatasketchEnsemble,
    "rensa": Rensa,
    "gaoya": Gaoya,
}


def out_of_time(signum, frame):
    sys.exit(f"ended after {SECONDS_MAX} s")


def main():
    name, manifest, work = sys.argv[1:]
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(SECONDS_MAX)
    with open(manifest) as file:
        manifest = json.load(file)
    peer, now = PEERS[name](work), time.process_time
    sketch_s = 0.0
    for number, path in enumerate(manifest["files"]):
        with open(path, "rb") as file:
            data = file.read()
        start = now()
        peer.add(number, data)
        sketch_s += now() - start
    start = now()
    getattr(peer, "ready", lambda: None)()
    sketch_s += now() - start
    found, latencies = [], []
    for query in manifest["queries"]:
        start = now()
        answer = peer.ask(query)
        latencies.append((now() - start) * 1e6)
        answer.pop(query, None)
        found.append(answer)
    start = now()
    if hasattr(peer, "pairs"):
        count = peer.pairs()
    else:
        count = sum(other < number for number in range(len(manifest["files"])) for other in peer.ask(number))
    said = {
        "settings": peer.settings,
        "found": found,
        "sketch_s": sketch_s,
        "latencies_us": latencies,
        "all_pairs_s": now() - start,
        "all_pairs": count,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }
    json.dump(said, sys.stdout)


main()
