"""TLS on both sides: what clients are shown and when that changes, and whom the gateway believes to be an engine."""

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw.fleet.access import OPEN
from llmgw.fleet.table import Address, TcpAddress
from llmgw.gateway.server import Gateway
from llmgw.gateway.tls import BadPair, ServerTls
from llmgw.gateway.upstream import UpstreamPool, host_of
from llmgw.runtime.clock import SystemClock
from tests.fakes.certificates import write_pair
from tests.fakes.engine import Connection, FakeEngine, Switches, running_engine
from tests.unit.gateway.support import CHAT, STREAM, Client, Serving, address_of, endpoint, gateway_before, table, until


def believing(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificate))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


async def connect(port: int, certificate: Path, context: ssl.SSLContext | None = None) -> Client:
    context = context or believing(certificate)
    return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost"))


def shown(client: Client) -> bytes:
    return client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


@contextlib.asynccontextmanager
async def gateway_of(tls: ServerTls, engine: FakeEngine) -> AsyncIterator[Serving]:
    gateway = Gateway(SystemClock(), random.Random(7))
    gateway.set_access(OPEN)
    await gateway.start(("127.0.0.1", 0), tls.context)
    gateway.set_table(table(endpoint(0, address_of(engine))))
    try:
        yield Serving(gateway, (engine,))
    finally:
        await gateway.stop(0.05)
    assert gateway.clients == 0


async def test_clients_are_served_over_tls_from_1_2_on_by_http_1_1(tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path)
    async with running_engine(chunks=3) as engine, gateway_of(ServerTls(certificate, key), engine) as serving:
        client = await connect(serving.port, certificate)
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for body in (CHAT, STREAM, CHAT):
            client.post(body)
            response = await client.response()
            assert (response.status, response.whole) == (200, True)
        await client.close()
        old = believing(certificate)
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = old.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ConnectionResetError):
            await connect(serving.port, certificate, old)


async def test_a_client_over_tls_is_closed_after_its_answer_and_a_stalled_stream_of_one_ends(tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path)
    async with running_engine(stall_after=1) as engine, gateway_of(ServerTls(certificate, key), engine) as serving:
        client = await connect(serving.port, certificate)
        client.get("/v1/models", headers="connection: close\r\n")
        assert (await client.response()).status == 200
        assert await client.closed()
        serving.gateway.set_table(table(endpoint(0, address_of(engine)), version=2, inter_chunk=0.1))
        for _ in range(2):  # the first does not end the sweep for the second
            client = await connect(serving.port, certificate)
            client.post(STREAM)
            response = await client.response()
            assert b"was silent for 0.1 s" in response.body
            assert not response.whole
        await until(lambda: serving.gateway.clients == 0)


async def test_a_new_certificate_is_shown_to_new_clients_while_old_connections_go_on(tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path, kind="rsa")
    tls = ServerTls(certificate, key)
    async with running_engine(chunks=2, stall_after=1) as engine, gateway_of(tls, engine) as serving:
        old = await connect(serving.port, certificate)
        assert shown(old) == der(certificate)
        old.post(STREAM)
        head = await old.head()
        before = certificate.read_bytes()
        write_pair(tmp_path, kind="ec")
        assert certificate.read_bytes() != before
        tls.look()
        tls.look()
        for context in (believing(certificate), believing(certificate)):
            context.check_hostname = False
            new = await connect(serving.port, certificate, context)
            assert shown(new) == der(certificate)
            await new.close()
        bare = Client(*await asyncio.open_connection("127.0.0.1", serving.port, ssl=context, server_hostname=""))
        assert shown(bare) == der(certificate)  # a client that names no host
        await bare.close()
        engine.throw(stall_after=None)
        (connection,) = engine.connections
        connection.step()
        assert (await old.body(head)).whole
        await old.close()


async def test_a_broken_new_pair_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = write_pair(tmp_path)
    good = tmp_path / "good.crt"
    good.write_bytes(certificate.read_bytes())
    other, _ = write_pair(tmp_path, "other")
    tls = ServerTls(certificate, key)
    async with running_engine() as engine, gateway_of(tls, engine) as serving:
        with caplog.at_level(logging.WARNING):
            other.replace(certificate)
            for _ in range(5):
                tls.look()
        (said,) = [record.getMessage() for record in caplog.records]
        assert "the one before stays" in said
        assert f"the key in {key} does not belong to the certificate in {certificate}" in said
        certificate.unlink()
        tls.look()
        tls.look()
        client = await connect(serving.port, good)
        client.post(CHAT)
        assert (await client.response()).status == 200
        await client.close()
        write_pair(tmp_path)
        tls.look()
        tls.look()
        await (await connect(serving.port, certificate)).close()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda cert, key: cert.unlink(), "cannot read {cert}: No such file or directory; name a readable"),
        (lambda cert, key: key.unlink(), "cannot read {key}: No such file or directory; name a readable"),
        (lambda cert, key: cert.write_text("x"), "{cert} holds no PEM certificate"),
        (lambda cert, key: key.write_text("x"), "{key} holds no PEM private key"),
        (lambda cert, key: key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n"), "the key in {key} is encrypted"),
        (lambda cert, key: cert.write_text("-----BEGIN CERTIFICATE-----\nx\n"), "are no certificate and key that can be used"),
        (lambda cert, key: write_pair(cert.parent, "o")[1].replace(key), "the key in {key} does not belong to the certificate"),
    ],
)  # fmt: skip
def test_a_pair_that_will_not_do_is_refused_at_the_start(tmp_path: Path, spoil, said: str) -> None:
    certificate, key = write_pair(tmp_path)
    spoil(certificate, key)
    with pytest.raises(BadPair) as refused:
        ServerTls(certificate, key)
    assert said.format(cert=certificate, key=key) in str(refused.value)


async def test_a_handshake_that_does_not_go_on_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    async with running_engine() as engine, gateway_of(ServerTls(*write_pair(tmp_path)), engine) as serving:
        _, writer = await asyncio.open_connection("127.0.0.1", serving.port)
        plain = await serving.client()
        plain.get("/v1/models")
        assert not (await plain.reader.read()).startswith(b"HTTP")
        await plain.close()
        async with asyncio.timeout(3):
            await serving.gateway.stop(0.05)
        writer.close()


@contextlib.asynccontextmanager
async def tls_engine(pair: tuple[Path, Path], host: str = "localhost") -> AsyncIterator[tuple[FakeEngine, Address]]:
    engine = FakeEngine("m", Switches(chunks=3))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", 0, ssl=context)
    try:
        yield engine, TcpAddress(host, server.sockets[0].getsockname()[1], tls=True)
    finally:
        server.close()
        for connection in tuple(engine.connections):
            connection.transport.abort()
        await server.wait_closed()


async def test_an_engine_is_spoken_to_over_tls_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = write_pair(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair[0]))
    async with tls_engine(pair) as (engine, address):
        async with gateway_before(routed=table(endpoint(0, address))) as serving:
            for body in (CHAT, STREAM, CHAT):
                response = await serving.ask(body)
                assert (response.status, response.whole) == (200, True)
            assert serving.gateway.idle_upstreams == 1
        assert dict(engine.seen.last_headers)["host"] == f"localhost:{address.port}"


@pytest.mark.parametrize(("trusted", "host"), [(False, "localhost"), (True, "elsewhere.example")])
async def test_an_engine_with_another_name_or_an_unknown_authority_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, host: str
) -> None:
    pair = write_pair(tmp_path, host=host)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair[0] if trusted else write_pair(tmp_path, "other")[0]))
    async with tls_engine(pair) as (engine, address):
        with pytest.raises(ssl.SSLCertVerificationError):
            await UpstreamPool(SystemClock()).connect(address, 5.0)
        async with gateway_before(routed=table(endpoint(0, address))) as serving:
            assert (await serving.ask(CHAT)).status == 503
        assert engine.seen.requests == 0


@pytest.mark.parametrize(
    ("address", "host"),
    [
        (TcpAddress("h", 443, tls=True), b"h"),
        (TcpAddress("h", 443), b"h:443"),
        (TcpAddress("h", 80), b"h"),
        (TcpAddress("h", 80, tls=True), b"h:80"),
        (TcpAddress("2001:db8::1", 8000), b"[2001:db8::1]:8000"),
        (TcpAddress("2001:db8::1", 443, tls=True), b"[2001:db8::1]"),
    ],
)
def test_what_an_engine_is_called(address: Address, host: bytes) -> None:
    assert host_of(address) == host
