"""Reading what an engine says of itself in Prometheus' text: sums by name, and nothing else.

Lenient, since every engine's own library writes it: both versions of the format, labels in any order, NaN and infinities,
lines that mean nothing here. A name decides, never a suffix or a declared type (`vllm:iteration_tokens_total` is a histogram).
Series of one name are added up over their labels, because an engine has one a rank. Rejected: prometheus_client's parser,
which refuses a whole page for one bad line, and which a node does not need otherwise.
"""

import hashlib
import math

from llmgw.agent.liveness import Pulse
from llmgw.engines.shard import MetricNames

LARGEST_PAGE = 4 << 20
"""Bytes of a page that are read; a vLLM with 8 ranks has some 400 kB."""


def sums(text: str, names: frozenset[str], only: str = "") -> dict[str, float]:
    """Return name -> sum over its series, for those of the names that have a finite value.

    `only` (`label="value"`): series with that label and another value do not count.
    """
    label = only.partition("=")[0] + '="'
    found: dict[str, float] = {}
    for line in text.splitlines():
        end = len(line)
        for mark in "{ \t":
            at = line.find(mark, 0, end)
            end = at if at >= 0 else end
        name = line[:end]
        if name not in names:
            continue
        if only and label in line and only not in line:
            continue
        value = _value(line[end:])
        if value is not None:
            found[name] = found.get(name, 0.0) + value
    return found


def _value(rest: str) -> float | None:
    """Return the number after a series' labels. A label's value may hold blanks and braces, so the last brace counts."""
    after = rest.rpartition("}")[2] if rest.startswith("{") else rest
    fields = after.split()  # the value, and perhaps a time
    try:
        value = float(fields[0]) if fields else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def pulse(names: MetricNames, page: bytes | None, activity: bytes | None) -> Pulse:
    """Return what two pages say; None for one that was not answered with 200. Of `activity` only a digest is kept."""
    digest = hashlib.blake2b(activity, digest_size=8).hexdigest() if activity is not None else ""
    if page is None:
        return Pulse(True, None, None, digest)
    wanted = frozenset(name for name in (names.running, names.waiting, *_counters(names)) if name)
    found = sums(page.decode(errors="replace"), wanted, names.only)
    load = [found[name] for name in (names.running, names.waiting) if name in found]
    counts = [found[name] for name in _counters(names) if name in found]
    in_flight = max(0, round(sum(load))) if names.running in found else None
    if names.activity and not digest:
        return Pulse(True, in_flight)  # its counters alone stand still for a whole request: what they say is nothing
    return Pulse(True, in_flight, sum(counts) if counts else None, digest)


def _counters(names: MetricNames) -> tuple[str, ...]:
    """Return what moves while tokens are made. Of their sum only a change counts, so a gauge may be among them."""
    return names.prompt_tokens, names.generation_tokens, *names.progress
