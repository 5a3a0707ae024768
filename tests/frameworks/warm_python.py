"""A `python` for scripts that begin with the import of a framework: each is forked from a process that has done it.

    subprocess.run([shared_python("tensorflow"), "train.py"])  # or "-m", "module", or "-c", "program"

All processes of a test run share one such process for a framework. It ends when none of them holds a lease.

This `python` is a small program. It hands its words, variables, directory and descriptors to the server,
passes signals on to the script's process, and ends as that does. The script's process ends with it, also by SIGKILL,
and runs in its network and under its host name (`support.namespaces`).
"""

import atexit
import ctypes
import fcntl
import functools
import hashlib
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from frameworks.warm import import_once

TESTS = Path(__file__).parents[1]
ENV = {
    "RINGTRAIN_TIMEOUT": "90",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "KERAS_BACKEND": "tensorflow",
    "JAX_PLATFORMS": "cpu",
    # What one rank has compiled, all ranks and worlds use.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "CUDA_VISIBLE_DEVICES": "",
}
_SCRIPT, _LEASE = b".", b"l"
_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
descriptors = [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{{fd}}")]
descriptors.remove(server.fileno())
socket.send_fds(server, [b"."], descriptors)
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ), descriptors]).encode() + b"\\n")
answers = server.makefile()
pid = int(answers.readline())
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(answers.readline() or -signal.SIGKILL)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


_leases: dict[Path, socket.socket] = {}


def shared_python(framework: str, **variables: str) -> str:
    """Return a `python` whose processes have imported `framework` with these `variables`.

    It is valid until `end_leases`.
    """
    key = hashlib.sha256(json.dumps([framework, variables], sort_keys=True).encode()).hexdigest()[:8]
    folder = _folder_of_run() / f"{framework}-{key}"
    if folder not in _leases:
        with _locked(folder.parent):
            _leases[folder] = _lease_at(folder) or _started(folder, framework, variables)
    return str(folder / "python")


def inherited_path() -> list[str]:
    """Return the folders in PYTHONPATH, so that processes of tests import the same packages as the tests."""
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def end_leases() -> None:
    """Let servers end that no other process of the run uses: each holds a framework in memory, and ports."""
    while _leases:
        _, lease = _leases.popitem()
        with lease:
            lease.shutdown(socket.SHUT_WR)
            lease.recv(1)  # b"": the server has counted the end of this lease, and has ended if it was the last one
    if _folder_of_run().exists():
        with _locked(_folder_of_run()), suppress(OSError):  # not empty if other processes have leases
            _folder_of_run().rmdir()


atexit.register(end_leases)


@functools.cache
def _folder_of_run() -> Path:
    """Return the folder that all processes of this run of pytest know."""
    return Path(tempfile.gettempdir(), f"rt-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on `folder`, which is created if necessary. Another process may have removed it meanwhile."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(folder), os.fstat(descriptor)):
                    break
            os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def _lease_at(folder: Path) -> socket.socket | None:
    """Return a lease of the server of `folder`; None if there is none, or it ends."""
    lease = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        lease.connect(f"{folder}/socket")
        lease.sendall(_LEASE)
        if lease.recv(1):
            return lease
    lease.close()
    return None


def _started(folder: Path, framework: str, variables: dict[str, str]) -> socket.socket:
    """Start the server of `folder` and return the first lease."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("tmp", "compiled"):
        (folder / name).mkdir(parents=True)
    python = folder / "python"
    python.write_text(_CLIENT.format(python=sys.executable, path=f"{folder}/socket"))
    python.chmod(0o755)
    folders = {"TMPDIR": f"{folder}/tmp", "JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled"}
    path = os.pathsep.join([str(TESTS), *inherited_path()])
    env = {**os.environ, **ENV, **variables, **folders, "PYTHONPATH": path}
    words = [sys.executable, "-m", "frameworks.warm_python", framework, str(folder)]
    server = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    with server.stdin, server.stdout:  # it ends if this process ends before it has a lease
        assert server.stdout.readline() == b"ready\n"
        lease = _lease_at(folder)
    assert lease is not None
    server.returncode = 0  # it ends with the last lease
    return lease


def _enter_host_of(client: socket.socket) -> None:
    """Enter the namespaces of network and host name of the process at the other end of `client`."""
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    for kind in ("net", "uts"):
        theirs, ours = (f"/proc/{whose}/ns/{kind}" for whose in (pid, "self"))
        if os.readlink(theirs) != os.readlink(ours):
            with open(theirs) as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                    raise OSError(ctypes.get_errno(), "setns", theirs)


def _serve(folder: Path) -> tuple[list[int], list[str], str, dict[str, str], list[int]]:
    """Fork a process for each script. Returns in each of these: the descriptors, words, directory and variables of the
    client, and its numbers of the descriptors."""
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as ready:
        listener.bind(f"{folder}/socket")
        listener.listen(64)
        ready.register(listener, selectors.EVENT_READ)
        ready.register(0, selectors.EVENT_READ, _LEASE)
        leases = 1  # of the process that starts this one: its input
        print("ready", flush=True)
        while True:
            for key, _ in ready.select():
                if key.data is _LEASE:
                    ready.unregister(key.fileobj)
                    leases -= 1
                    if not leases:
                        shutil.rmtree(folder, ignore_errors=True)
                        os._exit(0)
                    if key.fd:
                        key.fileobj.close()
                    continue
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    kind, passed, _, _ = socket.recv_fds(client, 1, 64)
                    if kind == _LEASE:
                        leases += 1
                        ready.register(client, selectors.EVENT_READ, _LEASE)
                        client.sendall(b"l")
                        continue
                    words, directory, variables, numbers = json.loads(client.makefile().readline())
                    if not (pid := os.fork()):
                        _enter_host_of(client)
                        return passed, words, directory, variables, numbers
                    for one in passed:
                        os.close(one)
                    client.sendall(b"%d\n" % pid)
                    ended = os.pidfd_open(pid)
                    ready.register(client, selectors.EVENT_READ, (client, pid, ended))
                    ready.register(ended, selectors.EVENT_READ, (client, pid, ended))
                    continue
                client, pid, ended = key.data
                if key.fileobj is client:
                    ready.unregister(client)
                    os.kill(pid, signal.SIGKILL)
                    continue
                ready.unregister(ended)
                os.close(ended)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if client in ready.get_map():
                    ready.unregister(client)
                    client.sendall(b"%d\n" % code)
                client.close()


def main(framework: str, folder: str) -> None:
    importlib.import_module("support.warm_ranks")
    import_once(framework)
    passed, sys.argv, directory, variables, numbers = _serve(Path(folder))
    # High numbers first, so that none of these descriptors takes another's number.
    high = [os.dup2(one, 1000 + index) for index, one in enumerate(passed)]
    os.closerange(3, 1000)
    for one, number in zip(high, numbers, strict=True):
        os.dup2(one, number)
        os.close(one)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # that of its own TMPDIR
    paths = [path for path in variables.get("PYTHONPATH", "").split(":") if path]
    if sys.argv[0] == "-c":
        sys.path[:0] = ["", *paths]
        program = sys.argv.pop(1)
        exec(compile(program, "<string>", "exec"), sys.modules["__main__"].__dict__ | {"__name__": "__main__"})
    elif sys.argv[0] == "-m":
        sys.path[:0] = [directory, *paths]
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [str(Path(sys.argv[0]).resolve().parent), *paths]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
