"""How the site reads docstrings: names without Sphinx's roles, and an ``Example`` that is a doctest as code."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=`)")
EXAMPLE = re.compile(r"^Example:$", flags=re.M)


class PlainDocstrings(griffe.Extension):
    """Changes each docstring before it is split into sections."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub("Examples:", ROLE.sub("", obj.docstring.value))
