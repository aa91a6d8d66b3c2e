"""What each of several processes does: its part of the images, or nothing while the first one works."""

from collections.abc import Callable
from typing import TypeVar

from accelerate import Accelerator

from heatsmooth.commands.inputs import Shard
from heatsmooth.device import PRECISION, accelerator
from heatsmooth.errors import require
from heatsmooth.runs import Run

Result = TypeVar("Result")


def by_the_leader(device: str | None, work: Callable[[], Result]) -> Result | None:
    """Do work that is not shared in the first process, while the others wait; their result is None.

    Whatever it wrote is there when any process goes on.
    """
    processes = accelerator(device)
    result = work() if processes.is_main_process else None
    processes.wait_for_everyone()
    return result


def finish(run: Run, processes: Accelerator, model_hash: str, **more: object) -> None:
    """Record that a run is done, with which network, and where it was computed."""
    run.update(
        status="done",
        model_hash=model_hash,
        device=processes.device.type,
        processes=processes.num_processes,
        precision=PRECISION,
        **more,
    )


def share_of(processes: Accelerator, shard: Shard) -> tuple[Shard, str]:
    """The shard of this process, and the ending of the names of its files: none where it is alone.

    Several processes are shards of one run; then the person may not name another.
    """
    if processes.num_processes > 1:
        require(
            shard == Shard(), "`shard`: expected none under several processes, got one; each process takes its share"
        )
        shard = Shard(processes.process_index + 1, processes.num_processes)
    return shard, "" if shard.of == 1 else f"-{shard.part}-of-{shard.of}"
