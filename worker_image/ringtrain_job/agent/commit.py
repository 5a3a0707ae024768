"""Git commit of the ranks' working directory, read from git's files because most images lack git."""

from pathlib import Path


def agent_commit_of(directory: Path) -> str:
    """Return the git commit of the repository that contains `directory`; empty if it cannot be found."""
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
