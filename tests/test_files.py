import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from etude.base import files
from etude.base.errors import UsageError
from etude.base.files import writing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "w.0.et").write_text(text)


def test_a_file_appears_only_at_the_end(tmp_path: Path):
    target = tmp_path / "run.et"
    with writing(target) as path:
        path.write_text("new")
        assert not target.exists()
        assert path.suffix == ".et"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["run.et"]


def test_a_folder_appears_only_at_the_end(tmp_path: Path):
    with writing(tmp_path / "run") as path:
        fill(path, "new")
        assert not (tmp_path / "run").exists()
    assert (tmp_path / "run" / "w.0.et").read_text() == "new"
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("make", [lambda path: path.write_text("half"), lambda path: fill(path, "half")])
def test_an_interrupted_block_leaves_nothing(tmp_path: Path, stop: type[BaseException], make):
    with pytest.raises(stop), writing(tmp_path / "run") as path:
        make(path)
        raise stop
    assert names(tmp_path) == []


def test_a_failed_replacement_leaves_the_old_one(tmp_path: Path):
    (tmp_path / "run.et").write_text("old")
    with pytest.raises(ValueError), writing(tmp_path / "run.et", force=True) as path:
        path.write_text("half")
        raise ValueError
    assert (tmp_path / "run.et").read_text() == "old"
    assert names(tmp_path) == ["run.et"]


def test_nothing_is_replaced_without_force(tmp_path: Path):
    (tmp_path / "run.et").write_text("old")
    with pytest.raises(UsageError, match=r"exists already\nhint: .*--force"), writing(tmp_path / "run.et"):
        pytest.fail("the block must not start")
    assert (tmp_path / "run.et").read_text() == "old"


def test_what_appeared_meanwhile_is_not_replaced(tmp_path: Path):
    with pytest.raises(UsageError, match="exists already"), writing(tmp_path / "run.et") as path:
        path.write_text("ours")
        (tmp_path / "run.et").write_text("theirs")
    assert (tmp_path / "run.et").read_text() == "theirs"
    assert names(tmp_path) == ["run.et"]


@pytest.mark.parametrize("kind", ["file", "folder", "folder over an empty one"])
def test_of_two_writers_at_the_same_moment_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    """The other one comes between the last look and the name."""

    def put(path: Path, text: str) -> None:
        if kind == "file":
            path.write_text(text)
        else:
            path.mkdir(exist_ok=True)
            (path / "a").write_text(text)

    target = tmp_path / "run"
    if kind == "folder over an empty one":
        target.mkdir()
    settle = files._settle
    monkeypatch.setattr(files, "_settle", lambda path: (settle(path), put(target, "theirs")))
    with pytest.raises(UsageError, match="somebody else"), writing(target) as path:
        put(path, "ours")
    assert (target if kind == "file" else target / "a").read_text() == "theirs"
    assert names(tmp_path) == ["run"]


def test_a_folder_that_others_replace_meanwhile_is_of_one_of_them(tmp_path: Path):
    target = tmp_path / "run"

    def write(text: str) -> None:
        for _ in range(20):
            with writing(target, force=True) as path:
                fill(path, text)
                (path / "b").write_text(text)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(write, text) for text in "xyz"]:
            done.result()
    assert (target / "w.0.et").read_text() == (target / "b").read_text()
    assert names(tmp_path) == ["run"]


def test_where_names_cannot_be_swapped_a_folder_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "_exchanged", lambda one, other: False)
    for text in ("old", "new"):
        with writing(tmp_path / "run", force=True) as path:
            fill(path, text)
        assert (tmp_path / "run" / "w.0.et").read_text() == text
    assert names(tmp_path) == ["run"]


def test_force_replaces_a_file(tmp_path: Path):
    (tmp_path / "run.et").write_text("old")
    with writing(tmp_path / "run.et", force=True) as path:
        path.write_text("new")
    assert (tmp_path / "run.et").read_text() == "new"
    assert names(tmp_path) == ["run.et"]


def test_force_replaces_a_whole_folder(tmp_path: Path):
    fill(tmp_path / "run", "old")
    (tmp_path / "run" / "w.1.et").write_text("old")
    with writing(tmp_path / "run", force=True) as path:
        fill(path, "new")
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["w.0.et"]
    assert (tmp_path / "run" / "w.0.et").read_text() == "new"


def test_an_empty_folder_needs_no_force(tmp_path: Path):
    (tmp_path / "run").mkdir()
    with writing(tmp_path / "run") as path:
        fill(path, "new")
    assert names(tmp_path / "run") == ["w.0.et"]


def test_a_folder_never_gives_way_to_a_file(tmp_path: Path):
    fill(tmp_path / "run", "old")
    with pytest.raises(UsageError, match="is a folder"), writing(tmp_path / "run", force=True) as path:
        path.write_text("new")
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["w.0.et"]


def test_the_folder_one_stands_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(tmp_path / "run", "old")
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(UsageError, match="the current folder"), writing(".", force=True):
        pytest.fail("the block must not start")


def test_a_missing_folder_is_said(tmp_path: Path):
    with pytest.raises(UsageError, match="its folder does not exist"), writing(tmp_path / "no" / "run.et"):
        pytest.fail("the block must not start")


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "real.et").write_text("old")
    (tmp_path / "link.et").symlink_to("real.et")
    with writing(tmp_path / "link.et", force=True) as path:
        path.write_text("new")
    assert (tmp_path / "link.et").is_symlink()
    assert (tmp_path / "real.et").read_text() == "new"


def test_a_device_is_written_straight():
    with writing(os.devnull) as path:
        assert path == Path(os.devnull)
        path.write_text("gone")
    assert not Path(os.devnull).is_file()


def test_ctrl_c_while_tidying_waits_until_all_is_tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    removed = os.unlink

    def interrupted(*args, **kwargs) -> None:
        signal.raise_signal(signal.SIGINT)
        removed(*args, **kwargs)

    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "run") as path:
        fill(path, "half")
        (path / "w.1.et").write_text("half")
        monkeypatch.setattr(os, "unlink", interrupted)
        raise ValueError
    assert names(tmp_path) == []


# --- disks that are full, writers that were killed


def test_a_full_disk_is_an_error_that_names_the_path_and_leaves_nothing(tmp_path: Path):
    """Where the file may have 1,000 bytes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(UsageError) as problem, writing(tmp_path / "run.et") as path:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            path.write_bytes(bytes(5000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(problem.value).startswith(f"{tmp_path / 'run.et'}: cannot be written: File too large")
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_is_said_of_the_path_that_was_asked_for(tmp_path: Path, number: int):
    with pytest.raises(UsageError) as problem, writing(tmp_path / "job") as path:
        fill(path, "half")
        raise OSError(number, os.strerror(number), str(path / "w.0.et"))
    assert problem.value.where == str(tmp_path / "job")
    assert os.strerror(number) in problem.value.problem
    assert names(tmp_path) == []


def test_a_place_that_may_not_be_written_to_is_named_as_it_was_given(tmp_path: Path):
    with pytest.raises(UsageError) as problem, writing(tmp_path / "run.html") as path:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    assert str(problem.value) == f"{tmp_path / 'run.html'}: cannot be written: {os.strerror(errno.EACCES)}"


@pytest.mark.skipif(os.name != "posix", reason="a process is killed")
def test_what_a_killed_writer_left_is_cleared_by_the_next_one(tmp_path: Path):
    """Of this name, and of writers that are gone; what a living one writes stays."""
    child = os.fork()
    if child == 0:
        for name in ("run.et", "other.et"):
            writing(tmp_path / name).__enter__().write_text("half")
        with writing(tmp_path / "run.et", force=True) as folder:
            fill(folder, "half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    left = names(tmp_path)
    assert len(left) == 3
    assert all(name.startswith(".partial-") for name in left)
    with writing(tmp_path / "run.et") as mine:
        mine.write_text("new")
        with writing(tmp_path / "run.et") as second:  # of a process that lives: this one
            second.write_text("other")
            assert mine.exists()
        os.unlink(tmp_path / "run.et")
    assert [name for name in names(tmp_path) if name.endswith(".run.et")] == []
    assert len([name for name in names(tmp_path) if name.endswith(".other.et")]) == 1


def test_it_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append((os.fstat(fd).st_size, names(tmp_path))))
    with writing(tmp_path / "run") as path:
        fill(path, "four")
    assert [size for size, _ in seen] == [4]
    assert "run" not in seen[0][1]
