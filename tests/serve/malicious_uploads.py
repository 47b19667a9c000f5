"""Files that are no images, are broken images, or are more than images: made here, none kept.

``python malicious_uploads.py GALLERY`` sends each to a service in this process and prints, as JSON, the status, whether
it is a problem, and the processor's seconds and the megabytes that each cost.
"""

import io
import json
import resource
import struct
import sys
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))


def saved(kind: str, image: Image.Image = NOISE, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, data: bytes, checksum: int | None = None) -> bytes:
    found = zlib.crc32(name + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", found)


def png_of(width: int, height: int, rows: bytes, depth: int = 8, colour: int = 2, before: bytes = b"") -> bytes:
    """A PNG file that says it is so large, whatever its rows are."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("run.sh", "echo harm")
    return file.getvalue()


def many_scans(n_scans: int) -> bytes:
    """A progressive JPEG file whose last scan comes again and again: a few bytes, a pass over all pixels each."""
    data = saved("JPEG", Image.new("RGB", (2000, 2000)), progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * n_scans + data[-2:]


def resized_jpeg(height: int, width: int) -> bytes:
    data = bytearray(saved("JPEG"))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def replaced(data: bytes, place: int, by: bytes) -> bytes:
    return data[:place] + by + data[place + len(by) :]


def middle_of(data: bytes) -> bytes:
    return data[: len(data) // 2]


def corpus() -> dict[str, bytes]:
    """Each kind by name."""
    png, jpeg, gif, bmp, webp = (saved(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"))
    plain = np.random.default_rng(1).integers(0, 256, 5000, np.uint8).tobytes()
    script = b"<script>alert(1)</script>"
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><image href="file:///etc/passwd"/></svg>'
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(script)) + script
    return {
        # no images
        "empty": b"",
        "one byte": b"\xff",
        "text": b"hello, I am an image",
        "noise": plain,
        "svg": svg,
        "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\ntrailer\n%%EOF",
        "zip": zipped(),
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) run\nshowpage",
        # images of formats that are not taken
        "tiff": saved("TIFF"),
        "ico": saved("ICO"),
        "avif header": b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00avifmif1" + plain,
        # cut off or broken
        "png cut off": middle_of(png),
        "jpeg cut off": middle_of(jpeg),
        "webp cut off": middle_of(webp),
        "png signature alone": png[:8],
        "riff of no webp": b"RIFF\x10\x00\x00\x00WAVEfmt " + plain,
        "png with wrong checksum": replaced(png, 29, b"\0\0\0\0"),
        "png with broken stream": replaced(png, 60, bytes(200)),
        "png without rows": b"\x89PNG\r\n\x1a\n" + png[8:33] + chunk(b"IEND", b""),
        "png of depth 3": png_of(64, 64, bytes(193 * 64), depth=3),
        "png of width 0": png_of(0, 64, b""),
        "png with a chunk of 4 GB": b"\x89PNG\r\n\x1a\n" + png[8:33] + b"\xff\xff\xff\xffIDAT" + plain,
        "png with two headers": png[:33] + png[8:33] + png[33:40],
        "jpeg without tables": jpeg[:2] + jpeg[jpeg.index(b"\xff\xda") :],
        "jpeg of height 0": resized_jpeg(0, 64),
        "jpeg with a segment past its end": jpeg[:2] + b"\xff\xe1\xff\xff" + jpeg[2:],
        "bmp of negative width": replaced(bmp, 18, struct.pack("<i", -64)),
        "bmp of depth 99": replaced(bmp, 28, struct.pack("<H", 99)),
        "gif of 0 x 0": b"GIF89a\0\0\0\0\0\0\0;",
        "webp with broken frame": replaced(webp, 20, bytes(40)),
        # too large
        "png of 100,000 x 100,000": png_of(100_000, 100_000, bytes(1000)),
        "png of 30 megapixels of zeros": png_of(6000, 5000, bytes(18_001 * 5000)),
        "jpeg of 65,500 x 65,500": resized_jpeg(65_500, 65_500),
        "gif of 65,535 x 65,535": b"GIF89a\xff\xff\xff\xff\0\0\0" + gif[13:],
        "bmp of 2^30": replaced(bmp, 18, struct.pack("<ii", 2**30, 2**30)),
        "bmp of run lengths": replaced(bmp, 18, struct.pack("<iiHHI", 60_000, 60_000, 1, 8, 1)),
        "strip of 1 x 20,000": saved("PNG", Image.new("L", (1, 20_000))),
        "png of 25 megapixels, cut off": middle_of(png_of(5000, 5000, bytes(15_001 * 5000))),
        "png with text that unpacks to 200 MB": png_of(
            64, 64, bytes(193 * 64), before=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200_000_000), 1))
        ),
        "jpeg of 3,000 scans": many_scans(3000),
        # images and something else
        "gif and script": gif[:6] + gif[6:-1] + b";" + script,
        "jpeg with script in a comment": jpeg[:2] + comment + jpeg[2:],
        "png and php": png + b"<?php system($_GET['c']); ?>",
        "png with script in a text": png[:33] + chunk(b"tEXt", b"Comment\0" + script) + png[33:],
        "jpeg and zip": jpeg + zipped(),
        "pdf and jpeg": jpeg[:2] + b"\xff\xfe\x00\x0a%PDF-1.7" + jpeg[2:],
        "bmp and html": bmp + b"<HTML><iframe src=x>",
    }


def main() -> None:
    """Send all to a service and say what each cost; memory as the peak of the process, which only grows."""
    from starlette.testclient import TestClient

    from sightline.serve.app import create_app
    from sightline.serve.settings import read_settings

    settings = read_settings(given={"galleries": [Path(sys.argv[1])], "rate": None}, environ={})
    told = {}
    uploads = corpus()
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        fine = client.post("/v1/search", files={"image": ("x", saved("PNG"))})
        if fine.status_code != 200:
            sys.exit(fine.text)
        for name, data in uploads.items():
            since, peak = time.process_time(), restarted_peak()
            answer = client.post("/v1/search", files={"image": ("x", data)})
            cost = time.process_time() - since, (current_peak() - peak) / 1000
            is_problem = answer.headers["content-type"] == "application/problem+json"
            told[name] = [answer.status_code, is_problem and answer.json()["status"] == answer.status_code, *cost]
    told["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(json.dumps(told))


def restarted_peak() -> int:
    """Kilobytes in use, from where the peak is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return current_peak()


def current_peak() -> int:
    """Kilobytes that were in use at most."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


if __name__ == "__main__":
    main()
