"""Images as phones and cameras write them: AVIF and HEIC, turned, with few or many bits; all are read alike."""

import numpy as np
import pytest
from PIL import Image

from sightline import InputError, read_manifest
from sightline.data import images
from sightline.data.images import load_image


def photo():
    """Smooth, so that a lossy format keeps it: red to the right, green downwards."""
    red, green = np.meshgrid(np.linspace(0, 255, 48), np.linspace(0, 255, 32))
    return Image.fromarray(np.dstack([red, green, np.full_like(red, 90)]).astype(np.uint8))


# HEIC files say in their own way how they are turned, and their decoder turns them.
@pytest.mark.parametrize(("file", "kind", "turned"), [("a.avif", "AVIF", 0), ("b.AVIF", "AVIF", 6), ("c.heic", "HEIF", 0)])
def test_what_phones_write_is_read_and_turned(tmp_path, file, kind, turned):
    pytest.importorskip("pillow_heif").register_heif_opener()
    (tmp_path / "beach").mkdir()
    exif = Image.Exif()
    exif[0x0112] = turned or 1  # 6: show it turned by 90 degrees clockwise
    image = photo().transpose(Image.Transpose.ROTATE_90) if turned else photo()
    image.save(tmp_path / "beach" / file, format=kind, exif=exif, quality=95)
    assert len(read_manifest(tmp_path)) == 1
    found = np.asarray(load_image(tmp_path / "beach" / file), float)
    assert found.shape == (32, 48, 3)
    assert np.abs(found - np.asarray(photo(), float)).mean() < 4


def test_heic_without_its_decoder_names_the_package(tmp_path, monkeypatch):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    photo().save(tmp_path / "one.heic", format="HEIF")
    monkeypatch.setattr(images, "_formats", lambda: images.FORMATS)
    with pytest.raises(InputError, match=r"one\.heic.*pillow-heif.*sightline\[heic\]"):
        load_image(tmp_path / "one.heic")
