"""Every state of the page on a phone, a tablet and a desktop, light and dark: nothing overflows, breaks or is hard to read.

`python docs/make_page_pictures.py --states FOLDER` writes what these tests look at as pictures.
"""

import pytest
from page_server import Watched
from page_states import FAULTS, STATES, looks, serving_states


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serving_states(tmp_path_factory.mktemp("states")) as url:
        yield url


@pytest.mark.parametrize("name", STATES)
def test_a_state_fits_every_screen(chromium, address, name):
    watched = Watched(chromium, address)
    STATES[name].reach(watched.page)
    faults = {look: watched.page.evaluate(FAULTS) for look in looks(watched.page)}
    assert {look: found for look, found in faults.items() if found} == {}
    assert len(faults) == 6
    watched.check()
    watched.page.unroute_all(behavior="ignoreErrors")  # requests that the state holds back
    watched.context.close()
