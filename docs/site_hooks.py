"""What mkdocs does beyond its configuration."""

import re

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code>|<autoref)")


def on_page_content(html: str, **_: object) -> str:
    """Names in docstrings without the roles that editors and Sphinx read."""
    return ROLE.sub("", html)
