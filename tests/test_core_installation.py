"""An installation without extras trains, embeds, evaluates, indexes and searches; the rest names its extra."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

COMMANDS = """
import json, sys
commands, hidden = json.loads(sys.argv[1])
for package in hidden:
    sys.modules[package] = None  # as if it were not installed
from sightline.cli.main import run
for command in commands:
    sys.argv[1:] = command
    try:
        run()
    except SystemExit as ended:
        print(command[0], "->", ended.code, flush=True)
"""


def packages_of_extras():
    """The packages to import that some extra names and the core does not, by pyproject.toml."""
    core, extra = set(), set()
    for text in requires("sightline"):
        wanted = Requirement(text)
        (extra if wanted.marker and "extra" in str(wanted.marker) else core).add(canonicalize_name(wanted.name))
    found = packages_distributions().items()
    return sorted(package for package, owners in found if {canonicalize_name(name) for name in owners} & (extra - core))


def test_the_core_needs_no_extra(image_tree, tiny_recipe, tmp_path):
    hidden = packages_of_extras()
    assert {"faiss", "fastapi", "matplotlib", "onnxruntime", "sklearn", "tensorboard"} <= {*hidden}
    run, gallery, table = (str(tmp_path / name) for name in ("run", "gallery", "table.parquet"))
    works = [
        ["train", "images", *tiny_recipe, f"data.manifest={image_tree}", "schedule.epochs=1", "--out", run],
        ["embed", f"{run}/encoder", str(image_tree), "--out", table],
        ["evaluate", table],
        ["index", "build", f"{run}/encoder", str(image_tree), "--out", gallery],
        ["search", str(image_tree / "super0/class00/0.png"), "--gallery", gallery],
        ["ood", "fit", table, "--out", str(tmp_path / "rejector")],
    ]
    refused = [
        ["report", run],
        ["demo", "--out", str(tmp_path / "demo")],
        ["data", "prepare", "glyphs", "--out", str(tmp_path / "glyphs")],
        ["train", "images", *tiny_recipe, f"data.manifest={image_tree}", "loggers=['tensorboard']", "--out", f"{run}2"],
    ]
    words = json.dumps([works + refused, hidden])
    done = subprocess.run([sys.executable, "-c", COMMANDS, words], capture_output=True, text=True, check=False)
    status = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if " -> " in line]
    assert status == ["0"] * len(works) + ["2"] * len(refused), done.stdout + done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("sightline: ")]
    for line, package in zip(complaints, ("matplotlib", "matplotlib", "matplotlib", "tensorboard"), strict=True):
        assert package in line
        assert "pip install" in line
