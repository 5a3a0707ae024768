"""A `python` for scripts that begin with the import of a framework: each is forked from a process that has done it.

    with warm_python("tensorflow") as python:
        subprocess.run([python, "train.py"])  # or "-m", "module", or "-c", "program"

`shared_python("torch")` starts it once for all tests of a process that need no variables at the import.

This `python` is a small program. It hands its words, variables, directory and descriptors to the server,
passes signals on to the script's process, and ends as that does. The script's process ends with it, also by SIGKILL,
and runs in its network and under its host name (`support.namespaces`).
"""

import atexit
import ctypes
import functools
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from frameworks.harness import ENV, HERE, inherited_path
from frameworks.warm import import_once

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


@contextmanager
def warm_python(framework: str, **variables: str) -> Iterator[str]:
    """A `python` each of whose processes has imported `framework` with these `variables`."""
    with tempfile.TemporaryDirectory(prefix="rt-") as folder:
        python, path = Path(folder, "python"), f"{folder}/socket"
        python.write_text(_CLIENT.format(python=sys.executable, path=path))
        python.chmod(0o755)
        env = {**os.environ, **ENV, **variables, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *inherited_path()])}
        words = [sys.executable, "-m", "frameworks.warm_python", framework, path]
        with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == b"ready\n"
                yield str(python)
            finally:
                server.kill()


_shared = ExitStack()
atexit.register(_shared.close)


@functools.cache
def shared_python(framework: str) -> str:
    """Return a `python` whose processes have imported `framework`. It runs until this process ends."""
    return _shared.enter_context(warm_python(framework))


def _enter_host_of(client: socket.socket) -> None:
    """Enter the namespaces of network and host name of the process at the other end of `client`."""
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    for kind in ("net", "uts"):
        theirs, ours = (f"/proc/{whose}/ns/{kind}" for whose in (pid, "self"))
        if os.readlink(theirs) != os.readlink(ours):
            with open(theirs) as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                    raise OSError(ctypes.get_errno(), "setns", theirs)


def _serve(path: str) -> tuple[list[int], list[str], str, dict[str, str], list[int]]:
    """Fork a process for each client. Returns in each of these: the descriptors, words, directory and variables of the
    client, and its numbers of the descriptors."""
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as ready:
        listener.bind(path)
        listener.listen()
        ready.register(listener, selectors.EVENT_READ)
        ready.register(0, selectors.EVENT_READ)  # ends with the process that runs the tests
        print("ready", flush=True)
        while True:
            for key, _ in ready.select():
                if key.fd == 0:
                    os._exit(1)
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    _, passed, _, _ = socket.recv_fds(client, 1, 64)
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


def main(framework: str, path: str) -> None:
    import_once(framework)
    passed, sys.argv, directory, variables, numbers = _serve(path)
    # High numbers first, so that none of these descriptors takes another's number.
    high = [os.dup2(one, 1000 + index) for index, one in enumerate(passed)]
    os.closerange(3, 1000)
    for one, number in zip(high, numbers, strict=True):
        os.dup2(one, number)
        os.close(one)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
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
