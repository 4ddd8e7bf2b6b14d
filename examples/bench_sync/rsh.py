"""Stands in for ssh: `rsh.py [OPTIONS] HOST COMMAND...` runs COMMAND here, and counts what goes through.

The counts go to the file in BENCH_SYNC_COUNT as JSON: bytes up (to the command), bytes down, and turns, the times that the
first byte down came after bytes up. ssh itself would add its own framing and encryption to each program alike.
"""

import json, os, select, subprocess, sys, threading

args = sys.argv[1:]
while args and args[0].startswith("-"):
    # unison says `-l USER` and `-e none`; git may say `-o OPTION` or `-p PORT`.
    args = args[2:] if args[0] in ("-l", "-e", "-o", "-p") else args[1:]
command = args[1:]
while command[:1] == ["-e"]:
    command = command[2:]
process = subprocess.Popen(["sh", "-c", " ".join(command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
counts = {"up": 0, "down": 0, "turns": 0}
state = {"last": None}
lock = threading.Lock()


def read(source):
    while True:
        try:
            return os.read(source, 1 << 16)
        except BlockingIOError:
            # rsync's ends do not block.
            select.select([source], [], [])


def relay(source, sink, way):
    while True:
        data = read(source)
        if not data:
            break
        with lock:
            counts[way] += len(data)
            counts["turns"] += way == "down" and state["last"] == "up"
            state["last"] = way
        try:
            while data:
                try:
                    data = data[os.write(sink, data) :]
                except BlockingIOError:
                    select.select([], [sink], [])
        except BrokenPipeError:
            break
    if way == "up":
        process.stdin.close()


up = threading.Thread(target=relay, args=(0, process.stdin.fileno(), "up"), daemon=True)
up.start()
relay(process.stdout.fileno(), 1, "down")
os.close(1)
code = process.wait()
with open(os.environ["BENCH_SYNC_COUNT"], "w") as file:
    json.dump(counts, file)
os._exit(code)
