"""What a page of HTML is made of."""

from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "link", "wbr"}


class Page(HTMLParser):
    """The tags with their attributes, and the text; refuses tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += f"{data}\n"
