"""What a gallery, a result and an answer show of themselves in a terminal and in a notebook."""

import re
import shutil

import numpy as np
import pytest

from html_pages import Page
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.query import Answer, Hit
from sightline.models.encoder import Encoder
from sightline.ood.rejector import Verdict

NASTY = "<script>alert('x')</script>\"&.png"


@pytest.fixture
def gallery(image_tree, tmp_path):
    images = shutil.copytree(image_tree / "super0", tmp_path / "images")
    shutil.copy(images / "class00/0.png", images / "class00" / '<b>"&.png')
    with Gallery.create(tmp_path / "<i>g", Encoder.create("tiny", 8, image_size=32)) as made:
        made.add_images(images)
        yield made


def checked(html):
    """The page, which has no tags or attributes but those expected; and its images."""
    page = Page(html)
    assert {tag for tag, _ in page.tags} <= {"div", "b", "table", "tr", "th", "td", "img"}
    assert {name for _, attributes in page.tags for name in attributes} <= {"style", "src", "alt", "title"}
    return page, [attributes for tag, attributes in page.tags if tag == "img"]


def test_a_gallery_shows_its_size_kind_encoder_and_some_images(gallery):
    assert repr(gallery) == f"LocalGallery({gallery.address!r}, 25 items, encoder 'tiny', 8 dimensions, cosine)"
    page, images = checked(gallery._repr_html_())
    assert len({image["alt"] for image in images}) == 8
    assert all(re.match("data:image/jpeg;base64,[A-Za-z0-9+/]{200}", image["src"]) for image in images)
    facts = ("LocalGallery", "<i>g", "25", "tiny, 8", gallery.identity.fingerprint, "exact")
    assert all(fact in page.text for fact in facts)
    shutil.rmtree(gallery.folder.parent / "images")
    page, images = checked(gallery._repr_html_())
    assert (images, page.text.count("no image")) == ([], 8)
    gallery.close()
    assert "closed" in repr(gallery)
    assert "closed" in checked(gallery._repr_html_())[0].text


def test_vectors_without_images_and_hostile_metadata_are_shown(tmp_path):
    with Gallery.create(tmp_path / "g", EncoderIdentity("<f>", 2, "<img src=x>")) as gallery:
        assert checked(gallery._repr_html_())[1] == []
        gallery.add([NASTY, "b"], np.eye(2), [{"label_0": NASTY, "path": "/dev/zero"}, {"path": "a\0b", "label_0": 5}])
        page, _ = checked(gallery._repr_html_())
        assert (page.text.count("no image"), page.text.count(NASTY)) == (2, 1)  # its name ends behind the slash


def test_an_answer_shows_query_results_scores_labels_and_the_verdict(gallery):
    path = next((gallery.folder.parent / "images").glob("class00/*b*"))
    (answer,) = gallery.search_images(path, 3)
    page, images = checked(answer._repr_html_())
    assert [image["alt"] for image in images] == [str(path), *(hit.id for hit in answer.results)]
    assert all(f"{hit.score:.4f}" in page.text and hit.labels[0] in page.text for hit in answer.results)
    best = answer.results[0]
    assert repr(best) == f"Hit({best.id!r}, score {best.score:.4f}, labels 'class00')"
    assert repr(answer) == f"Answer({str(path)!r}, 3 results, best {best.id!r} {best.score:.4f})"
    verdict = Verdict(False, 7.5, 2.0, False, 0.1, 0.4, None)
    answer = Answer(NASTY, "/nowhere/a.png", [], "reject", verdict)
    page, images = checked(answer._repr_html_())
    assert all(fact in page.text for fact in ("out-of-distribution", "less typical", "no match", "0.4"))
    assert (images, "out-of-distribution" in repr(answer)) == ([], True)
    kept = Answer(NASTY, None, [Hit(NASTY, 0.5, {"label_0": NASTY, "path": NASTY})], "ignore", verdict)
    page, _ = checked(kept._repr_html_())
    assert ("out-of-distribution" in page.text, "0.5000" in page.text) == (False, True)
