"""Folders that a script may write: the scratch folder in place of the temporary one, and caches, which are no files of the user."""

from __future__ import annotations

import getpass
import glob
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddpbench.machine.variables import EnvVar
from ddpbench.script.protect.overlay import MEMORY_FOLDER
from ddpbench.script.protect.scratch import is_own_folder

CACHES = {
    "XDG_CACHE_HOME": "~/.cache",
    "CUDA_CACHE_PATH": "~/.nv/ComputeCache",
    **dict.fromkeys(("TRITON_CACHE_DIR", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME"), ""),
    **dict.fromkeys(("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR"), ""),
}
"""Environment variables that name a cache, and the cache if they are not set; "" if that needs no folder of its own."""

MAX_SOCKET_BYTES = 107
"""Of the path of a Unix socket (``man 7 unix``)."""

SOCKET_NAME = "/pymp-xxxxxxxx/listener-xxxxxxxx"
"""What multiprocessing calls a socket in the temporary folder. Workers of a DataLoader hand over tensors through one."""

PARTS = {"HF_HOME": ("hub", "datasets", "modules", "xet", "assets"), "TORCH_HOME": ("hub",)}
"""The caches in such a folder: it may be the volume on which everything else is, too."""


def prepare_folders(scratch: str) -> list[str]:
    """Set up the environment of the script, and return the folders, without symlinks, that it may write. ``scratch`` is one of them.

    A cache that does not exist yet is one in the scratch folder: what is compiled is loaded by code that is not redirected.
    """
    os.environ.setdefault(EnvVar.TORCHINDUCTOR_CACHE_DIR, f"{tempfile.gettempdir()}/torchinductor_{_user_name()}")  # torch's default
    triton = os.path.expanduser(os.environ.get(EnvVar.TRITON_HOME, "~")) + "/.triton"
    if not os.path.isdir(triton):
        os.environ[EnvVar.TRITON_HOME] = f"{scratch}/caches"
    folders = [scratch, triton, *_folders_of_the_system()]
    for variable, default in CACHES.items():
        if folder := os.path.expanduser(os.environ.get(variable, default)):
            if not os.path.isdir(folder):
                folder = os.environ[variable] = f"{scratch}/caches/{variable.lower()}"
                os.makedirs(folder, exist_ok=True)
            for cache in [f"{folder}/{part}" for part in PARTS[variable]] if variable in PARTS else [folder]:
                folders += [cache, *_linked_folders(cache)]
    _use_temp(f"{scratch}/tmp")
    if len(os.fsencode(f"{tempfile.tempdir}{SOCKET_NAME}")) > MAX_SOCKET_BYTES:
        folders += _use_short_socket_names()
    sys.dont_write_bytecode = True
    os.environ[EnvVar.PYTHONDONTWRITEBYTECODE] = "1"
    os.environ[EnvVar.GIT_OPTIONAL_LOCKS] = "0"  # git status would renew the index
    return sorted({real for folder in folders if os.path.isdir(folder) and not _contains_work(real := os.path.realpath(folder))})


def _folders_of_the_system() -> Iterator[str]:
    """The folder of the file in which torchrun expects the error of a rank, and that of the pipes of CUDA's Multi-Process Service."""
    error_folder = os.path.dirname(os.environ.get(EnvVar.TORCHELASTIC_ERROR_FILE, ""))
    if os.path.basename(error_folder).isdecimal():  # a rank: not a folder of the user, who may have set the variable
        yield error_folder
    yield os.environ.get(EnvVar.CUDA_MPS_PIPE_DIRECTORY, "/tmp/nvidia-mps")


def _contains_work(folder: str) -> bool:
    """Whether a folder has more in it than a cache: the variable may name the volume on which everything is."""
    return any(f"{os.path.realpath(work)}/".startswith(f"{folder}/") for work in (os.getcwd(), os.path.expanduser("~")))


def _linked_folders(cache: str) -> list[str]:
    """Parts of a cache that are on another disk, such as ``~/.cache/huggingface/hub``."""
    return [path for pattern in ("*", "*/*") for path in glob.glob(f"{glob.escape(cache)}/{pattern}") if os.path.islink(path)]


def _user_name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container, in which the user has no name
        user = f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", user)


def _use_short_socket_names() -> list[str]:
    """Have multiprocessing make its sockets in a folder of a short path, and return that: Python falls back on one itself from 3.14 on.

    All diagnoses of a user share it, since a protected process could not remove one of its own.
    """
    folder = f"{MEMORY_FOLDER}ddpbench-sockets-{os.getuid()}"
    with suppress(OSError):
        os.mkdir(folder, 0o700)
    if not is_own_folder(Path(folder)):
        return []
    multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined] # children inherit it
    return [folder]


def _use_temp(temp: str) -> None:
    """Make ``temp`` the temporary folder. What was staged in a TMPDIR of the user's is found there, too."""
    os.makedirs(temp, exist_ok=True)
    before = os.environ.get(EnvVar.TMPDIR)
    if before and os.path.isdir(before):
        for name in os.listdir(before):
            with suppress(FileExistsError):  # another rank
                os.symlink(os.path.join(os.path.abspath(before), name), f"{temp}/{name}")
    os.environ[EnvVar.TMPDIR] = tempfile.tempdir = temp
