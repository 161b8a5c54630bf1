"""The context length that profiles set by their engine's own flag."""

import pytest

from llmgw.engines.context import max_model_len
from tests.builders import catalog, model, node


@pytest.mark.parametrize(
    ("args", "length"),
    [
        ([], None),
        (["--ctx-size", "4096"], 4096),
        (["-c", "4096", "--ctx-size=8192"], 8192),
        (["--ctx-size", "8192", "-np", "4"], 2048),
        (["--ctx-size", "0"], None),
        (["--ctx-size", "32k"], None),
        (["--ctx-size"], None),
    ],
)
def test_the_length_is_read_where_it_is_certain(args: list[str], length: int | None) -> None:
    wanted = catalog(node("a"), model("m", 1, *args)).models
    assert [max_model_len(one) for one in wanted.values()] == [length]
