"""The line before busy replicas: its order, and when it says to come again."""

from llmgw.routing.line import LONGEST_WAIT, Line


def test_each_model_has_its_line_and_the_one_whose_first_waited_longest_comes_first() -> None:
    line: Line[str] = Line()
    for model, one, now in (("b", "b1", 1.0), ("a", "a1", 2.0), ("b", "b2", 3.0)):
        line.join(model, one, now)
    assert (len(line), line.models(), line.first("b"), line.waiting("b"), line.waiting("c")) == (
        3,
        ["b", "a"],
        "b1",
        2,
        0,
    )
    line.leave("b", "b1")
    assert (len(line), line.models(), line.first("b")) == (2, ["a", "b"], "b2")
    line.leave("b", "b2")
    line.leave("a", "a1")
    assert (len(line), line.models()) == (0, [])


def test_a_wait_is_the_length_of_the_line_at_the_pace_of_late() -> None:
    line: Line[int] = Line()
    assert line.seconds("m") == 1, "nothing is known"
    for number in range(4):
        line.join("m", number, 0.0)
    for number in range(2):
        line.leave("m", number)
        line.moved("m", 3.0 * (number + 1))
    assert line.seconds("m") == 9, "two wait, and one that comes now: three times 3 s"
    for number in range(200):
        line.join("m", 10 + number, 6.0)
    assert line.seconds("m") == LONGEST_WAIT
    line.keep(frozenset({"other"}))
    assert line.seconds("m") == 1


def test_a_line_that_begins_anew_does_not_count_the_time_when_nobody_waited() -> None:
    line: Line[int] = Line()
    line.join("m", 1, 0.0)
    line.leave("m", 1)
    line.moved("m", 2.0)
    line.join("m", 2, 1000.0)
    line.leave("m", 2)
    line.moved("m", 1002.0)
    line.join("m", 3, 1002.0)
    assert line.seconds("m") == 4
