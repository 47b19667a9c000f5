"""The steps as a user types them."""

import polars as pl
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
    manifest = read_manifest(image_tree)
    table = manifest.table.with_columns(path=pl.Series([str(path) for path in manifest.paths()])).drop("label_1")
    flat = tmp_path / "flat.csv"
    table.write_csv(flat)
    manifest = read_manifest(flat)
    vectors = manifest.labels()[:, [0]] % 3 == [[0, 1, 2]]
    images = EmbeddingTable(manifest, vectors.astype("float32"), "test").write(tmp_path / "t.parquet")
    folder = tmp_path / "work"
    assert "12 labels, 0 with a category" in run("collect", folder, flat)
    assert "12 labels kept, 0 dropped" in run("clean", folder, "--text", "name")
    assert "12 vectors of 3" in run("embed", folder, "--images", images, "--text-weight", 0)
    assert "3 < 2 groups\nonly 2 of 3 levels" in run("cluster", folder, "--levels", 3)
    assert "3 groups" in run("cluster", folder, "-k", 3)
    run("review", folder, "--csv")
    for name in ("clean.csv", "terms.csv"):  # the step that writes it was run again
        made_for = (folder / name).read_text()
        (folder / name).write_text(made_for + "\n")
        for words in (["review", folder, "--csv"], ["apply", folder, flat, "--out", tmp_path / "new.csv"]):
            assert_refused(rf"clusters\.csv: made for another {name}: run `sightline hierarchy cl", run, *words)
        (folder / name).write_text(made_for)
    out = run("apply", folder, flat, "--out", tmp_path / "new.csv")
    assert "72 images, 2 label levels" in out
    found = read_manifest(tmp_path / "new.csv")
    true = read_manifest(image_tree)
    assert len({*zip(found.labels()[:, 1].tolist(), true.labels()[:, 1].tolist(), strict=True)}) == 3
    edited = pl.read_csv(folder / "review.csv").with_columns(group_1=pl.lit("all"))
    edited.write_csv(folder / "edited.csv")
    run("apply", folder, flat, "--out", tmp_path / "one.csv", "--review", folder / "edited.csv")
    assert {*read_manifest(tmp_path / "one.csv").table["label_1"]} == {"all"}
    words = ["apply", folder, flat, "--out", tmp_path / "x.csv"]
    both = (part for name in ("edited.csv", "review.csv") for part in ("--review", folder / name))
    assert_refused(["conflicts.csv", "12 texts"], run, *words, *both)
    assert not (tmp_path / "x.csv").exists()
    assert pl.read_csv(folder / "agreed.csv").is_empty()
    assert len(pl.read_csv(folder / "conflicts.csv")) == 12


def test_a_table_of_categories(tmp_path):
    (tmp_path / "l.csv").write_text("label,category\n1,Church\n2,church building\n3,Wikimedia category\n")
    assert "3 labels, 3 with a category" in run("collect", tmp_path / "work", tmp_path / "l.csv")
    out = run("clean", tmp_path / "work")
    assert "2 labels kept, 1 dropped" in out
    assert "1 says nothing" in out
    (tmp_path / "empty.csv").write_text("")
    for name, fault in (("empty.csv", "cannot be read as a table"), ("nowhere.csv", "no such file")):
        assert_refused(f"{name}: {fault}", run, "collect", tmp_path / "work", tmp_path / name)
    assert_refused("contact", run, "collect", tmp_path / "work", tmp_path / "l.csv", "--wikidata")


def test_a_tree_at_hand_is_attached(tmp_path):
    rows = ["a.png,train,cat", "b.png,train,26.01.15", "c.png,test,cat", "d.png,test,oak"]
    (tmp_path / "m.csv").write_text("\n".join(["path,split,label", *rows, ""]))
    (tmp_path / "edges.csv").write_text("child,parent\ncat,mammal\nmammal,animal\noak,plant\n")
    out = run("attach", tmp_path / "m.csv", "--tree", tmp_path / "edges.csv", "--out", tmp_path / "new.csv")
    assert "1 labels are not in the tree: 26.01.15" in out
    found = read_manifest(tmp_path / "new.csv").table.select("label_0", "label_1", "label_2").rows()
    assert found == [("cat", "mammal", "animal"), ("cat", "mammal", "animal"), ("oak", "oak", "plant")]
    (tmp_path / "ranks.csv").write_text("kingdom,species\nAnimalia,cat\nPlantae,oak\n")
    words = ["--tree", tmp_path / "ranks.csv", "--out", tmp_path / "new.csv", "--unplaced", "alone"]
    run("attach", tmp_path / "m.csv", *words)
    assert read_manifest(tmp_path / "new.csv").table["label_1"].to_list() == ["Animalia", "26.01.15", "Animalia", "Plantae"]
    assert_refused("--tree or --codes", run, "attach", tmp_path / "m.csv", "--out", tmp_path / "new.csv")


def test_codes_are_their_own_tree(tmp_path):
    labels = ["26.01.15", "3.9", "26.1.15", "26.1", "26"]
    (tmp_path / "m.csv").write_text("path,split,label\n" + "".join(f"{n}.png,train,{x}\n" for n, x in enumerate(labels)))
    out = run("attach", tmp_path / "m.csv", "--codes", "--out", tmp_path / "new.csv")
    assert "5 images" in out
    assert "not in the tree" not in out  # a label that is above others has its place too
    found = read_manifest(tmp_path / "new.csv").table.select("label_0", "label_1", "label_2").rows()
    fine = ("26.1.15", "26.1", "26")
    assert found == [fine, ("3.9", "3.9", "3"), fine, ("26.1", "26.1", "26"), ("26", "26", "26")]
    words = ["attach", tmp_path / "m.csv", "--codes", "--fill", "--out", tmp_path / "new.csv"]
    assert_refused("--fill.* --tree", run, *words)


def test_the_levels_of_a_shared_code_are_attached_to_images_of_several(tmp_path):
    rows = [
        "path,split,codes",
        "a.png,train,29.1.1;1.1.2",
        "b.png,train,29.1.1;01.1.2",
        "c.png,train,29.1.1;4.2.1",
        "d.png,test,29.1.1;5.1",
    ]
    (tmp_path / "m.csv").write_text("\n".join(rows) + "\n")
    words = ["attach", tmp_path / "m.csv", "--codes", "--column", "codes", "--out", tmp_path / "new.csv"]
    assert "4 images, 3 label levels" in run(*words)
    written = read_manifest(tmp_path / "new.csv").table
    labels = [["1.1.2", "1.1", "1"]] * 2 + [["29.1.1", "29.1", "29"]] * 2  # the rarest that another image has
    assert written.select("label_0", "label_1", "label_2").rows() == [*map(tuple, labels)]
    assert written["codes"].to_list() == ["29.1.1;1.1.2", "29.1.1;1.1.2", "29.1.1;4.2.1", "29.1.1;5.1"]
    (tmp_path / "tree.csv").write_text("child,parent\n29.1.1,29.1\n29.1,29\n")
    assert_refused(["line 2: codes has '1.1.2' is not in"], run, *words, "--tree", tmp_path / "tree.csv")
    assert_refused(["--codes"], run, "attach", tmp_path / "m.csv", "--column", "codes", "--out", tmp_path / "new.csv")
