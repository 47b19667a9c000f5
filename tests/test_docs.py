"""The pages: generated ones are up to date, Python runs, commands parse, files that they name exist, the site builds."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import sightline
from command_lines import calls, faults
from html_pages import Page
from sightline.losses import LOSSES
from sightline.studies.papers import read_published
from sightline.training.recipe import read_recipe

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README, METRICS = (ROOT / "README.md").read_text(encoding="utf-8"), ("recall@1", "map@r", "map")
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
TEXT = {page: (DOCS / page).read_text(encoding="utf-8") for page in PAGES}
FENCE = re.compile(r"(?:<!-- not run: (?P<reason>[^\n]*) -->\n+)?^```python\n(?P<code>.*?)^```", flags=re.S | re.M)
WITH_CODE = [page for page in PAGES if FENCE.search(TEXT[page])]


@pytest.mark.parametrize("file", WITH_CODE)
def test_python_runs(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for block in FENCE.finditer(TEXT[file]):
        if block["reason"] is None:
            exec(block["code"], names)
    if file == "detector.md":
        assert names["last"] < names["first"] / 2


def test_blocks_that_are_not_run_are_these():
    found = [(page, block["reason"]) for page in PAGES for block in FENCE.finditer(TEXT[page]) if block["reason"]]
    assert found == [
        ("collections.md", "fetches packages"),
        ("scale.md", "needs a Milvus server"),
        ("scale.md", "needs a Milvus server and the tables of a large run"),
    ]
    assert len(WITH_CODE) >= 12


def test_recipes_in_pages_are_read(tmp_path):
    (found,) = [block for text in TEXT.values() for block in re.findall(r"^```toml\n(.*?)^```", text, re.S | re.M)]
    (tmp_path / "own.toml").write_text(found)
    recipe = read_recipe(str(tmp_path / "own.toml"))
    assert (recipe.loss.name, recipe.data.manifest.name) == ("sup_ap", "manifest.csv")


def test_commands_fit_the_command_line():
    found = [(page, words, whole) for page, text in TEXT.items() for words, whole in calls(text)]
    assert len(found) > 200
    assert [(page, words, fault) for page, words, whole in found for fault in faults(words, whole)] == []


def test_wrong_commands_are_found():
    page = """```bash
sightline train imagse --out run
sightline train images data.manifest=photos loss.name=roadmpa
sightline train images sampler.batch=3 && sightline embed encoder
torchrun --nproc-per-node 2 -m sightline embed encoder images.csv --out table.parquet --batch-size many
sightline data prepare emojis --out emoji  # a comment
sightline compare a.json \\
    b.json c.json
```
In a sentence `sightline serve --hots 0.0.0.0` and `sightline index rebuild`, but `sightline embed` may stand alone.
"""
    found = [fault for words, whole in calls(page) for fault in faults(words, whole)]
    fragments = ["imagse", "roadmpa", "sampler.batch", "source", "--batch-size", "emojis", "c.json", "--hots", "rebuild"]
    assert len(found) == len(fragments)
    assert [fragment for fragment, fault in zip(fragments, found, strict=True) if fragment not in fault] == []


@pytest.mark.parametrize("maker", ["make_losses.py", "make_reference.py", "make_data_flow.py", "make_architecture.py"])
def test_generated_pages_are_up_to_date(maker):
    generated = runpy.run_path(str(DOCS / maker))
    files = generated.get("FILES") or {"losses.md": generated["page"]}
    stale = [file for file, make in files.items() if (DOCS / file).read_text(encoding="utf-8") != make()]
    assert stale == [], f"run python docs/{maker}"


def test_files_that_the_architecture_names_exist():
    files = re.findall(r"`([a-z_]+(?:/[a-z_]*)*(?:\.py|/))`", TEXT["architecture.md"])
    assert len(files) > 25
    assert [file for file in files if not (Path(sightline.__file__).parent / file).exists()] == []


def test_contributing_names_the_files_to_touch_for_each_kind():
    rows = [line.split(" | ") for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| a ")]
    architecture = [line.split(" | ") for line in TEXT["architecture.md"].splitlines()]
    groups = {cells[0]: re.findall(r"`(sightline\.\w+)`", cells[-1]) for cells in architecture if len(cells) == 4}
    package = Path(sightline.__file__).parent
    kinds = "loss, metric, data set, pooling, scorer, gallery backend, tracker"
    assert ", ".join(row[0].removeprefix("| a ") for row in rows) == kinds
    for kind, *cells in rows:
        write, row, test, example = (re.search(r"`([^`]+)`", cell)[1] for cell in cells)
        assert [file for file in (write, row) if not (package / file).exists()] == [], kind
        assert [file for file in (test, example) if not (ROOT / "tests" / file).exists()] == [], kind
        (group,) = groups[kind]
        assert f'"{group}"' in (package / row).read_text(), f"the registry of {kind} is not in {row}"


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(tmp_path):
    """Within 3 points: processors round differently, and training amplifies that.

    So does another number of threads: the demo has a process of its own, in which no other test has set it.
    """
    command = [sys.executable, "-m", "sightline", "demo", "--out", tmp_path / "demo"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(METRICS)]
    printed = {name: [*map(float, values[:2])] for name, *values in lines}
    before, after = (re.search(rf"^\| {row} \|(.*)\|$", README, re.M)[1].split("|") for row in ("before", "after"))
    shown = dict(zip(METRICS, zip(map(float, before), map(float, after), strict=True), strict=True))
    for name, values in shown.items():
        assert values == pytest.approx(printed[name], abs=3), f"the demo prints {printed}"


def test_files_that_the_readme_links_to_exist():
    linked = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    assert len(linked) > 25
    assert [file for file in linked if not (ROOT / file).is_file()] == []
    assert [(words, fault) for words, whole in calls(README) for fault in faults(words, whole)] == []
    header = re.search(r"^\| \| (.*) \|$", README, re.M)[1].lower()
    assert header.split(" | ") == [*METRICS]


def test_words_are_those_of_the_field():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
    written = [file for folder in ("src", "benchmarks", "examples") for file in (ROOT / folder).rglob("*")]
    code = [file for file in written if file.suffix in (".py", ".toml", ".html", ".js", ".ipynb")]
    found = {}
    for file in pages + code:
        text = re.sub(r"\]\([^)]*\)", "]", file.read_text(encoding="utf-8"))  # addresses may have any
        found[file] = re.findall(r"\b(?:told|anew|strangers?|is needed|by lot|at first \d+)\b", text)
    assert len(found) > 200
    assert {file: words for file, words in found.items() if words} == {}


def test_page_of_losses_has_all_and_repeats_no_sentence():
    text = TEXT["losses.md"]
    assert sorted(re.findall(r"^### `(\w+)`$", text, flags=re.M)) == sorted([*LOSSES, "class_map", "all_classes_ap"])
    sentences = Counter(re.split(r"(?<=[.:;])\s+", text))
    assert [sentence for sentence, n in sentences.items() if n > 1 and len(sentence) > 50] == []


def test_published_figures_are_those_of_the_papers_tables():
    flat = {"ROADMAP, pairs": "ROADMAP (SupRank + L_DG)", "ROADMAP, proxies": "ROADMAP (SupRank + L_DG*)"}
    flat |= {"ROD-R@k, pairs": "ROD-R@k (SupRank + L_DG)", "ROD-R@k, proxies": "ROD-R@k (SupRank + L_DG*)"}
    flat |= {"Sup-AP": "Sup-AP (SupRank)"}
    tables = [row for name in ("tpami_table01", "tpami_table02", "tpami_table07") for row in read_published(name)]
    published = {(row.method, row.dataset, row.metric): row.value for row in tables}
    lines = [line for line in TEXT["choosing-a-loss.md"].splitlines() if re.search(r"\| [\d.]+ \|$", line)]
    on_classes = [("SOP", "R@1"), ("SOP", "mAP@R"), ("iNaturalist", "R@1"), ("iNaturalist", "mAP@R")]
    on_levels = [("H-GLDv2", metric) for metric in ("mAP@100", "H-AP", "ASI", "NDCG")]
    assert len(lines) == 14
    for number, line in enumerate(lines):
        method, _, *values = (cell.strip() for cell in line.split("|")[1:-1])
        columns = on_classes if number < 9 else on_levels
        assert [*map(float, values)] == [published[flat.get(method, method), *column] for column in columns], method


def test_gains_of_the_planning_page_are_those_of_the_benchmarks():
    change = r"([\d.]+) to ([\d.]+)"
    gains = re.findall(rf"^\| (\w+) \| .* \| {change} \| {change} \|$", TEXT["plan-your-run.md"], re.M)
    assert len(gains) == 4
    for name, *means in gains:
        suite = re.search(rf"<!-- suite default-{name.lower()} -->.*?<!-- end", TEXT["benchmarks.md"], re.S)[0]
        rows = [re.search(rf"^\| {row} \|(.*)$", suite, re.M)[1] for row in ("before training", "images")]
        before, after = (row.split("|")[:2] for row in rows)
        measured = [re.search(r"[\d.]+", cell)[0] for pair in zip(before, after, strict=True) for cell in pair]
        assert means == measured, name


def test_reference_has_every_public_name_and_describes_every_key():
    assert runpy.run_path(str(DOCS / "make_reference.py"))["public_names"]() == {*sightline.__all__} - {"__version__"}
    rows = re.findall(r"^\| `([\w.]+)` \|.*\| ([^|]*) \|$", TEXT["reference/recipe.md"], flags=re.M)
    assert len(rows) > 50
    assert [key for key, words in rows if not words.strip()] == []


def test_navigation_has_every_page():
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2])
    assert sorted(listed) == PAGES


LINKS = ("prev", "next", "canonical")  # which a browser does not fetch by itself


def test_site_is_built_in_strict_mode_and_fetches_nothing(tmp_path):
    site, command = tmp_path / "site", [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir"]
    environ = {"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    ended = subprocess.run([*command, site], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    built = sorted(site.rglob("*.html"))
    assert len(built) == len(PAGES) + 1  # and 404.html
    outside = []
    for file in built:
        tags = Page(file.read_text(encoding="utf-8")).tags
        fetched = [given.get("src") for tag, given in tags if tag in ("script", "img", "iframe", "source")]
        fetched += [given["href"] for tag, given in tags if tag == "link" and given["rel"] not in LINKS]
        outside += [(file.name, address) for address in fetched if address and re.match(r"(https?:)?//", address)]
    styles = {file.name: file.read_text(encoding="utf-8") for file in site.rglob("*.css")}
    outside += [name for name, style in styles.items() if re.search(r"url\(['\"]?(https?:)?//", style)]
    assert outside == []
    api = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert 'class="gp">&gt;&gt;&gt;' in api  # an example is code
    assert not re.search(r":(func|meth|class):<", api)
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any("roadmap" in entry["text"] for entry in index["docs"])
