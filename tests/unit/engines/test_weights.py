"""The names under which fetched weights are kept: the same bytes the same name, other bytes another one."""

from llmgw.engines.weights import HubFetch, UrlFetch, stored_name, told


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
