"""Number of files that a launcher may open, compared with what its job needs."""

import resource

from ringtrain.errors import ConfigurationError, counted
from ringtrain_job.launcher.config import LauncherConfig

# Minimum number of rank logs that are open at the same time.
_FEWEST_LOGS = 16


def allowed_open_files(count: int) -> int:
    """Return the limit on open files that `allow_open_files` would set; `count` if there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return count if resource.RLIM_INFINITY in (soft, hard) else max(soft, min(count, hard))


def allow_open_files(count: int) -> int:
    """Raise this process's limit on open files to `count` if possible; return the limit."""
    allowed = allowed_open_files(count)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def open_log_limit(config: LauncherConfig, allowed: int) -> int:
    """Return how many rank logs may be open at once. `allowed`: limit on open files.

    Raises ConfigurationError if the workers' connections alone exceed the limit.
    """
    left = allowed - config.connections
    if left < _FEWEST_LOGS:
        needed = config.connections + _FEWEST_LOGS
        if config.ports_held:
            raise ConfigurationError(
                f"a process may open {allowed} files on this machine (ulimit -n), but this run needs {needed}; raise "
                f"the limit: ulimit -n {needed}, and if the shell refuses that, nofile in /etc/security/limits.conf"
            )
        raise ConfigurationError(
            f"this launcher may open {allowed} files (ulimit -n), but needs {needed} for "
            f"{counted(config.workers, 'worker')}; raise the hard limit of containers on its node (LimitNOFILE of the "
            "container runtime), or request fewer workers with more slots each"
        )
    return min(left, config.world_size)
