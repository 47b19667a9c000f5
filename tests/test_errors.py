import pytest

from sightline.errors import SHOWN_FAULTS, SHOWN_NAMES, InputError, choose, names, nearest, raise_faults


def test_names_are_quoted_and_joined():
    assert names(["train", 3, "it's"]) == "'train', '3', \"it's\""
    assert names([]) == ""


def test_an_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize("typed", ["smoth_ap", "smooth-ap", "smooth_app"])
def test_nearest_suggests_one_name_that_is_close(typed):
    assert nearest(typed, ["sup_ap", "smooth_ap", "roadmap"]) == "did you mean 'smooth_ap'?"


def test_nearest_lists_what_there_is_in_order_if_no_name_is_close():
    assert nearest("zzz", ["sup_ap", "roadmap"]) == "known: 'roadmap', 'sup_ap'"


def test_nearest_takes_any_iterable_once():
    assert nearest("zzz", (word for word in ["b", "a"])) == "known: 'a', 'b'"


def test_nearest_cuts_a_long_list_and_says_how_long_it_is():
    known = [f"name{number:03}" for number in range(SHOWN_NAMES + 7)]
    assert nearest("zzz", known) == f"known: {names(known[:SHOWN_NAMES])} and 7 more"
    assert nearest("zzz", known[:SHOWN_NAMES]) == f"known: {names(known[:SHOWN_NAMES])}"


def test_choose_returns_the_value_even_if_it_is_false():
    assert choose({"a": 0, "b": 2}, "a", "letter") == 0


def test_choose_names_the_kind_of_thing_and_the_nearest_choice():
    with pytest.raises(InputError, match=r"^unknown optimizer 'adma': did you mean 'adam'\?$"):
        choose({"adam": 1, "sgd": 2}, "adma", "optimizer")


def test_no_fault_is_no_error():
    assert raise_faults("file.csv", []) is None


def test_one_fault_and_several():
    with pytest.raises(InputError) as caught:
        raise_faults("file.csv", ["line 2: bad"])
    assert str(caught.value) == "file.csv: 1 fault\n  line 2: bad"
    with pytest.raises(InputError) as caught:
        raise_faults("file.csv", ["line 2: bad", "line 3: worse"])
    assert str(caught.value) == "file.csv: 2 faults\n  line 2: bad\n  line 3: worse"


@pytest.mark.parametrize("n_over", [0, 1, 980])
def test_the_list_of_faults_is_cut_but_all_are_counted(n_over):
    faults = [f"fault {number}" for number in range(SHOWN_FAULTS + n_over)]
    with pytest.raises(InputError) as caught:
        raise_faults("file.csv", faults)
    first, *shown = str(caught.value).split("\n  ")
    assert first == f"file.csv: {SHOWN_FAULTS + n_over} faults"
    assert shown == faults[:SHOWN_FAULTS] + ([f"... and {n_over} more"] if n_over else [])
