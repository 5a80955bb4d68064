"""What every problem document has in common (RFC 9457, and section 1 of the contract)."""

import json
import re
from typing import Any, Protocol


class Response(Protocol):
    """As much of a response as is looked at: httpx's and the raw wire's both have it."""

    status_code: int

    @property
    def headers(self) -> Any: ...

    @property
    def content(self) -> bytes: ...


def problem(response: Response, status: int, slug: str | None = None) -> dict[str, Any]:
    """The problem document of a response, checked to be one."""
    assert response.status_code == status, f"{response.status_code} {response.content[:500]!r}"
    assert response.headers["content-type"] == "application/problem+json"
    document = json.loads(response.content)
    assert re.fullmatch(r"urn:sandbox-agent:error:[a-z]+(-[a-z]+)*", document["type"])
    assert document["status"] == status
    assert isinstance(document["title"], str)
    assert document["title"]
    assert isinstance(document["detail"], str)
    assert document["detail"]
    if slug is not None:
        assert document["type"] == f"urn:sandbox-agent:error:{slug}"
    return document
