"""Run commands in children of a warm process, and watch what they touch."""

import ctypes
import hashlib
import json
import os
import shlex
import stat
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

SCRIPT = Path(__file__).with_name("warm_process.py")
CPU_SECONDS = 10
OPENED, READ, CHANGED = 0x20, 0x1, 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
CRASHES = ("Traceback (most recent call last)", "panicked at", "Exception ignored")
OWN_STEPS = ("serve", "upload", "encoder", "glyphs")  # of the warm process; all others are commands


def steps_of(lines: str, **places: object) -> list[tuple[str, ...]]:
    """Steps for the warm process from lines as a shell would read them, with the names of places replaced."""
    for name, place in places.items():
        lines = lines.replace(name, str(place))
    found = [tuple(shlex.split(line)) for line in lines.strip().splitlines()]
    return [words if words[0] in OWN_STEPS else ("command", *words) for words in found]


@dataclass
class Outcome:
    """What became of a child: one entry for each step that ended, and how it ended itself."""

    steps: list
    signal: int | None
    hung: bool
    last: str
    words: list = field(default_factory=list)

    def faults(self):
        """What no command may do, whatever it is given, one sentence each."""
        found = []
        for step, words in zip(self.steps, self.words, strict=False):
            if "broken" in step:
                found.append(f"the harness failed: {step['broken']}")
                continue
            shown, printed = f"`{' '.join(words)}` ended with {step['status']}", step["printed"]
            if step["status"] not in (0, 1, 2):
                found.append(f"{shown}: not a status of ours")
            if any(word in printed for word in CRASHES):
                found.append(f"{shown} and printed a traceback:\n{printed[-2500:]}")
            if "File too large" in printed:
                found.append(f"{shown}: it tried to write more than a gigabyte: {printed[-500:]}")
            if step["cpu"] > CPU_SECONDS:
                found.append(f"{shown} after {step['cpu']:.1f} s of processor time, more than {CPU_SECONDS}")
        if self.hung or self.signal is not None:
            how = "waited for what never came" if self.hung else f"died by signal {self.signal}"
            found.append(f"`{' '.join(self.words[len(self.steps)])}` {how}; it printed: {self.last[-1500:]}")
        return found


class Warm:
    """The warm process."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        environment = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, steps, cwd: Path, kill=None, is_limited=True) -> Outcome:
        """The outcome of some steps in one child, each ``(what, *words)``."""
        steps = [tuple(map(str, step)) for step in steps]
        request = {"steps": steps, "cwd": cwd, "kill": kill, "is_limited": is_limited}
        request["printed"] = self.scratch / "printed.txt"
        self.process.stdin.write(json.dumps(request, default=str) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the warm process ended"
        return Outcome(**json.loads(line), words=[words for _, *words in steps])

    def call(self, steps) -> None:
        """Run steps that must go well, and may take long: kernels are compiled the first time."""
        outcome = self.run(steps, self.scratch, is_limited=False)
        assert len(outcome.steps) == len(steps), outcome
        assert all(step["status"] == 0 for step in outcome.steps), [step["printed"] for step in outcome.steps]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


class Watcher:
    """Knows whether files or folders below a folder were opened or changed, by whichever path and call: by inotify."""

    def __init__(self, root: Path) -> None:
        self.library = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self.library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self.descriptor >= 0, os.strerror(ctypes.get_errno())
        self.paths = {}
        for path in (root, *sorted(root.rglob("*"))):
            if not path.is_symlink() and (path.is_dir() or path.is_file()):
                number = self.library.inotify_add_watch(self.descriptor, os.fsencode(path), OPENED | READ | CHANGED)
                assert number >= 0, os.strerror(ctypes.get_errno())
                self.paths[number] = path.relative_to(root)

    def events(self):
        """What happened since the start: ``{"opened beside/secret.txt", ...}``; to be called once."""
        data, found = b"", set()
        try:
            while part := os.read(self.descriptor, 1 << 16):
                data += part
        except BlockingIOError:
            pass
        os.close(self.descriptor)
        while data:
            number, mask, _, length = struct.unpack_from("iIII", data)
            name = data[16 : 16 + length].rstrip(b"\0").decode()
            if number in self.paths:
                what = "changed" if mask & CHANGED else "opened"
                found.add(f"{what} {self.paths[number] / name}")
            data = data[16 + length :]
        return found


def contents(root: Path, leave_out=()):
    """Kind, inode, time, rights and content of everything below a folder, by path."""
    found = {}
    for above, folders, files in os.walk(root):
        folders[:] = [name for name in folders if Path(above, name) not in leave_out]
        for path in (Path(above, name) for name in [*folders, *files]):
            known, text = path.lstat(), ""
            if stat.S_ISLNK(known.st_mode):
                text = os.readlink(path)
            elif stat.S_ISREG(known.st_mode):
                text = hashlib.sha256(path.read_bytes()).hexdigest()
            time = None if stat.S_ISDIR(known.st_mode) else known.st_mtime_ns
            found[str(path.relative_to(root))] = (known.st_mode, known.st_ino, time, text)
    return found


def differences(before, after):
    """One sentence for each path that is not what it was."""
    lost, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    changed = sorted(path for path in before.keys() & after.keys() if before[path] != after[path])
    return [f"{word} {path}" for word, paths in (("removed", lost), ("made", new), ("changed", changed)) for path in paths]
