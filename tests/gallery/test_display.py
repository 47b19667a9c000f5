"""What a gallery, a result and an answer show of themselves in a terminal and in a notebook."""

import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

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


class Checked(HTMLParser):
    """Every tag that is opened is closed; no tags or attributes but those expected."""

    def __init__(self, page):
        super().__init__()
        self.open, self.images, self.text = [], [], ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in ("div", "b", "table", "tr", "th", "td", "img")
        assert {name for name, _ in attributes} <= {"style", "src", "alt", "title"}
        if tag == "img":
            self.images.append(dict(attributes))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data}\n"


def test_a_gallery_shows_its_size_kind_encoder_and_some_images(gallery):
    assert repr(gallery) == f"LocalGallery({gallery.address!r}, 25 items, encoder 'tiny', 8 dimensions, cosine)"
    page = Checked(gallery._repr_html_())
    assert len({image["alt"] for image in page.images}) == 8
    assert all(re.match("data:image/jpeg;base64,[A-Za-z0-9+/]{200}", image["src"]) for image in page.images)
    assert all(
        fact in page.text for fact in ("LocalGallery", "<i>g", "25", "tiny, 8", gallery.identity.fingerprint, "exact")
    )
    shutil.rmtree(gallery.folder.parent / "images")
    page = Checked(gallery._repr_html_())
    assert (page.images, page.text.count("no image")) == ([], 8)
    gallery.close()
    assert "closed" in repr(gallery)
    assert "closed" in Checked(gallery._repr_html_()).text


def test_vectors_without_images_and_hostile_metadata_are_shown(tmp_path):
    with Gallery.create(tmp_path / "g", EncoderIdentity("<f>", 2, "<img src=x>")) as gallery:
        assert Checked(gallery._repr_html_()).images == []
        gallery.add([NASTY, "b"], np.eye(2), [{"label_0": NASTY, "path": "/dev/zero"}, {"path": "a\0b", "label_0": 5}])
        page = Checked(gallery._repr_html_())
        assert (page.text.count("no image"), page.text.count(NASTY)) == (2, 1)  # its name ends behind the slash


def test_an_answer_shows_query_results_scores_labels_and_the_verdict(gallery):
    path = next((gallery.folder.parent / "images").glob("class00/*b*"))
    (answer,) = gallery.search_images(path, 3)
    page = Checked(answer._repr_html_())
    assert [image["alt"] for image in page.images] == [str(path), *(hit.id for hit in answer.results)]
    assert all(f"{hit.score:.4f}" in page.text and hit.labels[0] in page.text for hit in answer.results)
    best = answer.results[0]
    assert repr(best) == f"Hit({best.id!r}, score {best.score:.4f}, labels 'class00')"
    assert repr(answer) == f"Answer({str(path)!r}, 3 results, best {best.id!r} {best.score:.4f})"


def test_a_rejected_answer_says_so_and_survives_hostile_names():
    verdict = Verdict(False, 7.5, 2.0, False, 0.1, 0.4, None)
    answer = Answer(NASTY, "/nowhere/a.png", [], "reject", verdict)
    page = Checked(answer._repr_html_())
    assert all(fact in page.text for fact in ("out-of-distribution", "7.5", "no match", "0.4"))
    assert (page.images, "out-of-distribution" in repr(answer)) == ([], True)
    kept = Answer(NASTY, None, [Hit(NASTY, 0.5, {"label_0": NASTY, "path": NASTY})], "ignore", verdict)
    page = Checked(kept._repr_html_())
    assert ("out-of-distribution" in page.text, "0.5000" in page.text) == (False, True)
