"""The studio answers this machine alone, with its token, and no page of anybody else."""

import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from etude.surface.cli import main
from etude.tell.studio import StudioServer, StudioSession
from later import later
from studio_stage import PORT, TOKEN, client, job_folder, session_of

later("starlette")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return client(session_of(job_folder(tmp_path_factory.mktemp("studio"))))


def test_the_page_and_its_files_are_there(web: Any) -> None:
    page = web.get(f"/{TOKEN}/")
    assert page.status_code == 200 and "<script" in page.text
    for name in ("main.js", "timeline.js", "studio.css", "page.css", "icon.svg"):
        assert web.get(f"/{TOKEN}/{name}").status_code == 200


def test_nothing_from_elsewhere_and_no_inline_code_is_allowed(web: Any) -> None:
    policy = web.get(f"/{TOKEN}/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/api/about", f"/{TOKEN[:-1]}/", "/main.js", "//"])
def test_a_wrong_token_is_refused(web: Any, path: str) -> None:
    answer = web.post(path, json={}) if "api" in path else web.get(path)
    assert answer.status_code == 403 and TOKEN not in answer.text


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:80", "127.0.0.1", ""])
def test_a_name_that_was_bound_to_this_machine_is_refused(web: Any, host: str) -> None:
    assert web.get(f"/{TOKEN}/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1"])
def test_another_page_is_refused(web: Any, origin: str) -> None:
    assert web.post(f"/{TOKEN}/api/about", json={}, headers={"origin": origin}).status_code == 403


def test_the_own_page_is_answered(web: Any) -> None:
    own = {"origin": f"http://127.0.0.1:{PORT}"}
    assert web.post(f"/{TOKEN}/api/about", json={}, headers=own).status_code == 200
    assert web.get(f"/{TOKEN}/", headers={"host": f"localhost:{PORT}"}).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "../server.py",
        "..%2fserver.py",
        "%2e%2e/server.py",
        "....//server.py",
        "server.py",
        "/etc/passwd",
        "main.js%00.html",
    ],
)
def test_no_other_file_is_given(web: Any, name: str) -> None:
    answer = web.get(f"/{TOKEN}/{name}")
    assert answer.status_code in (403, 404) and b"import" not in answer.content and b"root:" not in answer.content


def test_what_is_wrong_is_said_without_a_trace(web: Any) -> None:
    for body in (b"[]", b"no", b'{"run": 7}', b'{"run": []}', b'{"run": "x"}'):
        answer = web.post(f"/{TOKEN}/api/rows", content=body)
        assert answer.status_code == 400 and "Traceback" not in answer.text and answer.json()["problem"]
    assert web.post(f"/{TOKEN}/api/nothing", json={}).status_code == 404
    assert web.post(f"/{TOKEN}/api/rows", content=b" " * (1 << 21)).status_code == 413
    assert web.get(f"/{TOKEN}/api/about").status_code == 405


def test_a_real_server_listens_on_this_machine_alone(tmp_path: Path) -> None:
    server = StudioServer(StudioSession(()), 0)
    server.start()
    try:
        with urllib.request.urlopen(server.address, timeout=20) as answer:
            assert b"Etude studio" in answer.read()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{server.access.port}/", timeout=20)
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", server.access.port))
        assert main(["studio", str(tmp_path), "--port", str(server.access.port), "--no-browser"]) == 2
    finally:
        server.stop()


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["studio", str(tmp_path)]) == 2
    assert "pip install 'etude[studio]'" in capsys.readouterr().err
