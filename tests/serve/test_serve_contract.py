"""The document and the running service agree: every check of schemathesis, on single requests and on chains of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import process

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_service_does_what_its_document_says(own_gallery, image_tree, tmp_path, seed):
    command = [sys.executable, "-m", "schemathesis.cli", "run"]
    options = ["--checks", "all", "--seed", str(seed), "--max-examples", "50", "--generation-database", "none"]
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "SCHEMATHESIS_HOOKS": "contract_strategies", "PYTHONPATH": paths}
    with process(own_gallery, "--images", str(image_tree), SIGHTLINE_SERVE_RATE="none") as (_, address, log):
        given = [f"{address}/openapi.json", *options, "--suppress-health-check", "all"]
        run = subprocess.run([*command, *given], capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=1800)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2000:]
    assert "17 selected" in run.stdout
    assert "Traceback" not in "".join(log)
