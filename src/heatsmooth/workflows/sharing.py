"""Which part of the images a process takes."""

from accelerate import Accelerator

from heatsmooth.errors import require


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
