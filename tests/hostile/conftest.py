"""The warm process and the artefacts that cases are copied from, made once."""

import shutil

import pytest
from base_artefacts import TRAIN, write_images
from sandbox import Warm, contents, differences, steps_of

MAKE = """
encoder BASE/encoder
embed BASE/encoder BASE/manifest.csv --out BASE/table.parquet --workers 0
ood fit BASE/table.parquet --out BASE/rejector --scorer knn --option k=2
index build BASE/encoder BASE/manifest.csv --out BASE/gallery --index HNSW8 --workers 0
upload BASE/gallery
ood fit --gallery BASE/gallery --scorer knn --option k=2
index verify BASE/gallery
index backup BASE/gallery BASE/backup
"""
REPORT = "evaluate BASE/table.parquet\nreport BASE/table.parquet --out OUT/report.html"


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """A process that runs commands in children."""
    process = Warm(tmp_path_factory.mktemp("warm"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def base(warm, tmp_path_factory):
    """A folder with one good artefact of each kind and a run that was stopped after some steps; no case may change it."""
    base, scratch = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("scratch")
    write_images(base)
    warm.call(steps_of(MAKE, BASE=base))
    warm.call(steps_of(f"{TRAIN} --max-minutes 0", BASE=base, RUN=base / "run"))
    assert (base / "run" / "last.pt").is_file()
    # What is compiled the first time is compiled here, before processor time counts.
    finished = shutil.copytree(base / "run", scratch / "run")
    warm.call(steps_of(f"{TRAIN} --resume\n{REPORT}", BASE=base, RUN=finished, OUT=scratch))
    before = contents(base)
    yield base
    assert differences(before, contents(base)) == []
