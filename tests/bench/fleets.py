"""Random fleets for the measures of placement, the best that can be done with each, and simpler ways to place.

A fleet is nodes of four classes of card, on fabrics, and models whose replicas take 1, 2, 4 or 8 cards of one node or span
2 or 4 nodes; together they ask for 70 % to 115 % of the cards. `optimum` says how many replicas could run at most: an integer
program over *patterns* (what one node may hold at once), with nodes that are alike counted and not told apart, so that
HiGHS solves it in milliseconds. The other functions place one replica after the other by a simple rule.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from tests.builders import Object, cluster, model, node
from tests.cards import A100, CLASSES, H100, L40S, RTX, gpus, on_cards

KINDS = {"h100": H100, "l40s": L40S, "a100": A100, "rtx4090": RTX}


@dataclass(frozen=True, slots=True)
class Shape:
    """What one replica takes: so many cards of a class on each of so many nodes."""

    gpu_class: str
    nodes: int
    cards: int


@dataclass(frozen=True, slots=True)
class Machine:
    """A node."""

    name: str
    gpu_class: str
    cards: int
    fabric: str


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes, and models with the shape of their replicas and how many are wanted."""

    machines: tuple[Machine, ...]
    models: tuple[tuple[str, Shape, int], ...]

    @property
    def wanted(self) -> int:
        """Replicas of all models."""
        return sum(count for _, _, count in self.models)

    def objects(self) -> list[Object]:
        """Return it as a cluster directory."""
        nodes = [node(one.name, fabric=one.fabric) for one in self.machines]
        models = [
            model(
                name,
                count,
                profile=on_cards(shape.cards, shape.gpu_class, **({"nodes": shape.nodes} if shape.nodes > 1 else {})),
            )
            for name, shape, count in self.models
        ]
        return [cluster(gpu_classes=CLASSES), *nodes, *models]

    def cards(self) -> dict[str, tuple]:
        """Return the cards of every node."""
        return {one.name: gpus(one.name, one.cards, KINDS[one.gpu_class]) for one in self.machines}


def fleet(seed: int) -> Fleet:
    """Return the fleet of a seed."""
    chance = Random(seed)
    machines = []
    for number in range(chance.randint(20, 80)):
        gpu_class = chance.choice(list(KINDS))
        cards = 4 if chance.random() < 0.25 else 8
        machines.append(Machine(f"n{number:02d}", gpu_class, cards, f"{gpu_class}-{chance.randint(1, 2)}"))
    load = chance.uniform(0.7, 1.15)
    models = []
    for gpu_class in KINDS:
        left = load * sum(one.cards for one in machines if one.gpu_class == gpu_class)
        while left > 0:
            shape = _shape(chance, gpu_class)
            count = min(chance.choice((1, 1, 2, 3, 4)), int(left // (shape.nodes * shape.cards)))
            if count:
                models.append((f"m{len(models):03d}", shape, count))
            left -= max(1, count * shape.nodes * shape.cards)
    return Fleet(tuple(machines), tuple(models))


def _shape(chance: Random, gpu_class: str) -> Shape:
    nodes = chance.choices((1, 2, 4), (85, 10, 5))[0]
    cards = chance.choice((1, 2, 4, 8)) if nodes == 1 else chance.choice((4, 8))
    return Shape(gpu_class, nodes, cards)


def optimum(one: Fleet) -> int:
    """Return the most replicas that can run at once, whichever they are."""
    return sum(_Program(one, gpu_class).most() for gpu_class in KINDS)


def optimum_by_rank(one: Fleet) -> int:
    """Return the most that can run if no model's second replica may cost another model its first, and so on."""
    return sum(_Program(one, gpu_class).most_by_rank() for gpu_class in KINDS)


class _Program:
    """The integer program of one class.

    Its variables: how many nodes of a group hold a pattern; how many replicas of a shape run on a fabric; and how many of
    those are the models' first, second, … (`rank`).
    """

    def __init__(self, one: Fleet, gpu_class: str) -> None:
        models = [each for each in one.models if each[1].gpu_class == gpu_class]
        self._wanted = Counter((shape, rank) for _, shape, count in models for rank in range(count))
        shapes = sorted({shape for shape, _ in self._wanted}, key=lambda shape: (shape.nodes, shape.cards))
        groups = Counter((m.fabric, m.cards) for m in one.machines if m.gpu_class == gpu_class)
        held = [(group, pattern) for group in groups for pattern in _patterns(shapes, group[1])]
        runs = list(product(shapes, sorted({fabric for fabric, _ in groups})))
        self._ranks = list(self._wanted)
        self._size = len(held) + len(runs) + len(self._ranks)
        self._rows: list[list[float]] = []
        self._upper: list[float] = []
        for group, count in groups.items():  # no more nodes than there are
            self._at_most(
                [float(known == group) for known, _ in held], [0.0] * len(runs), [0.0] * len(self._ranks), count
            )
        for run in runs:  # a replica needs as many parts as it spans nodes, on one fabric
            shape, fabric = run
            at = shapes.index(shape)
            parts = [-float(pattern[at]) if known[0] == fabric else 0.0 for known, pattern in held]
            self._at_most(parts, [float(shape.nodes) * (each == run) for each in runs], [0.0] * len(self._ranks), 0)
        for shape in shapes:  # what is counted runs
            counted = [float(known == shape) for known, _ in self._ranks]
            self._at_most([0.0] * len(held), [-float(known == shape) for known, _ in runs], counted, 0)

    def most(self) -> int:
        """Return how many replicas can run."""
        return self._solve([1.0] * len(self._ranks)) if self._rows else 0

    def most_by_rank(self) -> int:
        """Return how many can run if as many first ones as possible do, then as many second ones, and so on."""
        total = 0
        for rank in range(max((rank for _, rank in self._ranks), default=-1) + 1):
            goal = [float(known == rank) for _, known in self._ranks]
            reached = self._solve(goal) if self._rows else 0
            total += reached
            before = self._size - len(self._ranks)
            self._at_most([0.0] * before, [], [-each for each in goal], -reached)
        return total

    def _at_most(self, held: list[float], runs: list[float], ranks: list[float], upper: float) -> None:
        self._rows.append(held + runs + ranks)
        self._upper.append(upper)

    def _solve(self, goal: list[float]) -> int:
        before = self._size - len(goal)
        most = np.array([np.inf] * before + [float(self._wanted[each]) for each in self._ranks])
        found = milp(
            np.array([0.0] * before + [-each for each in goal]),
            constraints=LinearConstraint(np.array(self._rows), -np.inf, np.array(self._upper)),
            integrality=np.ones(self._size),
            bounds=Bounds(0, most),
        )
        assert found.success, found.message
        return round(-found.fun)


def _patterns(shapes: list[Shape], cards: int) -> Iterator[tuple[int, ...]]:
    """Yield what a node with so many cards may hold: a number of parts of each shape."""
    for pattern in product(*(range(cards // shape.cards + 1) for shape in shapes)):
        if 0 < sum(count * shape.cards for count, shape in zip(pattern, shapes, strict=True)) <= cards:
            yield pattern


def one_by_one(one: Fleet, rank: Callable[[Machine, int, int], tuple]) -> int:
    """Return how many replicas run if they are placed in the order of the models, on the nodes that `rank` puts first.

    `rank` is given a node, how many of its cards are free and how many replicas it has.
    """
    free = {machine.name: machine.cards for machine in one.machines}
    load: Counter[str] = Counter()
    placed = 0
    for _, shape, count in one.models:
        for _ in range(count):
            fits = [m for m in one.machines if m.gpu_class == shape.gpu_class and free[m.name] >= shape.cards]
            fits.sort(key=lambda m: rank(m, free[m.name], load[m.name]))
            by_fabric: dict[str, list[Machine]] = {}
            for machine in fits:
                by_fabric.setdefault(machine.fabric if shape.nodes > 1 else "", []).append(machine)
            chosen = next((found[: shape.nodes] for found in by_fabric.values() if len(found) >= shape.nodes), [])
            for machine in chosen:
                free[machine.name] -= shape.cards
                load[machine.name] += 1
            placed += bool(chosen)
    return placed


def first_fit(one: Fleet) -> int:
    """Take the first node by name that has room."""
    return one_by_one(one, lambda machine, free, load: (machine.name,))


def spread(one: Fleet) -> int:
    """Take the node with the fewest replicas, as a scheduler that only evens out does."""
    return one_by_one(one, lambda machine, free, load: (load, machine.name))


def gpustack(one: Fleet) -> int:
    """Take replicas from one queue and score nodes by SPREAD, GPUStack's default: the least used share of a node first."""
    return one_by_one(one, lambda machine, free, load: (1 - free / machine.cards, load, machine.name))
