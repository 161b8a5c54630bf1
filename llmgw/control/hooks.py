"""What is said to the server about its source: webhooks of forges, and an operator's word on a revision that is held.

A webhook never carries desired state: it makes the server look at once, and the poll finds what a lost one would have told.
So its body is not even parsed. What is checked, over the raw bytes and in constant time, is who sent it:

| forge | header | what it holds |
|---|---|---|
| GitHub | `X-Hub-Signature-256` | `sha256=` and the hex HMAC-SHA256 of the body |
| Gitea, Forgejo | `X-Gitea-Signature`, `X-Forgejo-Signature`, or GitHub's | the hex HMAC-SHA256 of the body |
| GitLab | `webhook-signature` with `webhook-id` and `webhook-timestamp` | `v1,` and base64 of that of `ID.TIMESTAMP.BODY` |
| GitLab, older | `X-Gitlab-Token` | the secret itself |

A signature that came before is noted and not acted on again; GitHub and Gitea sign no time, so nothing else tells a replay.
Only a signature that is good is remembered, so strangers cannot fill that memory.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping

from aiohttp import web

from llmgw.base.time import Clock

log = logging.getLogger(__name__)

LARGEST = 3 << 20
"""Bytes of a body; GitHub sends up to 25 MB, but not for a push to one branch."""
WINDOW = 300.0
"""Seconds by which a signed time may differ from ours."""
BODY_WITHIN = 10.0
"""Seconds for a body; forges send it at once."""
READ_AT_ONCE = 16
"""Requests whose bodies are read at once, so that strangers cannot fill the memory."""
REMEMBERED = 1000
FORGES = ("github", "gitlab", "gitea")


class _Refused(Exception):
    """A webhook is not taken; the message says why, the status for machines."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class SourceRoutes:
    """The routes. `hint` is called once for every webhook that is good; `permit` returns why it does not, if so."""

    def __init__(
        self,
        hint: Callable[[], None],
        permit: Callable[[str], str | None],
        secret: Callable[[], str | None],
        clock: Clock,
    ) -> None:
        self._hint = hint
        self._permit = permit
        self._secret = secret
        self._clock = clock
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._reading = 0

    def routes(self) -> list[web.RouteDef]:
        """Return what to add to the admin API."""
        return [web.post("/hooks/{forge}", self._post_hook), web.post("/v1/source/accept", self._post_accept)]

    async def _post_hook(self, request: web.Request) -> web.Response:
        forge = request.match_info["forge"]
        try:
            secret = self._secret_for(forge)
            body = await self._body(request)
            proof = prove(forge, request.headers, body, secret.encode(), self._clock.now())
        except _Refused as refused:
            log.warning("a webhook is refused", extra={"forge": forge, "reason": str(refused), "from": request.remote})
            return web.json_response({"error": str(refused)}, status=refused.status)
        if proof in self._seen:
            return web.json_response({"status": "seen before"})
        self._seen[proof] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        self._hint()
        return web.json_response({"status": "noted"}, status=202)

    async def _body(self, request: web.Request) -> bytes:
        if self._reading >= READ_AT_ONCE:
            raise _Refused(503, f"{READ_AT_ONCE} webhooks are being read already; send this one again later")
        self._reading += 1
        try:
            async with asyncio.timeout(BODY_WITHIN):
                return await _body(request)
        except TimeoutError as error:
            raise _Refused(408, f"the body did not come within {BODY_WITHIN:.0f} s") from error
        finally:
            self._reading -= 1

    def _secret_for(self, forge: str) -> str:
        if forge not in FORGES:
            raise _Refused(404, f"there is no such webhook; there are: {', '.join(FORGES)}")
        secret = self._secret()
        if not secret:
            raise _Refused(404, "webhooks are off: start the server with --hook-secret NAME, and set that secret")
        return secret

    async def _post_accept(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except (ValueError, RecursionError):
            body = None
        revision = body.get("revision") if isinstance(body, dict) else None
        if not isinstance(revision, str):
            return web.json_response({"error": 'the request must be {"revision": …}'}, status=400)
        against = self._permit(revision)
        if against is not None:
            return web.json_response({"error": against}, status=409)
        return web.json_response({"status": "accepted"})


def prove(forge: str, headers: Mapping[str, str], body: bytes, secret: bytes, now: float) -> bytes:
    """Return what identifies a delivery, whose sender knows the secret. Raises _Refused."""
    if forge == "gitlab":
        return _gitlab(headers, body, secret, now)
    names = ["X-Hub-Signature-256"]
    if forge == "gitea":
        names = ["X-Gitea-Signature", "X-Forgejo-Signature", *names]
    given = next((headers[name] for name in names if name in headers), "")
    if not given:
        raise _Refused(401, f"the request is not signed: no {names[0]}; give the webhook the secret")
    wanted = hmac.new(secret, body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(_bytes(given.removeprefix("sha256=")), wanted.encode()):
        raise _Refused(401, "the signature is wrong; give the webhook the same secret as the server")
    return wanted.encode()


def _gitlab(headers: Mapping[str, str], body: bytes, secret: bytes, now: float) -> bytes:
    if "webhook-signature" not in headers:
        if not hmac.compare_digest(_bytes(headers.get("X-Gitlab-Token", "")), secret):
            raise _Refused(401, "the token is wrong, or there is none; give the webhook the same secret as the server")
        event = headers.get("X-Gitlab-Event-UUID", headers.get("Idempotency-Key", ""))
        return hashlib.sha256(_bytes(event) + b"." + body).digest()
    identity, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not identity or not stamp.isascii() or not stamp.isdigit() or len(stamp) > 12:
        raise _Refused(401, "webhook-id or webhook-timestamp is missing")
    if abs(now - int(stamp)) > WINDOW:
        raise _Refused(401, f"the request is from another time, by more than {WINDOW:.0f} s; compare the clocks")
    signed = b".".join((_bytes(identity), stamp.encode(), body))
    wanted = [
        b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()) for key in _signing_keys(secret)
    ]
    given = [_bytes(one) for one in headers["webhook-signature"].split()[:10]]
    good = sum(
        hmac.compare_digest(one, each) for one in given for each in wanted
    )  # all of them, so that time tells nothing
    if not good:
        raise _Refused(401, "the signature is wrong; give the webhook the same secret as the server")
    return _bytes(identity)


def _signing_keys(secret: bytes) -> list[bytes]:
    """Return what a signing token may stand for: itself, and the key that `whsec_` and base64 write down."""
    keys = [secret]
    if secret.startswith(b"whsec_"):
        try:
            keys.append(base64.b64decode(secret.removeprefix(b"whsec_"), validate=True))
        except binascii.Error:
            return keys
    return keys


async def _body(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        raise _Refused(415, "the content type must be application/json; choose it in the webhook's settings")
    body = bytearray()
    async for chunk in request.content.iter_chunked(65536):
        body += chunk
        if len(body) > LARGEST:
            raise _Refused(413, f"the body has more than {LARGEST >> 20} MiB; send pushes of branches only")
    return bytes(body)


def _bytes(header: str) -> bytes:
    """Return a header as it came: bytes that are not UTF-8 arrive as surrogates."""
    return header.encode("utf-8", "surrogateescape")
