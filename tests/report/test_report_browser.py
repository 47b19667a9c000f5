"""The page in a browser: what a reader clicks, types and points at."""

import pytest

from sightline.report.page import ReportOptions, write_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(two_subjects, tmp_path_factory):
    return write_report(tmp_path_factory.mktemp("page") / "r.html", *two_subjects, ReportOptions(k=4, n_queries=2)).file


@pytest.fixture(params=[1280, 360])
def empty_page(request, chromium):
    page, said = chromium.new_page(viewport={"width": request.param, "height": 800}), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.extend([request.url] if request.url.startswith("http") else []))
    yield page
    assert said == []
    page.close()


@pytest.fixture
def page(empty_page, file):
    empty_page.goto(file.as_uri())
    return empty_page


def assert_nothing_scrolls(page):
    for box in ("#metrics .card", "#classes-table"):
        page.locator(box).first.scroll_into_view_if_needed()
        assert page.evaluate("box => (box = document.querySelector(box)).scrollWidth <= box.clientWidth", box), box


def column(page, number):
    shown = "[...document.querySelectorAll('#classes-table tbody tr')].filter(row => !row.hidden)"
    return page.evaluate(f"n => {shown}.map(row => row.cells[n].innerText)", number)


def test_numbers_and_verdicts_need_no_scrolling(page):
    is_phone = page.viewport_size["width"] < 640
    assert_nothing_scrolls(page)
    heights = page.evaluate("[...document.querySelectorAll('#classes-table thead button')].map(one => one.offsetHeight)")
    assert max(heights) < 3 * min(height for height in heights if height), "no head is broken letter by letter"
    marks = [*page.locator("#metrics .mark" if is_phone else "#metrics td.verdict").all()]
    assert len(marks) > 5
    for mark in marks:
        assert mark.inner_text()[0] in "▲▼≈"
        box = mark.bounding_box()
        assert box["x"] + box["width"] <= page.viewport_size["width"]
    more = page.evaluate("getComputedStyle(document.querySelector('#classes-table tbody th'), '::after').content")
    assert ("confused with" in more) == is_phone, "on a phone the parents and the mistakes stand below the name"


def test_long_names_push_no_number_off_the_screen(empty_page, circle, tmp_path):
    called = "man_in_business_suit_levitating", "woman-bouncing-ball", "information_desk_person"
    labels = [called[place % 3] for place in range(12)], ["People & Body"] * 12, ["transport-ground"] * 12
    angles = [37 * place % 180 for place in range(12)]
    new, old = (circle(turn, *labels, name=f"efficientnet at {turn[1]} px") for turn in (angles, angles[::-1]))
    empty_page.goto(write_report(tmp_path / "r.html", new, old, ReportOptions(k=2, n_queries=1)).file.as_uri())
    assert_nothing_scrolls(empty_page)


def test_classes_are_sorted_and_searched(page):
    heads = page.locator("#classes-table thead button")
    heads.nth(5).click()
    ascending = [float(cell) for cell in column(page, 5)]
    assert ascending == sorted(ascending)
    heads.nth(5).press("Enter")
    assert [float(cell) for cell in column(page, 5)] == sorted(ascending, reverse=True)
    assert page.locator("#classes-table th[aria-sort]").count() == 1
    heads.nth(0).click()
    assert column(page, 0) == [f"c{number}" for number in range(10)]
    page.fill("#class-search", "M1")
    assert column(page, 1) == ["m1"] * 3
    assert page.inner_text("#class-count") == "3 of 10 classes"


def test_pointing_at_a_class_shows_its_name_in_both_maps(page):
    page.locator("#map").scroll_into_view_if_needed()
    for _ in range(100):  # pictures above may still move the map
        page.locator(".map path[data-i='3']").first.hover(force=True)
        if page.inner_text("#tip"):
            break
        page.wait_for_timeout(50)
    names = page.evaluate("JSON.parse(document.getElementById('map-data').textContent).names")
    assert page.inner_text("#tip").split(" · ")[0] in names
    assert page.locator(".map path.near").count() == 2
    page.fill("#map-search", "c4")
    assert page.locator(".map path.on").count() == 2
    page.fill("#map-search", "")
    page.locator(".kinds button", has_text="even").click()
    assert page.inner_text("#map-count") == "4 of 10 classes"
    assert page.locator(".map path.on").count() == 8
