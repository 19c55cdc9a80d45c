from __future__ import annotations

import ast
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))
START_PATIENCE_S = 90.0
RUN_PATIENCE_S = 120.0
STOP_PATIENCE_S = 10.0


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def echo_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "echo_server.py"), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_PATIENCE_S
    with httpx.Client(base_url=url, trust_env=False) as client:
        while time.monotonic() < deadline:
            assert process.poll() is None, "the server ended before it was ready"
            try:
                if client.get("/health").is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
    raise TimeoutError(f"{url} was not ready within {START_PATIENCE_S} s")


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """Two servers of the example, each a process of its own."""
    with ExitStack() as stack:
        servers = {
            f"http://127.0.0.1:{port}": stack.enter_context(echo_server(port)) for port in (free_port(), free_port())
        }
        for url, process in servers.items():
            wait_until_healthy(url, process)
        yield list(servers)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of two layers, with its tokenizer."""
    from multienv.tiny.model import build_model, build_tokenizer

    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["Echo 'hello' to win.", "Echo 'world' to win."])
    tokenizer.save_pretrained(path)
    build_model(tokenizer, seed=0, hidden_size=32).save_pretrained(path)
    return path


def run(name: str, *arguments: str | Path, folder: Path) -> str:
    """Run an example to its end, in a folder where it may leave files, and return what it printed."""
    child = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=RUN_PATIENCE_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert f"python examples/{path.name}" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_can_be_imported_without_running(path: Path) -> None:
    assert callable(load(path.stem).main)


def test_the_quickstart_trains_on_two_servers(urls: list[str], model_dir: Path, tmp_path: Path) -> None:
    printed = run("quickstart", *urls, "--model", model_dir, "--max-steps", "1", folder=tmp_path)
    assert "num_rows: 4" in printed


def test_the_custom_rewards_train_on_two_servers(urls: list[str], model_dir: Path, tmp_path: Path) -> None:
    graded, strict = urls
    options: list[str | Path] = ["--graded", graded, "--strict", strict, "--model", model_dir, "--max-steps", "1"]
    assert "reward functions: graded/closeness, doubled" in run("custom_reward", *options, folder=tmp_path)


def test_the_custom_rewards_are_what_they_say(urls: list[str]) -> None:
    with load("custom_reward").mixture(*urls) as spec:
        row = {"graded": spec.train_dataset[0], "strict": spec.train_dataset[2]}
        names = ["graded", "strict", "graded", "strict"]
        adapters = [spec.environment_factory[name]() for name in names]
        for name, adapter in zip(names, adapters, strict=True):
            adapter.reset(**row[name])
        adapters[0].echo(text="hell")
        adapters[1].echo(text="hello")
        batch: dict[str, Any] = {
            "environments": adapters,
            "environment": names,
            "target": [row[name]["target"] for name in names],
        }
        rewards = {function.__name__: function(**batch) for function in spec.reward_funcs}
    assert rewards == {
        "graded/closeness": [pytest.approx(8 / 9), None, 0.0, None],
        "doubled": [0.0, 2.0, 0.0, 0.0],
    }


def test_the_catalogue_mixture_is_declared_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("three_catalogues")

    def refuse(*_: object) -> None:
        raise AssertionError("a declaration touched the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with module.mixture() as spec:
        assert {name: declared.target for name, declared in spec.environments.items()} == {
            "seta": "Eigent/SETA",
            "terminals": "kanishk/EndlessTerminals",
            "swe": "nebius/SWE-rebench-V2",
        }
        assert [function.__name__ for function in spec.reward_funcs] == ["seta", "terminals", "swe"]
