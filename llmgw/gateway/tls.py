"""`ServerTls`: the certificate that clients are shown, read again when its files change.

The listening socket keeps one `SSLContext` for ever; each handshake is handed the newest certificate's own context in it.
Loading a new pair into the listening context itself was rejected: a pair that does not match leaves it without a key,
and one of another kind (ECDSA after RSA) stands beside the old one, which some clients would go on to be shown. So a
broken pair changes nothing, and connections that are open never notice.

Files are looked at every second and read when two looks agree, so that one that is half written, or the moment between
the certificate's and the key's replacement, is nobody's warning.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at the files."""

Stamp = tuple[tuple[int, int, int], ...]


class BadPair(Exception):
    """A certificate and key cannot be used; the message says why, and what to do."""


class ServerTls:
    """The listening side of TLS. Use from one event loop."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read the pair. Raises BadPair."""
        self._certificate = certificate
        self._key = key
        self._read = self._seen = self._stamp()
        self._newest = _context(certificate, key)
        self.context = _context(certificate, key)
        """What to listen with."""
        self.context.sni_callback = self._handshake

    async def follow(self) -> None:
        """Look at the files for ever."""
        while True:
            await asyncio.sleep(LOOK)
            self.look()

    def look(self) -> None:
        """Take a pair that is another one than before, and whose files have come to rest."""
        stamp = self._stamp()
        before, self._seen = self._seen, stamp
        if stamp in (self._read, ()) or stamp != before:
            return
        self._read = stamp
        try:
            self._newest = _context(self._certificate, self._key)
        except BadPair as error:
            log.warning("the new certificate is not used; the one before stays: %s", error)
            return
        log.info("the certificate was read again", extra={"file": self._certificate})

    def _handshake(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _old: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _stamp(self) -> Stamp:
        """Return what changes when a file does; nothing while one is missing, as in the middle of a replacement."""
        try:
            found = [path.stat() for path in (self._certificate, self._key)]
        except OSError:
            return ()
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a context with this pair. Raises BadPair."""
    pair = _text(certificate, "--tls-cert"), _text(key, "--tls-key")
    if b"-----BEGIN CERTIFICATE-----" not in pair[0]:
        raise BadPair(f"{certificate} holds no PEM certificate; name one with --tls-cert, the whole chain in one file")
    if b"PRIVATE KEY-----" not in pair[1]:
        raise BadPair(f"{key} holds no PEM private key; name one with --tls-key")
    if b"ENCRYPTED" in pair[1]:
        raise BadPair(f"the key in {key} is encrypted; store it without a passphrase, readable by this user only")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        with _in_memory(pair[0]) as one, _in_memory(pair[1]) as other:
            context.load_cert_chain(one, other)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadPair(f"the key in {key} does not belong to the certificate in {certificate}") from error
        why = error.reason or str(error)
        raise BadPair(f"{certificate} and {key} are no certificate and key that can be used: {why}") from error
    return context


def _text(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadPair(f"cannot read {path}: {error.strerror}; name a readable file with {option}") from error


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """Give what was read a path: OpenSSL reads files only, and a file could be another one by then."""
    descriptor = os.memfd_create("tls")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
