"""The name of the interface with an address, as this machine's kernel tells it."""

from llmgw.agent.interfaces import filled, interface_of


def test_loopback_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_that_no_interface_has_has_no_name() -> None:
    assert interface_of("203.0.113.7") is None
    assert interface_of("2001:db8::7") is None
    assert interface_of("a.lan") is None


def test_variables_get_the_name_or_are_left_out() -> None:
    given = {
        "NCCL": "={interface}127.0.0.1",
        "GLOO": "{interface}127.0.0.1",
        "NONE": "{interface}203.0.113.7",
        "X": "y",
    }
    assert filled(given) == {"NCCL": "=lo", "GLOO": "lo", "X": "y"}
