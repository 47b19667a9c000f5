"""A hub on this machine: just enough of its protocol to create a model, commit files to it and download them again."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml


class StandInHub:
    """Serves on a free port of this machine while the block lasts.

    Attributes:
        models: by name, then by branch, the content of each file.
        created: name of each model asked for, and whether as a private one.
        commits: the head of each.
    """

    def __init__(self):
        self.models, self.created, self.commits = {}, [], []

    def __enter__(self):
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def _digest(content):
    return hashlib.sha1(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, status, content=b"", **headers):
        content = json.dumps(content).encode() if not isinstance(content, bytes) else content
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _words(self):
        return unquote(urlsplit(self.path).path).strip("/").split("/")

    def _branch(self, name, revision):
        """Files and commit of a branch, or of the commit by its number."""
        branches = self.hub.models.get(name, {})
        for branch, files in branches.items():
            commit = _digest(json.dumps({file: _digest(content) for file, content in files.items()}).encode())
            if revision in (branch, commit):
                return files, commit
        code = "RevisionNotFound" if branches else "RepoNotFound"
        self._answer(404, {"error": code}, X_Error_Code=code)
        return None

    def do_POST(self):
        words = self._words()
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        match words:
            case ["api", "repos", "create"]:
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                self.hub.created.append((name, "private" in (asked.get("visibility"), asked.get("private") and "private")))
                if name in self.hub.models:
                    return self._answer(409, {"url": f"{self.hub.address}/{name}"})
                self.hub.models[name] = {"main": {}}
                return self._answer(200, {"url": f"{self.hub.address}/{name}"})
            case ["api", "validate-yaml"]:  # the real one also knows all licences and tasks
                yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
                return self._answer(200, {"errors": [], "warnings": []})
            case ["api", "models", owner, name, "branch", branch]:
                self.hub.models[f"{owner}/{name}"].setdefault(branch, {})
                return self._answer(200, {})
            case ["api", "models", _, _, "preupload", _]:
                files = [
                    {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for file in json.loads(body)["files"]
                ]
                return self._answer(200, {"files": files})
            case ["api", "models", owner, name, "commit", branch]:
                lines = [json.loads(line) for line in body.splitlines()]
                self.hub.commits.append(lines[0]["value"])
                for line in lines[1:]:
                    content = base64.b64decode(line["value"]["content"])
                    self.hub.models[f"{owner}/{name}"][branch][line["value"]["path"]] = content
                commit = self._branch(f"{owner}/{name}", branch)[1]
                address = f"{self.hub.address}/{owner}/{name}/commit/{commit}"
                return self._answer(200, {"success": True, "commitOid": commit, "commitUrl": address})
        return self._answer(404)

    def do_GET(self):
        match self._words():
            case ["api", "models", owner, name, *rest]:
                if found := self._branch(f"{owner}/{name}", rest[1] if len(rest) > 1 else "main"):
                    siblings = [{"rfilename": file} for file in found[0]]
                    entries = [
                        {"type": "file", "path": file, "size": len(content), "oid": _digest(content)}
                        for file, content in found[0].items()
                    ]
                    about = {"id": f"{owner}/{name}", "sha": found[1], "siblings": siblings, "tags": [], "private": False}
                    self._answer(200, entries if rest[:1] == ["tree"] else about)
            case [owner, name, "resolve", revision, *file]:
                if found := self._branch(f"{owner}/{name}", revision):
                    content = found[0]["/".join(file)]
                    self._answer(200, content, ETag=f'"{_digest(content)}"', X_Repo_Commit=found[1])
            case _:
                self._answer(404)

    do_HEAD = do_GET  # noqa: N815
