"""A new field of the search answer, on the command line, in the API and on the page: how many items were searched."""

import os
import subprocess
import sys

from playwright.sync_api import expect

from changed_packages import run_python
from sightline import Encoder, Gallery

CHANGES = {
    "gallery/query.py": [
        ("    candidates: int = 0\n", "    candidates: int = 0\n    searched: int = 0\n"),
        ("        found = []\n        verdict", '        found = [f"searched {self.searched} items"]\n        verdict'),
        ("generation, candidates))", "generation, candidates, len(gallery)))"),
    ],
    "serve/schemas.py": [
        ("    generation: int\n    query: QueryBody\n", "    generation: int\n    searched: int\n    query: QueryBody\n")
    ],
    "serve/web/lane.js": [
        ("${milliseconds} ms.${reordered}`", "${milliseconds} ms. Searched ${answer.searched} items.${reordered}`")
    ],
}


def test_a_field_of_the_answer_takes_the_three_files_that_the_page_names(changed_copy, chromium, image_tree, tmp_path):
    folder, image = tmp_path / "gallery", min(image_tree.rglob("*.png"))
    with Gallery.create(folder, Encoder.create("tiny", embedding_dim=16, image_size=32, seed=0)) as gallery:
        gallery.add_images(image_tree)
        n_items = len(gallery)
    copy = changed_copy("a field of the search answer", CHANGES)
    found = run_python(copy, tmp_path, "-m", "sightline", "search", image, "--gallery", folder)
    assert f"searched {n_items} items" in found.stdout, found.stderr
    command = [sys.executable, "-m", "sightline", "serve", str(folder), "--port", "0"]
    environ = os.environ | {"PYTHONPATH": str(copy)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ) as server:
        try:
            page = chromium.new_page()
            page.goto(server.stdout.readline().strip())
            page.set_input_files("#file", image)
            expect(page.locator(".summary").first).to_contain_text(f"Searched {n_items} items.", timeout=30_000)
        finally:
            server.kill()
