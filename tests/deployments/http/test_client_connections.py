"""A client's connections are counted, and more than it may have are closed at once."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deployments.http.client_connections import ClientConnections, client_of
from tests.deployments.listener.listeners import App, ask, gateway, listening, new_address
from tests.tables import for_each


@for_each(
    ("address", "client"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8::7", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::1", "2001:db8::/64"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("", ""),
    ],
)
def test_a_client_is_an_address_or_all_that_one_has_who_has_it(address: str, client: str) -> None:
    assert client_of(address) == client


@given(events=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), most=st.integers(1, 3))
def test_nobody_has_more_than_the_most_and_what_is_closed_can_be_opened_again(
    events: list[tuple[str, bool]], most: int
) -> None:
    clients, its = ClientConnections(most), Counter[str]()
    for client, opens in events:
        if opens:
            assert clients.begin(client) == (its[client] < most)
            its[client] = min(most, its[client] + 1)
        elif its[client]:
            clients.end(client)
            its[client] -= 1
    assert +clients._open == +its
    assert all(clients._open.values()), "nobody is remembered who has none"


async def test_a_connection_too_many_is_told_so_and_closed_and_one_less_is_served() -> None:
    async with listening(new_address()) as address, gateway(App("a"), address, connections_per_client=2):
        held = [await asyncio.open_connection(address.host, address.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection(address.host, address.port)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b'"code":"too_many_connections"' in answer

        held[0][1].close()

        async with asyncio.timeout(20):  # the gateway hears of it in its own time
            while (await ask(address)).status_code != 200:
                pass
        held[1][1].close()
