"""The git commit of the working directory, read from files, because pods seldom have git."""

from pathlib import Path


def agent_commit_of(directory: Path) -> str:
    """Return the commit of the repository that contains `directory`; empty if there is no commit or git's files do
    not show it."""
    try:
        place = next((found for each in (directory, *directory.parents) if (found := each / ".git").exists()), None)
        return _git_commit(place) if place else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _git_commit(git: Path) -> str:
    if git.is_file():  # a linked worktree or a submodule: `gitdir: <path>`
        git = git.parent / git.read_text().partition(":")[2].strip()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    name, shared = head.removeprefix("ref: "), git / "commondir"
    common = git / shared.read_text().strip() if shared.exists() else git
    for place in (git / name, common / name):
        if place.exists():
            return place.read_text().strip()
    packed = (common / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")
