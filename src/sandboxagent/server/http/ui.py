"""Serve the Inspector at `/ui/`: the files that its build left in the package.

Without these files, the server shows a plain page. The Inspector gets everything from the API, with its user's token.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sandboxagent import __version__
from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import NotFound

BUILT = Path(__file__).parent / "inspector"
"""The folder of the files that `./dev` builds from the project's folder `inspector`."""


_FILE = re.compile(r"(assets/)?[\w-][\w.-]*\.(?P<suffix>\w+)", re.ASCII)
_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "woff2": "font/woff2"}
_EMBEDDED = "embed/"
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors {}"
)
_COMMON = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
_FOR_EVER = {**_COMMON, "cache-control": "public, max-age=31536000, immutable"}
"""Headers of a file whose name has a hash of its content."""
_FOR_NOW = {**_COMMON, "cache-control": "no-cache"}
_NOT_BUILT = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sandbox-agent</title>
<style>
  :root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
  main {{ max-width: 40rem; margin: 3rem auto; padding: 0 1rem; }}
  pre {{ padding: 1rem; overflow: auto; border: 1px solid; border-radius: .5rem; }}
</style>
<main>
<h1>sandbox-agent {__version__}</h1>
<p>The server is running, but this installation has no Inspector: it was made from a checkout where the Inspector was
not built. In the checkout, run this, and start the server again:</p>
<pre>./dev inspector</pre>
<p>The API works without it; <a href="/openapi.json">/openapi.json</a> describes it.</p>
</main>
</html>
"""


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes | None


@dataclass(frozen=True, slots=True)
class Ui:
    """The handlers of `/ui/`. Pages of `frame_origins` may show an embedded session in a frame."""

    frame_origins: Collection[str]
    pool: Pool
    built: Path = BUILT
    _files: dict[str, _File] = field(default_factory=dict[str, _File])
    """Files with a hash in their names, once they were asked for."""

    async def get(self, request: Request) -> Response:
        name: str = request.path_params["rest"]
        if (match := _FILE.fullmatch(name)) and (match[1] or match["suffix"] in _TYPES):
            return await self._asset(request, name, match["suffix"])
        return await self._page(request, name)

    async def lead_here(self, request: Request) -> Response:
        return RedirectResponse("/ui/")

    async def _asset(self, request: Request, name: str, suffix: str) -> Response:
        lasting = name.startswith("assets/")
        found = self._files.get(name) or await self.pool.run(self._read, name)
        if found is None or suffix not in _TYPES:
            raise NotFound(f"/ui/{name}")
        if lasting:
            self._files[name] = found
        return _answer(request, found, _TYPES[suffix], _FOR_EVER if lasting else _FOR_NOW)

    async def _page(self, request: Request, name: str) -> Response:
        """Answer with the same page for every path below `/ui/`. The page itself reads the address."""
        origins = " ".join(self.frame_origins) if name.startswith(_EMBEDDED) else ""
        page = await self.pool.run(self._read, "index.html")
        headers = {
            **_COMMON,
            "cache-control": "no-store",
            "content-security-policy": _POLICY.format(origins or "'none'"),
        }
        if page is None:
            policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
            page = _File(_NOT_BUILT.encode(), None)
            headers |= {"content-security-policy": policy}
        return _answer(request, page, "text/html", headers)

    def _read(self, name: str) -> _File | None:
        path = self.built / name
        try:
            content = path.read_bytes()
        except OSError:
            return None
        try:
            return _File(content, path.with_name(f"{path.name}.gz").read_bytes())
        except OSError:
            return _File(content, None)


def _answer(request: Request, file: _File, media_type: str, headers: dict[str, str]) -> Response:
    if file.packed is None:
        return Response(file.content, media_type=media_type, headers=headers)
    headers = {**headers, "vary": "Accept-Encoding"}
    accepted = {coding.split(";")[0].strip() for coding in request.headers.get("accept-encoding", "").split(",")}
    if "gzip" not in accepted:
        return Response(file.content, media_type=media_type, headers=headers)
    return Response(file.packed, media_type=media_type, headers={**headers, "content-encoding": "gzip"})
