"""Exception that ends a call of the training function when the world is about to change."""


class HostsUpdatedInterrupt(RuntimeError):
    """The world is about to change. The state is committed, so nothing is lost; `elastic.run` handles this exception.

    Raised by `State.commit` and `State.check_host_updates`, on all ranks at the same step, if workers join or leave.
    `skip_sync`: Horovod's flag, here always False: every member of a new world takes part in its first exchange.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the world is about to change; elastic.run continues in the next one")
        self.skip_sync = skip_sync
