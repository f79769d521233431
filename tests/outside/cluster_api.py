"""So much of a Kubernetes API server as Helm asks for when a template looks an object up."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Object = Mapping[str, Any]

_KINDS = {"Secret": ("/api/v1", "secrets"), "Deployment": ("/apis/apps/v1", "deployments")}
"""Where the objects of a kind are."""


def _pages(objects: Mapping[tuple[str, str], Object], namespace: str) -> dict[str, Object]:
    """What there is, by path. Source: https://kubernetes.io/docs/reference/using-api/api-concepts/"""
    version = {"groupVersion": "apps/v1", "version": "v1"}
    group = {"name": "apps", "versions": [version], "preferredVersion": version}
    pages: dict[str, Object] = {
        "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
    }
    for kind, (path, plural) in _KINDS.items():
        resource = {"name": plural, "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
        pages[path] = {
            "kind": "APIResourceList",
            "groupVersion": path.partition("/")[2].partition("/")[2],
            "resources": [resource],
        }
    for (kind, name), body in objects.items():
        path, plural = _KINDS[kind]
        version_of = {"apiVersion": path.partition("/")[2].partition("/")[2], "kind": kind}
        named = {"metadata": {**body.get("metadata", {}), "name": name, "namespace": namespace}}
        pages[f"{path}/namespaces/{namespace}/{plural}/{name}"] = {**version_of, **body, **named}
    return pages


@contextlib.contextmanager
def cluster_api(
    objects: Mapping[tuple[str, str], Object], namespace: str, *, forbidden: str = ""
) -> Iterator[str]:
    """The address of a server that has these objects, by kind and name, in a namespace.

    Objects whose path contains `forbidden` may not be read.
    """
    pages = _pages(objects, namespace)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, reason = (404, "NotFound") if page is None else (200, "")
            if forbidden and "/namespaces/" in self.path and forbidden in self.path:
                status, reason = 403, "Forbidden"
            failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason}
            body = json.dumps(page if status == 200 else {**failure, "code": status}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()
