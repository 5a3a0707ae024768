"""Exceptions that end a pass through the training function when the world is to change."""


class HostsUpdatedInterrupt(RuntimeError):
    """Raised by `State.commit` and `State.check_host_updates`, on all ranks at the same step, when workers are to
    join or to leave; `elastic.run` handles it. Nothing is lost: the state is committed.

    `skip_sync`: as in Horovod, and always False: every member of a new world takes part in its first exchange.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the world is to change; elastic.run goes on in the next one")
        self.skip_sync = skip_sync
