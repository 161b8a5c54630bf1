"""Who a client is, what it may ask for, and how often it may be wrong."""

from llmgw.base.ids import ModelName
from llmgw.base.time import Instant
from llmgw.fleet.access import Access, KnownKey, TenantRight, credential_of, hash_of, taken_apart
from llmgw.fleet.table import EndpointTable, RoutedModel
from llmgw.routing import access
from llmgw.routing.access import ADDRESSES, FAILURES, REGAIN, Failures, Keys, allowed
from llmgw.routing.index import index_table

NOW = Instant(1000.0)
MODELS = (RoutedModel(ModelName("llama"), ("default", "org/llama"), 1, 9), RoutedModel(ModelName("qwen"), (), 1, 9))
INDEX = index_table(EndpointTable(1, MODELS, ()))
RIGHTS = (TenantRight("a", ("llama",)), TenantRight("all", ("*",)), TenantRight("none", ("other-*",)))


def known(name: str, tenant: str, expires: float | None = None) -> KnownKey:
    return KnownKey(name, hash_of(f"secret-{name}"), tenant, Instant(expires) if expires is not None else None)


def keys(*given: KnownKey) -> Keys:
    return Keys(Access(1, True, given, RIGHTS), INDEX)


def test_a_credential_is_taken_apart_at_the_first_dash() -> None:
    assert taken_apart(credential_of("ab12", "x-y_z")) == ("ab12", "x-y_z")
    assert taken_apart("sk-other-1") == ("", "sk-other-1")
    assert taken_apart("sk-llmgw-ab12") == ("ab12", "")


def test_a_right_key_is_its_tenant_s_and_a_wrong_one_nobody_s() -> None:
    found = keys(known("k1", "a"), known("k2", "all"))
    caller = found.caller("sk-llmgw-k1-secret-k1", NOW)
    assert caller is not None
    assert (caller.tenant, caller.key, caller.admin) == ("a", "k1", False)
    assert found.caller("sk-llmgw-k1-secret-k1", NOW) is caller
    for wrong in (
        "sk-llmgw-k1-secret-k2",
        "sk-llmgw-k3-secret-k1",
        "sk-llmgw-k1-",
        "secret-k1",
        "",
        "\udcff",
        "sk-llmgw--",
    ):
        assert found.caller(wrong, NOW) is None


def test_nothing_that_hashes_to_the_dummy_is_needed_for_nobody() -> None:
    nobody = access._NOBODY
    assert keys().caller("", NOW) is None
    assert keys(nobody).caller("", NOW) is None


def test_a_key_is_good_until_it_expires() -> None:
    found = keys(known("k", "a", expires=1000.5))
    assert found.caller("sk-llmgw-k-secret-k", NOW) is not None
    assert found.caller("sk-llmgw-k-secret-k", Instant(1000.5)) is None


def test_a_tenant_may_ask_for_a_model_by_each_of_its_names_and_for_no_other() -> None:
    assert allowed(("llama",), INDEX) == allowed(("default",), INDEX) == {"llama", "default", "org/llama"}
    assert allowed(("org/*",), INDEX) == {"llama", "default", "org/llama"}
    assert allowed(("*",), INDEX) == {"llama", "default", "org/llama", "qwen"}
    assert allowed(("q*", "nothing"), INDEX) == {"qwen"}
    assert allowed(("LLAMA",), INDEX) == allowed((), INDEX) == frozenset()
    found = keys(known("k", "a"), known("n", "none"), known("gone", "left"), known("admin", ""))
    may = {
        name: caller.may_ask("llama")
        for name in ("k", "n", "gone", "admin")
        if (caller := found.caller(f"sk-llmgw-{name}-secret-{name}", NOW)) is not None
    }
    assert may == {"k": True, "n": False, "gone": False, "admin": True}


def test_an_id_is_repeated_only_if_there_is_such_a_key() -> None:
    found = keys(known("k1", "a"))
    assert found.knows("sk-llmgw-k1-wrong") == "k1"
    assert found.knows("sk-llmgw-forged\nline-wrong") == ""


def test_an_address_may_be_wrong_so_often_and_again_after_a_while() -> None:
    failures = Failures()
    said = [failures.failed("192.0.2.1", NOW) for _ in range(FAILURES + 3)]
    assert said[0] == (None, True)  # the first is worth a line
    assert said[1:FAILURES] == [(None, False)] * (FAILURES - 1)
    assert said[FAILURES] == (3, True)  # and the first for which there is nothing left
    assert said[FAILURES + 1 :] == [(3, False)] * 2
    assert failures.failed("192.0.2.2", NOW) == (None, True)
    assert failures.failed("192.0.2.1", Instant(NOW + REGAIN)) == (None, False)
    assert failures.failed("192.0.2.1", Instant(NOW + REGAIN)) == (3, False)
    assert failures.failed("192.0.2.1", Instant(NOW + REGAIN * 100)) == (None, True)


def test_a_clock_that_is_set_back_takes_no_failures_away() -> None:
    failures = Failures()
    assert failures.failed("10.0.0.1", Instant(7200.0))[0] is None
    assert failures.failed("10.0.0.1", Instant(3600.0))[0] is None


def test_what_is_remembered_of_addresses_is_bounded_and_the_oldest_goes_first() -> None:
    failures = Failures()
    for _ in range(FAILURES):
        failures.failed("busy", NOW)
    for number in range(ADDRESSES * 2):
        failures.failed(f"a{number}", NOW)
        if number % 1000 == 0:
            assert failures.failed("busy", NOW)[0] is not None
    assert len(failures) == ADDRESSES


def test_an_ipv6_host_is_known_by_its_network() -> None:
    failures = Failures()
    for number in range(FAILURES):
        failures.failed(f"2001:db8::{number:x}", NOW)
    assert failures.failed("2001:db8::ffff%eth0", NOW)[0] is not None
    assert failures.failed("2001:db8:0:1::1", NOW)[0] is None
    assert failures.failed("::ffff:192.0.2.1", NOW)[0] is None
    assert len(failures) == 3
