"""What the tests of installing share: an index on this machine, and an agent that is in it."""

import json
from typing import Any

from sandboxagent.server.agents.install.registry_entries import current_platform
from tests.support.package_index import AGENT, PackageIndex, entry, npx, packed

TINY = npx("tiny", "tiny-agent@1.0.0")


def box(index: PackageIndex, program: str = AGENT) -> dict[str, Any]:
    """An agent in an archive, for tests that are not about npm: it takes a tenth of the time."""
    files = {"bin/tiny": program, "bin/package.json": json.dumps({"name": "tiny", "version": "1.0.0"})}
    url = index.archive("tiny.tar.gz", packed(files))
    return entry("tiny", binary={current_platform(): {"archive": url, "cmd": "bin/tiny"}})
