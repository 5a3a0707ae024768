"""Run inside an image, as its root: prints what lies in its file system as JSON."""

import importlib.util
import json
import os
import shutil
import stat
import sys

SKIPPED = ("/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/run")
# What makes machine code, and what lets others in.
UNWANTED = (
    *("gcc", "cc", "c++", "g++", "clang", "as", "ld", "cpp", "make"),
    *("pip", "pip3", "sshd", "dropbear", "curl", "wget"),
)


def walk():
    for folder, folders, files in os.walk("/"):
        folders[:] = [f for f in folders if os.path.join(folder, f) not in SKIPPED]
        yield from (os.path.join(folder, name) for name in (*folders, *files))


def is_stale(source):
    """Whether Python would compile `source` again at every start."""
    cached = importlib.util.cache_from_source(source)
    if not os.path.exists(cached):
        return is_python(source)
    with open(cached, "rb") as file:
        head = file.read(16)
    if int.from_bytes(head[4:8], "little") == 1:  # by a hash that is never checked
        return False
    told_s, told_bytes = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
    found = os.stat(source)
    # A second apart is the same: pip rounds a file's time as a float, a layer cuts it off.
    return abs(told_s - int(found.st_mtime)) > 1 or told_bytes != found.st_size


def is_python(source):
    """Some packages have files that a later Python understands."""
    with open(source, "rb") as file:
        try:
            compile(file.read(), source, "exec")
        except SyntaxError:
            return False
    return True


def main():
    seen = {"worldWritable": [], "givesRightsAway": [], "caches": [], "uncompiled": [], "owned": [], "files": 0}
    for path in walk():
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            continue
        seen["files"] += stat.S_ISREG(found.st_mode)
        if found.st_mode & stat.S_IWOTH:
            seen["worldWritable"].append(path)
        if stat.S_ISREG(found.st_mode) and found.st_mode & (stat.S_ISUID | stat.S_ISGID):
            seen["givesRightsAway"].append(path)
        if found.st_uid:
            seen["owned"].append(path)
        if os.path.basename(path) in (".cache", "pip") and "/site-packages/" not in path:
            seen["caches"].append(path)
        if path.startswith(("/opt/", "/python/")) and path.endswith(".py") and "/tests/" not in path and is_stale(path):
            seen["uncompiled"].append(path)
    lists = "/var/lib/apt/lists"
    seen["lists"] = os.listdir(lists) if os.path.exists(lists) else []
    seen["unwanted"] = [name for name in UNWANTED if shutil.which(name)] + [
        path for path in ("/usr/sbin/sshd", "/usr/lib/gcc") if os.path.exists(path)
    ]
    json.dump(seen, sys.stdout)


main()
