"""Say why TLS to a server failed, and what to do about it."""

import ssl
from typing import NamedTuple


class TlsProblem(NamedTuple):
    """Why TLS failed, as the end of a sentence about the server, and what to do, as another sentence."""

    cause: str
    advice: str


_TRUST = "if you trust it, set SSL_CERT_FILE to the file of"
_NAME = "call the server by a name in its certificate, or give it a certificate for this name"
_PROBLEMS = {
    "not yet valid": TlsProblem("has a certificate that is not valid yet", "check the clocks of both machines"),
    "expired": TlsProblem("has a certificate that has expired", "renew it on the server's machine"),
    "self-signed": TlsProblem("has a self-signed certificate", f"{_TRUST} the certificate"),
    "unknown authority": TlsProblem(
        "has a certificate of an authority that is unknown here",
        f"{_TRUST} the authority's certificate; a public authority is unknown if the server leaves out its chain",
    ),
    "another name": TlsProblem("has a certificate for another host name", _NAME),
    "revoked": TlsProblem("has a certificate that was revoked", "get another one on the server's machine"),
    "no TLS": TlsProblem("does not speak TLS on this port", "use http://, or the port of its proxy for TLS"),
}
_VERIFY_CODES = {
    9: "not yet valid",
    10: "expired",
    18: "self-signed",
    19: "unknown authority",
    20: "unknown authority",
    21: "unknown authority",
    23: "revoked",
    62: "another name",
    64: "another name",
}
"""OpenSSL's results of a verification (X509_V_ERR_…)."""
_PLAIN_TEXT = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons if the other side's first bytes are not TLS."""


def find_tls_problem(error: BaseException | None) -> TlsProblem | None:
    """Find the failure of TLS in a chain of exceptions. Return None if TLS did not fail."""
    while error is not None:
        match error:
            case ssl.SSLCertVerificationError() if error.verify_code in _VERIFY_CODES:
                return _PROBLEMS[_VERIFY_CODES[error.verify_code]]
            case ssl.SSLCertVerificationError():
                said = error.verify_message.rstrip(".")
                return TlsProblem(f"has a certificate that is refused ({said})", "replace it on the server's machine")
            case ssl.SSLError() if error.reason in _PLAIN_TEXT:
                return _PROBLEMS["no TLS"]
            case ssl.SSLError():
                said = error.reason or str(error)
                return TlsProblem(f"refuses TLS ({said})", "check the settings of TLS on the server's machine")
            case _:
                error = error.__cause__ or error.__context__
    return None
