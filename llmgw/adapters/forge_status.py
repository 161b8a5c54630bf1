"""Shows commit statuses on GitHub, GitLab and Gitea (Forgejo), each by its own API. One request a status, with a limit.

What an answer means is one table for the three: who is not let in, or asks for a repository that is not there, is mended by
a person, so it is tried again only now and then; a 422 (GitHub's limit of 1,000 statuses a commit, a commit that it does
not know) will never do for this commit. Redirects are not followed, since the token would go along.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import aiohttp

from llmgw.base.redact import redact
from llmgw.base.time import Clock
from llmgw.ports.forges import CommitStatus, Mark, Never, Outcome, Shown, TryAgain

LIMIT = 15.0
"""Seconds for one request."""
MENDED_BY_PEOPLE = 600.0
"""Seconds between two tries where only a person can help."""
LONGEST_WAIT = 3600.0
LONGEST = 140
"""Characters of a description that GitHub takes."""
APIS = {"github": "https://api.github.com", "gitlab": "https://gitlab.com/api/v4", "gitea": ""}
_REPOSITORY = re.compile(r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+$")


@dataclass(frozen=True, slots=True)
class ForgeSettings:
    """Which repository of which forge."""

    kind: str
    """`github`, `gitlab` or `gitea`."""
    api: str
    """URL of its API; empty for that of the public one."""
    repository: str
    """As in `owner/name`."""
    secret: str
    """Name of the secret that holds the token."""

    def check(self) -> None:
        """Raise ValueError, with one line that says what to do."""
        if self.kind not in APIS:
            raise ValueError(f"--forge {self.kind} is not known; use {', '.join(APIS)}")
        if not _REPOSITORY.match(self.repository):
            raise ValueError("--forge needs --forge-repository, as in OWNER/NAME")
        if not self.secret:
            raise ValueError("--forge needs --forge-secret, the name of the secret that holds its token")
        parts = urlsplit(self.url)
        local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
        if not parts.hostname or not (parts.scheme == "https" or local):
            raise ValueError("--forge-api must be the https URL of its API, as in https://gitea.example.org/api/v1")
        if parts.username is not None or parts.query:
            raise ValueError(f"--forge-api {redact(self.api)} holds credentials; name the secret with --forge-secret")

    @property
    def url(self) -> str:
        """URL of the API."""
        return (self.api or APIS.get(self.kind, "")).rstrip("/")


class ForgeApi:
    """A `Forge`."""

    def __init__(self, settings: ForgeSettings, secret_of: Callable[[str], str | None], clock: Clock) -> None:
        self._settings = settings
        self._secret_of = secret_of
        self._clock = clock

    async def show(self, status: CommitStatus) -> Outcome:
        """Show a status."""
        token = self._secret_of(self._settings.secret)
        if not token:
            return TryAgain(f"the secret {self._settings.secret} is not there", MENDED_BY_PEOPLE)
        url, headers, body = self._request(status, token)
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT)) as session,
                session.post(url, json=body, headers=headers, allow_redirects=False) as answer,
            ):
                said = redact((await answer.content.read(2000)).decode("utf-8", "replace"), (token,))
                return self._outcome(answer, " ".join(said.split())[:200])
        except TimeoutError:
            return TryAgain(f"{self._settings.url} did not answer within {LIMIT:.0f} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return TryAgain(f"{self._settings.url} cannot be reached: {redact(str(error), (token,))[:200]}")

    def _request(self, status: CommitStatus, token: str) -> tuple[str, dict[str, str], dict[str, str]]:
        settings, revision = self._settings, status.revision
        body = {"state": status.mark.value, "context": status.context, "description": status.description[:LONGEST]}
        match settings.kind:
            case "gitlab":
                url = f"{settings.url}/projects/{quote(settings.repository, safe='')}/statuses/{revision}"
                headers = {"PRIVATE-TOKEN": token}
                if status.mark is Mark.FAILURE:
                    body["state"] = "failed"
            case "gitea":
                url = f"{settings.url}/repos/{settings.repository}/statuses/{revision}"
                headers = {"Authorization": f"token {token}"}
            case _:
                url = f"{settings.url}/repos/{settings.repository}/statuses/{revision}"
                headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
        return url, {**headers, "User-Agent": "llmgw"}, body

    def _outcome(self, answer: aiohttp.ClientResponse, said: str) -> Outcome:
        where = f"{self._settings.kind} answered {answer.status}"
        match answer.status:
            case 200 | 201:
                return Shown()
            case 400 if "Cannot transition status" in said:  # GitLab, of a status that is shown already
                return Shown()
            case 403 | 429 if self._rate_limit(answer) is not None:
                return TryAgain(f"{where}: too many requests", self._rate_limit(answer))
            case 401 | 403:
                return TryAgain(
                    f"{where}: the secret {self._settings.secret} may not set statuses ({said})", MENDED_BY_PEOPLE
                )
            case 404:
                return TryAgain(
                    f"{where}: it knows no repository {self._settings.repository}, or hides it from this token",
                    MENDED_BY_PEOPLE,
                )
            case 400 | 409 | 422:
                return Never(f"{where}: {said}")
            case status if status >= 500:
                return TryAgain(f"{where}: {said}")
            case _:
                return TryAgain(f"{where}: {said}", MENDED_BY_PEOPLE)

    def _rate_limit(self, answer: aiohttp.ClientResponse) -> float | None:
        """Return for how long the forge wants to be left alone, if it says."""
        after = answer.headers.get("Retry-After", "")
        if after.isascii() and after.isdigit():
            return min(float(after[:9]), LONGEST_WAIT)
        reset = answer.headers.get("X-RateLimit-Reset", "")
        if answer.headers.get("X-RateLimit-Remaining") == "0" and reset.isascii() and reset.isdigit():
            return min(max(1.0, float(reset[:12]) - self._clock.now()), LONGEST_WAIT)
        return 60.0 if answer.status == 429 else None
