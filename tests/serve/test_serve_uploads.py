"""Every malformed upload gets 4xx and costs little."""

import json
import os
import subprocess
import sys
from pathlib import Path

import malicious_uploads
import pytest
from page_server import encoded, png
from PIL import Image

from sightline.serve.pictures import pixel_box

KNOWN = {"empty": 422, "text": 415, "tiff": 415, "png cut off": 415, "png of 100,000 x 100,000": 413, "png and php": 415}
FILE = b'name="image"; filename="x"'


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")
def test_every_malformed_upload_is_refused_and_cheap(shared_gallery):
    command = [sys.executable, malicious_uploads.__file__, str(shared_gallery)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr[-2000:]
    costs = json.loads(run.stdout)
    assert costs.pop("sound")[0] == 200
    assert len(costs) == 31
    assert {name: cost for name, cost in costs.items() if not 400 <= cost[0] < 500 or cost[1] is not True} == {}
    assert {name: cost for name, cost in costs.items() if cost[2] > 20 or cost[3] > 256} == {}
    assert {name: costs[name][0] for name in KNOWN} == KNOWN


def test_sound_images_of_every_format_are_taken(client):
    noise = Image.effect_noise((50, 40), 90).convert("RGB")
    for kind, mode in (("JPEG", "CMYK"), ("PNG", "P"), ("PNG", "RGBA"), ("WEBP", "RGB"), ("GIF", "L"), ("BMP", "1")):
        upload = {"image": ("x", encoded(noise.convert(mode), kind))}
        assert client.post("/v1/search", files=upload).status_code == 200, (kind, mode)


def form(*parts):
    start = b"--b\r\nContent-Disposition: form-data; "
    return b"".join(start + head + b"\r\n\r\n" + data + b"\r\n" for head, data in parts) + b"--b--\r\n"


WRONG = [  # forms whose parts are too many, too long, twice there, cut off or of another kind
    form((FILE, png()), (FILE, png())),
    form(*[(b'name="k"', b"1")] * 20, (FILE, png())),
    form((b'name="where"', b"x" * 70_000), (FILE, png())),
    form((b'name="image"', png())),
    form((b'name="k"', b"1"), (b'name="k"', b"2"), (FILE, png())),
    form((FILE, png()))[:-20],
    b"",
]


@pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile")  # of a part without end, closed when it is collected
def test_forms_that_do_not_fit(client):
    sent = [(body, "multipart/form-data; boundary=b", (400, 422)) for body in WRONG]
    undefined = form((b'name="where"', b"\xff"), (FILE, png()))
    sent += [(undefined, "multipart/form-data; boundary=b; charset=undefined", (400,)), (png(), "image/png", (415,))]
    for body, kind, statuses in sent:
        answer = client.post("/v1/search", content=body, headers={"Content-Type": kind})
        assert answer.status_code in statuses
        assert answer.headers["content-type"] == "application/problem+json"


def test_boxes_are_never_empty_and_never_leave_the_image():
    for width, height in ((1, 1), (3, 2), (1000, 7)):
        for start, end in ((0.0, 0.3), (0.3, 0.3000001), (0.999999, 1.0)):
            left, top, right, bottom = pixel_box((start, start, end, end), width, height)
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
