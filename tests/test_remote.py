"""Jobs that lie elsewhere, read from servers on this machine: S3 (moto), Google Cloud Storage (gcp-storage-emulator), a
page of links, and fsspec's memory."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.base import remote
from etude.base.errors import UsageError
from etude.store import chakra
from etude.surface.cli import main
from training_step import training_step

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    chakra.write_job(training_step(), folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETUDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def copies(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.parent != cache / "remote")


# -- memory: what is an address, and what is fetched -------------------------------------------------------------------


@pytest.fixture
def memory(run: Path) -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    files.put(str(run), "/store/run", recursive=True)
    yield files
    files.rm("/store", recursive=True)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://b/run", "s3://b/run"),
        ("s3:/b/run", "s3://b/run"),  # what pathlib makes of it
        ("https://a/b.json?x=1", "https://a/b.json?x=1"),
        ("run/s3", ""),
        ("ray://head:10001", ""),
        ("C://x", ""),
        ("s3:///x", ""),
    ],
)
def test_what_is_an_address(text: str, url: str) -> None:
    assert remote.url_of(text) == url
    assert remote.url_of(Path(text)) == url or not url


def test_a_folder_a_file_and_a_prefix_are_the_same_job(memory: Any, run: Path, cache: Path) -> None:
    whole = etude.open(run)
    for address in ("memory://store/run", "memory://store/run/", "memory://store/run/step"):
        assert etude.diff(etude.open(address), whole) is None
        assert etude.open(address).name == whole.name
    assert len(etude.open("memory://store/run/step.3.et").ranks) == 1
    assert len(etude.open(Path("memory://store/run")).ranks) == 8
    assert copies(cache).count("step.3.et") == 4  # three ways to say the folder, and the file


def test_only_what_changed_is_fetched(memory: Any, run: Path) -> None:
    got: list[str] = []
    remote.fetch("memory://store/run", lambda amount, note="": got.append(note))
    path = remote.fetch("memory://store/run")
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    memory.pipe_file("/store/run/step.3.et", (run / "step.4.et").read_bytes())
    memory.rm("/store/run/step.7.et")
    assert remote.fetch("memory://store/run") == path
    after = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"step.3.et"}
    assert set(before) - set(after) == {"step.7.et"}
    assert (path / "step.3.et").read_bytes() == (run / "step.4.et").read_bytes()


def test_a_damaged_copy_is_fetched_again(memory: Any, run: Path) -> None:
    path = remote.fetch("memory://store/run/step.3.et")
    path.write_bytes(b"")
    assert remote.fetch("memory://store/run/step.3.et").read_bytes() == (run / "step.3.et").read_bytes()


def test_commands_read_addresses_and_write_none(memory: Any, run: Path, tmp_path: Path, capsys) -> None:
    assert main(["diff", "memory://store/run", str(run)]) == 0
    assert main(["info", "memory://store/run/step", "--json"]) == 0
    assert main(["convert", "memory://store/run", str(tmp_path / "out"), "--to", "parquet"]) == 0
    capsys.readouterr()
    for args in (
        ["convert", "memory://store/run", "memory://store/out"],
        ["convert", str(run), "-o", "memory://store/out"],
        ["convert", str(run), "--out=memory://store/out"],
        ["collect", "-o", "memory://store/out", "--", "python", "-c", "''"],
        ["simulate", str(run), "--system", "dgx-h100", "--timing", "memory://store/times.csv"],
    ):
        assert main(args) == 2
        assert "output can only be written to this machine" in capsys.readouterr().err


def test_arguments_of_a_program_that_is_recorded_are_left_alone() -> None:
    from etude.surface.cli.app import _loaded
    from etude.surface.cli.arguments import rewritten

    args = ["--steps", "3", "--", "python", "train.py", "--data", "memory://store/none"]
    assert rewritten("collect", _loaded("collect"), args) == args


def test_what_is_not_there_is_said(memory: Any, capsys) -> None:
    for address in ("memory://store/none", "memory://nowhere/run", "memory://store/run/step.9.et"):
        assert main(["info", address]) == 2
        assert "no such file, folder or bucket" in capsys.readouterr().err


def test_names_that_lead_out_of_the_copy_are_refused() -> None:
    with pytest.raises(UsageError, match="`run/../../x`"):
        remote._entry("s3://b/run/../../x", "run/../../x", {"size": 1})


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    assert main(["info", "gs://bucket/run"]) == 2
    said = capsys.readouterr().err
    assert "no driver for `gs://` is installed" in said and "pip install gcsfs" in said
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    assert main(["info", "s3://bucket/run"]) == 2
    assert "pip install 'etude[remote]' s3fs" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ETUDE_CACHE", str(tmp_path / "file" / "below"))
    assert "file" not in remote.cache_folder().parts


# -- http: a page of links ---------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if "secret" in self.path:
            self.send_error(403)
        else:
            super().do_GET()

    do_HEAD = do_GET  # noqa: N815 - the name that the library calls


@pytest.fixture
def web(run: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(run.parent)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_web_server(web: str, run: Path, capsys) -> None:
    whole = etude.open(run)
    for place in ("run/", "run", "run/step"):
        assert etude.diff(etude.open(f"{web}/{place}"), whole) is None
    assert len(etude.open(f"{web}/run/step.3.et").ranks) == 1
    assert main(["info", f"{web}/run/step.11.et"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["info", f"{web}/secret/x.et"]) == 2
    assert "permission denied" in capsys.readouterr().err
    assert main(["info", "http://127.0.0.1:9/x.et"]) == 2
    assert "cannot be read" in capsys.readouterr().err


# -- s3 ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    s3fs = pytest.importorskip("s3fs")
    server_of = pytest.importorskip("moto.server")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_CONFIG_FILE": os.devnull,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir("traces")
    files.put(str(run), "traces/run", recursive=True)
    yield s3fs.S3FileSystem
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_s3(s3: Any, run: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert etude.diff(etude.open("s3://traces/run/"), etude.open(run)) is None
    assert main(["diff", "s3://traces/run/step", str(run)]) == 0
    capsys.readouterr()
    assert main(["info", "s3://nobody/run"]) == 2
    assert "bucket" in capsys.readouterr().err
    assert main(["info", "s3://traces/other"]) == 2
    assert "there is no `other`" in capsys.readouterr().err
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3.clear_instance_cache()
    assert main(["info", "s3://traces/run/"]) == 2
    said = capsys.readouterr().err
    assert "permission denied" in said and "AWS_PROFILE" in said


# -- gs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gs(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # It asks Google for the kind of a bucket otherwise, and waits for an answer without end; read when it is imported.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    gcsfs = pytest.importorskip("gcsfs", reason="pip install gcsfs gcp-storage-emulator")
    server_of = pytest.importorskip("gcp_storage_emulator.server", reason="pip install gcsfs gcp-storage-emulator")
    server = server_of.create_server("127.0.0.1", 0, in_memory=True)
    server.start()
    port = server._api._httpd.server_port  # port 0 is any that is free, and nothing else says which
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GCLOUD_", "FSSPEC_G"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("FSSPEC_GS_TOKEN", "anon")
    gcsfs.GCSFileSystem.clear_instance_cache()
    files = gcsfs.GCSFileSystem(token="anon", project="none")
    files.mkdir("traces")
    files.put(str(run), "traces/run", recursive=True)
    yield gcsfs.GCSFileSystem
    gcsfs.GCSFileSystem.clear_instance_cache()
    server.stop()


def test_gs(gs: Any, run: Path, capsys) -> None:
    assert etude.diff(etude.open("gs://traces/run/"), etude.open(run)) is None
    assert main(["diff", "gs://traces/run/step", str(run)]) == 0
    assert len(etude.open("gs://traces/run/step.3.et").ranks) == 1
    capsys.readouterr()
    assert main(["info", "gs://nobody/run"]) == 2
    assert "bucket" in capsys.readouterr().err
    assert main(["info", "gs://traces/other"]) == 2
    assert "there is no `other`" in capsys.readouterr().err
    assert main(["convert", str(run), "gs://traces/out"]) == 2
    assert "output can only be written to this machine" in capsys.readouterr().err
