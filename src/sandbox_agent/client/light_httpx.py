"""httpx without its command line.

httpx imports that where click and rich are installed, as they are with us, and they take longer than all of the SDK.
"""

import sys

if "httpx" in sys.modules:
    import httpx
else:
    sys.modules["httpx._main"] = None  # type: ignore[assignment] - so that importing it fails
    try:
        import httpx
    finally:
        del sys.modules["httpx._main"]

__all__ = ["httpx"]
