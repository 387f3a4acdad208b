"""A replica that changes its role finishes what it has, and says whom it serves."""

import asyncio

from deployments.replica.served_pool import ServedPool
from tests.engines.virtual_time import run_in_virtual_time


class Work:
    """What a replica has to finish."""

    is_done = False

    def has_finished(self) -> bool:
        return self.is_done


def test_it_takes_nothing_while_it_finishes_what_it_has_and_serves_the_other_pool_then() -> None:
    async def story() -> None:
        work = Work()
        serves = ServedPool("prefill", work.has_finished)
        assert (serves.is_changing, serves.said()) == (False, {})
        serves.change_to("decode")
        await asyncio.sleep(30.0)
        assert (serves.is_changing, serves.said()) == (True, {"serves": "decode"})
        work.is_done = True
        await asyncio.sleep(1.0)
        assert (serves.is_changing, serves.said()) == (False, {"serves": "decode"})

    run_in_virtual_time(story())


def test_one_that_is_told_otherwise_meanwhile_is_where_it_was_told_last() -> None:
    async def story() -> None:
        work = Work()
        serves = ServedPool("prefill", work.has_finished)
        serves.change_to("decode")
        await asyncio.sleep(5.0)
        serves.change_to("prefill")
        assert (serves.is_changing, serves.said()) == (True, {})
        work.is_done = True
        await asyncio.sleep(1.0)
        serves.change_to("prefill")
        assert (serves.is_changing, serves.said()) == (False, {})

    run_in_virtual_time(story())


def test_a_replica_that_goes_changes_no_more() -> None:
    async def story() -> None:
        serves = ServedPool("prefill", Work().has_finished)
        serves.change_to("decode")
        serves.close()
        await asyncio.sleep(1.0)
        assert len(asyncio.all_tasks()) == 1

    run_in_virtual_time(story())
