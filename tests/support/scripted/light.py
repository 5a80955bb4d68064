"""JSON and threads by what is built into Python alone: `json` and `threading` are half of what a start would cost."""

import _json
import _thread

_BLANK = " \t\n\r"
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class _Reading:
    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = _CONSTANTS.__getitem__


_scan = _json.make_scanner(_Reading)
_compact = _json.make_encoder(None, None, _json.encode_basestring_ascii, None, ":", ",", False, False, True)


def loads(text):
    """As `json.loads`."""
    text = (text if isinstance(text, str) else text.decode()).strip(_BLANK)
    try:
        value, end = _scan(text, 0)
    except StopIteration as missing:
        raise ValueError("no JSON") from missing
    if end != len(text):
        raise ValueError("more than one value")
    return value


def dumps(value):
    """As `json.dumps`, without blanks."""
    return "".join(_compact(value, 0))


class Event:
    """As `threading.Event`; one thread sets and clears it."""

    def __init__(self):
        self._is_set = False
        self._unset = _thread.allocate_lock()
        self._unset.acquire()

    def is_set(self):
        return self._is_set

    def set(self):
        if not self._is_set:
            self._is_set = True
            self._unset.release()

    def clear(self):
        if self._is_set:
            self._is_set = False
            self._unset.acquire()

    def wait(self):
        with self._unset:
            pass
