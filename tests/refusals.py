"""How tests read a refusal: by the facts that its message names, never by its whole wording."""

import re
from collections.abc import Callable, Sequence

import pytest

from sightline.errors import InputError

VERBS = "add|convert|copy|fit|keep|lower|make|move|put|raise|recalibrate|remove|replace|restart|set"
REMEDY = re.compile(rf"(?:^|[;:,.] |\bthen )(?:{VERBS})\b", re.IGNORECASE)  # a part of a sentence that tells what to do


def assert_refused(facts: str | Sequence[str], call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Check that the call raises an InputError; return its message.

    The message has every one of several facts, or matches one regular expression.
    """
    with pytest.raises(InputError) as refused:
        call(*arguments, **options)
    message = str(refused.value)
    if isinstance(facts, str):
        assert re.search(facts, message), message
    else:
        assert not [fact for fact in facts if fact not in message], message
    return message
