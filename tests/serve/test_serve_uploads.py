"""Every malformed upload gets 4xx and costs little."""

import json
import os
import subprocess
import sys
from pathlib import Path

import malicious_uploads
import pytest
from PIL import Image
from served_galleries import encoded, png

from sightline.serve.pictures import foreign_content, pixel_box

N_KINDS = 47


@pytest.fixture(scope="module")
def costs(shared_gallery):
    command = [sys.executable, malicious_uploads.__file__, str(shared_gallery)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")
def test_every_malformed_upload_is_refused_and_cheap(costs):
    found = {name: cost for name, cost in costs.items() if name != "peak"}
    assert len(found) == N_KINDS >= 40
    assert {name: cost for name, cost in found.items() if not 400 <= cost[0] < 500 or cost[1] is not True} == {}
    assert {name: cost for name, cost in found.items() if cost[2] > 2 or cost[3] > 256} == {}


def test_the_status_says_what_is_wrong(costs):
    said = {"empty": 422, "text": 415, "tiff": 415, "png cut off": 415, "png of 100,000 x 100,000": 413, "png and php": 415}
    assert {name: costs[name][0] for name in said} == said


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1", "CMYK"])
def test_sound_images_of_every_format_are_taken(client, kind, mode):
    try:
        data = encoded(Image.effect_noise((50, 40), 90).convert("RGB").convert(mode), kind)
    except (OSError, ValueError):
        pytest.skip(f"{kind} has no {mode}")
    assert client.post("/v1/search", files={"image": ("x", data)}).status_code == 200


def form(*parts):
    body = b"".join(
        b"--b\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + data + b"\r\n" for head, data in parts
    )
    return body + b"--b--\r\n"


FILE = b'name="image"; filename="x"'


@pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile")  # of a part without end, closed when it is collected
@pytest.mark.parametrize(
    "body",
    [
        form((FILE, png()), (FILE, png())),
        form(*[(b'name="k"', b"1")] * 20, (FILE, png())),
        form((b'name="where"', b"x" * 70_000), (FILE, png())),
        form((b'name="image"', png())),
        form((b'name="other"; filename="x"', png())),
        form((b'name="k"', b"1"), (b'name="k"', b"2"), (FILE, png())),
        form((b'name="k"', b"1")),
        form((FILE, png()))[:-20],
        b"--b\r\nno headers at all",
        b"",
    ],
)
def test_forms_that_do_not_fit(client, body):
    answer = client.post("/v1/search", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("charset", ["undefined", "punycode"])
def test_forms_in_a_charset_that_cannot_be_read(client, charset):
    kind = f"multipart/form-data; boundary=b; charset={charset}"
    answer = client.post(
        "/v1/search", content=form((b'name="where"', b"\xff"), (FILE, png())), headers={"Content-Type": kind}
    )
    assert answer.status_code == 400
    assert "charset" in answer.json()["detail"]


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "application/json", "image/png", "application/x-www-form-urlencoded", ""]
)
def test_other_types_of_requests(client, kind):
    answer = client.post("/v1/search", content=png(), headers={"Content-Type": kind})
    assert answer.status_code in (400, 415)
    assert answer.headers["content-type"] == "application/problem+json"


def test_ordinary_metadata_is_not_foreign():
    exif = Image.Exif()
    exif[0x010E] = "a < b & PK, 10 %PDF"
    assert foreign_content(encoded(Image.new("RGB", (9, 9)), "JPEG", exif=exif, comment=b"made by hand")) is None


def test_boxes_are_never_empty_and_never_leave_the_image():
    for width, height in ((1, 1), (3, 2), (1000, 7)):
        for left in (0.0, 0.3, 0.999999):
            for right in (0.3000001, 0.5, 1.0):
                if left < right:
                    box = pixel_box((left, left, right, right), width, height)
                    assert 0 <= box[0] < box[2] <= width
                    assert 0 <= box[1] < box[3] <= height
