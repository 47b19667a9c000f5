"""Every flow of the page, by mouse, keyboard and finger, in Debian's Chromium against the real service."""

import base64
import re
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from page_server import ODD, Watched, chosen, encoded, make_galleries, served, shape
from page_states import NEGATIVE
from PIL import Image
from playwright.sync_api import expect

from sightline.gallery.gallery import Gallery, labels_of
from sightline.gallery.query import refined_search
from sightline.labels.codes import beginnings
from sightline.ranking.refine import Refinement
from sightline.serve.browse import read_listing
from sightline.serve.settings import add_token

CIRCLE = shape("circle", "red", 2)
RED_CIRCLE = chosen(encoded(CIRCLE), "red circle.png")
CARD = ".card[data-id]"
LIGHT, DARK = "rgb(247, 248, 250)", "rgb(15, 22, 32)"


@pytest.fixture(scope="module")
def galleries(tmp_path_factory):
    return make_galleries(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def address(galleries):
    with served(*galleries.values()) as url:
        yield url


@pytest.fixture
def opened(chromium, address):
    """A function that opens the page; errors and requests to other hosts fail the test at its end."""
    watched = []

    def start(path="", at=address, **options):
        watched.append(Watched(chromium, at, **({"viewport": {"width": 1280, "height": 800}} | options)))
        watched[-1].page.goto(f"/{path}")
        return watched[-1].page

    yield start
    for one in watched:
        one.check()
        one.context.close()


def answered(page, act, *words, of="/v1/search$"):
    """The answer to the search that this act of a person begins, once it is shown."""
    with page.expect_response(re.compile(of)) as response:
        act(*words)
    answer = response.value.json()
    expect(page.locator(".lane").first.locator(CARD)).to_have_count(len(answer["results"]))
    return answer


def asked_by_image(page, file=RED_CIRCLE):
    return answered(page, page.set_input_files, "#file", file)


def ids(page, lane=0):
    return page.locator(".lane").nth(lane).locator(CARD).evaluate_all("all => all.map(one => one.dataset.id)")


def assert_shown(page, expected):
    expect(page.locator(".lane").first.locator(CARD)).to_have_count(len(expected))
    assert ids(page) == expected


def searched(gallery, image=CIRCLE, k=30, **steps):
    with Gallery.open(gallery, read_only=True) as read:
        return refined_search(read, read.encoder().encode([image]), k, Refinement(**steps))[1][0].tolist()


def known(gallery):
    """The metadata of each item by its id."""
    with Gallery.open(gallery, read_only=True) as read:
        return dict(zip(read.ids(), read.metadata(read.ids()), strict=True))


def transfer(page, data=RED_CIRCLE["buffer"], kind="image/png", name="dropped.png"):
    return page.evaluate_handle(
        """([data, type, name]) => {
            const held = new DataTransfer();
            held.items.add(new File([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], name, { type }));
            return held;
        }""",
        [base64.b64encode(data).decode(), kind, name],
    )


def test_an_image_is_picked_dropped_or_pasted_and_shows_what_the_gallery_finds(opened, galleries):
    page, expected = opened(), searched(galleries["plain"])
    expect(page.locator("#holds")).to_have_text("40 images in plain")
    expect(page.locator(".card img")).to_have_count(18)  # items to begin with
    answer = asked_by_image(page)
    assert_shown(page, expected)
    first = page.locator(".card").first
    expect(first.locator(".score")).to_have_text(f"{answer['results'][0]['score']:.3f}")
    expect(first.locator(".title .words")).to_have_text("red circle")
    expect(first.locator(".levels")).to_have_text("circle")
    expect(first.locator("img")).to_have_attribute("alt", "red circle, circle")
    page.wait_for_function("() => document.querySelector('.card img').naturalWidth > 0")
    assert page.locator(".card[data-relation]").count() == 0  # the label of an upload is not known
    page.goto("/")
    page.dispatch_event("main", "dragenter", {"dataTransfer": transfer(page)})
    expect(page.locator("#dropping")).to_be_visible()
    page.dispatch_event("main", "drop", {"dataTransfer": transfer(page)})
    expect(page.locator("#dropping")).to_be_hidden()
    expect(page.locator(".card .score")).to_have_count(30)
    assert_shown(page, expected)
    page.goto("/")
    page.dispatch_event("main", "drop", {"dataTransfer": transfer(page, b"%PDF", "application/pdf", "mark.pdf")})
    expect(page.get_by_role("alert")).to_have_text("mark.pdf is not an image.")
    paste = "held => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: held, bubbles: true }))"
    page.evaluate(paste, transfer(page))
    expect(page.locator(".card .score")).to_have_count(30)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert_shown(page, expected)


def test_a_part_is_drawn_with_the_mouse_or_moved_resized_and_left_by_keys(opened):
    both = Image.new("RGB", (320, 160), "white")
    both.paste(shape("circle", "red", 0, 160), (0, 0))
    both.paste(shape("bar", "blue", 0, 160), (160, 0))
    page = opened()
    asked_by_image(page, chosen(encoded(both)))
    part, box = page.locator(".part"), page.locator(".stage").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(2, rel=0.02)  # not squeezed
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.move(box["x"] + box["width"] + 50, box["y"] + box["height"] + 50)  # ends at the edge
    answered(page, page.mouse.up)
    left, top, right, bottom = (float(side) for side in parse_qs(urlsplit(page.url).query)["crop"][0].split(","))
    assert left == pytest.approx(0.5, abs=0.01)
    assert (top < 0.03, right, bottom) == (True, 1, 1)
    assert page.locator(".card .levels").first.inner_text() == "bar"
    page.get_by_role("button", name="Whole image").click()
    expect(part).to_be_hidden()
    assert "crop" not in page.url
    page.get_by_role("button", name="Crop").press("Enter")
    expect(part).to_be_focused()
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "Shift+ArrowLeft", "Shift+ArrowDown"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile("crop=0.19%2C0.13%2C0.87%2C0.85"))
    expect(part).to_have_attribute("aria-label", re.compile("from 19 to 87 percent across, 13 to 85 percent down"))
    for _ in range(40):  # at the edge it stops, with its size
        page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile("crop=0.32%2C0.13%2C1%2C0.85"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Crop")).to_be_focused()
    page.wait_for_url(re.compile("^((?!crop).)*$"))


def test_more_like_this_frames_results_by_relation_and_the_back_button_returns(opened):
    page = opened()
    asked_by_image(page)
    before = ids(page)
    button = page.locator(".card").first.get_by_role("button", name="More like this")
    expect(button).to_have_css("opacity", "1")  # seen without pointing at it
    answer = answered(page, button.click, of="/v1/search/id")
    assert before[0] not in ids(page)
    marks = "all => all.map(one => [one.dataset.relation, one.querySelector('.mark').innerText])"
    steps = page.locator(".card").evaluate_all(marks)
    says = {2: ["0", "● Same label"], 1: ["1", "◕ Same parent"], 0: ["none", "○ Unrelated"]}
    assert steps == [says[hit["relation"]] for hit in answer["results"]]
    assert {hit["relation"] for hit in answer["results"]} == {0, 1, 2}
    counts = [f"{mark} {[one for _, one in steps].count(mark)}" for _, mark in says.values()]
    assert page.locator(".legend li").all_inner_texts() == counts
    page.go_back()
    expect(page.locator(".card[data-relation]")).to_have_count(0)
    assert_shown(page, before)
    page.go_forward()
    expect(page.locator(".card[data-relation]")).to_have_count(30)
    page.locator("#recent-list button").nth(1).click()
    expect(page.locator(".card[data-relation]")).to_have_count(0)
    assert_shown(page, before)


def test_the_detail_shows_labels_and_metadata_and_walks_through_results(opened):
    page = opened()
    answer = asked_by_image(page)
    page.locator(".card .picture").nth(1).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_be_focused()
    facts = dict(zip(dialog.locator("dt").all_inner_texts(), dialog.locator("dd").all_inner_texts(), strict=True))
    hit = answer["results"][1]
    assert facts["Label"].startswith(hit["labels"][0])
    assert facts["Parent label"].startswith(hit["labels"][1])
    assert (facts["Score"], facts["Year"], facts["Id"]) == (f"{hit['score']:.3f}", str(hit["metadata"]["year"]), hit["id"])
    assert "Path" not in facts
    page.keyboard.press("ArrowRight")
    expect(dialog).to_contain_text("3 of 30")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator(".card .picture").nth(2)).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Show only these").nth(1).click()
    shown = answer["results"][2]["labels"][1]
    expect(page.locator(CARD)).to_have_count(10)
    assert set(page.locator(".card .levels").all_inner_texts()) == {shown}


def test_filters_by_label_number_truth_and_text_are_applied_together(opened, galleries):
    page = opened()
    asked_by_image(page)
    page.locator("#filters > summary").click()
    page.locator("#facets summary", has_text="Parent label").click()
    page.get_by_role("checkbox", name="circle").check()
    page.get_by_role("checkbox", name=ODD).check()
    page.locator("#facets summary", has_text="Year").click()
    page.get_by_label("Year, to").fill("2030")
    page.keyboard.press("Tab")
    page.locator("#facets summary", has_text="Sold").click()
    page.get_by_role("checkbox", name="no").check()
    page.locator("summary", has_text="Write a filter").click()
    page.locator("#where").fill("year >= 2014 or year == 2012")
    page.keyboard.press("Enter")
    expect(page.locator(CARD)).to_have_count(9)
    rows, years = known(galleries["plain"]), {2012, *range(2014, 2031)}
    kept = {key: row for key, row in rows.items() if row["label_1"] in ("circle", ODD) and not row["sold"]}
    fits = {key for key, row in kept.items() if row["year"] in years}
    assert set(ids(page)) == fits
    expect(page.locator("#filters-on")).to_have_text("4")
    expect(page.locator(".summary")).to_contain_text("9 results of 9 items that pass the filters")
    page.goto(f"/?{urlsplit(page.url).query}".replace("image=", "not="))  # filters without a query browse
    expect(page.locator(".summary")).to_contain_text("9 of 40 images")
    assert set(ids(page)) == fits
    page.locator("#filters > summary").click()
    page.get_by_role("button", name="Clear all filters").click()
    expect(page.get_by_role("heading", name="Start with an image")).to_be_visible()
    assert "only=" not in page.url


def is_below(code, top):
    return code.split(".")[: top.count(".") + 1] == top.split(".")


def assert_counts(page, rows, picked):
    """Shown are the items with all picked codes, and at each depth how many of them have each code."""
    kept = {key: codes for key, codes in rows.items() if all(any(is_below(one, top) for one in codes) for top in picked)}
    expect(page.locator(CARD)).to_have_count(len(kept))
    assert set(ids(page)) == kept.keys()
    open_codes = {"", *(code for top in picked for code in beginnings(top))}
    nodes = {(above, code) for codes in kept.values() for one in codes for above, code in pairwise(["", *beginnings(one)])}
    shown = {code for above, code in nodes if above in open_codes}
    expected = {code: str(sum(any(is_below(one, code) for one in codes) for codes in kept.values())) for code in shown}
    expect(page.locator(".code")).to_have_count(len(expected))
    for code, n_items in expected.items():
        expect(page.locator(f'.code[data-code="{code}"]')).to_have_text(f"{code}{n_items}")


def test_codes_are_chips_that_filter_and_are_counted_at_each_depth(opened, galleries):
    rows = {key: row.get("codes") or [] for key, row in known(galleries["other"]).items()}
    page = opened("?browse&gallery=other")
    card = page.locator('.card[data-id="no/6"]')
    expect(card.locator(".chip")).to_have_text(rows["no/6"])
    expect(page.locator('.card[data-id="no/7"] .chip')).to_have_text(["26.4.1", "29.1.2", "26.10", "+2"])
    card.get_by_role("button", name="29.1.2").click()
    expect(page.locator("#chosen")).to_have_text("29.1.2: remove this filter on codes")
    page.locator("#filters > summary").click()
    page.locator("#facets summary", has_text="Codes").click()
    assert_counts(page, rows, ["29.1.2"])
    for click, picked in (("29", ["29"]), ("26", ["29", "26"]), ("26.1", ["29", "26.1"]), ("26.1.2", ["29", "26.1.2"])):
        page.locator(f'.code[data-code="{click}"]').click()
        assert_counts(page, rows, picked)
        expect(page.locator(f'.code[data-code="{click}"]')).to_be_focused()
    page.locator('.code[data-code="26.1.2"]').press("Enter")  # a chosen one: up again
    assert_counts(page, rows, ["29", "26.1"])
    page.reload()
    page.locator("#chosen button").first.click()
    n_below = sum(any(is_below(one, "26.1") for one in codes) for codes in rows.values())
    expect(page.locator(CARD)).to_have_count(n_below)
    page.locator("#chosen button").click()
    page.goto("?id=no%2F7&of=other&gallery=other")
    card = page.locator('.card[data-id="no/11"]')
    expect(card.locator(".chip:has(.tie) > span:first-child")).to_have_text(["26.4.1", "26.10", "5.3.13"])
    card.get_by_role("button", name="All 5 codes").click()
    page.get_by_role("dialog").get_by_role("button", name="a longer code 7.1.1").click()
    expect(page.locator(CARD)).to_have_count(sum("a longer code 7.1.1" in codes for codes in rows.values()) - 1)


def test_browsing_pages_through_classes_the_least_typical_first(opened, galleries):
    with Gallery.open(galleries["plain"], read_only=True) as gallery:
        listing = read_listing(gallery, level=1)
    page = opened("?browse&gallery=plain")
    expect(page.locator(".class-head")).to_have_count(20)
    expect(page.locator(".class-head").first).to_have_text("blue bar2 images")
    page.get_by_label("Class").select_option("Class: parent label")
    expect(page.locator(".class-head")).to_have_count(4)
    assert_shown(page, listing.ids[listing.order("class")].tolist())
    page.get_by_label("Sort").select_option("Sort by typicality")
    expect(page.locator(".class-head")).to_have_count(0)
    assert_shown(page, listing.ids[listing.order("least_typical")].tolist())
    expect(page.locator(".score").first).to_have_text(f"{np.nanmin(listing.typicality):.3f}")
    page.locator(".card .picture").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("Typicality")
    page.get_by_role("dialog").get_by_role("button", name="More like this").click()
    expect(page.locator(".card[data-relation]")).to_have_count(30)
    page.go_back()
    expect(page.locator(CARD)).to_have_count(40)
    page.route("**/v1/items?*", lambda route: route.fulfill(json=page_of(route)))
    page.reload()
    expect(page.locator(".pager")).to_contain_text("1–60 of 130")
    for text in ("61–120 of 130", "121–130 of 130"):
        page.get_by_role("button", name="Next").click()
        expect(page.locator(".pager")).to_contain_text(text)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Previous").click()
    expect(page.locator(".pager")).to_contain_text("61–120 of 130")


def test_a_person_corrects_a_label_and_takes_it_back(opened, galleries):
    page = opened("?browse&gallery=other")
    card = page.locator('.card[data-id="no/7"]')  # a blue bar
    card.locator(".picture").click()
    field = page.get_by_label("Belongs to another class?")
    assert "red bar" in page.locator("#labels option").evaluate_all("all => all.map(one => one.value)")
    field.fill("  red bar ")
    field.press("ArrowLeft")  # in the text, not on to another item
    field.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("red bar")
    expect(dialog).to_contain_text("Was green bar")
    expect(card.locator(".words")).to_have_text("red bar")
    rows = known(galleries["other"])
    assert [key for key, row in rows.items() if row.get("original_label_0") == "green bar"] == ["no/7"]
    field.fill("purple <b>bar</b>")
    dialog.get_by_role("button", name="Relabel").click()
    expect(dialog).to_contain_text("No other item has this label. Was green bar.")
    expect(card).to_contain_text("Was green bar")
    dialog.get_by_role("button", name="Undo").click()
    expect(dialog.get_by_role("heading")).to_have_text("green bar")
    expect(card).not_to_contain_text("Was")
    rows = known(galleries["other"])
    assert labels_of(rows["no/7"]) == ["green bar", "bar"]
    assert not any("original_label_0" in row for row in rows.values())
    field.fill("x")
    page.route("**/label?*", lambda route: route.fulfill(status=503, json={"detail": "the disk is full"}))
    field.press("Enter")
    expect(dialog.get_by_role("status")).to_have_text("the disk is full")
    expect(dialog.get_by_role("heading")).to_have_text("green bar")


def page_of(route):
    """A page of a gallery of 130 items."""
    start = int(parse_qs(urlsplit(route.request.url).query)["offset"][0])
    item = {"labels": [], "metadata": {}, "image": None, "thumbnail": None, "typicality": None}
    items = [{"id": str(number), **item} for number in range(start, min(start + 60, 130))]
    return {"gallery": "plain", "total": 130, "items": items}


def test_a_filter_that_cannot_be_read_is_answered_in_the_servers_words_and_one_that_nothing_passes_says_so(opened):
    page = opened("?id=no%2F5&of=plain")
    expect(page.locator(CARD)).to_have_count(30)
    page.locator("#filters > summary").click()
    page.locator("summary", has_text="Write a filter").click()
    page.locator("#where").fill("year >")
    page.keyboard.press("Enter")
    expect(page.locator("#where-error")).to_contain_text("'year >'")
    expect(page.locator("#where")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".banner.fault")).to_be_visible()
    page.locator("#where").fill("year > 3000")
    page.keyboard.press("Enter")
    expect(page.locator(".banner")).to_contain_text("No item passes the filters")
    expect(page.locator("#where-error")).to_be_hidden()
    page.locator(".banner button").click()
    expect(page.locator(CARD)).to_have_count(30)


def test_options_expand_and_rerank_as_the_gallery_does(opened, galleries):
    page = opened()
    asked_by_image(page)
    page.locator(".options summary").click()
    page.get_by_label("Query expansion").fill("8")
    answer = answered(page, page.keyboard.press, "Tab")
    expect(page.locator(".score").first).to_have_text(f"{answer['results'][0]['score']:.3f}")
    assert_shown(page, searched(galleries["plain"], expand=8))
    expect(page.get_by_label("Weight of the nearest")).to_be_visible()
    answered(page, page.get_by_label("Re-rank").check)
    expect(page.locator(".summary")).to_contain_text("Re-ranked")
    assert_shown(page, searched(galleries["plain"], expand=8, rerank="kreciprocal"))
    page.keyboard.press("Escape")
    expect(page.locator(".options summary")).to_be_focused()


def test_two_galleries_are_compared_on_one_query_even_where_one_lacks_the_item(opened, galleries):
    page = opened("?id=no%2F1&of=plain")  # not in the other gallery, which is asked by the image
    expect(page.locator(CARD)).to_have_count(30)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#both")).to_be_visible()
    expect(page.locator(CARD)).to_have_count(60)  # cards appear by and by
    lists = [ids(page, 0), ids(page, 1)]
    drawn = Image.open(galleries["plain"].parent / "drawn" / "1.png")
    assert lists[1] == searched(galleries["other"], drawn)
    assert lists[0] != lists[1]
    n_both = len(set(lists[0]) & set(lists[1]))
    expect(page.locator("#both")).to_have_text(f"{n_both} of 30 results are in both rankings.")
    for mine, theirs, lane, letter in ((*lists, 0, "B"), (*lists[::-1], 1, "A")):
        said = page.locator(".lane").nth(lane).locator(".beside").all_inner_texts()
        places = [f"Place {theirs.index(one) + 1}" if one in theirs else "Not" for one in mine]
        assert said == [f"{place} in {letter}" for place in places]
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".lane")).to_have_count(1)


def test_what_does_not_belong_gets_a_banner_and_the_nearest_only_when_asked_for(opened):
    page = opened("?gallery=strict")
    answer = asked_by_image(page, NEGATIVE)
    assert answer["verdict"]["belongs"] is False
    quantile = answer["verdict"]["quantile"]
    said = f"less typical than {100 * quantile:.1f} %" if quantile < 1 else "less typical than every image"
    expect(page.locator(".banner.outside")).to_contain_text(said)
    page.get_by_role("button", name="Show the nearest anyway").click()
    expect(page.locator(CARD)).to_have_count(30)
    expect(page.locator(".banner.outside")).to_be_visible()
    page.set_input_files("#file", chosen(b"no image"))
    expect(page.locator(".banner.fault")).to_contain_text("JPEG, PNG")
    expect(page.locator(".banner.fault").get_by_role("button")).to_have_count(0)  # it would be refused again


def test_a_token_is_asked_for_refused_accepted_and_forgotten(opened, galleries, tmp_path):
    token = add_token(tmp_path / "tokens.toml", "examiner", "read")
    with served(galleries["plain"], token_file=tmp_path / "tokens.toml") as url:
        page = opened(at=url)
        dialog = page.get_by_role("dialog")
        expect(page.get_by_role("textbox", name="Token")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_have_text("This token is not accepted.")
        page.get_by_role("textbox", name="Token").fill(token)
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        asked_by_image(page)
        page.wait_for_function("() => document.querySelector('.card img').naturalWidth > 0")  # by the cookie
        page.reload()
        expect(page.locator("#holds")).to_have_text("40 images in plain")
        assert page.evaluate("document.cookie") == ""  # scripts cannot read it
        page.get_by_role("button", name="Forget token").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".banner.fault")).to_contain_text("Enter a token")


def test_everything_is_done_by_keyboard_alone_in_the_order_of_the_page(opened):
    page = opened()
    expect(page.locator(".card img")).to_have_count(18)
    order, focused = [], "(one => one.id || one.className || one.tagName)(document.activeElement)"
    for _ in range(9):
        page.keyboard.press("Tab")
        order.append(page.evaluate(focused))
    assert order == ["skip", "brand", "browse", "compare", "theme", "file", "k", "SUMMARY", "SELECT"]
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="browse all 40 images")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".card[data-relation]")).to_have_count(30)
    expect(page.get_by_role("heading", name="Results")).to_be_focused()
    page.locator(".card .picture").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".card .picture").nth(1)).to_be_focused()
    across = page.locator(".card").evaluate_all("all => all.filter(one => one.offsetTop === all[0].offsetTop).length")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".card .picture").nth(1 + across)).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".card .alike").nth(1 + across)).to_be_focused()
    expect(page.locator("#announcer")).to_have_text("30 results")


def test_dark_follows_the_system_and_the_switch_overrides_it(opened):
    page = opened(color_scheme="dark")
    for act, ground in ((page.locator("html").wait_for, DARK), (page.locator("#theme").click, LIGHT), (page.reload, LIGHT)):
        act()
        expect(page.locator("body")).to_have_css("background-color", ground)
