"""Add the file API to a server, over HTTP and JSON-RPC."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from sandboxagent.protocol import methods
from sandboxagent.server.capability import Capability, ServerCore
from sandboxagent.server.file_api.methods import FileMethods
from sandboxagent.server.files.watch import Watches
from sandboxagent.server.sessions.dispatch import Method

if TYPE_CHECKING:
    from sandboxagent.server.file_api.archives import Archives
    from sandboxagent.server.http.views import Endpoint


class FileApi(Capability):
    """Read, write, list, search and watch files, and whole directories as archives."""

    name = "files"
    forwarded = ("/v1/fs",)
    large_methods = frozenset({methods.WRITE_FILE, methods.UPLOAD_BATCH})

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        settings, pools = core.settings, core.pools
        self._archives = cache(self._make_archives)
        """Makes the archives on first use. Routes and methods share them, and so their limits."""
        self._methods = FileMethods(core.hub, core.roots, settings.max_file, pools, core.searches, self._archives)
        self._watches = Watches(settings.watches, settings.watch_buffer, settings.watched_directories, pools.watches)

    def methods(self) -> Mapping[str, Method]:
        return self._methods.table()

    def endpoints(self) -> "Sequence[Endpoint]":
        from sandboxagent.server.file_api.routes import FileRoutes, Paths
        from sandboxagent.server.file_api.search import SearchRoute
        from sandboxagent.server.file_api.watch import Watching

        core, settings = self._core, self._core.settings
        paths = Paths(core.roots, core.hub)
        return [
            *FileRoutes(paths, settings.max_file, settings.max_body, core.pools).endpoints(),
            *self._archives().endpoints(),
            *SearchRoute(paths, core.searches()).endpoints(),
            *Watching(paths, self._watches, settings.heartbeat).endpoints(),
        ]

    def _make_archives(self) -> "Archives":
        from sandboxagent.server.file_api.archives import Archives
        from sandboxagent.server.file_api.routes import Paths
        from sandboxagent.server.files.upload import UploadLimits

        core, settings = self._core, self._core.settings
        limits = UploadLimits(
            settings.archive_bytes, settings.archive_entries, settings.archive_ratio, settings.archive_depth
        )
        return Archives(Paths(core.roots, core.hub), limits, settings.archives, core.pools.files)

    def stop(self) -> None:
        self._watches.close()
