"""The examples run, small, on characters drawn from fonts; they use public names only."""

import ast
import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import sightline as sl
from refusals import assert_refused
from sightline.data.readers.glyphs import draw_glyph

EXAMPLES = Path(__file__).parent.parent / "examples"
TYPEFACES = ("dejavu-sans", "dejavu-sans-bold", "dejavu-serif", "dejavu-serif-bold", "dejavu-mono", "stix")
SMALL = ["model.backbone=tiny", "model.weights=none", "model.embedding_dim=16", "model.adaptation=upper:2"]
SMALL += ["data.image_size=32", "data.n_workers=0", "sampler.batch_size=16", "schedule.epochs=2"]
SMALL += ["schedule.name=constant", "optimizer.lr=0.01"]


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """``script/character/typeface.png``: 15 characters in 6 typefaces."""
    root = tmp_path_factory.mktemp("examples") / "characters"
    for script, letters in {"latin": "ABEKQ", "greek": "ΓΔΘΞΨ", "cyrillic": "ДЖШЮЯ"}.items():
        for letter in letters:
            folder = root / script / f"U+{ord(letter):04X}"
            folder.mkdir(parents=True)
            for typeface in TYPEFACES:
                draw_glyph(letter, typeface).save(folder / f"{typeface}.png")
    return root


@pytest.fixture
def run_notebook(characters, tmp_path, monkeypatch):
    """Execute a notebook in a folder that has ``photos``; what each code cell shows, as text, and as HTML."""
    (tmp_path / "photos").symlink_to(characters)
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "jupyter"))

    def run(name, **changes):
        book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
        for old, new in changes.items():
            (cell,) = [cell for cell in book.cells if cell.source.count(f"{old} = []") == 1]
            cell.source = cell.source.replace(f"{old} = []", f"{old} = {new!r}")
        NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
        outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
        shown = [output.data for output in outputs if output.output_type == "execute_result"]
        return shown, "".join(output.text for output in outputs if output.output_type == "stream")

    return run


def sources(file):
    """The Python of an example, without the magic of notebooks."""
    if file.suffix == ".py":
        return [file.read_text()]
    book = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells), "outputs of some machine"
    return [cell.source for cell in book.cells if cell.cell_type == "code" and not cell.source.startswith("%%")]


def test_examples_use_public_names_only():
    files = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")])
    assert len(files) == 4
    for file in files:
        for node in [node for source in sources(file) for node in ast.walk(ast.parse(source))]:
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("sightline"), file
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sl":
                assert node.attr in sl.__all__, file


def test_evaluate_own_vectors(run_notebook):
    shown, _ = run_notebook("evaluate_own_vectors")
    assert shown[0]["text/plain"].splitlines()[-1] == "100 queries"
    assert "<td>recall@1</td>" in shown[0]["text/html"]
    assert "<td>h_ap</td>" in shown[2]["text/html"]
    assert "noisy - mine" in shown[3]["text/plain"]


def test_wrap_own_model(run_notebook, tmp_path):
    shown, streams = run_notebook("wrap_own_model")
    assert "my model (my_model:make_model)" in shown[0]["text/html"]
    assert "90 queries" in shown[1]["text/plain"]
    assert "1.0" in shown[2]["text/plain"].splitlines()[0], "an image is most like itself"
    assert "16 dimensions" in shown[3]["text/html"]
    assert "Embedding: 100%" in streams
    with sl.Gallery.open(tmp_path / "gallery") as gallery:
        assert len(gallery) == 90
        assert_refused(r"my_model.*trust", gallery.encoder)


def test_train_on_your_folder(run_notebook, tmp_path):
    shown, streams = run_notebook("train_on_your_folder", settings=SMALL)
    test = sl.read_manifest(tmp_path / "images.csv").split("test")
    training = sl.read_manifest(tmp_path / "images.csv").split("train")
    assert (len(test), len(training)) == (18, 72)
    assert not set(test.table["label_0"]) & set(training.table["label_0"])
    assert "<td>optimizer.lr</td><td>0.01</td>" in shown[1]["text/html"]
    assert "18 queries" in shown[3]["text/plain"]
    assert "Epoch 3/3: 100%" in streams
    encoder = sl.Encoder.from_pretrained(tmp_path / "runs/photos/encoder")
    assert shown[-1]["text/plain"] == repr(sl.evaluate_table(sl.embed_manifest(encoder, test)))


def test_bring_your_own_loop_learns_each_way(characters, capsys):
    main = runpy.run_path(str(EXAMPLES / "bring_your_own_loop.py"))["main"]
    results = main(characters, "tiny", None, image_size=32, epochs=30, batch_size=40, lr=0.003)
    assert list(results) == ["before", "plain torch", "their style", "Trainer"]
    for way in ("plain torch", "their style", "Trainer"):
        assert results[way]["map@r"] > results["before"]["map@r"] + 0.05, way
    assert results["Trainer"]["h_ap"] > results["before"]["h_ap"]
    assert "plain torch: R@1 0." in capsys.readouterr().out
