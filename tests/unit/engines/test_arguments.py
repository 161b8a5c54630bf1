"""The command lines against parsers that were written from the engines' own, and refuse what those refuse."""

import pytest

from tests.fakes.engine import KINDS, parse_as
from tests.unit.engines.test_command_lines import CASES, shards

PARSED = [case for case in CASES if case.partition("_")[0] in KINDS]


@pytest.mark.parametrize("case", PARSED)
def test_each_engine_takes_what_it_is_given(case: str) -> None:
    kind = case.partition("_")[0]
    for spec in shards(case):
        options, _ = parse_as(kind, KINDS[kind](), list(spec.args))
        assert options.alias == "m"


@pytest.mark.parametrize(
    ("case", "more", "status"),
    [
        ("vllm", ["--no-such-flag"], 2),
        ("vllm_two_nodes", ["--distributed-executor-backend", "ray"], 1),
        ("sglang_data_parallel", ["--nccl-port", "20001"], 1),
        ("sglang_two_nodes", ["--dp-size", "2"], 1),
        ("tei", ["--enable-metrics"], 2),
    ],
)
def test_and_refuses_what_the_real_one_refuses(case: str, more: list[str], status: int) -> None:
    kind = case.partition("_")[0]
    with pytest.raises(SystemExit) as ended:
        parse_as(kind, KINDS[kind](), [*shards(case)[0].args, *more])
    assert ended.value.code == status


def test_a_follower_of_vllm_may_not_be_told_how_many_api_servers_to_start() -> None:
    with pytest.raises(SystemExit):
        parse_as("vllm", KINDS["vllm"](), [*shards("vllm_two_nodes")[1].args, "--api-server-count", "1"])
