"""What a manifest says of its images, as the page's filters."""

from sightline.data.manifest import read_manifest
from sightline.gallery.gallery import Gallery
from sightline.gallery.ingest import index_images
from sightline.models.encoder import Encoder

ROWS = (("99", "true", "007"), ("2019", "false", "12"), ("", "", "3"))  # year, whether it was sold, code


def test_numbers_and_booleans_of_a_csv_file_are_filtered_by_as_such(tmp_path, image_tree, serving):
    paths = sorted(image_tree.rglob("*.png"))[: len(ROWS)]
    lines = [",".join([str(path), "test", *row]) for path, row in zip(paths, ROWS, strict=True)]
    (tmp_path / "m.csv").write_text("\n".join(["path,split,year,sold,code", *lines]))
    encoder = Encoder.create("tiny", embedding_dim=8, image_size=32)
    manifest = read_manifest(tmp_path / "m.csv", labelled=False)
    with Gallery.create(tmp_path / "gallery", encoder) as gallery:
        assert str(index_images(gallery, encoder, manifest)) == "3 added"
        assert str(index_images(gallery, encoder, manifest)) == "3 unchanged"
        assert gallery.filter("year >= 100") == [str(paths[1])]  # as text, 99 would come after 100
        assert gallery.filter("sold == True") == [str(paths[0])]
    fields = {field["name"]: field for field in serving(tmp_path / "gallery").get("/v1/galleries").json()[0]["fields"]}
    assert {name: fields[name]["kind"] for name in ("year", "sold", "code")} == {
        "year": "number",
        "sold": "bool",
        "code": "text",
    }
    assert (fields["year"]["min"], fields["year"]["max"]) == (99, 2019)
