"""Every case: an artefact, the file of it that is changed, how, and the commands a user would run on it."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutations as how
from base_artefacts import TRAIN
from PIL import Image
from sandbox import steps_of

# What is run on each kind of artefact, in this order, on one copy. THIS is the artefact.
MANIFEST = f"""
data check THIS
data stats THIS
embed BASE/encoder THIS --out OUT/table.parquet --workers 0
index build BASE/encoder THIS --out OUT/gallery --workers 0
{TRAIN.replace("BASE/manifest.csv", "THIS").partition(" --out")[0]} --dry-run
"""
COMMANDS = {
    "encoder": """
        embed THIS BASE/manifest.csv --out OUT/table.parquet --workers 0
        search BASE/images/0-0.png --table BASE/table.parquet --encoder THIS
        index build THIS BASE/images --out OUT/gallery --workers 0
        whiten THIS BASE/table.parquet --out OUT/whitened
        export card THIS""",
    "gallery": """
        index stats THIS
        search BASE/images/0-0.png --gallery THIS --reject
        search images/0-1.png --gallery THIS --where 'label_0 == "class0"' --json
        index backup THIS OUT/backup
        index restore THIS OUT/restored
        index verify THIS
        index add THIS BASE/images --workers 0
        ood fit --gallery THIS --scorer knn --option k=2
        index remove THIS images/0-2.png
        serve THIS
        index compact THIS
        index verify THIS""",
    "backup": """
        index restore THIS OUT/restored
        index verify OUT/restored
        index restore THIS OUT/restored
        serve OUT/restored
        index stats THIS""",
    "table": """
        evaluate THIS
        search BASE/images/0-0.png --table THIS --encoder BASE/encoder
        ood fit THIS --out OUT/rejector --scorer knn --option k=2
        whiten BASE/encoder THIS --out OUT/whitened
        report THIS --out OUT/report.html""",
    "rejector": """
        ood evaluate THIS --in BASE/table.parquet --out-sets other=BASE/table.parquet
        search BASE/images/0-0.png --gallery OUT/gallery --reject --rejector THIS
        report BASE/table.parquet --detector THIS --out OUT/report.html
        ood fit BASE/table.parquet --out THIS --scorer knn --option k=2""",
    "run": f"""
        {TRAIN.replace("RUN", "THIS")} --resume
        report THIS --out OUT/report.html
        export card THIS""",
    "manifest": MANIFEST,
    "images": MANIFEST,
}
SOURCES = {kind: kind for kind in COMMANDS} | {"table": "table.parquet", "manifest": "manifest.csv"}


@dataclass(frozen=True)
class Case:
    """One artefact of a kind, of which one file or folder, a pattern where its name is drawn, is changed by a mutation."""

    kind: str
    place: str
    mutate: Callable[..., None]

    @property
    def name(self) -> str:
        """By which pytest runs it alone."""
        return f"{self.kind}-{self.place.replace('/', '.').replace('*', '')}-{self.mutate.__name__}"

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
        source, artefact = base / SOURCES[self.kind], work / SOURCES[self.kind]
        (shutil.copytree if source.is_dir() else shutil.copy)(source, artefact)
        if self.kind == "manifest":
            shutil.copytree(base / "images", work / "images")
            how.pipe_among_images(work / "images", None, None)
        if self.kind == "rejector":
            shutil.copytree(base / "gallery", sandbox / "out" / "gallery")
        place = next(iter(sorted(artefact.glob(self.place)))) if self.place else artefact
        self.mutate(place, random.Random(self.name), beside)
        return artefact

    def steps(self, base: Path, artefact: Path, out: Path) -> list[tuple[Any, ...]]:
        return steps_of(COMMANDS[self.kind], THIS=artefact, BASE=base, OUT=out)


ENCODER_FILES = ("encoder.json", "model.safetensors", "README.md")
REJECTOR_FILES = ("rejector.json", "scorer.json", "scorer.safetensors")
IN_GALLERY = ("encoder/encoder.json", "encoder/model.safetensors", *(f"rejector/{name}" for name in REJECTOR_FILES))
PLACES = {
    "encoder": ENCODER_FILES,
    "gallery": ("gallery.db", "index.json", "index-*.faiss", "index.lock", "vectors-0.f32", "images/*.png", *IN_GALLERY),
    "backup": ("gallery.db", "images/*.png", "encoder/model.safetensors", "rejector/rejector.json"),
    "table": ("",),
    "rejector": REJECTOR_FILES,
    "run": ("last.pt", "recipe.json", "images.json", "log.csv", "environment.json"),
    "manifest": ("",),
    "images": ("0-0.png",),
}
FOLDERS = dict.fromkeys(("gallery", "backup"), ("encoder", "rejector", "images"))
MORE = [
    *((kind, f"{part}.safetensors", how.ANY_WEIGHTS) for kind, part in (("encoder", "model"), ("rejector", "scorer"))),
    *(("rejector", f"{name}.json", how.ANY_JSON) for name in ("rejector", "scorer")),
    *(("run", f"{name}.json", how.ANY_JSON) for name in ("recipe", "images", "environment")),
    *((kind, "gallery.db", how.LOGS) for kind in ("gallery", "backup")),
    *((kind, f"{name}.json", how.ANY_JSON) for kind, name in (("encoder", "encoder"), ("gallery", "index"))),
    ("run", "last.pt", how.ANY_CHECKPOINT),
    ("run", "log.csv", how.ANY_LOG),
    ("manifest", "", how.ANY_MANIFEST),
    ("images", "0-0.png", how.ANY_IMAGE),
    ("images", "", how.ANY_IMAGE_FOLDER),
]


def all_cases() -> list[Case]:
    """Each case once, in a fixed order, with names that are all different."""
    every = [(PLACES, how.ANY_FILE), (FOLDERS, how.ANY_FOLDER)]
    found = [(kind, at, mutates) for table, mutates in every for kind, places in table.items() for at in places]
    return [Case(kind, place, mutate) for kind, place, mutates in [*found, *MORE] for mutate in mutates]


CASES = all_cases()


def sample(n: int) -> list[Case]:
    """So many of them, of each kind its share."""
    drawn = random.Random(0).sample(CASES, len(CASES))
    kinds = {kind: [case for case in drawn if case.kind == kind] for kind in PLACES}
    return [case for of_kind in kinds.values() for case in of_kind[: max(5, round(n * len(of_kind) / len(CASES)))]]
