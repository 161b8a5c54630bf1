"""The names under which fetched weights are kept: the same bytes the same name, other bytes another one."""

from llmgw.engines.weights import HubFetch, UrlFetch, path_of, source_of, stored_name, told, unpinned
from llmgw.spec.model import Weights

COMMIT = "c0ffee" * 6 + "beef"


def test_a_files_name_is_of_its_content_and_keeps_the_suffix() -> None:
    assert (
        stored_name(UrlFetch("https://h/a/b/model-q4.gguf?download=true", "AB12" * 16))
        == "AB12AB12AB12AB12-model-q4.gguf"
    )
    assert stored_name(UrlFetch("https://h", "0" * 64)) == "0" * 16 + "-weights"
    assert stored_name(UrlFetch("https://h/x/..%2F..%2Fetc", "0" * 64)) == "0" * 16 + "-.._2F.._2Fetc"
    assert "/" not in stored_name(UrlFetch("https://h/" + "é" * 500 + ".gguf", "0" * 64))


def test_a_repository_is_kept_by_its_commit_and_the_choice_of_files() -> None:
    whole = HubFetch("Org/Name-7B", "c0ffee" * 6 + "0000")
    assert stored_name(whole) == "Org--Name-7B-c0ffeec0ffeec0ff"
    some = HubFetch("Org/Name-7B", whole.commit, ("*.gguf", "a.json"))
    assert stored_name(some).startswith("Org--Name-7B-c0ffeec0ffeec0ff-")
    assert stored_name(some) == stored_name(HubFetch("Org/Name-7B", whole.commit, ("a.json", "*.gguf")))
    assert stored_name(some) != stored_name(HubFetch("Org/Name-7B", whole.commit, ("*.gguf",)))


def test_a_source_is_told_as_it_was_given() -> None:
    assert told(HubFetch("Org/Name", "ab" * 20)) == "hf Org/Name@abababababab"
    assert told(UrlFetch("https://h/m.gguf", "0" * 64)) == "https://h/m.gguf"


def test_a_repository_at_a_commit_is_a_source_and_lies_in_a_directory_or_is_a_file_in_it() -> None:
    whole = Weights(hf="Org/Name", revision=COMMIT)
    source = source_of(whole)
    assert source == HubFetch("Org/Name", COMMIT)
    assert path_of(whole) == stored_name(source)
    one = Weights(hf="Org/Name", revision=COMMIT, files=["*.json", "q4/m.gguf", "q8/m.gguf"])
    source = source_of(one)
    assert source == HubFetch("Org/Name", COMMIT, ("*.json", "q4/m.gguf", "q8/m.gguf"))
    assert path_of(one) == f"{stored_name(source)}/q4/m.gguf"
    assert unpinned(whole) == unpinned(one) == ""


def test_a_branch_is_no_source() -> None:
    for revision in (None, "main", "v1.0", COMMIT[:12], COMMIT.upper()):
        weights = Weights(hf="Org/Name", revision=revision)
        assert source_of(weights) is None
        assert path_of(weights) is None
        assert f"git ls-remote https://huggingface.co/Org/Name {revision or 'main'}`" in unpinned(weights)


def test_other_weights_lie_where_they_are_said_to() -> None:
    assert path_of(Weights(path="/w/m.gguf")) == "/w/m.gguf"
    url = Weights(url="https://h/m.gguf", sha256="ab" * 32)
    assert path_of(url) == "abababababababab-m.gguf"
    assert unpinned(Weights(path="m.gguf")) == unpinned(url) == ""
