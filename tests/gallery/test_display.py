"""What a gallery, a result and an answer show of themselves in a terminal and in a notebook."""

import re
import shutil

import numpy as np
import pytest

from html_pages import Page
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.query import Answer, Hit
from sightline.ood.rejector import Verdict

NASTY = "<script>alert('x')</script>\"&.png"


@pytest.fixture
def gallery(encoder, image_tree, tmp_path):
    images = shutil.copytree(image_tree / "super0", tmp_path / "images")
    shutil.copy(images / "class00/0.png", images / "class00" / '<b>"&.png')
    with Gallery.create(tmp_path / "<i>g", encoder) as made:
        made.add_images(images)
        yield made


def shown(thing):
    """The text of its page, which has no tags or attributes but those expected, and the attributes of its images."""
    page = Page(thing._repr_html_())
    assert {tag for tag, _ in page.tags} <= {"div", "b", "table", "tr", "th", "td", "img"}
    assert {name for _, attributes in page.tags for name in attributes} <= {"style", "src", "alt", "title"}
    return page.text, [attributes for tag, attributes in page.tags if tag == "img"]


def test_a_gallery_shows_its_size_kind_encoder_and_some_images(gallery, tmp_path):
    assert repr(gallery) == f"LocalGallery({gallery.address!r}, 25 items, encoder 'tiny', 8 dimensions, cosine)"
    text, images = shown(gallery)
    assert len({image["alt"] for image in images}) == 8
    assert all(re.match("data:image/jpeg;base64,[A-Za-z0-9+/]{200}", image["src"]) for image in images)
    facts = ("LocalGallery", "<i>g", "25", "tiny, 8", gallery.identity.fingerprint, "exact")
    assert [fact for fact in facts if fact not in text] == []
    shutil.rmtree(tmp_path / "images")
    text, images = shown(gallery)
    assert (images, text.count("no image")) == ([], 8)
    gallery.close()
    assert "closed" in repr(gallery)
    assert "closed" in shown(gallery)[0]
    with Gallery.create(tmp_path / "vectors", EncoderIdentity("<f>", 2, "<img src=x>")) as vectors:  # and hostile metadata
        assert shown(vectors)[1] == []
        vectors.add([NASTY, "b"], np.eye(2), [{"label_0": NASTY, "path": "/dev/zero"}, {"path": "a\0b", "label_0": 5}])
        text, _ = shown(vectors)
        assert (text.count("no image"), text.count(NASTY)) == (2, 1)  # its name ends behind the slash


def test_an_answer_shows_query_results_scores_labels_and_the_verdict(gallery):
    path = next((gallery.folder.parent / "images").glob("class00/*b*"))
    (answer,) = gallery.search_images(path, 3)
    text, images = shown(answer)
    assert [image["alt"] for image in images] == [str(path), *(hit.id for hit in answer.results)]
    assert all(f"{hit.score:.4f}" in text and hit.labels[0] in text for hit in answer.results)
    best = answer.results[0]
    assert repr(best) == f"Hit({best.id!r}, score {best.score:.4f}, labels 'class00')"
    assert repr(answer) == f"Answer({str(path)!r}, 3 results, best {best.id!r} {best.score:.4f})"
    verdict, hit = Verdict(False, 7.5, 2.0, False, 0.1, 0.4, None), Hit(NASTY, 0.5, {"label_0": NASTY, "path": NASTY})
    rejected, kept = Answer(NASTY, "/nowhere/a.png", [], "reject", verdict), Answer(NASTY, None, [hit], "ignore", verdict)
    text, images = shown(rejected)
    assert [fact for fact in ("out-of-distribution", "less typical", "no match", "0.4") if fact not in text] == []
    assert (images, "out-of-distribution" in repr(rejected)) == ([], True)
    assert ("out-of-distribution" in shown(kept)[0], "0.5000" in shown(kept)[0]) == (False, True)
