"""What each of several processes does: its part of the images, or nothing while the first one works."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from accelerate import Accelerator

from heatsmooth.device import accelerator
from heatsmooth.errors import require

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def by_the_leader(work: Callable[Arguments, Answer]) -> Callable[Arguments, Answer | None]:
    """``work`` that is not shared, done by the first process while the others wait; their answer is None.

    Its argument ``device``, if it has one, says where it computes. Whatever it wrote is there when any process goes on.
    """

    @wraps(work)
    def led(*args: Arguments.args, **named: Arguments.kwargs) -> Answer | None:
        processes = accelerator(cast("str | None", named.get("device")))
        answer = work(*args, **named) if processes.is_main_process else None
        processes.wait_for_everyone()
        return answer

    return led


def share_of(processes: Accelerator, shard: tuple[int, int]) -> tuple[tuple[int, int], str]:
    """The shard (i, n) of this process, and the ending of its files' names: none where it is alone.

    Several processes are shards of one run; then ``shard`` must be (1, 1).
    """
    if processes.num_processes > 1:
        require(
            shard == (1, 1), "--shard: expected none under several processes, got one; each process takes its share"
        )
        shard = (processes.process_index + 1, processes.num_processes)
    return shard, "" if shard[1] == 1 else f"-{shard[0]}-of-{shard[1]}"
