import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from sightline.data.transforms import Preprocessing, eval_transform, train_transform

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def coordinates(width: int, height: int) -> Image.Image:
    """Red is the place from left to right, green from top to bottom, both 0 to 1."""
    across, down = np.linspace(0, 255, width), np.linspace(0, 255, height)
    picture = np.stack([*np.meshgrid(across, down), np.zeros((height, width))], axis=2)
    return Image.fromarray(picture.round().astype(np.uint8))


def drawn(transform, image: Image.Image, seed: int) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transform(image)


@pytest.mark.parametrize("make", [eval_transform, train_transform])
def test_colours_are_scaled_then_normalised(make):
    tensor = make(Preprocessing(crop=8, resize=9))(Image.new("RGB", (20, 30), (255, 0, 51)))
    expected = torch.tensor([(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0.2 - 0.406) / 0.225])
    assert_close(tensor, expected[:, None, None].expand(3, 8, 8))


@pytest.mark.parametrize("stretch", [False, True])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_are_those_of_pillow_to_the_bit(interpolation, stretch):
    rng, kind = np.random.default_rng(0), Image.Resampling[interpolation.upper()]
    for _ in range(60):
        width, height, resize = rng.integers(1, 120, 3).tolist()
        # Larger than the image, smaller, or than what is left of it.
        crop, resize = int(rng.integers(8, 60)), max(8, resize)
        # Grey enough that no sum leaves the bytes; Pillow rounds after rows and after columns, in an order of its own.
        picture = Image.fromarray(rng.integers(80, 176, (height, width, 3), np.uint8))
        side = min(width, height)
        size = [resize if stretch else int(resize * length / side) for length in (width, height)]
        resized = picture.resize((size[0], height), kind).resize((size[0], size[1]), kind)  # rows first in any version
        left, top = (round((length - crop) / 2) if length > crop else -((crop - length) // 2) for length in size)
        expected = resized.crop((left, top, left + crop, top + crop))  # black outside
        settings = Preprocessing(crop=crop, resize=resize, stretch=stretch, interpolation=interpolation)
        np.testing.assert_array_equal(eval_transform(settings).pixels(picture).numpy(), np.asarray(expected))


def test_mirroring_has_the_stated_probability():
    image, preprocessing = coordinates(16, 16), Preprocessing(crop=16, resize=16, **PLAIN)
    plain = drawn(train_transform(preprocessing, crop_area=(1, 1), flip=0), image, 0)
    assert_close(plain, eval_transform(preprocessing)(image))
    transform = train_transform(preprocessing, crop_area=(1, 1), flip=0.25)
    mirrored = 0
    for seed in range(400):
        view = drawn(transform, image, seed)
        mirrored += torch.equal(view, plain.flip(2))
        assert torch.equal(view, plain) or torch.equal(view, plain.flip(2))
    assert 65 < mirrored < 135  # 100, four standard deviations either way


@pytest.mark.parametrize("area", [0.16, 0.36])
def test_crop_area_is_a_share_of_the_area_and_not_of_a_side(area):
    transform = train_transform(Preprocessing(crop=64, resize=64, **PLAIN), crop_area=(area, area), flip=0)
    seen, centres = [], []
    for seed in range(60):
        view = drawn(transform, coordinates(256, 256), seed)
        across, down = view[0].mean(0), view[1].mean(1)
        seen.append((across[-1] - across[0]).item() * (down[-1] - down[0]).item() * (64 / 63) ** 2)
        centres.append((across.mean().item(), down.mean().item()))
    assert np.mean(seen) == pytest.approx(area, rel=0.05)
    assert np.std(seen) < 0.1 * area
    assert np.ptp(np.array(centres), axis=0).min() > 0.3  # from all over the image


def test_jitter_and_rotation_change_what_they_say_and_nothing_unless_asked():
    plain, whole = Preprocessing(crop=32, resize=32, **PLAIN), {"crop_area": (1.0, 1.0), "flip": 0.0}
    grey = Image.new("RGB", (64, 64), (128, 128, 128))
    jittered = [drawn(train_transform(plain, **whole, colour_jitter=0.5), grey, seed) for seed in range(30)]
    assert all(tensor.std() < 1e-6 for tensor in jittered)
    brightness = [tensor.mean().item() for tensor in jittered]
    assert 0.24 < min(brightness) < 0.4
    assert 0.6 < max(brightness) < 0.76
    turned = [drawn(train_transform(plain, **whole, rotation=45.0), grey, seed) for seed in range(30)]
    black = [float((tensor < 0.25).float().mean()) for tensor in turned]
    assert max(black) == pytest.approx(3 - 8**0.5, abs=0.02)  # of a square turned by 45 degrees
    assert all(tensor[0, 16, 16] == grey.getpixel((0, 0))[0] / 255 for tensor in turned)
    assert_close(drawn(train_transform(plain, **whole), grey, seed=0), drawn(eval_transform(plain), grey, seed=0))


@pytest.mark.parametrize("resize", [32, (32, 32)])
def test_resized_first_the_part_is_cut_out_of_what_that_leaves(resize):
    """Stripes of two pixels are grey once four pixels are one, however small the part."""
    stripes = np.zeros((128, 256, 3), np.uint8)
    stripes[:, ::4] = stripes[:, 1::4] = 255
    sizes = []

    class Watched(type(train_transform(Preprocessing()))):
        def part(self, width, height):
            sizes.append((width, height))
            return super().part(width, height)

    settings = Preprocessing(crop=16, resize=16, **PLAIN)
    first = Watched(settings, (0.16, 0.2), 0.0, True, resize=resize)
    view = drawn(first, Image.fromarray(stripes), 0)
    assert sizes == [(64, 32) if resize == 32 else (32, 32)]
    assert view[:, :, 2:-2].std() < 0.05
    assert drawn(train_transform(settings, (0.01, 0.01), 0.0), Image.fromarray(stripes), 0).std() > 0.2


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (16, 16), (10, 90)])
def test_without_an_area_a_square_is_cut_out_as_it_is(size):
    picture = coordinates(*size)
    transform = train_transform(Preprocessing(crop=16, resize=16, **PLAIN), crop_area=None, flip=0)
    side = min(16, *size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        corners = [transform.part(*size)[:2] for _ in range(2000)]
    for across in (0, 1):  # every place along each side, and no other
        assert {corner[across] for corner in corners} == set(range(size[across] - side + 1))
    pixels = torch.from_numpy(np.asarray(picture) / np.float32(255)).permute(2, 0, 1)
    view = drawn(transform, picture, 3)
    if side == 16:
        windows = pixels.unfold(1, 16, 1).unfold(2, 16, 1)  # (3, rows, columns, 16, 16)
        assert (windows - view[:, None, None]).abs().amax((0, 3, 4)).min() < 1e-6
    else:
        assert view.shape == (3, 16, 16)
