"""Weights that the node gets for itself: before each first start, once, and given up only where it cannot help."""

from dataclasses import replace

from llmgw.agent.events import CancelFetch, Fetch, Fetched, FetchProgress, NotFetched, NotStarted, Reap, Start
from llmgw.engines.weights import UrlFetch, stored_name
from llmgw.fleet.report import Phase, Reason
from tests.unit.agent.brain import KEY, SPEC, Brain

SOURCE = UrlFetch("https://weights.test/m.gguf", "ab" * 32)
OTHER_SOURCE = UrlFetch("https://weights.test/n.gguf", "cd" * 32)
WANTED = replace(SPEC, fetch=SOURCE, weights=stored_name(SOURCE))
MIB = 1 << 20
UNREACHABLE = Reason("unreachable", "cannot reach https://weights.test/m.gguf: no route")
MISMATCH = Reason("checksum_mismatch", "it has another sha256")


def fetching() -> Brain:
    brain = Brain()
    assert brain.ordered(WANTED) == [Fetch(WANTED)]
    return brain


def test_weights_are_fetched_before_the_start_and_the_report_says_how_far_it_is() -> None:
    brain = fetching()
    assert (brain.phase, brain.report.pid, brain.report.progress) == (Phase.FETCHING, None, "")
    assert brain.report.reason == Reason("fetching", "its weights come from https://weights.test/m.gguf")
    brain.happens(FetchProgress(KEY, SOURCE, 12 * MIB, None))
    assert brain.report.progress == "12 MiB"
    assert brain.happens(FetchProgress(KEY, SOURCE, 12 * MIB, 98 * MIB)) == []
    assert brain.report.progress == "12 MiB of 98 MiB (12 %)"
    brain.happens(FetchProgress(KEY, SOURCE, 30 * 1024 * MIB, 40 * 1024 * MIB))
    assert brain.report.progress == "30 GiB of 40 GiB (75 %)"
    assert brain.happens(Fetched(KEY, SOURCE)) == [Start(WANTED, 1, "r1#1")]


def test_a_restart_does_not_fetch_again() -> None:
    brain = fetching()
    brain.happens(Fetched(KEY, SOURCE))
    brain.starts(WANTED)
    brain.crashes()
    brain.is_gone()
    assert brain.passes(2.0) == [Start(WANTED, 2, "r1#1")]


def test_weights_that_vanished_are_fetched_again_and_another_hindrance_fetches_nothing() -> None:
    brain = fetching()
    brain.happens(Fetched(KEY, SOURCE))
    brain.happens(NotStarted(KEY, Reason("port_taken", "port 20000 is taken")))
    assert brain.passes(2.0) == [Start(WANTED, 1, "r1#1")]
    assert brain.phase is Phase.WAITING
    brain.happens(NotStarted(KEY, Reason("weights_missing", "no file")))
    assert brain.passes(2.0) == [Fetch(WANTED)]


def test_a_failed_fetch_is_waited_for_longer_and_longer_and_never_given_up() -> None:
    brain = fetching()
    for wait in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        assert brain.happens(NotFetched(KEY, SOURCE, UNREACHABLE)) == []
        assert (brain.phase, brain.report.reason, brain.report.failures) == (Phase.WAITING, UNREACHABLE, 0)
        assert brain.passes(wait - 0.1) == []
        assert brain.passes(0.1) == [Fetch(WANTED)]
        assert brain.report.reason == Reason("fetching", f"again, after: {UNREACHABLE.text}")
    brain.happens(Fetched(KEY, SOURCE))
    brain.happens(NotStarted(KEY, Reason("weights_missing", "no file")))
    brain.passes(2.0)
    brain.happens(NotFetched(KEY, SOURCE, UNREACHABLE))
    assert brain.passes(2.0) == [Fetch(WANTED)], "a fetch that succeeded forgets the failures before it"


def test_wrong_content_is_not_downloaded_for_ever_and_another_source_clears_it() -> None:
    brain = fetching()
    for _ in range(3):
        brain.happens(NotFetched(KEY, SOURCE, MISMATCH))
        assert brain.passes(60.0) == [Fetch(WANTED)]
    brain.happens(NotFetched(KEY, SOURCE, MISMATCH))
    assert (brain.phase, brain.report.reason) == (Phase.FAILED, MISMATCH)
    assert brain.passes(86400.0) == []
    other = replace(WANTED, fetch=OTHER_SOURCE)
    assert brain.ordered(other) == [Fetch(other)]


def test_an_order_that_leaves_the_shard_out_ends_its_fetch() -> None:
    brain = fetching()
    assert brain.ordered() == [CancelFetch(KEY), Reap(KEY)]
    assert brain.empty
    assert brain.happens(Fetched(KEY, SOURCE)) == []
    assert brain.empty


def test_another_source_ends_the_fetch_and_begins_another_whose_words_alone_count() -> None:
    brain = fetching()
    other = replace(WANTED, fetch=OTHER_SOURCE)
    assert brain.ordered(other) == [CancelFetch(KEY), Fetch(other)]
    assert brain.happens(Fetched(KEY, SOURCE)) == []
    assert brain.happens(NotFetched(KEY, SOURCE, UNREACHABLE)) == []
    assert brain.phase is Phase.FETCHING
    assert brain.happens(Fetched(KEY, OTHER_SOURCE)) == [Start(other, 1, "r1#1")]


def test_a_change_that_is_not_of_the_source_leaves_the_fetch_alone() -> None:
    brain = fetching()
    moved = replace(WANTED, port=20009)
    assert brain.ordered(moved) == []
    assert brain.happens(Fetched(KEY, SOURCE)) == [Start(moved, 1, "r1#1")]


def test_a_source_that_is_dropped_from_the_spec_needs_no_fetch() -> None:
    brain = fetching()
    assert brain.ordered(SPEC) == [CancelFetch(KEY), Start(SPEC, 1, "r1#1")]


def test_a_fetch_without_a_sign_of_life_is_begun_anew() -> None:
    brain = fetching()
    for _ in range(5):
        assert brain.passes(100.0) == []
        brain.happens(FetchProgress(KEY, SOURCE, 5, None))
    assert brain.passes(179.0) == []
    assert brain.passes(1.0) == [CancelFetch(KEY)]
    assert (brain.phase, brain.report.reason.code) == (Phase.WAITING, "fetch_stalled")
    assert brain.passes(2.0) == [Fetch(WANTED)]
