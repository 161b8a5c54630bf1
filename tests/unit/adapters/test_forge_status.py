"""Showing a commit status, on a stub forge over real HTTP: the failures first."""

from collections.abc import AsyncIterator

import pytest

from llmgw.adapters import forge_status
from llmgw.adapters.forge_status import MENDED_BY_PEOPLE, ForgeApi, ForgeSettings
from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.ports.forges import CommitStatus, Mark, Never, Outcome, Shown, TryAgain
from tests.fakes.forge import TOKEN, StubForge

SHA = Revision("a" * 40)
CONTEXT = "llmgw/home/apply"
PENDING = CommitStatus(SHA, CONTEXT, Mark.PENDING, "in force")
FAILURE = CommitStatus(SHA, CONTEXT, Mark.FAILURE, "not valid: " + "x" * 300)


class Clock:
    def now(self) -> Instant:
        return Instant(1_000_000.0)


class Desk:
    def __init__(self, stub: StubForge, url: str) -> None:
        self.stub = stub
        self.url = url

    def api(self, kind: str = "github", token: str | None = TOKEN) -> ForgeApi:
        settings = ForgeSettings(kind, self.url, "team/cluster", "FORGE")
        settings.check()
        return ForgeApi(settings, {"FORGE": token}.get, Clock())

    async def answered(self, status: int, headers: dict[str, str] | None = None, text: str = "") -> Outcome:
        self.stub.answers = [(status, headers or {}, text)]
        return await self.api().show(PENDING)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    stub = StubForge()
    yield Desk(stub, await stub.start())
    await stub.stop()


@pytest.mark.parametrize("token", [None, ""])
async def test_without_a_token_nothing_is_sent(desk: Desk, token: str | None) -> None:
    outcome = await desk.api(token=token).show(PENDING)
    assert outcome == TryAgain("the secret FORGE is not there", MENDED_BY_PEOPLE)
    assert desk.stub.requests == []


async def test_who_is_not_let_in_is_told_whose_secret_it_is_and_never_what_it_is(desk: Desk) -> None:
    outcome = await desk.api(token="wr0ng").show(PENDING)
    assert isinstance(outcome, TryAgain)
    assert outcome.after == MENDED_BY_PEOPLE
    assert "the secret FORGE may not set statuses" in outcome.reason
    echoed = await desk.answered(401, text=f"bad token {TOKEN}, https://u:{TOKEN}@h/")
    assert isinstance(echoed, TryAgain)
    assert TOKEN not in echoed.reason


async def test_a_repository_that_is_not_there_waits_for_a_person(desk: Desk) -> None:
    outcome = await desk.answered(404)
    assert isinstance(outcome, TryAgain)
    assert (outcome.after, "team/cluster" in outcome.reason) == (MENDED_BY_PEOPLE, True)


@pytest.mark.parametrize("status", [400, 409, 422])
async def test_what_will_never_do_is_not_tried_again(desk: Desk, status: int) -> None:
    outcome = await desk.answered(status, text="This SHA and context has reached the maximum number of statuses.")
    assert isinstance(outcome, Never)
    assert "maximum number" in outcome.reason


@pytest.mark.parametrize(
    ("status", "headers", "after"),
    [
        (429, {"Retry-After": "17"}, 17.0),
        (403, {"Retry-After": "17"}, 17.0),
        (429, {"Retry-After": "99999999"}, 3600.0),
        (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 60.0),
        (429, {}, 60.0),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1000100"}, 100.0),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "5"}, 1.0),
    ],
)
async def test_a_forge_that_wants_to_be_left_alone_is(
    desk: Desk, status: int, headers: dict[str, str], after: float
) -> None:
    outcome = await desk.answered(status, headers)
    assert isinstance(outcome, TryAgain)
    assert (outcome.after, "too many requests" in outcome.reason) == (after, True)


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_forge_that_is_broken_is_tried_again_by_our_own_pace(desk: Desk, status: int) -> None:
    outcome = await desk.answered(status, text="oops")
    assert isinstance(outcome, TryAgain)
    assert outcome.after is None


async def test_a_redirect_is_not_followed_with_the_token(desk: Desk) -> None:
    outcome = await desk.answered(307, {"Location": f"{desk.url}/repos/other/place/statuses/{SHA}"})
    assert isinstance(outcome, TryAgain)
    assert len(desk.stub.requests) == 1


async def test_a_forge_that_says_nothing_or_is_not_there(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forge_status, "LIMIT", 0.1)
    desk.stub.answers = [None]
    outcome = await desk.api().show(PENDING)
    assert isinstance(outcome, TryAgain)
    assert "did not answer" in outcome.reason
    await desk.stub.stop()
    outcome = await desk.api().show(PENDING)
    assert isinstance(outcome, TryAgain)
    assert "cannot be reached" in outcome.reason


@pytest.mark.parametrize(
    ("kind", "path", "failure"),
    [
        ("github", f"/repos/team/cluster/statuses/{SHA}", "failure"),
        ("gitea", f"/repos/team/cluster/statuses/{SHA}", "failure"),
        ("gitlab", f"/projects/team%2Fcluster/statuses/{SHA}", "failed"),
    ],
)
async def test_each_forge_is_spoken_to_in_its_words(desk: Desk, kind: str, path: str, failure: str) -> None:
    assert await desk.api(kind).show(PENDING) == Shown()
    assert await desk.api(kind).show(PENDING) == Shown(), "which GitLab refuses, as it is shown already"
    assert await desk.api(kind).show(FAILURE) == Shown()
    assert {path for path, _ in desk.stub.requests} == {path}
    shown = desk.stub.shown[SHA, CONTEXT]
    assert shown[0] == ("pending", "in force")
    assert shown[-1][0] == failure
    assert len(shown[-1][1]) == 140


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ForgeSettings("bitbucket", "", "a/b", "S"), "use github, gitlab, gitea"),
        (ForgeSettings("gitea", "", "a/b", "S"), "--forge-api"),
        (ForgeSettings("github", "http://h/api", "a/b", "S"), "https URL"),
        (ForgeSettings("github", "https://u:hush@h/api", "a/b", "S"), "--forge-secret"),
        (ForgeSettings("github", "", "a", "S"), "OWNER/NAME"),
        (ForgeSettings("github", "", "a/../b?", "S"), "OWNER/NAME"),
        (ForgeSettings("github", "", "a/b", ""), "--forge-secret"),
    ],
)
def test_what_is_wrongly_set_is_refused(settings: ForgeSettings, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        settings.check()
    assert "hush" not in str(refused.value)
