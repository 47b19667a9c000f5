"""What a run ran on: written beside it, and compared when it goes on."""

import json
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sightline import __version__
from sightline.files import read_json_object, replaced
from sightline.training.distributed import n_processes

ENVIRONMENT_FILE, RESUMES_FILE = "environment.json", "resumes.log"


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, threads, processes, command line, and the state of the current directory's git repository.

    ``git`` is absent where the current directory is not in a repository.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "sightline": __version__,
        **{package: version(package) for package in ("torch", "timm", "numba")},
        "platform": platform.platform(),
        "device": str(device) if device.type != "cuda" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "processes": n_processes(),
        "command": shlex.join(sys.argv),
    }
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    if commit is not None and changes is not None:
        found["git"] = {"commit": commit, "dirty": changes != ""}
    return found


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def record_environment(folder: Path, here: dict[str, Any], step: int) -> list[str]:
    """Write ``environment.json``; where a run has one it is left as it is.

    Then what differs is added to ``resumes.log``, with the step from which on it holds. The command does not count: that
    of a run that goes on is always another, and a recipe that is another is refused.

    Returns:
        What differs, a sentence each.
    """
    file = folder / ENVIRONMENT_FILE
    if not file.is_file():
        with replaced(file) as scratch:
            scratch.write_text(json.dumps(here, indent=2) + "\n", encoding="utf-8")
        return []
    stored = read_json_object(file, folder)
    changed = differences(stored, json.loads(json.dumps(here)) | {"command": stored.get("command")})
    if changed:
        with (folder / RESUMES_FILE).open("a", encoding="utf-8") as stream:
            stream.writelines(f"from step {step} on: {sentence}\n" for sentence in changed)
    return changed


def differences(stored: dict[str, Any], here: dict[str, Any], prefix: str = "") -> list[str]:
    """Where two nested dictionaries differ.

    Example:
        >>> differences({"loss": {"name": "sup_ap"}, "seed": 0}, {"loss": {"name": "roadmap"}, "seed": 0})
        ["loss.name is 'sup_ap' there, 'roadmap' here"]
    """
    found = []
    for key in sorted(stored.keys() | here.keys()):
        there, now = stored.get(key), here.get(key)
        if isinstance(there, dict) and isinstance(now, dict):
            found += differences(there, now, f"{prefix}{key}.")
        elif there != now:
            found.append(f"{prefix}{key} is {there!r} there, {now!r} here")
    return found
