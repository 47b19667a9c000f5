"""The steps as a user types them."""

import polars as pl
import pytest
from typer.testing import CliRunner

from refusals import assert_refused
from sightline.cli.hierarchy import app
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import read_manifest


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_from_images_to_a_manifest_with_levels(image_tree, tmp_path):
    true, flat, folder, new = read_manifest(image_tree), tmp_path / "flat.csv", tmp_path / "work", tmp_path / "new.csv"
    true.table.with_columns(path=pl.Series([str(path) for path in true.paths()])).drop("label_1").write_csv(flat)
    manifest = read_manifest(flat)
    vectors = manifest.labels()[:, [0]] % 3 == [[0, 1, 2]]
    images = EmbeddingTable(manifest, vectors.astype("float32"), "test").write(tmp_path / "t.parquet")
    for words, fact in (
        (["collect", folder, flat], "12 labels, 0 with a category"),
        (["clean", folder, "--text", "name"], "12 labels kept, 0 dropped"),
        (["embed", folder, "--images", images, "--text-weight", 0], "12 vectors of 3"),
        (["cluster", folder, "--levels", 3], "3 < 2 groups\nonly 2 of 3 levels"),
        (["cluster", folder, "-k", 3], "3 groups"),
        (["review", folder, "--csv"], ""),
    ):
        assert fact in run(*words)
    for name in ("clean.csv", "terms.csv"):  # the step that writes it was run again
        made_for = (folder / name).read_text()
        (folder / name).write_text(made_for + "\n")
        for words in (["review", folder, "--csv"], ["apply", folder, flat, "--out", new]):
            assert_refused(rf"clusters\.csv: made for another {name}: run `sightline hierarchy cl", run, *words)
        (folder / name).write_text(made_for)
    assert "72 images, 2 label levels" in run("apply", folder, flat, "--out", new)
    found = read_manifest(new).labels()[:, 1].tolist()
    assert len({*zip(found, true.labels()[:, 1].tolist(), strict=True)}) == 3
    edited = folder / "edited.csv"
    pl.read_csv(folder / "review.csv").with_columns(group_1=pl.lit("all")).write_csv(edited)
    run("apply", folder, flat, "--out", tmp_path / "one.csv", "--review", edited)
    assert {*read_manifest(tmp_path / "one.csv").table["label_1"]} == {"all"}
    words = ["apply", folder, flat, "--out", tmp_path / "x.csv", "--review", edited, "--review", folder / "review.csv"]
    assert_refused(["conflicts.csv", "12 texts"], run, *words)
    assert not (tmp_path / "x.csv").exists()
    assert (len(pl.read_csv(folder / "agreed.csv")), len(pl.read_csv(folder / "conflicts.csv"))) == (0, 12)


def test_a_table_of_categories(tmp_path):
    (tmp_path / "l.csv").write_text("label,category\n1,Church\n2,church building\n3,Wikimedia category\n")
    assert "3 labels, 3 with a category" in run("collect", tmp_path / "work", tmp_path / "l.csv")
    out = run("clean", tmp_path / "work")
    assert ("2 labels kept, 1 dropped" in out, "1 says nothing" in out) == (True, True)
    (tmp_path / "empty.csv").write_text("")
    for name, fault in (("empty.csv", "cannot be read as a table"), ("nowhere.csv", "no such file")):
        assert_refused(f"{name}: {fault}", run, "collect", tmp_path / "work", tmp_path / name)
    assert_refused("contact", run, "collect", tmp_path / "work", tmp_path / "l.csv", "--wikidata")


@pytest.fixture
def attach(tmp_path):
    """Writes a manifest of a column of labels, attaches levels and returns what was printed and the levels written."""

    def call(column, values, *words):
        rows = "".join(f"{n}.png,train,{value}\n" for n, value in enumerate(values))
        (tmp_path / "m.csv").write_text(f"path,split,{column}\n{rows}")
        out = run("attach", tmp_path / "m.csv", *words, "--out", tmp_path / "new.csv")
        return out, read_manifest(tmp_path / "new.csv").table

    return call


def levels(table):
    return table.select(r"^label_\d$").rows()


def test_a_tree_at_hand_is_attached(tmp_path, attach):
    edges, ranks, labels = tmp_path / "edges.csv", tmp_path / "ranks.csv", ["cat", "26.01.15", "cat", "oak"]
    edges.write_text("child,parent\ncat,mammal\nmammal,animal\noak,plant\n")
    out, table = attach("label", labels, "--tree", edges)
    assert "1 labels are not in the tree: 26.01.15" in out
    assert levels(table) == [("cat", "mammal", "animal"), ("cat", "mammal", "animal"), ("oak", "oak", "plant")]
    ranks.write_text("kingdom,species\nAnimalia,cat\nPlantae,oak\n")
    _, table = attach("label", labels, "--tree", ranks, "--unplaced", "alone")
    assert table["label_1"].to_list() == ["Animalia", "26.01.15", "Animalia", "Plantae"]
    assert_refused("--tree or --codes", attach, "label", labels)


def test_codes_are_their_own_tree_and_of_several_the_shared_one_counts(tmp_path, attach):
    labels, fine = ["26.01.15", "3.9", "26.1.15", "26.1", "26"], ("26.1.15", "26.1", "26")
    out, table = attach("label", labels, "--codes")
    assert ("5 images" in out, "not in the tree" in out) == (True, False)  # a label above others has its place too
    assert levels(table) == [fine, ("3.9", "3.9", "3"), fine, ("26.1", "26.1", "26"), ("26", "26", "26")]
    assert_refused("--fill.* --tree", attach, "label", labels, "--codes", "--fill")

    sets, words = ["29.1.1;1.1.2", "29.1.1;01.1.2", "29.1.1;4.2.1", "29.1.1;5.1"], ["--codes", "--column", "codes"]
    out, table = attach("codes", sets, *words)
    assert "4 images, 3 label levels" in out
    assert levels(table) == [("1.1.2", "1.1", "1")] * 2 + [("29.1.1", "29.1", "29")] * 2  # the rarest another image has
    assert table["codes"].to_list() == ["29.1.1;1.1.2", "29.1.1;1.1.2", "29.1.1;4.2.1", "29.1.1;5.1"]
    (tmp_path / "tree.csv").write_text("child,parent\n29.1.1,29.1\n29.1,29\n")
    assert_refused("line 2: codes has '1.1.2' is not in", attach, "codes", sets, *words, "--tree", tmp_path / "tree.csv")
    assert_refused("--codes", attach, "codes", sets, "--column", "codes")
