"""Files that are no images, broken images, or more than images. ``python malicious_uploads.py GALLERY`` sends each to a
service and prints as JSON the status, whether it is a problem document, and the CPU seconds and megabytes it cost.
"""

import io
import json
import struct
import sys
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def saved(kind: str, image: Image.Image = NOISE, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_of(width: int, height: int, rows: bytes, depth: int = 8, before: bytes = b"") -> bytes:
    """A PNG file with this size in its header, whatever its rows are."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0))
    return SIGNATURE + header + before + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("run.sh", "echo harm")
    return file.getvalue()


def many_scans(n_scans: int) -> bytes:
    """A progressive JPEG file that repeats its last scan: a few bytes and a pass over all pixels each."""
    data = saved("JPEG", Image.new("RGB", (2000, 2000)), progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * n_scans + data[-2:]


def resized_jpeg(height: int, width: int) -> bytes:
    data = saved("JPEG")
    return replaced(data, data.index(b"\xff\xc0") + 5, struct.pack(">HH", height, width))


def replaced(data: bytes, place: int, by: bytes) -> bytes:
    return data[:place] + by + data[place + len(by) :]


def corpus() -> dict[str, bytes]:
    png, jpeg, gif, bmp, webp = (saved(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"))
    plain, script = NOISE.tobytes()[:5000], b"<script>alert(1)</script>"
    unpacked = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200_000_000), 1))
    return {
        # no images
        "empty": b"",
        "text": b"hello, I am an image",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><image href="file:///etc/passwd"/></svg>',
        "zip": zipped(),
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) run\nshowpage",
        # images of formats that are not accepted
        "tiff": saved("TIFF"),
        "avif header": b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00avifmif1" + plain,
        # truncated or broken
        "png cut off": png[: len(png) // 2],
        "jpeg cut off": jpeg[: len(jpeg) // 2],
        "webp cut off": webp[: len(webp) // 2],
        "png with wrong checksum": replaced(png, 29, b"\0\0\0\0"),
        "png with broken stream": replaced(png, 60, bytes(200)),
        "png of depth 3": png_of(64, 64, bytes(193 * 64), depth=3),
        "png of width 0": png_of(0, 64, b""),
        "png with a chunk of 4 GB": png[:33] + b"\xff\xff\xff\xffIDAT" + plain,
        "jpeg without tables": jpeg[:2] + jpeg[jpeg.index(b"\xff\xda") :],
        "jpeg of height 0": resized_jpeg(0, 64),
        "bmp of negative width": replaced(bmp, 18, struct.pack("<i", -64)),
        "gif of 0 x 0": b"GIF89a\0\0\0\0\0\0\0;",
        # too large
        "png of 100,000 x 100,000": png_of(100_000, 100_000, bytes(1000)),
        "png of 30 megapixels of zeros": png_of(6000, 5000, bytes(18_001 * 5000)),
        "jpeg of 65,500 x 65,500": resized_jpeg(65_500, 65_500),
        "gif of 65,535 x 65,535": b"GIF89a\xff\xff\xff\xff\0\0\0" + gif[13:],
        "bmp of run lengths": replaced(bmp, 18, struct.pack("<iiHHI", 60_000, 60_000, 1, 8, 1)),
        "strip of 1 x 20,000": saved("PNG", Image.new("L", (1, 20_000))),
        "png with text that unpacks to 200 MB": png_of(64, 64, bytes(193 * 64), before=unpacked),
        "jpeg of 3,000 scans": many_scans(3000),
        # images and something else
        "jpeg with script in a comment": jpeg[:2] + b"\xff\xfe" + struct.pack(">H", 2 + len(script)) + script + jpeg[2:],
        "png and php": png + b"<?php system($_GET['c']); ?>",
        "jpeg and zip": jpeg + zipped(),
        "pdf and jpeg": jpeg[:2] + b"\xff\xfe\x00\x0a%PDF-1.7" + jpeg[2:],
    }


def main() -> None:
    from starlette.testclient import TestClient

    from sightline.serve.app import create_app
    from sightline.serve.settings import read_settings

    settings = read_settings(given={"galleries": [Path(sys.argv[1])], "rate": None}, environ={})
    costs = {}
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        for name, data in {"sound": saved("PNG"), **corpus()}.items():
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
            since, peak = time.process_time(), peak_megabytes()
            answer = client.post("/v1/search", files={"image": ("x", data)})
            is_problem = answer.headers["content-type"] == "application/problem+json"
            costs[name] = [answer.status_code, is_problem, time.process_time() - since, peak_megabytes() - peak]
    sys.stdout.write(json.dumps(costs))


def peak_megabytes() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000


if __name__ == "__main__":
    main()
