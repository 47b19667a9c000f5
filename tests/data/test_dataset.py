import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from refusals import assert_refused
from sightline.data.dataset import ImageDataset, consecutive, load_batches, read_ahead
from sightline.data.manifest import read_manifest
from sightline.data.transforms import EvalTransform, Preprocessing, eval_transform, train_transform

SMALL = Preprocessing(crop=16, resize=18)
# Python warns where a process with threads makes another; the loader does so by design.
WORKERS = [0, pytest.param(2, marks=pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"))]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    rng = np.random.default_rng(0)
    for number in range(7):
        Image.fromarray(rng.integers(0, 256, (30, 34, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return [folder / f"{number}.png" for number in range(7)]


def everything(dataset, batches, n_workers=0):
    """All images, in the order of their places."""
    loaded = {}
    for images, places in load_batches(dataset, batches, n_workers):
        loaded |= dict(zip(places.tolist(), images, strict=True))
    return torch.stack([loaded[place] for place in sorted(loaded)])


def test_of_a_manifest(paths, tmp_path):
    rows = f"{paths[1]},train,x,0,0,9,9\n{paths[0]},train,x,,,,\n"
    (tmp_path / "m.csv").write_text(f"path,split,label,x_1,y_1,x_2,y_2\n{rows}")
    dataset = ImageDataset.of(read_manifest(tmp_path / "m.csv"), eval_transform(SMALL))
    assert torch.equal(dataset[0], eval_transform(SMALL)(Image.open(paths[1]).crop((0, 0, 9, 9))))
    assert torch.equal(dataset[1], eval_transform(SMALL)(Image.open(paths[0])))


@pytest.mark.parametrize("n_workers", WORKERS)
def test_pixels_follow_from_seed_and_place_whatever_the_order_and_workers(paths, n_workers):
    expected = everything(ImageDataset(paths, train_transform(SMALL), seed=3), [range(7)])
    for batches in ([[6, 5], [4, 3], [2, 1], [0]], [[2], [0, 1, 3, 4, 5, 6]]):
        torch.manual_seed(len(batches))  # what was drawn before does not matter either
        torch.rand(len(batches))
        found = everything(ImageDataset(paths, train_transform(SMALL), seed=3), batches, n_workers)
        assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("n_workers", WORKERS)
def test_an_image_that_comes_again_is_another_view_of_it(paths, n_workers):
    dataset = ImageDataset(paths, train_transform(SMALL), seed=3)
    batches, views = [[2, 2, 5], [2, 5]], [[0, 1, 0], [2, 1]]
    loaded = [image for batch in load_batches(dataset, batches, n_workers, views=views) for image in batch.images]
    assert torch.equal(loaded[0], dataset[2])
    assert torch.equal(loaded[2], dataset[5])
    for place, image in enumerate(loaded):
        assert not any(torch.equal(image, other) for other in loaded[:place])
    again = [image for batch in load_batches(dataset, batches[1:], views=views[1:]) for image in batch.images]
    assert_close(again, loaded[3:], rtol=0, atol=0)


@pytest.mark.parametrize("n_workers", WORKERS)
def test_the_global_generator_is_left_as_it_was(paths, n_workers):
    for seed, transform in ((None, eval_transform(SMALL)), (3, train_transform(SMALL))):
        torch.manual_seed(11)
        before = torch.get_rng_state()
        everything(ImageDataset(paths, transform, seed=seed), consecutive(7, 2), n_workers)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("n_workers", WORKERS)
@pytest.mark.parametrize("resize", [None, 64, (64, 64)])
def test_a_jpeg_decoded_small_is_nearly_the_whole_one_and_always_the_same(tmp_path, n_workers, resize):
    rough = Image.fromarray(np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8))
    rough.resize((400, 300), Image.Resampling.BICUBIC).save(tmp_path / "a.jpg", quality=95)
    transforms = (train_transform(SMALL, draft=draft, resize=resize) for draft in (True, True, False))
    sets = (ImageDataset([tmp_path / "a.jpg"] * 6, transform, seed=1) for transform in transforms)
    drafted, again, exact = (everything(images, [range(6)], n_workers) for images in sets)
    assert torch.equal(drafted, again)
    for difference in (drafted - exact).abs():
        assert 0 < difference.max() < 0.7  # of 4.5 between black and white; an edge moves by a pixel
        assert difference.mean() < 0.1


@pytest.mark.parametrize("draft", [True, False])
def test_a_square_as_it_is_is_not_decoded_smaller(tmp_path, draft):
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.jpg", quality=95)
    dataset = ImageDataset([tmp_path / "a.jpg"], train_transform(SMALL, crop_area=None, flip=0, draft=draft), seed=1)
    pixels = torch.from_numpy(np.asarray(Image.open(tmp_path / "a.jpg")).copy())
    windows = pixels.unfold(0, SMALL.crop, 1).unfold(1, SMALL.crop, 1)  # (rows, columns, 3, crop, crop)
    assert (windows == dataset.loaded(0).permute(2, 0, 1)).flatten(2).all(2).any()


@pytest.mark.parametrize("n_workers", WORKERS)
@pytest.mark.parametrize("make", [eval_transform, train_transform])
def test_batches_of_items_come_in_order_with_their_places(paths, n_workers, make):
    dataset = ImageDataset(paths, make(SMALL), seed=None if make is eval_transform else 3)
    asked = [[5, 0, 3], [1], range(2, 5), [6, 6]]
    loaded = list(load_batches(dataset, asked, n_workers, torch.device("cpu")))
    assert [batch.places.tolist() for batch in loaded] == [list(places) for places in asked]
    for batch in loaded:
        assert batch.places.dtype == torch.int64
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert_close(batch.images, torch.stack([dataset[place] for place in batch.places.tolist()]), rtol=0, atol=0)
    travelling = dataset.loaded(4)  # as bytes
    assert (travelling.dtype, travelling.shape) == (torch.uint8, (SMALL.crop, SMALL.crop, 3))
    by_hand = [(travelling[..., c].double() / 255 - SMALL.mean[c]) / SMALL.std[c] for c in range(3)]
    assert_close(dataset[4].double(), torch.stack(by_hand), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_workers", [None, *WORKERS])
def test_broken_images_are_named_together_or_left_out_where_the_caller_asks_for_them(paths, tmp_path, n_workers):
    text, none = tmp_path / "text.png", tmp_path / "none.png"
    text.write_text("text")
    dataset = ImageDataset([*paths[:3], text, none, none, *paths[3:5]], eval_transform(SMALL))
    batches, broken = consecutive(8, 2), {}
    if n_workers is None:
        found = [(places, images) for places, images in read_ahead(dataset, batches, torch.clone, broken)]
    else:
        loaded = load_batches(dataset, batches, n_workers, finish=False, broken=broken)
        found = [(batch.places.tolist(), batch.images) for batch in loaded]
        strict = load_batches(dataset, batches, n_workers)
        assert next(strict).places.tolist() == [0, 1]
        assert_refused(r"images: 3 faults\n.*text\.png: not a readable.*\n.*none\.png: no such file", next, strict)
    assert [places for places, _ in found] == [[0, 1], [2], [6, 7]]
    assert_close(torch.cat([images for _, images in found]), torch.stack([dataset.loaded(n) for n in (0, 1, 2, 6, 7)]))
    assert {place: fault.partition(":")[0] for place, fault in broken.items()} == {3: str(text), 4: str(none), 5: str(none)}


def test_a_transform_that_fails_is_not_taken_for_a_broken_image(paths):
    class Failing(EvalTransform):
        def pixels(self, image):
            raise RuntimeError("a bug")

    dataset = ImageDataset(paths, Failing(SMALL))
    for batches in (load_batches(dataset, [[0]]), read_ahead(dataset, [[0], [1]], torch.clone)):
        with pytest.raises(RuntimeError, match="a bug"):
            list(batches)
