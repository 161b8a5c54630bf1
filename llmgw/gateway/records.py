"""`Ledger`: what requests cost, added up until the control plane has it.

Requests are added to sums; from time to time the sums are closed into a batch with a number, and new ones begun. A batch is
held until the control plane says that it is kept, and sent again until then, over another connection or to another control
plane if need be: whoever keeps it knows by its number that it came before. So nothing is lost while the control plane is away,
and memory grows by the hours of that, not by the requests.

Tokens that no engine reported are worked out: of a stream, an event is about a token; of all else, four bytes are. An image in
a prompt would be a million tokens by that, so the model's longest context is the most that one request has.
"""

from llmgw.base.time import Clock
from llmgw.fleet.spent import HOUR, Spent, SpentBatch
from llmgw.fleet.table import RoutedModel
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.usage import Tokens
from llmgw.routing.access import Caller
from llmgw.routing.request import RequestShape, Route

MOST_ROWS = 5000
"""Rows of a batch, which must fit into a message; the rest goes with the next."""
BYTES_A_TOKEN = 4
LONGEST = 131_072
"""Tokens of a prompt, where the longest that the model takes is not known."""
WRITING: frozenset[Route] = frozenset({"chat", "completions", "messages", "responses"})
READING: frozenset[Route] = WRITING | {"embeddings"}
"""Routes whose bodies are text for the most part: what audio and images cost cannot be told from their size."""

_Name = tuple[str, str, str, int]


class Ledger:
    """One for a gateway. Use from its event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sums: dict[_Name, list[int]] = {}
        self._waiting: SpentBatch | None = None
        self._sequence = 0

    @property
    def empty(self) -> bool:
        """Whether the control plane has all of it."""
        return self._waiting is None and not self._sums

    @property
    def requests(self) -> int:
        """How many requests the control plane does not have yet."""
        waiting = sum(one.requests for one in self._waiting.rows) if self._waiting is not None else 0
        return waiting + sum(sums[0] for sums in self._sums.values())

    def add(self, model: RoutedModel, shape: RequestShape, caller: Caller, outcome: Outcome) -> None:
        """Add a request that is over."""
        name = (caller.tenant, caller.key, model.name, int(self._clock.now()) // HOUR)
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = [0, 0, 0, 0, 0, 0]
        sums[0] += 1
        sums[1] += outcome.status >= 400
        tokens = outcome.tokens
        if tokens is None:
            if not outcome.worked:
                return
            tokens = estimated(shape, outcome, model.max_model_len or LONGEST)
            sums[5] += tokens.prompt + tokens.completion
        sums[2] += tokens.prompt
        sums[3] += tokens.completion
        sums[4] += tokens.cached

    def batch(self, source: str) -> SpentBatch | None:
        """Return the batch that is to be sent, the same until it is kept; None if there is nothing."""
        if self._waiting is None and self._sums:
            names = list(self._sums)[:MOST_ROWS]
            rows = tuple(Spent(*name, *self._sums.pop(name)) for name in names)
            self._sequence += 1
            self._waiting = SpentBatch(source, self._sequence, rows)
        return self._waiting

    def kept(self, sequence: int) -> None:
        """Take note that a batch is kept."""
        if self._waiting is not None and self._waiting.sequence == sequence:
            self._waiting = None


def estimated(shape: RequestShape, outcome: Outcome, longest: int) -> Tokens:
    """Return about what a request cost of which no engine said it."""
    prompt = min(shape.prompt_bytes // BYTES_A_TOKEN, longest) if shape.route in READING else 0
    if shape.route not in WRITING:
        return Tokens(prompt, 0)
    written = outcome.pieces if shape.stream else outcome.length // BYTES_A_TOKEN
    return Tokens(prompt, min(written, longest))
