"""Every case: an artefact, the file of it that is changed, how, and the commands a user would run on it."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutations as how
from base_artefacts import train_words
from PIL import Image

KNN = ["--scorer", "knn", "--option", "k=2"]


@dataclass(frozen=True)
class Case:
    """One artefact of a kind, changed in one place.

    Attributes:
        kind: which artefact.
        place: the file or folder of it that is changed, a pattern where its name is drawn.
        mutate: how.
        seed: of the mutation.
    """

    kind: str
    place: str
    mutate: Callable[..., None]
    seed: int

    @property
    def name(self) -> str:
        """By which pytest runs it alone."""
        return f"{self.kind}-{self.place.replace('/', '.').replace('*', '')}-{self.mutate.__name__}-{self.seed}"

    @property
    def may_read_beside(self) -> bool:
        """Whether what lies beside is the artefact's own content: by a hard link, or by a file that the user named."""
        is_hard = self.mutate.__name__.startswith("hard_link")
        return is_hard or self.kind in ("table", "manifest", "images")

    def prepare(self, base: Path, sandbox: Path) -> Path:
        """Copy the artefact to ``sandbox/work``, change it, and make the folder of secrets; its path."""
        work, beside = sandbox / "work", sandbox / "beside"
        for folder in (work, beside / "folder" / "new", beside / "folder" / "old", sandbox / "out"):
            folder.mkdir(parents=True)
        for file in (beside / "secret.txt", beside / "folder" / "new" / "a.txt", beside / "folder" / "old" / "a.txt"):
            file.write_text("secret\n" * 100)
        (beside / "folder" / "lock").write_text("")
        for file in (beside / "secret.png", beside / "folder" / "a.png"):
            Image.new("RGB", (8, 8), "blue").save(file)
        artefact = work / SOURCES[self.kind]
        if (base / SOURCES[self.kind]).is_dir():
            shutil.copytree(base / SOURCES[self.kind], artefact)
        else:
            shutil.copy(base / SOURCES[self.kind], artefact)
        if self.kind == "manifest":
            shutil.copytree(base / "images", work / "images")
            how.pipe_among_images(work / "images", None, None)
        place = next(iter(sorted(artefact.glob(self.place)))) if self.place else artefact
        self.mutate(place, random.Random(f"{self.name}"), beside)
        return artefact

    def steps(self, base: Path, artefact: Path, out: Path) -> list[tuple[Any, ...]]:
        """What is run on it, in this order, on one copy."""
        return [(what, *words) for what, *words in COMMANDS[self.kind](base, artefact, out)]


def encoder_commands(base, artefact, out):
    image = base / "images/0-0.png"
    yield "command", "embed", artefact, base / "manifest.csv", "--out", out / "table.parquet", "--workers", 0
    yield "command", "search", image, "--table", base / "table.parquet", "--encoder", artefact
    yield "command", "index", "build", artefact, base / "images", "--out", out / "gallery", "--workers", 0
    yield "command", "whiten", artefact, base / "table.parquet", "--out", out / "whitened"
    yield "command", "export", "card", artefact


def gallery_commands(base, artefact, out):
    yield "command", "index", "stats", artefact
    yield "command", "search", base / "images/0-0.png", "--gallery", artefact, "--reject"
    yield "command", "search", "images/0-1.png", "--gallery", artefact, "--where", 'label_0 == "class0"', "--json"
    yield "command", "index", "backup", artefact, out / "backup"
    yield "command", "index", "restore", artefact, out / "restored"
    yield "command", "index", "verify", artefact
    yield "command", "index", "add", artefact, base / "images", "--workers", 0
    yield "command", "ood", "fit", "--gallery", artefact, *KNN
    yield "command", "index", "remove", artefact, "images/0-2.png"
    yield "serve", artefact
    yield "command", "index", "compact", artefact
    yield "command", "index", "verify", artefact


def backup_commands(base, artefact, out):
    yield "command", "index", "restore", artefact, out / "restored"
    yield "command", "index", "verify", out / "restored"
    yield "command", "index", "restore", artefact, out / "restored"
    yield "serve", out / "restored"
    yield "command", "index", "stats", artefact


def table_commands(base, artefact, out):
    yield "command", "evaluate", artefact
    yield "command", "search", base / "images/0-0.png", "--table", artefact, "--encoder", base / "encoder"
    yield "command", "ood", "fit", artefact, "--out", out / "rejector", *KNN
    yield "command", "whiten", base / "encoder", artefact, "--out", out / "whitened"
    yield "command", "report", artefact, "--out", out / "report.html"


def rejector_commands(base, artefact, out):
    table = base / "table.parquet"
    shutil.copytree(base / "gallery", out / "gallery")
    words = ["--gallery", out / "gallery", "--reject", "--rejector", artefact]
    yield "command", "ood", "evaluate", artefact, "--in", table, "--out-sets", f"other={table}"
    yield "command", "search", base / "images/0-0.png", *words
    yield "command", "report", table, "--detector", artefact, "--out", out / "report.html"
    yield "command", "ood", "fit", table, "--out", artefact, *KNN


def run_commands(base, artefact, out):
    yield "command", *train_words(base, artefact), "--resume"
    yield "command", "report", artefact, "--out", out / "report.html"
    yield "command", "export", "card", artefact


def manifest_commands(base, artefact, out):
    yield "command", "data", "check", artefact
    yield "command", "data", "stats", artefact
    yield "command", "embed", base / "encoder", artefact, "--out", out / "table.parquet", "--workers", 0
    yield "command", "index", "build", base / "encoder", artefact, "--out", out / "gallery", "--workers", 0
    yield "command", "train", "images", f"data.manifest={artefact}", *train_words(base, out)[3:-2], "--dry-run"


COMMANDS = {
    "encoder": encoder_commands,
    "gallery": gallery_commands,
    "backup": backup_commands,
    "table": table_commands,
    "rejector": rejector_commands,
    "run": run_commands,
    "manifest": manifest_commands,
    "images": manifest_commands,
}
SOURCES = {kind: kind for kind in COMMANDS} | {"table": "table.parquet", "manifest": "manifest.csv"}
ENCODER_FILES = ("encoder.json", "model.safetensors", "README.md")
REJECTOR_FILES = ("rejector.json", "scorer.json", "scorer.safetensors")
PLACES = {
    "encoder": ENCODER_FILES,
    "gallery": (
        "gallery.db",
        "index.json",
        "index-*.faiss",
        "index.lock",
        "vectors-0.f32",
        "images/*.png",
        *(f"encoder/{name}" for name in ENCODER_FILES[:2]),
        *(f"rejector/{name}" for name in REJECTOR_FILES),
    ),
    "backup": ("gallery.db", "images/*.png", "encoder/model.safetensors", "rejector/rejector.json"),
    "table": ("",),
    "rejector": REJECTOR_FILES,
    "run": ("last.pt", "recipe.json", "images.json", "log.csv", "environment.json"),
    "manifest": ("",),
    "images": ("0-0.png",),
}
FOLDERS = dict.fromkeys(("gallery", "backup"), ("encoder", "rejector", "images")) | {"run": ("tensorboard",)}
MORE = [
    *(
        (kind, place, how.ANY_WEIGHTS)
        for kind, place in (("encoder", "model.safetensors"), ("rejector", "scorer.safetensors"))
    ),
    *(("rejector", place, how.ANY_JSON) for place in ("rejector.json", "scorer.json")),
    *(("run", place, how.ANY_JSON) for place in ("recipe.json", "images.json", "environment.json")),
    *((kind, "gallery.db", how.LOGS) for kind in ("gallery", "backup")),
    ("encoder", "encoder.json", how.ANY_JSON),
    ("gallery", "index.json", how.ANY_JSON),
    ("run", "last.pt", how.ANY_CHECKPOINT),
    ("run", "log.csv", how.ANY_LOG),
    ("manifest", "", how.ANY_MANIFEST),
    ("images", "0-0.png", how.ANY_IMAGE),
    ("images", "", how.ANY_IMAGE_FOLDER),
]


def all_cases() -> list[Case]:
    """Each case once, in a fixed order, with names that are all different."""
    found = [Case(kind, place, mutate, 0) for kind, places in PLACES.items() for place in places for mutate in how.ANY_FILE]
    found += [
        Case(kind, place, mutate, 0) for kind, places in FOLDERS.items() for place in places for mutate in how.ANY_FOLDER
    ]
    for kind, place, mutates in MORE:
        seen: dict[str, int] = {}
        for mutate in mutates:
            seed = seen[mutate.__name__] = seen.get(mutate.__name__, -1) + 1
            found.append(Case(kind, place, mutate, seed))
    return found


CASES = all_cases()


def sample(n: int) -> list[Case]:
    """So many of them, of each kind its share."""
    drawn = random.Random(0).sample(CASES, len(CASES))
    kinds = {kind: [case for case in drawn if case.kind == kind] for kind in PLACES}
    return [case for of_kind in kinds.values() for case in of_kind[: max(5, round(n * len(of_kind) / len(CASES)))]]
