import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from heatsmooth import InputError
from heatsmooth.locks import WINDOWS
from heatsmooth.runs import Records, Run, provenance, read_records, write_atomically, write_json


def test_a_run_is_continued_with_its_settings_and_refused_with_others(tmp_path: Path) -> None:
    run = Run(tmp_path / "a", "smooth", {"sigma": 0.25, "shape": (1, 28)})
    run.update(status="done")
    run.close()
    again = Run(tmp_path / "a", "smooth", {"sigma": 0.25, "shape": (1, 28)})
    assert again.done
    again.close()
    with pytest.raises(InputError, match=r"the sigma it was started with, 0\.25, got 0\.5; .*`out`"):
        Run(tmp_path / "a", "smooth", {"sigma": 0.5, "shape": (1, 28)})
    with pytest.raises(InputError, match="expected a 'train' run, got a 'smooth' run"):
        Run(tmp_path / "a", "train", {})


def test_a_run_that_is_refused_before_it_recorded_anything_leaves_nothing(tmp_path: Path) -> None:
    def refused(records: int) -> None:
        with Run(tmp_path / "run", "certify", {}) as run:
            with Records(run.path / "certificates.jsonl") as written:
                for index in range(records):
                    written.append({"index": index})
            raise InputError("too many")

    for records in (0, 1):
        with pytest.raises(InputError, match="too many"):
            refused(records)
        assert (tmp_path / "run").exists() == bool(records)
    with pytest.raises(InputError, match="the clever it was started with, none, got 5;"):
        Run(tmp_path / "run", "certify", {"clever": 5})


def test_the_time_of_a_run_is_that_until_it_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("heatsmooth.runs.time.monotonic", lambda: next(clock))
    for status, expected in (("running", 10), ("done", 20), ("done", 20)):
        with Run(tmp_path, "certify", {}) as run:
            run.update(status=status)
            assert run.info["seconds"] == expected


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, "train", {})
    code = f"from heatsmooth.runs import Run; from pathlib import Path; Run(Path({str(tmp_path)!r}), 'train', {{}})"
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "expected no other process here" in second.stderr
    run.close()
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a writable directory"):
        Run(tmp_path / "file" / "run", "train", {})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{broken")
    with pytest.raises(InputError, match="expected a JSON object"):
        Run(tmp_path / "run", "train", {})


def test_records_survive_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Records(path) as records:
        for i in range(3):
            records.append({"i": i})
    path.write_bytes(path.read_bytes() + b'{"i": 3, "unfin')
    assert [r["i"] for r in read_records(path)] == [0, 1, 2]
    with Records(path) as records:
        records.append({"i": 3})
        records.keep(lambda record: record["i"] != 1)
        records.append({"i": 4})
    assert [r["i"] for r in read_records(path)] == [0, 2, 3, 4]
    path.write_bytes(b'{"i": 0}\nnonsense\n{"i": 2}\n')
    with pytest.raises(InputError, match=r"r\.jsonl:2: expected a JSON record"):
        read_records(path)


@pytest.mark.skipif(WINDOWS, reason="Windows has no limit on the size of files")
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "f"
    write_atomically(target, b"old")
    code = (
        "import resource, sys; from pathlib import Path; from heatsmooth.runs import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"write_atomically(Path({str(target)!r}), bytes(5000))"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "File too large" in failed.stderr
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(WINDOWS, reason="Windows has no pipes in folders")
def test_only_files_are_replaced(tmp_path: Path) -> None:
    """A device or a pipe would be gone: replacing writes beside it and renames."""
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InputError, match="expected a file to write, got a directory or device"):
            write_atomically(target, b"new")
    assert (tmp_path / "pipe").is_fifo()


def test_what_a_kill_left_behind_is_removed_and_what_shards_write_is_not(tmp_path: Path) -> None:
    (tmp_path / ".state.safetensors.1.part").write_bytes(b"torn")
    Run(tmp_path, "certify", {}, part="-1-of-2").close()
    assert (tmp_path / ".state.safetensors.1.part").exists()
    Run(tmp_path, "certify", {}).close()
    assert not (tmp_path / ".state.safetensors.1.part").exists()


def test_the_whole_and_a_part_of_a_run_exclude_each_other(tmp_path: Path) -> None:
    first, second = (Run(tmp_path, "certify", {}, part=f"-{i}-of-2") for i in (1, 2))
    for part in ("", "-1-of-2"):
        with pytest.raises(InputError, match="expected no other process here, got one at work"):
            Run(tmp_path, "certify", {}, part=part)
    first.close()
    with pytest.raises(InputError, match="expected no other process here, got one at work"):
        Run(tmp_path, "certify", {})
    second.close()
    with Run(tmp_path, "certify", {}), pytest.raises(InputError, match="expected no other process here"):
        Run(tmp_path, "certify", {}, part="-1-of-2")
    Run(tmp_path, "certify", {}, part="-1-of-2").close()


def test_what_another_process_is_writing_is_never_removed(tmp_path: Path) -> None:
    """Of this machine by its process, of another one by its age; what dead processes left goes."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    writing, elsewhere = (tmp_path / f".gallery.npz.{name}.part" for name in (f"{platform.node()}-1", "far.away-77"))
    torn, old = (tmp_path / f".m.jsonl.{name}.part" for name in (f"{platform.node()}-{dead.pid}", "far.away-78"))
    for file in (writing, elsewhere, torn, old):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    Run(tmp_path, "certify", {}).close()
    assert [file.exists() for file in (writing, elsewhere, torn, old)] == [True, True, False, False]


@pytest.mark.skipif(WINDOWS, reason="the error is that of flock")
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("part", ["", "-1-of-2"])
def test_a_file_system_without_locks_is_told_as_such(
    code: int, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(InputError, match=r"expected a file system with file locks, got .*; name an `out` on a local"):
        Run(tmp_path, "certify", {}, part=part)


def test_numbers_that_json_has_not_are_never_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected finite numbers to record, got plan lr inf; "):
        Run(tmp_path, "certify", {"plan": {"lr": float("inf")}})
    with Run(tmp_path, "certify", {}) as run, pytest.raises(InputError, match="got summary nan"):
        run.update(summary=(1, float("nan")))
    with Records(tmp_path / "r.jsonl") as records, pytest.raises(InputError, match="got loss -inf"):
        records.append({"loss": -float("inf")})
    assert read_records(tmp_path / "r.jsonl") == []
    with pytest.raises(InputError, match="expected finite numbers"):
        write_json(tmp_path / "a.json", [{"x": float("nan")}])


@pytest.mark.skipif(WINDOWS, reason="file names of Windows are Unicode")
def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff")
    Run(tmp_path, "certify", {"data": name}).close()
    again = Run(tmp_path, "certify", {"data": name})
    assert again.info["settings"] == {"data": name}
    again.close()


@pytest.mark.skipif(WINDOWS, reason="Windows has no SIGKILL")
def test_what_a_kill_left_of_a_file_is_removed_and_what_another_process_writes_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a [b].json"
    code = (
        "import os, sys; from pathlib import Path; from heatsmooth.runs import write_atomically\n"
        "os.fsync = lambda file: os.kill(os.getpid(), 9); write_atomically(Path(sys.argv[1]), b'half')"
    )
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == -9
    (torn,) = tmp_path.iterdir()
    assert torn.name.startswith(".a [b].json.")
    others = [
        torn.with_name(f".{path.name}.{who}.part") for who in (f"{platform.node()}-{os.getppid()}", "far-9", "my-x")
    ]
    for other in others:
        other.write_bytes(b"more")
    stubborn = torn.with_name(torn.name.replace(".part", "0.part"))
    stubborn.mkdir()
    write_atomically(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert set(tmp_path.iterdir()) == {path, stubborn, *others}


def test_provenance_names_versions_and_hardware() -> None:
    facts = json.loads(json.dumps(provenance()))
    assert {"python", "torch", "heatsmooth"} <= facts["versions"].keys()
    assert facts["hardware"]["cores"] >= 1
