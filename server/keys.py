"""API keys: where they come from, and whether a request brings one.

What must stay true: comparing takes the same time whatever differs; no key is ever printed or logged; a source of keys
that was named but holds none is an error and never means that no key is needed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from edgellm.errors import ConfigError

ONE_KEY = "EDGELLM_API_KEY"
SEVERAL_KEYS = "EDGELLM_API_KEYS"  # separated by commas


class Keys:
    """The keys of a server; without any, every request is admitted."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode("utf-8")) for key in keys]

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a header is ``Authorization: Bearer KEY`` or ``x-api-key: KEY`` with one of the keys."""
        if not self._digests:
            return True
        found = False
        for key in given_keys(headers):
            given = _digest(key)
            for digest in self._digests:  # all of them: which one fits is not to be seen from the time
                found |= hmac.compare_digest(given, digest)
        return found


def given_keys(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Keys that a request brings, whether they fit or not."""
    for name, value in headers:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()


def gather_keys(given: Sequence[str], environ: Mapping[str, str], file: Path | None) -> tuple[str, ...]:
    """Every key of the command line, of the environment and of a file (one a line, but for blank and # lines).

    Raises:
        ConfigError: the file cannot be read, or a source that is set holds no key.
    """
    keys = [*given]
    if environ.get(ONE_KEY):
        keys.append(environ[ONE_KEY])
    if environ.get(SEVERAL_KEYS):
        keys += _some(environ[SEVERAL_KEYS].split(","), SEVERAL_KEYS)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_key_file: {file} cannot be read: {type(error).__name__}") from None
        keys += _some((line for line in lines if not line.lstrip().startswith("#")), f"api_key_file: {file}")
    return tuple(dict.fromkeys(key.strip() for key in keys))


def _some(entries: Iterable[str], source: str) -> list[str]:
    keys = [entry for entry in entries if entry.strip()]
    if not keys:
        raise ConfigError(f"{source} holds no key")
    return keys


def _digest(key: bytes) -> bytes:
    """Of one length for every key, so that comparing does not tell the length either."""
    return hashlib.sha256(key).digest()
