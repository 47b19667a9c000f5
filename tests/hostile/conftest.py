"""The warm process and the artefacts that cases are copied from, made once."""

import pytest
from base_artefacts import write_all
from sandbox import Warm, contents, differences


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """A process that runs commands in children."""
    process = Warm(tmp_path_factory.mktemp("warm"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def base(warm, tmp_path_factory):
    """A folder with one good artefact of each kind, which no case may change."""
    folder = write_all(warm, tmp_path_factory.mktemp("base"))
    before = contents(folder)
    yield folder
    assert differences(before, contents(folder)) == []
