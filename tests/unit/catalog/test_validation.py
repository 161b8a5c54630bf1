"""How errors are told of types that no kind uses yet, so that a new field in `spec/` reads well from its first day."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from llmgw.catalog.reader import read_document
from llmgw.catalog.validation import validate
from llmgw.spec.common import Size, SpecModel


class Hub(SpecModel):
    """One branch."""

    via: Literal["hub"]
    repo: str


class File(SpecModel):
    """The other."""

    via: Literal["file"]
    path: str


class Odd(SpecModel):
    """Fields of every sort."""

    strategy: Literal["auto", "surge", "recreate"] = "auto"
    level: Literal[1, 2] = 1
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    code: Annotated[str, StringConstraints(min_length=2, max_length=4, pattern="^[A-Z]+$")] = "AB"
    pair: Annotated[list[int], Field(max_length=2)] = Field(default_factory=list)
    sizes: dict[str, Size] = Field(default_factory=dict)
    source: Annotated[Hub | File, Field(discriminator="via")] | None = None

    @model_validator(mode="after")
    def _rule(self) -> "Odd":
        if self.share == 0.25:
            raise PydanticCustomError("no_quarters", "A share of a quarter is odd.")
        return self


CASES = {
    "strategy: serge": "1:11 'strategy' cannot be 'serge', did you mean 'surge'? [unknown-value]",
    "strategy: x": "1:11 'strategy' cannot be 'x'; write auto, surge or recreate [unknown-value]",
    "strategy: 5": "1:11 'strategy' expects auto, surge or recreate, found the number 5 [wrong-type]",
    "level: 3": "1:8 'level' expects 1 or 2, found the number 3 [wrong-type]",
    "level: x": "1:8 'level' cannot be 'x'; write 1 or 2 [unknown-value]",
    "share: half": "1:8 'share' expects a number, found the text 'half' [wrong-type]",
    "share: 0": "1:8 'share' must be more than 0, found 0 [out-of-range]",
    "share: 1": "1:8 'share' must be less than 1, found 1 [out-of-range]",
    "share: 0.25": "1:1 a share of a quarter is odd [no-quarters]",
    "code: A": "1:7 'code' needs 2 characters or more, found 1 [wrong-value]",
    "code: ABCDE": "1:7 'code' takes 4 characters at most, found 5 [wrong-value]",
    "code: ab": "1:7 'ab' is not what it must be; it must match ^[A-Z]+$ [wrong-value]",
    "pair: [1, 2, 3]": "1:7 'pair' takes 2 items at most, found 3 [out-of-range]",
    "pair: [1, x]": "1:11 item 2 of 'pair' expects a whole number, found the text 'x' [wrong-type]",
    "sizes: {a: 5}": (
        "1:12 'a' expects a size with a binary unit, as in 512MiB or 16GiB, found the number 5; "
        "write the unit, as in 5GiB or 5MiB [wrong-type]"
    ),
    "source: {via: hub, repo: 5}": "1:26 'repo' expects text, found the number 5; write \"5\" in quotes [wrong-type]",
    "source: {via: hub, rep: x, repo: y}": "1:20 unknown key 'rep', did you mean 'repo'? [unknown-key]",
    "source: {via: file}": "1:9 missing key 'path' [missing-key]",
    "source: {path: x}": "1:9 missing key 'via' [missing-key]",
    "source: {via: fil}": "1:15 'via' cannot be 'fil', did you mean 'file'? [unknown-value]",
    "source: {via: 5}": "1:15 'via' cannot be '5'; write hub or file [unknown-value]",
}


@pytest.mark.parametrize(("text", "expected"), CASES.items(), ids=CASES.keys())
def test_told(text: str, expected: str) -> None:
    document = read_document("x.yaml", text.encode()).document
    assert document is not None
    spec, problems = validate(document, Odd)
    assert spec is None
    assert [f"{problem} [{problem.code}]".removeprefix("x.yaml:") for problem in problems] == [expected]
