import shutil

import pytest
from numpy.testing import assert_allclose

from refusals import assert_refused
from sightline import Encoder, InputError, read_manifest
from sightline.models.embed import embed_manifest, own_part


@pytest.fixture(scope="module")
def encoder():
    return Encoder.create("tiny", embedding_dim=8, image_size=32)


def test_each_image_gets_its_own_vector_in_the_manifests_order(encoder, image_tree):
    manifest = read_manifest(image_tree)
    table = embed_manifest(encoder, manifest, batch_size=5)
    assert table.manifest is manifest
    assert table.fingerprint == encoder.fingerprint()
    assert_allclose(embed_manifest(encoder, str(image_tree)).vectors, table.vectors, atol=1e-6)
    for wrong in ((encoder, ["a.png"]), (str(image_tree), manifest)):
        assert_refused("Encoder", embed_manifest, *wrong)
    for place in (0, 17, 71):
        assert_allclose(table.vectors[place], encoder.encode([manifest.paths()[place]])[0], atol=1e-6)


def test_boxes_are_cut_out_and_images_that_cannot_be_read_named_at_once(encoder, image_tree, tmp_path):
    source = image_tree / "super0/class00/0.png"
    rows = ["path,split,label,x_1,y_1,x_2,y_2", f"{source},test,a,,,,", f"{source},test,a,4,4,20,20"]
    (tmp_path / "set.csv").write_text("\n".join([rows[0] + ",id", rows[1] + ",whole", rows[2] + ",part"]))
    whole, part = embed_manifest(encoder, read_manifest(tmp_path / "set.csv")).vectors
    assert_allclose(whole, encoder.encode([source])[0], atol=1e-6)
    assert abs(whole - part).max() > 1e-3
    shutil.copytree(image_tree / "super0", tmp_path / "tree")
    broken = [tmp_path / "tree/class00/2.png", tmp_path / "tree/class06/5.png"]
    for path in broken:
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(InputError, match="2 faults") as caught:
        embed_manifest(encoder, read_manifest(tmp_path / "tree"), batch_size=4)
    assert all(str(path) in str(caught.value) for path in broken)


@pytest.mark.parametrize("n_processes", [1, 5, 100])
def test_the_parts_of_several_processes_are_the_whole_in_order(image_tree, tmp_path, monkeypatch, n_processes):
    manifest, ids, files = read_manifest(image_tree), [], []
    monkeypatch.setenv("WORLD_SIZE", str(n_processes))
    for rank in range(n_processes):
        monkeypatch.setenv("RANK", str(rank))
        part, file = own_part(manifest, tmp_path / "table.parquet")
        ids += part.table["id"].to_list()
        files.append(file)
        assert abs(len(part) - len(manifest) / n_processes) < 1
    assert ids == manifest.table["id"].to_list()
    alone = "table.parquet"
    assert files[-1].name == (alone if n_processes == 1 else f"table-{n_processes - 1:05}-of-{n_processes:05}.parquet")
    assert len(set(files)) == n_processes
