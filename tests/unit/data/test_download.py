"""``--download``: one download for all ranks, and clear errors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
import sample_datasets
from open_loaders import memory_config
from torchvision import datasets

from ddpbench.data.datasets import files
from ddpbench.data.datasets.download import download_dataset
from ddpbench.data.preflight import check_loader
from ddpbench.record.errors import UsageError


class Mirror(SimpleHTTPRequestHandler):
    """A local HTTP server for a folder that records requested paths."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Redirect torchvision's MNIST download to a local server; yields the requested paths."""
    raw = sample_datasets.mnist(tmp_path / "served") / "MNIST" / "raw"
    Mirror.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Mirror, directory=str(raw))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        monkeypatch.setattr(datasets.MNIST, "resources", [(f.name, hashlib.md5(f.read_bytes()).hexdigest()) for f in sorted(raw.iterdir())])
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield Mirror.asked
        server.shutdown()
        thread.join()


def test_concurrent_ranks_download_once(mirror: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    download_dataset("mnist", str(tmp_path / "alone"))
    once = len(mirror)
    target = tmp_path / "new" / "folder"
    settled = memory_config("tensor", "mnist", target, download=True, batch_size=25)
    with ThreadPoolExecutor(4) as ranks:
        list(ranks.map(lambda _: check_loader(settled, "mnist", 10, 2), range(4)))
    assert len(mirror) == 2 * once >= 8, "four ranks request as much as one"
    assert [path.name for path in target.iterdir()] == ["MNIST"], "no temporary files are left"
    assert capsys.readouterr().out == ""
    check_loader(settled, "mnist", 10, 2)
    assert len(mirror) == 2 * once, "existing files are not downloaded again"


def test_incomplete_dataset_is_completed(mirror: list[str], tmp_path: Path) -> None:
    target = tmp_path / "half"
    raw = sample_datasets.mnist(target) / "MNIST" / "raw"
    for file in raw.glob("t10k-*"):
        file.unlink()
    (raw / "notes.txt").write_text("mine")
    assert files.load_held_out("mnist", str(target)) is None
    download_dataset("mnist", str(target))
    assert files.load_held_out("mnist", str(target)) is not None
    assert (raw / "notes.txt").read_text() == "mine", "other files are kept"
    assert [path.name for path in target.iterdir()] == ["MNIST"], "no temporary files are left"


@pytest.mark.parametrize(("dataset", "title"), [("cifar10", "CIFAR-10"), ("mnist", "MNIST")])
def test_missing_network_is_reported_in_one_line(dataset: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # a port without a listener
    with pytest.raises(UsageError, match=f"cannot download {title}: ") as refused:
        download_dataset(dataset, str(tmp_path / "sets"))
    assert "\n" not in refused.value.message
    assert "generated dataset" in refused.value.hint
    assert not any(path.name.startswith(".ddpbench") for path in (tmp_path / "sets").iterdir())


def test_existing_dataset_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    download_dataset("cifar10", str(sample_datasets.cifar10(tmp_path)))


def test_unsupported_download_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="supports CIFAR-10 and MNIST, not imagenet"):
        download_dataset("imagenet", str(tmp_path))
    with pytest.raises(UsageError, match="needs a target folder"):
        download_dataset("mnist", None)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        download_dataset("mnist", str(tmp_path / "file"))
